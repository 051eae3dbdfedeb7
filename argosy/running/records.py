"""What a run writes for people beside its journal, and the journal's first line."""

import os
import platform
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy
import torch

import argosy
from argosy.cluster import Device
from argosy.events import RunStarted
from argosy.fold import MemberState
from argosy.settings import Settings

__all__ = ["Metrics", "run_started", "tree_cpu_seconds"]


def run_started(
    settings: Settings,
    lengths: Mapping[str, int],
    validations_per_epoch: int,
    devices: Iterable[Device],
    preparation_samples_per_second: float | None,
    opening_seconds: float,
) -> RunStarted:
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
        devices=tuple(map(asdict, devices)),
        preparation_samples_per_second=preparation_samples_per_second,
        opening_seconds=round(opening_seconds, 3),
    )


class Metrics:
    """A file ``metrics.csv`` for each member, one row a section; written a few times a second at most."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._noted: dict[str, MemberState] = {}
        """Members with sections that are not in their files."""
        self._written: dict[str, int] = {}
        """Rows of each member that are in its file, and that nobody has taken back."""

    def note(self, state: MemberState) -> None:
        """A section has ended; what was written beyond it, before a fault, no longer holds."""
        self._noted[state.name] = state
        if self._written.get(state.name, 0) >= len(state.sections):
            self._written.pop(state.name, None)

    def write(self) -> None:
        """Append what was noted; what an earlier driver or a fault has left is written anew."""
        for name, state in self._noted.items():
            if not state.sections:
                continue  # A fault has taken back all that there was since it was noted.
            written = self._written.get(name, 0)
            if written > len(state.sections):
                written = 0
            lines = [] if written else [",".join(["epoch", *state.sections[0].metrics, "seconds"])]
            for row in state.sections[written:]:
                number = row.epoch if row.epochs == row.epoch + 1 else row.epochs
                lines.append(",".join(map(str, (number, *row.metrics.values(), row.seconds))))
            with (self.directory / "members" / name / "metrics.csv").open("a" if written else "w") as file:
                file.write("".join(f"{line}\n" for line in lines))
            self._written[name] = len(state.sections)
        self._noted.clear()


def tree_cpu_seconds() -> float:
    """User and system time of this process and of all below it that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
