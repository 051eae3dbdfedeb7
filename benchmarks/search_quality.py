"""Compares what schedulers and samplers find, without training, on a surrogate of real trainings: four workers in virtual time.

The surrogate answers what a configuration has reached after each of 52 epochs, and when (LCBench; see the data's
README). All sides have equal worker time on each task and seed. Regret is by how much the best value of a side falls
short of the best that any side saw there, in points of accuracy. The paired test is of the mean difference over tasks,
each the mean of its seeds.
"""

import heapq
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import optuna
from measuring import arguments, finish, target
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from argosy.tuning import make_scheduler
from argosy.tuning.sampling import Outcome, Sampling
from argosy.tuning.scheduler import Scheduler
from argosy.tuning.thompson import ThompsonSampler
from argosy.tuning.waves import groups, waves

EPOCHS, WORKERS, ETA = 52, 4, 3
DEFAULT = "hyperband"
HELD_OUT = {2, 14, 18, 22, 29}
SPACE: dict[str, BaseDistribution] = {
    "batch_size": IntDistribution(16, 512, log=True),
    "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
    "momentum": FloatDistribution(0.1, 0.99),
    "weight_decay": FloatDistribution(1e-5, 1e-1),
    "num_layers": IntDistribution(1, 5),
    "max_units": IntDistribution(64, 1024, log=True),
    "max_dropout": FloatDistribution(0.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One training: the seconds since its start and the best accuracy so far, after each epoch."""

    seconds: list[float]
    best: list[float]


class Surrogate:
    """One task."""

    def __init__(self, session: onnxruntime.InferenceSession, task: int) -> None:
        self.session, self.task = session, task

    def train(self, parameters: dict[str, Any]) -> Curve:
        """Return what a configuration does."""
        rows = np.empty((EPOCHS, 1 + len(SPACE)), np.float32)
        rows[:, 0] = np.arange(1, EPOCHS + 1)
        rows[:, 1:] = [parameters[name] for name in SPACE]
        there = {"x_cat": np.full((EPOCHS, 1), self.task, np.int32), "x_cont": rows}
        out = np.asarray(self.session.run(None, there)[0])
        seconds, best = np.maximum.accumulate(out[:, 0]), np.maximum.accumulate(out[:, 1])
        return Curve(seconds.tolist(), best.tolist())


@dataclass(slots=True)
class Workers:
    """Four workers until their time is over, and the best value that they have seen."""

    limit: float
    best: float = 0.0
    free: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, number) for number in range(WORKERS)])

    def turns(self) -> Iterator[float]:
        """Yield the times when a worker is free; a caller with nothing to do then takes `wait`."""
        while self.free and self.free[0][0] < self.limit:
            yield self.free[0][0]

    def work(self, curve: Curve, begun: int, until: int) -> float:
        """Let the free worker train to this epoch; return when it is done."""
        at, number = heapq.heappop(self.free)
        before = curve.seconds[begun - 1] if begun else 0.0
        for epoch in range(begun, until):
            if at + curve.seconds[epoch] - before <= self.limit:
                self.best = max(self.best, curve.best[epoch])
        end = at + curve.seconds[until - 1] - before
        heapq.heappush(self.free, (end, number))
        return end


def opened(model: Path) -> onnxruntime.InferenceSession:
    """Open the surrogates of all tasks, on one core."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(model), settings)


def drawn(seed: int) -> Iterator[dict[str, Any]]:
    """Yield random configurations."""
    sampling = Sampling(SPACE, modes=["max"], seed=seed, sampler=optuna.samplers.RandomSampler)
    while True:
        yield sampling.ask()[1]


def random_search(task: Surrogate, workers: Workers, seed: int) -> None:
    """Train every configuration to the end."""
    configurations = drawn(seed)
    for _ in workers.turns():
        workers.work(task.train(next(configurations)), 0, EPOCHS)


def plain_halving(task: Surrogate, workers: Workers, seed: int) -> None:
    """Run asynchronous successive halving as anybody would write it."""
    configurations, budgets = drawn(seed), [1, 3, 9, 27, EPOCHS]
    rungs: list[list[tuple[float, float, int]]] = [[] for _ in budgets]
    curves: list[Curve] = []
    promoted: set[tuple[int, int]] = set()
    for now in workers.turns():
        job = (len(curves), 0)
        for rung in range(len(budgets) - 2, -1, -1):
            there = sorted((-value, number) for at, value, number in rungs[rung] if at <= now)
            good = [n for _, n in there[: len(there) // ETA] if (n, rung) not in promoted]
            if good:
                job = (good[0], rung + 1)
                promoted.add((good[0], rung))
                break
        trial, rung = job
        if trial == len(curves):
            curves.append(task.train(next(configurations)))
        end = workers.work(curves[trial], budgets[rung - 1] if rung else 0, budgets[rung])
        rungs[rung].append((end, curves[trial].best[budgets[rung] - 1], trial))


def optuna_hyperband(task: Surrogate, workers: Workers, seed: int) -> None:
    """Run Optuna as people use it: TPE under its HyperbandPruner, asked after each epoch."""
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=ETA),
    )
    training: dict[int, tuple[optuna.Trial, Curve, int]] = {}
    for _ in workers.turns():
        number = workers.free[0][1]
        trial, curve, epoch = training.pop(number, (None, None, 0))
        if trial is not None and curve is not None:
            trial.report(curve.best[epoch - 1], epoch)
            if epoch == EPOCHS:
                study.tell(trial, curve.best[-1])
                trial = None
            elif trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                trial = None
        if trial is None or curve is None:
            trial = study.ask(SPACE)
            curve, epoch = task.train(trial.params), 0
        workers.work(curve, epoch, epoch + 1)
        training[number] = (trial, curve, epoch + 1)


def ours(scheduler: str, sampler: Callable[..., Any] | None, **terms: Any) -> Callable[[Surrogate, Workers, int], None]:
    """Return a search with Argosy's scheduler and sampling, as in `argosy.tune(..., at_once=4)`."""

    def search(task: Surrogate, workers: Workers, seed: int) -> None:
        sampling = Sampling(SPACE, modes=["max"], seed=seed, sampler=sampler)
        machine = make_scheduler(
            scheduler,
            most=EPOCHS,
            eta=ETA,
            trials=2000,
            brackets=terms.get("brackets", "together"),
            generation=1,
            seed=seed,
        )
        parts = waves(groups(machine, order=terms.get("brackets", "together")), most=None)
        curves: list[Curve] = []
        reached: list[int] = []
        busy: dict[int, tuple[float, int, int]] = {}
        told: set[int] = set()
        for now in workers.turns():
            for number, (end, trial, until) in sorted(busy.items(), key=lambda item: item[1]):
                if end <= now:
                    del busy[number]
                    for epoch in range(reached[trial] + 1, until + 1):
                        machine.tell(trial, epoch, -curves[trial].best[epoch - 1])
                        sampling.report(trial, epoch, curves[trial].best[epoch - 1])
                    reached[trial] = until
                    told.add(trial)
            at_work = {trial for _, trial, _ in busy.values()}
            for trial in told - at_work:
                if reached[trial] == EPOCHS or machine.out(trial) is not None:
                    outcome: Outcome = "complete" if reached[trial] == EPOCHS else "pruned"
                    sampling.end(trial, outcome, [curves[trial].best[reached[trial] - 1]])
                    told.discard(trial)
            ready = [trial for trial in told - at_work if machine.budget(trial) > reached[trial]]
            if ready:
                trial = max(ready, key=lambda t: (machine.budget(t), -t))
            elif machine.wanted_trials(len(curves)) and settled(machine, parts, reached, len(curves)):
                trial = len(curves)
                curves.append(task.train(sampling.ask()[1]))
                reached.append(0)
            else:
                _, number = heapq.heappop(workers.free)
                heapq.heappush(workers.free, (min(end for end, _, _ in busy.values()) + 1e-6, number))
                continue
            number = workers.free[0][1]
            until = machine.budget(trial)
            busy[number] = (workers.work(curves[trial], reached[trial], until), trial, until)

    return search


def settled(machine: Scheduler, parts: tuple[range, ...], reached: list[int], begun: int) -> bool:
    """Return whether the wave of the next trial may be asked for."""
    wave = next(wave for wave in parts if begun in wave)
    return all(reached[trial] >= machine.budget(trial) for trial in range(wave.start))


SIDES: dict[str, Callable[[Surrogate, Workers, int], None]] = {
    "random search": random_search,
    "ten-line asynchronous halving": plain_halving,
    "Optuna TPE + HyperbandPruner": optuna_hyperband,
    "hyperband": ours("hyperband", None),
    "hyperband in turn, default sampler": ours("hyperband", ThompsonSampler, brackets="in-turn"),
    "hyperband in turn, TPE": ours("hyperband", optuna.samplers.TPESampler, brackets="in-turn"),
    "asha": ours("asha", None),
    "median": ours("median", None),
}


def paired(first: list[float], second: list[float]) -> float:
    """Return the one-sided p, by random signs, that the mean of `first` is not less than that of `second`."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    draw, mean = random.Random(0), statistics.fmean(differences)
    signed = [statistics.fmean(d if draw.random() < 0.5 else -d for d in differences) for _ in range(10000)]
    return sum(value <= mean for value in signed) / len(signed)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", type=Path, default=Path("shared/data/lcbench_model.onnx"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--tasks", type=int, default=34, help="number of tasks, from the first on, without those held out"
    )
    parser.add_argument(
        "--trainings", type=float, default=4.0, help="worker time, in full trainings of the mean length"
    )
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES))
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    session = opened(options.model)
    regrets: dict[str, list[float]] = {side: [] for side in options.sides}
    for number in [number for number in range(options.tasks) if number not in HELD_OUT]:
        task, configurations = Surrogate(session, number), drawn(-1)
        known = [task.train(next(configurations)) for _ in range(500)]
        limit = options.trainings * statistics.fmean(curve.seconds[-1] for curve in known)
        best = max(curve.best[-1] for curve in known)
        found: dict[str, list[float]] = {}
        for side in options.sides:
            found[side] = []
            for seed in range(options.seeds):
                workers = Workers(limit)
                SIDES[side](task, workers, seed)
                found[side].append(workers.best)
        best = max(best, *(value for values in found.values() for value in values))
        for side, values in found.items():
            regrets[side].append(best - statistics.fmean(values))
        print(number, *(f"{regrets[side][-1]:.2f}" for side in options.sides), flush=True)
    for side, values in regrets.items():
        print(f"{side}: mean final regret {statistics.fmean(values):.3f} points")
    default = regrets[DEFAULT]
    judged = [
        target(
            f"{side}: regret of the default less its own",
            [statistics.fmean(default) - statistics.fmean(values)],
            at_most=0.0,
        )
        for side, values in regrets.items()
        if side in ("ten-line asynchronous halving", "Optuna TPE + HyperbandPruner")
    ]
    for side, values in regrets.items():
        if side != DEFAULT:
            print(f"paired with {side}: p = {paired(default, values):.4f}")
    figures = {side: statistics.fmean(values) for side, values in regrets.items()}
    finish("search_quality", figures, judged, as_json=options.json)


if __name__ == "__main__":
    main()
