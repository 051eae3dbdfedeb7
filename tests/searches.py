"""Small searches in this process, and functions to examine them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

import argosy

__all__ = ["DATA", "SPACE", "at_once", "build", "outcome", "stored", "tune"]

ROWS = TensorDataset(torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 10)
DATA = argosy.Data(train=ROWS, val=ROWS)
SPACE = {"lr": FloatDistribution(1e-3, 1.0, log=True), "batch_size": CategoricalDistribution([8, 20])}


def build(parameters: dict[str, Any]) -> argosy.Member:
    """Build a member of one layer, which diverges if `lr` is too large and fails if `width` is too small."""
    width = parameters.get("width", 10)
    return argosy.Member(
        "net",
        model=partial(nn.Linear, 6, width),
        optimizer=partial(SGD, lr=parameters.get("lr", 0.1)),
        batch_size=parameters.get("batch_size", 20),
        metrics={"accuracy": argosy.accuracy},
    )


def tune(directory: Path, *, space: Any = SPACE, **rest: Any) -> Any:
    """Run a search inline and return its report."""
    settings = {"max_epochs": 9, "data": DATA, "devices": "cpu:2", **rest}
    return argosy.tune(settings.pop("build", build), space, directory=directory, launcher="inline", **settings)


def outcome(report: Any) -> dict[str, Any]:
    """Return the results of trials, which must not depend on when a search was killed."""
    return {row["trial"]: (row["epochs"], row["status"], row["reason"], row.get("val_loss")) for row in report.table()}


def stored(directory: Path, name: str | None = None) -> optuna.Study:
    """Load the search from its storage with Optuna, as Optuna's own tools do."""
    backend = optuna.storages.journal.JournalFileBackend(str(directory / "optuna.log"))
    storage = optuna.storages.JournalStorage(backend)
    return optuna.load_study(study_name=name or directory.name, storage=storage)


def at_once(directory: Path) -> int:
    """Return the largest number of members that trained at one time."""
    training, most = set(), 0
    for line in (directory / "journal.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "MemberStarted":
            training.add(event["member"])
        elif event["event"] in ("MemberEnded", "MemberRested"):
            training.discard(event["member"])
        most = max(most, len(training))
    return most
