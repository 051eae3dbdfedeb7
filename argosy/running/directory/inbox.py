"""Commands of users to a run: files in its folder ``commands/``, each answered once in the journal."""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from argosy.disk.files import check_directory, make_folder, read_lines, read_own_text, replacing
from argosy.disk.json_values import parse_json
from argosy.errors import RunError
from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal
from argosy.running.directory.lock import has_driver
from argosy.running.directory.study_copy import StudyCopy

__all__ = ["Inbox", "write_command", "send_commands"]

POLL_SECONDS = 0.1
"""Seconds between two looks into the folder."""
ANSWER_SECONDS = 0.05
"""Seconds between two checks for an answer."""
LONGEST_NAME = 40
"""Most characters of a study file's name in that of its copy, which has others too: file systems take 255 bytes."""


class Inbox:
    """The driver's end. A file that this driver or an earlier one has answered is never read again."""

    def __init__(self, folder: Path, answered: Iterable[str]) -> None:
        self.folder = folder
        self.answered: set[str] = set(answered)
        self._polled = 0.0

    def new(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (file, command) of the commands left since the last check, oldest first; checks at most every 0.1 s."""
        if time.monotonic() - self._polled < POLL_SECONDS:
            return []
        try:
            with os.scandir(self.folder) as entries:
                files = [entry.name for entry in entries]
        except OSError:
            return []  # there is no folder before the first command
        self._polled = time.monotonic()
        names = sorted(name for name in files if name.endswith(".json") and name not in self.answered)
        if not names or not self._is_own():
            return []
        self.answered.update(names)
        return [(name, _read_command(self.folder / name)) for name in names]

    def _is_own(self) -> bool:
        """Return whether the folder belongs to this user alone.

        Checked each time before commands are read, because these decide what code runs.
        """
        try:
            check_directory(self.folder.parent)
        except (OSError, RunError):
            return False
        return True


def _read_command(path: Path) -> dict[str, Any]:
    """Return a file's command; an unknown command if it is not a plain file of this user with a JSON object."""
    try:
        content = parse_json(read_own_text(path))
    except (OSError, ValueError, RunError) as error:
        content = str(error)
    return content if isinstance(content, dict) else {"command": content}


def send_commands(directory: Path, *commands: dict[str, Any]) -> list[str]:
    """Leave commands for the driver of a run, and wait for its answers.

    Raises RunError if there is no driver, or if it ends before it has answered all: then no command is left behind. An interrupted
    wait leaves them, because the driver may have read them.
    """
    state = RunState.of(read_journal(directory))
    ended = state.ended
    if not has_driver(directory):
        how = f"has ended ({ended.status})" if ended is not None else "was interrupted and has no driver"
        is_done = ended is not None and ended.status == "done"
        more = "set a larger n_trials in its search" if state.searches else "write them into its study file"
        then = f"To train more members, {more}, and start it" if is_done else "Start it"
        raise RunError(
            f"the run in {directory} {how}. {then} again{'' if is_done else ' before you send it a request'}."
        )
    check_directory(directory)  # otherwise its driver ignores the commands
    start = (directory / "journal.jsonl").stat().st_size
    names = [write_command(directory, command) for command in commands]
    try:
        return _wait_for_answers(directory, start, names)
    except KeyboardInterrupt as interrupt:
        interrupt.args = (
            f"interrupted; the run in {directory} will still carry out the request, or its next driver will",
        )
        raise


def _wait_for_answers(directory: Path, start: int, names: list[str]) -> list[str]:
    """Return the answers to the commands of these names, from the part of the journal that begins at byte `start`."""
    journal = directory / "journal.jsonl"
    while True:
        # A driver that is gone at the first of these two checks has written all its answers before the second.
        working = has_driver(directory)
        answers = _read_answers(journal, start)
        if all(name in answers for name in names):
            return [answers[name] for name in names]
        if not working:
            unanswered = [name for name in names if name not in answers]
            for name in unanswered:
                for file in (directory / "commands").glob(f"{name.partition('-')[0]}-*"):
                    file.unlink(missing_ok=True)
            done = "; ".join(answers[name] for name in names if name in answers)
            changed = f"only this was done: {done}" if done else "nothing was changed"
            raise RunError(
                f"the run in {directory} ended before it carried out this request, and {changed}. Start it again."
            )
        time.sleep(ANSWER_SECONDS)


def _read_answers(journal: Path, start: int) -> dict[str, str]:
    """Return the answers by command, from the part of a journal that begins at byte `start`."""
    values = (json.loads(line) for line in read_lines(journal, start) if line.startswith(b'{"event": "Answered"'))
    return {value["file"]: value["answer"] for value in values}


def write_command(directory: Path, command: dict[str, Any]) -> str:
    """Leave a command for the run's driver, or its next one; returns the name of its file.

    A study file is copied with it, because users may edit theirs later.
    """
    folder, at = directory / "commands", time.time_ns()
    make_folder(folder)
    if command["command"] == "add":
        # Before the command, which the driver may read at once. By these names, commands are sorted by time.
        file = Path(command["study"])
        command = StudyCopy.take(file, folder / f"{at}-{file.name[-LONGEST_NAME:]}").to_command(file)
    name = f"{at}-{command['command']}.json"
    with replacing(folder / name, durable=True) as unfinished:
        unfinished.write(json.dumps(command).encode())
    return name
