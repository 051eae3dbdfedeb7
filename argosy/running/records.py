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
from argosy.events import RunStarted
from argosy.fold import MemberState
from argosy.settings import Settings

__all__ = ["Metrics", "run_started", "tree_cpu_seconds"]


def run_started(settings: Settings, lengths: Mapping[str, int], validations_per_epoch: int) -> RunStarted:
    """This process as the driver of a run."""
    versions = {
        "argosy": argosy.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }
    return RunStarted(
        host=socket.gethostname(),
        pid=os.getpid(),
        versions=versions,
        settings=asdict(settings),
        lengths=dict(lengths),
        validations_per_epoch=validations_per_epoch,
    )


class Metrics:
    """A file ``metrics.csv`` for each member, one row a section."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._written: dict[str, int] = {}
        """Rows of each member that this driver has written, and nobody has taken back."""

    def write(self, state: MemberState) -> None:
        """Append the newest section; what differs from the file, as after a fault, is written anew."""
        path = self.directory / "members" / state.name / "metrics.csv"
        count = len(state.sections)
        rows = state.sections[-1:]
        if self._written.get(state.name) != count - 1 or count == 1:
            rows = state.sections
            path.write_text(",".join(["epoch", *rows[0].metrics, "seconds"]) + "\n")
        with path.open("a") as file:
            for row in rows:
                number = row.epoch if row.epochs == row.epoch + 1 else row.epochs
                file.write(",".join(str(v) for v in (number, *row.metrics.values(), row.seconds)) + "\n")
        self._written[state.name] = count


def tree_cpu_seconds() -> float:
    """User and system time of this process and of all below it that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
