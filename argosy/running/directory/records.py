"""Files that a run writes for users beside its journal, and the journal's first event."""

import itertools
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from argosy.cluster import Device
from argosy.disk.files import open_append, replacing
from argosy.disk.json_values import without_infinities
from argosy.protocol.events import RunStarted, SectionEnded
from argosy.results.fold import MemberState
from argosy.running.directory.versions import versions
from argosy.settings import Settings

__all__ = ["Metrics", "make_run_started", "tree_cpu_seconds"]

HOOKS = ("on_end", "on_diverged")
"""Settings that are not written to files, because directories are passed on and a command may contain a secret, for example a webhook's address."""


def make_run_started(
    settings: Settings,
    lengths: Mapping[str, int],
    validations_per_epoch: int,
    devices: Iterable[Device],
    preparation_samples_per_second: float | None,
    opening_seconds: float,
) -> RunStarted:
    """Return the event by which this process becomes the driver of a run."""
    return RunStarted(
        host=socket.gethostname(),
        pid=os.getpid(),
        versions=versions(),
        settings={name: getattr(settings, name) for name in settings.__slots__ if name not in HOOKS},
        lengths=dict(lengths),
        validations_per_epoch=validations_per_epoch,
        devices=tuple(map(asdict, devices)),
        preparation_samples_per_second=preparation_samples_per_second,
        opening_seconds=round(opening_seconds, 3),
    )


class Metrics:
    """Writes ``metrics.csv`` and ``metrics.jsonl`` of each member, one row a section, a few times a second at most."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "members"
        self._noted: dict[str, MemberState] = {}
        """Members with sections that are not in their files yet."""
        self._written: dict[str, int] = {}
        """By member: number of rows in its files that no fault has taken back."""
        self._columns: dict[str, list[str]] = {}
        """By member: columns of its files; sections before a metric was added have no value in its column."""

    def note(self, state: MemberState) -> None:
        """Note that a section has ended; later rows, written before a fault, are no longer valid."""
        self._noted[state.name] = state
        if self._written.get(state.name, 0) >= len(state.sections):
            self._written.pop(state.name, None)

    def write(self) -> None:
        """Append the noted sections; files left by an earlier driver or a fault are rewritten."""
        for name, state in self._noted.items():
            if not state.sections:
                continue  # a fault has taken back all sections since
            written = self._written.get(name, 0)
            if written > len(state.sections):  # a fault has taken some of them back
                written = 0
            rows = [_row(ended) for ended in state.sections[written:]]
            folder, written_to = self._folder / name, open_append if written else replacing
            if not written:
                self._columns[name] = _columns(rows)
            columns = self._columns[name]
            table: list[list[Any]] = [
                *([] if written else [columns]),
                *([row.get(column, "") for column in columns] for row in rows),
            ]
            lines = {
                "csv": [",".join(map(str, line)) for line in table],
                "jsonl": [json.dumps(without_infinities(row)) for row in rows],
            }
            for kind, of_kind in lines.items():
                with written_to(folder / f"metrics.{kind}") as file:
                    file.write("".join(f"{line}\n" for line in of_kind).encode(errors="backslashreplace"))
            self._written[name] = len(state.sections)
        self._noted.clear()


def _columns(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the columns of all rows; metrics that only some rows have come last."""
    return list(dict.fromkeys(itertools.chain.from_iterable(rows)))


def _row(ended: SectionEnded) -> dict[str, float]:
    """Return all figures of a section; epochs are counted from 1, with fractions if an epoch has several sections."""
    epoch = int(ended.epochs) if ended.epochs == int(ended.epochs) else ended.epochs
    return {"epoch": epoch, **ended.metrics, "seconds": ended.seconds, "steps": ended.steps, "samples": ended.samples}


def tree_cpu_seconds() -> float:
    """Return user and system time of this process and of its ended descendants, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
