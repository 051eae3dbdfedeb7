"""A side of `hyperband.py` that people use today: Optuna with its HyperbandPruner and a pool of processes, each with its own loader.

A process of the pool runs this file: it takes trials from the shared storage until there are none.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch
from hyperband_study import SPACE, Alone
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

__all__ = ["Pooled", "pool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """What the pool did."""

    seconds: float
    """From the beginning of the first trial to the end of the last."""
    epochs: int
    accuracy: float


def pool(model: str, trials: Sequence[dict[str, Any]], folder: Path, *, most: int, workers: int, device: str) -> Pooled:
    """Train these configurations in their order."""
    study = optuna.create_study(storage=_storage(folder), study_name="pool", direction="maximize")
    for parameters in trials:
        study.enqueue_trial(parameters)
    told = json.dumps({"model": model, "most": most, "trials": len(trials), "device": device})
    processes = [subprocess.Popen([sys.executable, __file__, str(folder), told]) for _ in range(workers)]
    if codes := [code for process in processes if (code := process.wait())]:
        raise SystemExit(f"processes of the pool ended with {codes}")
    over = [trial for trial in study.trials if trial.state.is_finished()]
    begun = min(trial.datetime_start for trial in over if trial.datetime_start)
    ended = max(trial.datetime_complete for trial in over if trial.datetime_complete)
    return Pooled(
        seconds=(ended - begun).total_seconds(),
        epochs=sum(len(trial.intermediate_values) for trial in over),
        accuracy=max(max(trial.intermediate_values.values()) for trial in over),
    )


def _storage(folder: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(folder / "pool.log")))


def _objective(trial: optuna.Trial, told: dict[str, Any]) -> float:
    model, most, device = told["model"], told["most"], told["device"]
    if trial.number >= told["trials"]:
        raise optuna.TrialPruned  # another process took the last trial first
    parameters = {name: trial.suggest_categorical(name, choices.choices) for name, choices in SPACE.items()}
    alone = Alone(model, parameters, seed=trial.number, device=device)
    best = 0.0
    for epoch in range(1, most + 1):
        best = max(best, alone.epoch())
        trial.report(best, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return best


def main() -> None:
    folder, told = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=told["most"], reduction_factor=3)
    study = optuna.load_study(storage=_storage(folder), study_name="pool", pruner=pruner)
    while any(trial.state == optuna.trial.TrialState.WAITING for trial in study.get_trials(deepcopy=False)):
        study.optimize(partial(_objective, told=told), n_trials=1)


if __name__ == "__main__":
    main()
