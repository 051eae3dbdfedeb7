"""Both sides of `conversation.py` and `crews.py` as processes of their own, and the check that they end with equal weights."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import process_tree
import torch
from small_networks import weights_sum

from argosy.results.fold import RunState
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import read_journal

__all__ = ["Ship", "check_weights", "lists_of", "loop", "weights_of"]

HERE = Path(__file__).parent


class Ship:
    """An Argosy run in a process of its own: a script beside this file, with its instructions."""

    def __init__(self, script: str, told: Mapping[str, Any], out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.directory, self._found, self._output = out / "run", out / "found.json", out / "output.txt"
        self._found.unlink(missing_ok=True)
        (out / "told.json").write_text(json.dumps({**told, "directory": str(self.directory)}))
        command = [sys.executable, str(HERE / script), str(out / "told.json"), str(self._found)]
        with self._output.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def end(self) -> dict[str, Any]:
        """Wait for the run to end, and return what it measured."""
        if self.process.wait() != 0:
            raise RuntimeError(f"a run ended with {self.process.returncode}: {self._output.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(self._found.read_text())
        return found

    @property
    def under_way(self) -> bool:
        """Whether it has begun to train, and has not ended."""
        journal = self.directory / "journal.jsonl"
        return self.process.poll() is None and journal.exists() and b'"SectionEnded"' in journal.read_bytes()

    @property
    def state(self) -> RunState:
        """The state according to its journal."""
        return RunState.of(read_journal(self.directory))


def lists_of(state: RunState) -> dict[str, list[int]]:
    """Return the stream epochs of each member, as journaled; if an epoch has sections, its first counts."""
    return {name: [row.stream_epoch for row in one.sections if row.section == 0] for name, one in state.members.items()}


def loop(
    epochs: Mapping[str, Sequence[int]],
    out: Path,
    *,
    samples: int,
    val: int,
    saves: Mapping[int, Sequence[str]] | None = None,
    sync: bool = False,
) -> dict[str, Any]:
    """Run the plain loop in a process of its own, and return what it measured."""
    (out / "files").mkdir(parents=True, exist_ok=True)
    told = {"epochs": epochs, "samples": samples, "val": val, "saves": saves or {}, "sync": sync}
    (out / "told.json").write_text(json.dumps({**told, "folder": str(out / "files")}))
    command = [sys.executable, str(HERE / "small_loop.py"), str(out / "told.json"), str(out / "found.json")]
    cost = process_tree.run([command], output=out / "output.txt")
    return {**json.loads((out / "found.json").read_text()), "whole_cpu_seconds": cost.cpu_seconds}


def weights_of(directory: Path, name: str) -> str:
    """Return the checksum of a member's last weights."""
    return weights_sum(torch.load(directory / "members" / name / "last.pt", weights_only=True)["model"])


def check_weights(directory: Path, expected: Mapping[str, str]) -> None:
    """Raise unless members ended with these weights, bit for bit, and the audit finds nothing."""
    if found := audit(directory):
        raise AssertionError(f"the audit of {directory} found: {found[:3]}")
    for name, wanted in expected.items():
        if weights_of(directory, name) != wanted:
            raise AssertionError(
                f"{name} in {directory} ended with different weights than in a plain loop: figures are void."
            )
