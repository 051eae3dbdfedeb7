"""Measures a search's CPU time per trial apart from the training: Argosy's own, and apart from it the sampler's and the storage's.

Trials do next to no work: one weight, one batch an epoch, one epoch each, all on one device in this process. A second
search of fewer trials is subtracted to remove what does not depend on their number (imports, the first measuring).
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import arguments, finish, target
from optuna.distributions import FloatDistribution
from torch import nn
from torch.optim import SGD

import argosy
from argosy.tuning import sampling

PARTS = {
    "sampler": (sampling.Sampling, ("ask", "report", "end", "frozen")),
    "storage": (sampling.StorageMirror, ("settle", "_write")),
}


def build(parameters: dict[str, Any]) -> argosy.Member:
    """Return a member of one weight."""
    optimizer = partial(SGD, lr=parameters["lr"])
    return argosy.Member("one", model=partial(nn.Linear, 1, 1), optimizer=optimizer, batch_size=8, loss=nn.MSELoss())


def watch(spent: dict[str, float]) -> None:
    """Add up what Optuna's parts take, each on its own thread."""
    for part, (kind, names) in PARTS.items():
        for name in names:
            setattr(kind, name, _timed(getattr(kind, name), part, spent))


def _timed(function: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[part] += time.thread_time() - began

    return timed


def search(trials: int, spent: dict[str, float]) -> dict[str, float]:
    """Return the CPU seconds of one search by part."""
    for part in PARTS:
        spent[part] = 0.0
    rows = torch.zeros(8, 1)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        report = argosy.tune(
            build,
            {"lr": FloatDistribution(1e-4, 1e-1, log=True)},
            data=argosy.Data(arrays=(rows, rows), val_arrays=(rows, rows)),
            max_epochs=1,
            scheduler="random",
            n_trials=trials,
            quiet=True,
            directory=Path(folder) / "search",
            launcher="inline",
            devices="cpu:1",
        )
        seconds = time.process_time() - began
    assert [row.status for row in report.run.rows] == ["done"] * trials
    return {**spent, "own": seconds - sum(spent.values())}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    spent = dict.fromkeys(PARTS, 0.0)
    watch(spent)
    figures: dict[str, list[float]] = {"own": [], **{part: [] for part in PARTS}}
    search(options.trials // 5, spent)  # otherwise the search of fewer trials would pay for what a process does once
    for _ in range(options.rounds):
        few, many = search(options.trials // 5, spent), search(options.trials, spent)
        for part, values in figures.items():
            values.append((many[part] - few[part]) / (options.trials - options.trials // 5) * 1e3)
    for part in PARTS:
        print(f"{part}: {sorted(figures[part])[options.rounds // 2]:.2f} ms of CPU a trial")
    held = target("our own CPU milliseconds a trial", figures["own"], at_most=5.0)
    finish("trial_cost", figures, [held], as_json=options.json)


if __name__ == "__main__":
    main()
