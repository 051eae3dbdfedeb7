"""Compares samplers under the default settings of `argosy.tune`, on a surrogate of real trainings (`search_quality`).

Each search is one round of Hyperband with the scheduler, the waves and the sampling of `argosy.tune`. Trials train in
virtual time on 1, 4 and 16 workers, and on one worker that trains together all trials that may continue (packed: their
seconds add up, and all reach the end of their rungs at the same time). What the sampler is shown must be the same for
all of these, so the parameters are asked for once. Regret is by how much the best value of a search falls short of the
best that any search has seen on that task, in points of accuracy. The paired test is of the mean difference over tasks,
each the mean of its seeds.
"""

import heapq
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from measuring import arguments, finish, target
from search_quality import EPOCHS, ETA, HELD_OUT, SPACE, Curve, Surrogate, opened, paired

from argosy.tuning import make_scheduler
from argosy.tuning.hyperband import Brackets, Hyperband, brackets
from argosy.tuning.sampling import Sampling
from argosy.tuning.thompson import ThompsonSampler
from argosy.tuning.waves import groups, waves

TRIALS = sum(size for size, _ in brackets(EPOCHS, ETA))
SAMPLERS: dict[str, Any] = {
    "random": None,
    "default": ThompsonSampler,
    "TPE": optuna.samplers.TPESampler,
    "CMA-ES": optuna.samplers.CmaEsSampler,
}
PLACES = {"1 worker": 1, "4 workers": 4, "16 workers": 16, "packed": 0}
Told = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Asked:
    """What a sampler was shown before each wave of one search, and its answers."""

    told: dict[int, Told] = field(default_factory=dict)
    curves: list[Curve] = field(default_factory=list)


class Trials:
    """One search: its scheduler, its waves, and its sampler, which is only asked for what it has not answered before."""

    def __init__(self, task: Surrogate, sampler: Callable[..., Any] | None, seed: int, asked: Asked) -> None:
        self.task, self.asked, self.new = task, asked, not asked.curves
        self.sampling = Sampling(SPACE, modes=["max"], seed=seed, sampler=sampler)
        order: Brackets = "in-turn" if self.sampling.learns else "together"
        self.machine = make_scheduler(
            "hyperband", most=EPOCHS, eta=ETA, trials=TRIALS, brackets=order, generation=1, seed=seed
        )
        assert isinstance(self.machine, Hyperband)
        self.waves = waves(groups(self.machine, order=order), most=None)
        self.reached: list[int] = []

    @property
    def ready(self) -> list[int]:
        """Return trials that may train now; a wave is asked for when all before it are settled."""
        wave = next((wave for wave in self.waves if wave.start == len(self.reached)), None)
        if wave is not None and all(r >= self.machine.budget(t) for t, r in enumerate(self.reached)):
            self._ask(wave)
        return [t for t, reached in enumerate(self.reached) if reached < self.machine.budget(t)]

    def train(self, trial: int) -> tuple[int, int, float]:
        """Return from which epoch to which a trial trains up to its budget, and in how many seconds."""
        begun, until, curve = self.reached[trial], self.machine.budget(trial), self.asked.curves[trial]
        return begun, until, curve.seconds[until - 1] - (curve.seconds[begun - 1] if begun else 0.0)

    def tell(self, trial: int, until: int) -> None:
        """Report that a trial has reached this epoch."""
        for epoch in range(self.reached[trial] + 1, until + 1):
            self.machine.tell(trial, epoch, -self.asked.curves[trial].best[epoch - 1])
            if self.new:
                self.sampling.report(trial, epoch, self.asked.curves[trial].best[epoch - 1])
        self.reached[trial] = until

    def _ask(self, wave: range) -> None:
        told: Told = tuple((t, reached) for t, reached in enumerate(self.reached))
        if not self.new:
            assert self.asked.told[wave.start] == told, "what a sampler is told depends on the workers"
        else:
            self.asked.told[wave.start] = told
            self._end()
            self.asked.curves += [self.task.train(self.sampling.ask()[1]) for _ in wave]
        self.reached += [0] * len(wave)

    def _end(self) -> None:
        for trial in self.sampling.frozen_trials():
            if not trial.state.is_finished():
                reached = self.reached[trial.number]
                over = reached == EPOCHS
                self.sampling.end(trial.number, "complete" if over else "pruned", [trial.intermediate_values[reached]])


def search(trials: Trials, workers: int) -> list[tuple[float, float]]:
    """Return (seconds, best value) for each time that trials reach the end of a budget."""
    now, best, seen = 0.0, 0.0, list[tuple[float, float]]()
    busy: list[tuple[float, int, int]] = []
    training: set[int] = set()
    while True:
        ready = sorted(set(trials.ready) - training, key=lambda t: (-trials.machine.budget(t), t))
        if workers == 0 and not busy:
            works = {trial: trials.train(trial) for trial in ready}
            end = now + sum(seconds for _, _, seconds in works.values())
            busy = [(end, trial, until) for trial, (_, until, _) in works.items()]
            training |= works.keys()
        for trial in ready[: max(workers - len(busy), 0)]:
            _, until, seconds = trials.train(trial)
            heapq.heappush(busy, (now + seconds, trial, until))
            training.add(trial)
        if not busy:
            return seen
        now, trial, until = heapq.heappop(busy)
        training.discard(trial)
        trials.tell(trial, until)
        best = max(best, trials.asked.curves[trial].best[until - 1])
        if workers or not busy:
            seen.append((now, best))


def best_by(seen: list[tuple[float, float]], seconds: float) -> float:
    """Return the best value that was seen by then."""
    return max((value for at, value in seen if at <= seconds), default=0.0)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", type=Path, default=Path("shared/data/lcbench_model.onnx"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--tasks", type=int, default=34, help="number of tasks, from the first on, without those held out"
    )
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    session = opened(options.model)
    at_end: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    in_time: dict[tuple[str, str], list[float]] = {(name, place): [] for name in SAMPLERS for place in PLACES}
    longer: dict[tuple[str, str], list[float]] = {key: [] for key in in_time}
    for number in [number for number in range(options.tasks) if number not in HELD_OUT]:
        task = Surrogate(session, number)
        found: dict[tuple[str, str], list[float]] = {key: [] for key in in_time}
        ended: dict[str, list[float]] = {name: [] for name in SAMPLERS}
        for seed in range(options.seeds):
            asked = {name: Asked() for name in SAMPLERS}
            for place, workers in PLACES.items():
                seen = {
                    name: search(Trials(task, sampler, seed, asked[name]), workers)
                    for name, sampler in SAMPLERS.items()
                }
                limit = seen["random"][-1][0]
                for name, curve in seen.items():
                    found[name, place].append(best_by(curve, limit))
                    longer[name, place].append(curve[-1][0] / limit)
                    if workers == 1:
                        ended[name].append(curve[-1][1])
                    assert curve[-1][1] == ended[name][-1], "what a search finds depends on the workers"
        best = max(value for values in ended.values() for value in values)
        for name, values in ended.items():
            at_end[name].append(best - statistics.fmean(values))
        for key, values in found.items():
            in_time[key].append(best - statistics.fmean(values))
        print(number, *(f"{name} {values[-1]:.2f}" for name, values in at_end.items()), flush=True)
    judged = []
    for name, values in at_end.items():
        p = paired(values, at_end["random"]) if name != "random" else float("nan")
        print(f"{name}: mean regret at the end {statistics.fmean(values):.3f} points, paired with random p = {p:.4f}")
        if name == "default":
            judged.append(target("p of the default being no better than random, the whole search", [p], at_most=0.05))
    for (name, place), values in in_time.items():
        if name != "random":
            p = paired(values, in_time["random", place])
            print(
                f"{name}, {place}: {statistics.fmean(longer[name, place]):.2f} times random's time; when random is over, "
                f"{statistics.fmean(values):.3f} points, p = {p:.4f}"
            )
    finish(
        "samplers", {name: statistics.fmean(values) for name, values in at_end.items()}, judged, as_json=options.json
    )


if __name__ == "__main__":
    main()
