"""Several objectives: the hypervolume of accuracy and seconds at equal numbers of trials, on a surrogate of real trainings (`search_quality`).

Each trial trains to the end and is judged as by `argosy.tune`: the best accuracy of any epoch, and the seconds until
then. The sides are `argosy.tune` with its default sampler in waves, and with two kinds of TPE, in waves and one trial after
another; random search in Optuna's study; and Optuna's own TPE and NSGA-II at their defaults. The volume is
relative to the rectangle between the worst and the best values of 500 random trainings and of all sides, with seconds
on a logarithmic axis; 1 is all of it. The paired test is of the mean difference over tasks, each the mean of its seeds.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optuna
from measuring import arguments, finish, target
from search_quality import HELD_OUT, SPACE, Surrogate, drawn, opened, paired

from argosy.tuning.in_full import FullBudget
from argosy.tuning.sampling import Sampling
from argosy.tuning.thompson import ThompsonSampler
from argosy.tuning.waves import default_wave_size, groups, waves

DIRECTIONS: tuple[Literal["maximize"], Literal["minimize"]] = ("maximize", "minimize")
OPTUNA = "Optuna TPE"
OURS = "argosy.tune, in waves"
Reached = tuple[float, float]
JOINT = partial(optuna.samplers.TPESampler, multivariate=True, constant_liar=False)
"""TPE that models all parameters together, without a penalty for what trials of the same wave try."""


def reached(task: Surrogate, parameters: dict[str, Any]) -> Reached:
    """Return the best accuracy, and the seconds until the end of the first epoch with it."""
    curve = task.train(parameters)
    return curve.best[-1], curve.seconds[curve.best.index(curve.best[-1])]


def optuna_study(sampler: Callable[..., Any]) -> Callable[[Surrogate, int, int], list[Reached]]:
    """Return a search by a study of Optuna's own, as people write it."""

    def search(task: Surrogate, seed: int, trials: int) -> list[Reached]:
        study = optuna.create_study(directions=DIRECTIONS, sampler=sampler(seed=seed))
        for _ in range(trials):
            trial = study.ask(SPACE)
            study.tell(trial, reached(task, trial.params))
        return [(trial.values[0], trial.values[1]) for trial in study.trials]

    return search


def ours(
    at_once: int | None, sampler: Callable[..., Any] = optuna.samplers.TPESampler
) -> Callable[[Surrogate, int, int], list[Reached]]:
    """Return a search that samples as `argosy.tune(scheduler="random", sampler=…)` does, in its waves."""

    def search(task: Surrogate, seed: int, trials: int) -> list[Reached]:
        sampling = Sampling(SPACE, modes=["max", "min"], seed=seed, sampler=sampler)
        found: list[Reached] = []
        together = groups(FullBudget(most=1, trials=trials), order="together")
        for wave in waves(together, most=at_once or default_wave_size(trials)):
            found += [reached(task, sampling.ask()[1]) for _ in wave]
            for number in wave:
                sampling.end(number, "complete", found[number])
        return found

    return search


SIDES: dict[str, Callable[[Surrogate, int, int], list[Reached]]] = {
    OURS: ours(None, ThompsonSampler),
    "argosy.tune, TPE in waves": ours(None),
    "argosy.tune, TPE, at_once=1": ours(1),
    "argosy.tune, joint TPE in waves": ours(None, JOINT),
    "argosy.tune, joint TPE, at_once=1": ours(1, JOINT),
    OPTUNA: optuna_study(optuna.samplers.TPESampler),
    "Optuna NSGA-II": optuna_study(optuna.samplers.NSGAIISampler),
    "random": optuna_study(optuna.samplers.RandomSampler),
}


def volume(found: Sequence[Reached], low: Reached, high: Reached) -> float:
    """Return the share of the rectangle that the best of these dominate."""
    total, top = 0.0, low[0]
    width, depth = high[0] - low[0], math.log(high[1]) - math.log(low[1])
    for accuracy, seconds in sorted(found, key=lambda one: (one[1], -one[0])):
        if accuracy > top and seconds < high[1]:
            total += (accuracy - top) / width * (math.log(high[1]) - math.log(seconds)) / depth
            top = accuracy
    return total


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", type=Path, default=Path("shared/data/lcbench_model.onnx"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--tasks", type=int, default=34, help="number of tasks, from the first on, without those held out"
    )
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES))
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    session = opened(options.model)
    volumes: dict[str, list[float]] = {side: [] for side in options.sides}
    for number in [number for number in range(options.tasks) if number not in HELD_OUT]:
        task, configurations = Surrogate(session, number), drawn(-1)
        known = [reached(task, next(configurations)) for _ in range(500)]
        found = {
            side: [SIDES[side](task, seed, options.trials) for seed in range(options.seeds)] for side in options.sides
        }
        every = [*known, *(one for searches in found.values() for search in searches for one in search)]
        (least, most), (soon, late) = ((min(values), max(values)) for values in zip(*every, strict=True))
        for side, searches in found.items():
            volumes[side].append(statistics.fmean(volume(search, (least, soon), (most, late)) for search in searches))
        print(number, *(f"{side} {values[-1]:.4f}" for side, values in volumes.items()), flush=True)
    for side, values in volumes.items():
        # One-sided test that Optuna's own TPE is no worse than this side.
        p = "" if side == OPTUNA else f", paired with {OPTUNA}: p = {paired(volumes[OPTUNA], values):.4f}"
        print(f"{side}: mean hypervolume {statistics.fmean(values):.4f}{p}")
    less = statistics.fmean(volumes[OPTUNA]) - statistics.fmean(volumes[OURS])
    judged = [target(f"mean hypervolume of {OPTUNA} less that of {OURS}", [less], at_most=0.0)]
    figures = {side: statistics.fmean(values) for side, values in volumes.items()}
    finish("pareto", figures, judged, as_json=options.json)


if __name__ == "__main__":
    main()
