"""Members that people add to a run: their file is rehearsed, then read, they are measured, and only then are they here.

An addition is whole or nothing, and answered once: with the names of its members when they wait for devices like everybody
else, or with the reason why none of them do. Until then no resume knows of it.
"""

import importlib
import importlib.machinery
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argosy.errors import ArgosyError, PlanError, StudyError
from argosy.protocol.events import REFUSED
from argosy.running.control.refusals import check_batches
from argosy.running.control.rehearsal import Rehearsal, Rehearsed
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.directory.studyfile import load_copy
from argosy.study import Member

if TYPE_CHECKING:
    from argosy.running.control.driver import Driver

__all__ = ["Additions"]


class Additions:
    """Of one run, by the names of the commands that brought them."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self._commands: dict[str, Mapping[str, Any]] = {}
        """All that are not answered."""
        self._copies: dict[str, StudyCopy] = {}
        """Those that are not read yet."""
        self._rehearsal: Rehearsal | None = None
        self._rehearsed: dict[str, Rehearsed] = {}
        self._measured: dict[str, tuple[str, ...]] = {}
        """Members whose costs are not all known yet."""

    @property
    def pending(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._commands)

    @property
    def names(self) -> set[str]:
        """Members of whom nobody knows yet whether they will be here."""
        return {name for names in self._measured.values() for name in names}

    def ask(self, file: str, command: Mapping[str, Any]) -> None:
        """Take up a command; raises RunError for one that names no copy."""
        self._copies[file] = StudyCopy.of(command, self.driver.requests.inbox.folder)
        self._commands[file] = command

    def look(self) -> None:
        """Go on with what was asked, as far as that goes without waiting."""
        if self._rehearsal is None:
            self._rehearse({file: copy for file, copy in self._copies.items() if file not in self._rehearsed})
        results = self._rehearsal.results() if self._rehearsal is not None else None
        if results is not None:
            self._rehearsal = None
            self._rehearsed |= results
        if self.driver.begun:
            for file in list(self._rehearsed):
                self._take_up(file, self._rehearsed.pop(file))

    def _rehearse(self, copies: Mapping[str, StudyCopy]) -> None:
        if not copies:
            return
        try:
            self._rehearsal = Rehearsal.start(copies)
        except OSError as error:
            refused = Rehearsed(
                problem=f"no process can be started to read it ({error}); add it again when there is room."
            )
            self._rehearsed |= dict.fromkeys(copies, refused)

    def _take_up(self, file: str, rehearsed: Rehearsed) -> None:
        """Nothing speaks against a file, or something does: its members are to be measured, or not."""
        driver, copy = self.driver, self._copies.pop(file)
        try:
            if rehearsed.problem:
                raise StudyError(rehearsed.problem)
            _check_modules(copy.folder, rehearsed.modules)
            members = driver.member_table.newcomers(load_copy(copy))
            if not members:
                raise StudyError(
                    "all members of the study are here already, or being added; give `study` members of other names."
                )
            check_batches(members, driver.lengths)
            self._check_twins(members)
            self.admit(file, self._commands[file], members)
        except ArgosyError as error:
            self._answer(file, f"{REFUSED}{error}")

    def admit(self, file: str, command: Mapping[str, Any], members: Sequence[Member]) -> None:
        """Members of a command are to be measured, and its answer is to come; raises StudyError where they do not go with the
        study's terms."""
        driver, names = self.driver, tuple(member.name for member in members)
        for name in names:
            driver.member_table.check_new(name)
        driver.member_table.extend(members)
        self._commands[file], self._measured[file] = command, names
        driver.view.study(driver.study)
        driver.scheduler.leg_starts.expect(names)

    def _check_twins(self, members: Sequence[Member]) -> None:
        for member in members:
            twin = self.driver.identity.twin(member, self.driver.study)
            if twin is not None:
                raise StudyError(
                    f"member {member.name!r} is {twin!r} once more, with the same seed; give it another seed, or leave it out."
                )

    def settle(self) -> None:
        """Answer where the costs of all members are known: they are here from now on, or refused."""
        driver = self.driver
        for file, names in list(self._measured.items()):
            if not all(name in driver.measuring.measured for name in names):
                continue
            try:
                driver.scheduler.leg_starts.check_fit(names)
            except PlanError as error:
                self._dismiss(file, str(error))
            else:
                del self._measured[file]
                self._answer(file, f"added {', '.join(names)}")

    def failed(self, name: str, reason: str) -> bool:
        """A member ended before it was here; False where it is."""
        file = next((file for file, names in self._measured.items() if name in names), None)
        if file is None:
            return False
        *more, last = reason.strip().removesuffix(".").splitlines()
        log = f"; its traceback is in members/{name}/log.txt" if more else ""
        self._dismiss(file, f"member {name!r} failed while it was measured: {last}{log}.")
        return True

    def close(self) -> None:
        """The run ends; what is not answered is heard by the next driver."""
        if self._rehearsal is not None:
            self._rehearsal.close()

    def _dismiss(self, file: str, why: str) -> None:
        driver, names = self.driver, self._measured.pop(file)
        driver.scheduler.leg_starts.newcomers -= set(names)
        driver.member_table.dismiss(names)
        driver.measuring.dismiss(names)
        driver.pool.dismiss(names)
        driver.view.study(driver.study)
        driver.write_study()
        self._answer(file, f"{REFUSED}{why}")

    def _answer(self, file: str, answer: str) -> None:
        self.driver.requests.answer(file, self._commands.pop(file), answer)


def _check_modules(folder: Path, modules: Mapping[str, str]) -> None:
    """Raise StudyError where a name of a module beside an added file means another one in this run."""
    importlib.invalidate_caches()
    path = [*sys.path, str(folder)]
    for name, file in modules.items():
        found = _file_of(name, path)
        if found != file:
            raise StudyError(
                f"its module {name!r} is {file}; the run has another one of that name, {found}. Rename it."
            )


def _file_of(name: str, path: Iterable[str]) -> str | None:
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = importlib.machinery.PathFinder.find_spec(name, list(path))
    return spec.origin if spec is not None else None
