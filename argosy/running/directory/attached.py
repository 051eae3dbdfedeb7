"""Access to a run from another process or a notebook: its status, and requests to change it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.disk.files import user_path
from argosy.errors import RefusedError, StudyError
from argosy.errors.checks import describe_value
from argosy.errors.spelling import known_keywords
from argosy.protocol.events import REFUSED
from argosy.results.report import Report
from argosy.running.directory.inbox import send_commands
from argosy.running.directory.journal import read_journal
from argosy.running.directory.loading import load_report
from argosy.running.directory.lock import has_driver, wait_for_end, wait_for_section

__all__ = ["AttachedRun", "attach"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttachedRun:
    """A run, identified by its directory. Its driver answers each request once it has been carried out.

    A refusal raises RefusedError with the driver's sentence; a request to a run without a driver raises RunError.
    """

    directory: Path

    def status(self) -> Report:
        """Return the current report of the run, without Optuna's study and without networks to load."""
        return load_report(self.directory)

    def add(self, study_file: str | Path) -> str:
        """Add the members of a study file that the run does not have yet, and return the answer.

        It has to be a file, because the driver executes it and unpickles nothing.
        """
        (answer,) = self._ask({"command": "add", "study": str(study_file)})
        return answer

    def stop(self, names: str | Sequence[str] | None = None) -> list[str]:
        """Save these members and stop them; without names, save all and end the run, as Ctrl-C does.

        Returns the answers, one for each name. If the whole run was stopped, it has ended by then.
        """
        if names is None:
            answers = self._ask({"command": "stop"})
            wait_for_end(self.directory)
            return answers
        members = [names] if isinstance(names, str) else names
        return self._ask(*({"command": "stop", "member": member} for member in members))

    def clone(self, member: str, name: str, changes: Mapping[str, Any], *, warm: bool = False) -> str:
        """Add a copy of a member with hyper-parameters changed, for example ``{"optimizer.lr": 0.01}``, and return the answer.

        A `warm` clone continues from the member's weights instead of starting from scratch.
        """
        # Scalars of NumPy and torch convert to Python numbers.
        values = {key: value.item() if hasattr(value, "item") else value for key, value in changes.items()}
        for key, value in values.items():
            if not isinstance(value, bool | int | float | str) or value in (math.inf, -math.inf) or value != value:
                raise StudyError(
                    f"clone {name!r}: {key} is {describe_value(value)}; it must be a finite number, a string, True or False."
                )
        (answer,) = self._ask({"command": "clone", "member": member, "name": name, "set": values, "warm": warm})
        return answer

    def wait(self, *, section: bool = False) -> Report:
        """Wait until the run has ended, or with `section` until the next section of any member has ended; return the report."""
        (wait_for_section if section else wait_for_end)(self.directory)
        return self.status()

    def _ask(self, *commands: dict[str, Any]) -> list[str]:
        """Return the answers to the commands, in order; raises RefusedError if one is a refusal."""
        answers = send_commands(self.directory, *commands)
        refused = [answer.removeprefix(REFUSED) for answer in answers if answer.startswith(REFUSED)]
        if refused:
            error = RefusedError(" ".join(refused))
            error.answers = answers
            raise error
        return answers


@known_keywords("argosy.attach")
def attach(directory: str | Path) -> AttachedRun:
    """Return the run in a directory, to request changes while it continues; raises RunError if there is none."""
    directory = user_path(directory)
    if not has_driver(directory):  # a driver that has just started has no journal yet
        read_journal(directory)
    return AttachedRun(directory=directory)
