"""What a run writes for people beside its journal, and the journal's first line."""

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy
import torch

import argosy
from argosy.events import EpochEnded, RunStarted
from argosy.fold import MemberState
from argosy.settings import Settings

__all__ = ["run_started", "write_metrics"]


def run_started(settings: Settings, lengths: Mapping[str, int]) -> RunStarted:
    """This process as the driver of a run."""
    versions = {
        "argosy": argosy.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }
    return RunStarted(
        host=socket.gethostname(), pid=os.getpid(), versions=versions, settings=asdict(settings), lengths=dict(lengths)
    )


def write_metrics(folder: Path, state: MemberState, ended: EpochEnded, *, anew: bool) -> None:
    """Append an epoch to the member's ``metrics.csv``; with `anew`, write all of its epochs again."""
    path = folder / "metrics.csv"
    rows = [ended]
    if anew or ended.epoch == 0 or not path.exists():
        rows = [state.epochs[k] for k in sorted(state.epochs)]
        path.write_text(",".join(["epoch", *ended.metrics, "seconds"]) + "\n")
    with path.open("a") as file:
        for row in rows:
            file.write(",".join(str(v) for v in (row.epoch, *row.metrics.values(), row.seconds)) + "\n")
