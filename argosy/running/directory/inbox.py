"""Commands of people to a run: files in its folder ``commands/``, each answered once in the journal."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from argosy.disk.files import check_directory, lines_of, make_folder, own_text, replacing
from argosy.disk.json_values import parsed
from argosy.errors import RunError
from argosy.results.fold import RunState
from argosy.running.directory.journal import at_work, read_journal
from argosy.running.directory.study_copy import StudyCopy

__all__ = ["Inbox", "leave", "tell"]

LOOK_SECONDS = 0.1
ANSWER_SECONDS = 0.05
"""Between two looks for an answer."""


class Inbox:
    """The driver's end. A file that was answered, by this driver or an earlier one, is never read again."""

    def __init__(self, folder: Path, answered: Iterable[str]) -> None:
        self.folder = folder
        self.answered = set(answered)
        self._looked = 0.0

    def new(self) -> list[tuple[str, dict[str, Any]]]:
        """(file, command) of what was left since the last look, oldest first; looks a few times a second at most."""
        if time.monotonic() - self._looked < LOOK_SECONDS or not self._is_own():
            return []
        self._looked = time.monotonic()
        found = []
        for path in sorted(self.folder.glob("*.json")):
            if path.name not in self.answered:
                self.answered.add(path.name)
                found.append((path.name, _command_in(path)))
        return found

    def _is_own(self) -> bool:
        """Whether the folder is there and this user's alone: each time it may be another one, and it decides what code is run."""
        try:
            check_directory(self.folder.parent)
        except (OSError, RunError):
            return False
        return self.folder.is_dir()


def _command_in(path: Path) -> dict[str, Any]:
    """What a file says; a command that does not exist where it is no plain file of this user, or says no JSON object."""
    try:
        found = parsed(own_text(path))
    except (OSError, ValueError, RunError) as error:
        found = str(error)
    return found if isinstance(found, dict) else {"command": found}


def tell(directory: Path, *commands: dict[str, Any]) -> list[str]:
    """Leave commands for the driver that has a run at hand, and wait for its answers.

    Raises RunError where there is no driver, or none any more before it has answered all: then nothing is left.
    """
    ended = RunState.of(read_journal(directory)).ended
    if not at_work(directory):
        how = f"has ended ({ended.status})" if ended is not None else "has no driver: it was interrupted"
        raise RunError(f"the run in {directory} {how}; start it again before you tell it something.")
    check_directory(directory)  # else its driver hears nothing
    journal = directory / "journal.jsonl"
    start = journal.stat().st_size
    names = [leave(directory, command) for command in commands]
    while True:
        # Who is gone at the first of these two looks has said before the second all that it ever will.
        working = at_work(directory)
        answers = _answers_in(journal, start)
        if all(name in answers for name in names):
            return [answers[name] for name in names]
        if not working:
            unheard = [name for name in names if name not in answers]
            for name in unheard:
                for file in (directory / "commands").glob(f"{name.partition('-')[0]}-*"):
                    file.unlink(missing_ok=True)
            heard = "; ".join(answers[name] for name in names if name in answers)
            changed = f"of what was asked this alone was done: {heard}" if heard else "nothing was changed"
            raise RunError(f"the run in {directory} ended before it had heard this, and {changed}; start it again.")
        time.sleep(ANSWER_SECONDS)


def _answers_in(journal: Path, start: int) -> dict[str, str]:
    """By command, what is answered in the part of a journal that begins there."""
    values = (json.loads(line) for line in lines_of(journal, start) if line.startswith(b'{"event": "Answered"'))
    return {value["file"]: value["answer"] for value in values}


def leave(directory: Path, command: dict[str, Any]) -> str:
    """Leave a command for whoever has the run at hand, or will; returns the name of its file.

    A study file is left with it, as it is: people go on editing theirs.
    """
    folder, at = directory / "commands", time.time_ns()
    make_folder(folder)
    if command["command"] == "add":
        file = Path(command["study"])
        command = StudyCopy.take(file, folder / f"{at}-{file.name}").to_command(file)
    name = f"{at}-{command['command']}.json"
    with replacing(folder / name) as unfinished:
        unfinished.write(json.dumps(command).encode())
    return name
