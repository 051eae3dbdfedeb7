"""Hyperband over packs: the same configurations under every packing policy, with and without warm rungs, and by the tools that people use today.

Time counts from the first step to the end of the last trial; starting processes comes before it on all sides. `none` is
the paper's baseline: one trial after another in one warm process, with its own loader. All policies of Argosy run with
numerics="exact", so that each trial must reach the same in any pack; `planned` runs once more with
programs that are faster and equal within rounding. Optuna with a pool of processes and Ray Tune (if it is installed)
train the same configurations. They choose themselves which to stop, so their time is also given at equal epochs.
"""

import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from hyperband_pool import Pooled, pool
from hyperband_ray import is_there, ray_tune
from hyperband_study import MODELS, SPACE, build, data
from measuring import arguments, finish, target

import argosy
from argosy.protocol.events import MemberEnded, MemberStarted
from argosy.running.directory.journal import timeline

POLICIES = ("none", "batch-size", "random(9)", "knn(9)", "planned")


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What one search did."""

    seconds: float
    cpu_seconds: float
    """CPU time of all processes, their start included."""
    best_seconds: float
    """From the first step until the best trial had ended its best epoch."""
    epochs: float
    accuracy: float
    best: str
    reached: dict[str, tuple[float, float]]
    """(epochs, accuracy) by member."""


def searched(model: str, packs: str, *, warm: bool, most: int, device: str, numerics: str) -> tuple[Side, Any]:
    """Run one search in a directory of its own."""
    # The baseline is one process; other policies have a pack on each device.
    devices = "cpu:1" if device == "cpu" and packs == "none" else device
    with tempfile.TemporaryDirectory() as folder:
        report = argosy.tune(
            partial(build, model),
            SPACE,
            data=data(),
            max_epochs=most,
            objective="val_accuracy",
            mode="max",
            quiet=True,
            directory=Path(folder) / "search",
            devices=devices,
            numerics=numerics,
            warm=warm,
            packs=packs,
        )
        told = list(timeline(report.run.directory))
    began = next(seconds for seconds, event in told if isinstance(event, MemberStarted))
    ended = max(seconds for seconds, event in told if isinstance(event, MemberEnded))
    assert report.best_seconds is not None
    side = Side(
        seconds=ended - began,
        cpu_seconds=report.run.cpu_seconds,
        best_seconds=report.best_seconds - began,
        epochs=report.epochs,
        accuracy=report.best().metrics["val_accuracy"],
        best=str(sorted(report.best_parameters.items())),
        reached={row.name: (row.epochs, row.metrics.get("val_accuracy", 0.0)) for row in report.run.rows},
    )
    trials = {report.trials[name]: dict(parameters) for name, parameters in report.parameters.items()}
    return side, [trials[number] for number in sorted(trials)]


def shown(what: str, side: Side) -> None:
    print(
        f"{what}: {side.seconds:.2f} s, {side.cpu_seconds:.1f} CPU s, best after {side.best_seconds:.2f} s, "
        f"{side.epochs:g} epochs, accuracy {side.accuracy:.4f}",
        flush=True,
    )


def compared(model: str, options: Any, figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare all sides on one network, and return the targets."""
    most, targets = options.most or (81 if options.full else 27), []
    device = "cpu" if options.device == "cpu" else "cuda"
    configurations: list[dict[str, Any]] = []
    planned: dict[bool, list[float]] = {True: [], False: []}
    for warm in (False, True):
        rungs = "warm" if warm else "anew"
        sides: dict[str, Side] = {}
        runs = [*((packs, "exact") for packs in options.policies), ("planned", "equivalent")]
        for packs, numerics in runs:
            name = packs if numerics == "exact" else f"{packs}, equivalent"
            sides[name], configurations = searched(model, packs, warm=warm, most=most, device=device, numerics=numerics)
            shown(f"{model}, {rungs}, {name}", sides[name])
        exact = [side for name, side in sides.items() if "equivalent" not in name]
        equal = all(side.reached == exact[0].reached and side.best == exact[0].best for side in exact)
        figures |= {f"{model} {rungs} {name}": {**asdict(side), "reached": None} for name, side in sides.items()}
        fastest = min(side.seconds for name, side in sides.items() if name.startswith("planned"))
        planned[warm].append(fastest)
        targets.append(target(f"{model}, {rungs}: equal under every policy (1: yes)", [float(equal)], at_least=1.0))
        if "none" in sides:
            wanted = 2.7 if device == "cpu" else 5.0
            ratio = sides["none"].seconds / fastest
            targets.append(target(f"{model}, {rungs}: none / planned, wall", [ratio], at_least=wanted))
    targets += beside_others(model, configurations, planned[True][0], figures, most=most, options=options)
    return targets


def beside_others(
    model: str,
    configurations: list[dict[str, Any]],
    planned: float,
    figures: dict[str, Any],
    *,
    most: int,
    options: Any,
) -> list[dict[str, Any]]:
    """Run the tools that people use today, and return the targets; sides that train more or fewer epochs are compared at equal ones."""
    if options.alone:
        return []
    sides = {"Optuna's HyperbandPruner and a pool": pool, "Ray Tune's HyperBandScheduler": ray_tune}
    if not is_there():
        print("ray is not installed: its side is left out")
        del sides["Ray Tune's HyperBandScheduler"]
    epochs, targets = figures[f"{model} warm planned"]["epochs"], []
    for name, side in sides.items():
        with tempfile.TemporaryDirectory() as folder:
            found: Pooled = side(
                model, configurations, Path(folder), most=most, workers=options.workers, device=options.device
            )
        at_equal = found.seconds * epochs / found.epochs
        print(
            f"{model}, {name} of {options.workers} processes: {found.seconds:.2f} s for {found.epochs} epochs, "
            f"{at_equal:.2f} s for {epochs:g}, accuracy {found.accuracy:.4f}"
        )
        figures[f"{model} {name}"] = asdict(found)
        what = f"{model}: {name} / planned with warm rungs, at equal epochs"
        targets.append(target(what, [at_equal / planned], at_least=4.0))
    return targets


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--full", action="store_true", help="R = 81 instead of 27")
    parser.add_argument("--most", type=int, help="any other R")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--workers", type=int, default=2, help="processes of the tools that people use today")
    parser.add_argument("--alone", action="store_true", help="without the tools that people use today")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    figures: dict[str, Any] = {}
    targets = [one for model in options.models for one in compared(model, options, figures)]
    finish("hyperband", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
