"""Members that the user adds to a run: their study file is rehearsed, then read, the members are measured, and only then they join.

Additions are atomic and answered once: with the names of the members when all of them wait for devices, or with the reason why none of
them can. Until then no resume includes them.
"""

import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from argosy.errors import ArgosyError, StudyError
from argosy.protocol.events import REFUSED
from argosy.running.control.carry_out import CarryOut
from argosy.running.control.measurements import Measurements
from argosy.running.control.refusals import check_batches
from argosy.running.control.rehearsal import Rehearsal, RehearsalResult
from argosy.running.control.run import Run
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.directory.studyfile import load_copy
from argosy.stream.imported import check_imports
from argosy.study import Member, Study

__all__ = ["Additions"]


class Additions:
    """Handles the additions to one run, by the file names of their commands."""

    def __init__(self, run: Run, carry_out: CarryOut, measurements: Measurements) -> None:
        self.run = run
        self.carry_out = carry_out
        self.measurements = measurements
        self._copies: dict[str, StudyCopy] = {}
        """Study files that have not been read yet."""
        self._rehearsal: Rehearsal | None = None

    @property
    def pending(self) -> bool:
        """Whether a command is unanswered."""
        return bool(self._copies or self.run.members.by_addition())

    def accept(self, file: str, command: Mapping[str, Any]) -> None:
        """Accept a command; raises RunError if it names no copy of a study file."""
        self._copies[file] = StudyCopy.of(command, self.run.directory / "commands")

    def poll(self) -> None:
        """Advance pending additions without waiting."""
        for file, rehearsed in self._rehearse().items():
            self._take_up(file, rehearsed)

    def _rehearse(self) -> Mapping[str, RehearsalResult]:
        """Return the files that have been read since the last call, by command; begin to read those accepted meanwhile."""
        if self._rehearsal is None and self._copies:
            try:
                self._rehearsal = Rehearsal.start(self._copies)
            except OSError as error:
                refused = RehearsalResult(
                    problem=f"no process could be started to read it ({error}). Add it again when the machine has room for one."
                )
                return dict.fromkeys(self._copies, refused)
        results = None if self._rehearsal is None else self._rehearsal.results()
        if results is None:
            return {}
        self._rehearsal = None
        return results

    def _take_up(self, file: str, rehearsed: RehearsalResult) -> None:
        """Let the members of a file be measured, or refuse it."""
        run, copy = self.run, self._copies.pop(file)
        try:
            if rehearsed.problem:
                # The user knows their file, not its copy.
                raise StudyError(rehearsed.problem.replace(str(copy.path), run.commands[file]["study"]))
            _check_modules(copy.folder, rehearsed.modules)  # before the file is executed in this process
            study = load_copy(copy)
            self._check_same(study, rehearsed.fingerprints)
            members = run.positions.newcomers(study)
            if not members:
                raise StudyError(
                    "all members of the study are already in the run or being added. Give the new members in "
                    "`study` other names."
                )
            check_imports(members, rehearsed.imported)
            check_batches(members, run.lengths)
            self._check_alike(members)
            self.admit(file, members)
        except ArgosyError as error:
            self.carry_out.answer(file, f"{REFUSED}{error}")

    def admit(self, file: str, members: Sequence[Member]) -> None:
        """Let the members of a command be measured; it is answered later. Raises StudyError if they contradict the study."""
        for member in members:
            self.run.positions.check_new(member.name)
        if self.run.ensemble_judge is not None:
            self.run.ensemble_judge.check(members)
        self.measurements.expect(members, addition=file)

    def _check_same(self, study: Study, fingerprints: Mapping[str, str]) -> None:
        """Raise StudyError if the file's study has another seed or other data, because its members would train differently here."""
        seed, data = self.run.study.seed, self.run.data
        known = {} if data is None else data.fingerprints
        differences = [
            f"different samples in Data.{split}" for split, digest in fingerprints.items() if known.get(split) != digest
        ]
        if study.seed != seed:
            differences.insert(0, f"seed {study.seed} (the run: {seed})")
        if differences:
            raise StudyError(
                f"its study has {'; '.join(differences)}. All members of a run share seed and data. Create it from the "
                "run's study: dataclasses.replace(study, members=[...])."
            )

    def _check_alike(self, members: Sequence[Member]) -> None:
        for member in members:
            equal = self.run.identity.equal_member(member, self.run.study)
            if equal is not None:
                raise StudyError(
                    f"member {member.name!r} is identical to {equal!r}, including the seed. Give it another seed, "
                    "or remove it."
                )

    def close(self) -> None:
        """End; unanswered commands are left for the next driver."""
        if self._rehearsal is not None:
            self._rehearsal.close()


def _check_modules(folder: Path, modules: Mapping[str, str]) -> None:
    """Raise StudyError if a module beside an added file has the name of a different module in this run."""
    importlib.invalidate_caches()
    path = [*sys.path, str(folder)]
    for name, file in modules.items():
        actual = _file_of(name, path)
        if actual != file:
            raise StudyError(
                f"its module {name!r} is {file}, but in the run a module of that name is {actual}. Rename it."
            )


def _file_of(name: str, path: Iterable[str]) -> str | None:
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = PathFinder.find_spec(name, list(path))
    return spec.origin if spec is not None else None
