"""Commands of people to a run: files in its folder ``commands/``, each answered once in the journal."""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from argosy.errors import RunError
from argosy.fold import RunState
from argosy.running.journal import read_journal

__all__ = ["Inbox", "leave"]

LOOK_SECONDS = 0.5


class Inbox:
    """The driver's end. A file that was answered, by this driver or an earlier one, is never read again."""

    def __init__(self, folder: Path, answered: Iterable[str]) -> None:
        self.folder = folder
        self.answered = set(answered)
        self._looked = 0.0

    def new(self) -> list[tuple[str, dict[str, Any]]]:
        """(file, command) of what was left since the last look, oldest first; looks a few times a second at most."""
        if time.monotonic() - self._looked < LOOK_SECONDS or not self.folder.is_dir():
            return []
        self._looked = time.monotonic()
        found = []
        for path in sorted(self.folder.glob("*.json")):
            if path.name not in self.answered:
                self.answered.add(path.name)
                found.append((path.name, json.loads(path.read_text())))
        return found


def leave(directory: Path, command: dict[str, Any]) -> str:
    """Leave a command for the driver of a run; returns the name of its file."""
    ended = RunState.of(read_journal(directory)).ended
    if ended is not None:
        raise RunError(
            f"the run in {directory} has ended ({ended.status}); start it again before you tell it something."
        )
    folder = directory / "commands"
    folder.mkdir(exist_ok=True)
    name = f"{time.time_ns()}-{command['command']}.json"
    unfinished = folder / f".{name}.{os.getpid()}"
    unfinished.write_text(json.dumps(command))
    unfinished.rename(folder / name)
    return name
