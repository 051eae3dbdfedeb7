"""Members that people make of others: the same but for some hyper-parameters, from nothing or from where the other one is.

A clone that goes on from another member's weights begins with a file of that member's, which was written at an epoch's end: its
driver has its trainer write one at the next, links it into the clone's folder, and journals whose it is and what is to differ.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from argosy.bindings import rebound
from argosy.disk.files import flush_folder, make_folder, opened, replacing
from argosy.errors import ArgosyError, RunError, StudyError
from argosy.errors.spelling import meant
from argosy.protocol.events import REFUSED, Checkpoint, Cloned
from argosy.protocol.trainer import Save
from argosy.results.fold import MemberState
from argosy.running.control.refusals import check_batches
from argosy.study import Member
from argosy.training.member.checkpoint import check

if TYPE_CHECKING:
    from argosy.running.control.driver import Driver

__all__ = ["LOADED", "Clone", "Clones", "inherit", "newest_file"]

LOADED = ("optimizer", "loss", "augment")
"""Parts of a member whose numbers may differ from those of the one whose weights it takes over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clone:
    """What a person asked for."""

    source: str
    name: str
    changes: Mapping[str, Any]
    """By the names of hyper-parameters, as ``optimizer.lr``."""
    warm: bool
    """Whether it goes on from the other one's weights, instead of from nothing."""

    @classmethod
    def of(cls, command: Mapping[str, Any]) -> "Clone":
        """From a command; raises RunError for one that lacks something."""
        match command:
            case {"member": str(source), "name": str(name), "set": dict(changes), "warm": bool(warm)}:
                return cls(source=source, name=name, changes=changes, warm=warm)
        raise RunError(f"the command to clone {command.get('member')!r} lacks something: use argosy clone.")

    def member(self, source: Member) -> Member:
        """The clone; raises StudyError for changes that it cannot have."""
        if not self.changes:
            raise StudyError(
                f"{self.name!r} would be {source.name!r} once more; say with --set what is to differ, as "
                "--set optimizer.lr=0.01."
            )
        known, changed = source.hyperparameters, source
        for name, value in self.changes.items():
            if name not in known:
                raise StudyError(
                    f"member {source.name!r} has no hyper-parameter {name!r}{meant(name, known)}; set one of {', '.join(known)}."
                )
            _check(name, known[name], value, warm=self.warm)
            part, _, key = name.partition(".")
            new: Any = rebound(getattr(changed, part), key, value) if key else value
            changed = replace(changed, **cast(Any, {part: new}))
        if changed.hyperparameters == source.hyperparameters:
            raise StudyError(
                f"{self.name!r} would be {source.name!r} once more: it has these values already; give it another one."
            )
        return replace(changed, name=self.name, repetition=None)


def _check(name: str, before: Any, value: Any, *, warm: bool) -> None:
    """Raise StudyError for a value that cannot take the place of the one before."""
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (before, value))
    if not numbers and type(value) is not type(before):
        kind = "an int" if isinstance(before, int) and not isinstance(before, bool) else f"a {type(before).__name__}"
        raise StudyError(f"{name} is {before!r}, and {value!r} is of another kind; give {kind}.")
    if warm and name.partition(".")[0] not in LOADED:
        raise StudyError(
            f"{name} is part of what the member is built as, and with --warm the clone goes on with that; clone it without "
            f"--warm, or change what belongs to {', '.join(LOADED)}."
        )


@dataclass(kw_only=True, slots=True)
class Waiting:
    """A clone that is not here yet."""

    command: Mapping[str, Any]
    clone: Clone
    older: Checkpoint | None
    """The newest file that its source had when it was asked for."""
    asked: int = -1
    """Sections that the source had ended when its trainer was asked for another one."""


class Clones:
    """Of one run: those that wait for a file of their source's."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self._waiting: dict[str, Waiting] = {}
        """By the name of a command that is not answered yet."""

    def ask(self, file: str, command: Mapping[str, Any]) -> None:
        """Take up a command; raises StudyError or RunError for what cannot be."""
        clone, study = Clone.of(command), self.driver.study
        if clone.source not in study.names:
            raise RunError(
                f"no member {clone.source!r}{meant(clone.source, study.names)} is here; clone one of {', '.join(study.names)}."
            )
        if clone.source in self.driver.additions.names:
            raise RunError(f"member {clone.source!r} is being added; clone it when that is answered.")
        self._check_name(clone.name)
        clone.member(study.member(clone.source))
        self._waiting[file] = Waiting(command=command, clone=clone, older=self._newest(clone))

    def look(self) -> None:
        """Take up those whose source has been saved, or need nothing of it."""
        for file, waiting in list(self._waiting.items()) if self.driver.begun else ():
            clone, newest = waiting.clone, self._newest(waiting.clone)
            device = self._device(clone.source) if clone.warm else None
            if device is not None and newest in (None, waiting.older):
                # The next one may be of a section in the middle of an epoch, or gone again.
                files = len(self.driver.state.member(clone.source).sections)
                if waiting.asked != files:
                    waiting.asked = files
                    self.driver.pool.send(device, Save())
                continue
            del self._waiting[file]
            try:
                self._take_up(file, waiting.command, clone, newest)
            except ArgosyError as error:
                self.driver.requests.answer(file, waiting.command, f"{REFUSED}{error}")

    def _take_up(self, file: str, command: Mapping[str, Any], clone: Clone, newest: Checkpoint | None) -> None:
        driver, checkpoint = self.driver, newest if clone.warm else None
        self._check_name(clone.name)  # somebody may have brought another one while this one waited
        if clone.warm and checkpoint is None:
            raise RunError(
                f"member {clone.source!r} has no file of an epoch's end, which a clone could begin with; clone it when it has "
                "ended an epoch, or without --warm."
            )
        source = driver.study.member(clone.source)
        member, before = clone.member(source), source.hyperparameters
        check_batches([member], driver.lengths)
        changes = {name: (before[name], value) for name, value in clone.changes.items()}
        if checkpoint is not None:
            check(driver.directory / "members" / clone.source / checkpoint.file, checkpoint.sha256)
        cloned = Cloned(member=clone.name, source=clone.source, changes=changes, checkpoint=checkpoint)
        inherit(driver.directory, cloned)
        driver.record(cloned)
        driver.additions.admit(file, command, [member])

    def _check_name(self, name: str) -> None:
        if name in (*self.driver.study.names, *(waiting.clone.name for waiting in self._waiting.values())):
            raise StudyError(f"a member {name!r} is here already, or asked for; give the clone another name.")
        self.driver.member_table.check_new(name)

    def _device(self, member: str) -> str | None:
        """That saves a member which trains."""
        leg = self.driver.scheduler.leg_of(member)
        return None if leg is None else leg.savers[member]

    def _newest(self, clone: Clone) -> Checkpoint | None:
        return newest_file(self.driver.state.member(clone.source))


def newest_file(source: MemberState) -> Checkpoint | None:
    """The one of an epoch's end, among the two that are surely there still; without its best weights, which no clone takes over."""
    found = source.saved[-2:]
    if len({saved.file for saved in found}) == 1:
        found = found[:1]  # the second one has best weights from behind the file
    found.reverse()
    ends = (saved for saved in found if (saved.section, saved.position, saved.carried) == (0, 0, 0))
    return next((replace(saved, best=None, best_sha256=None) for saved in ends), None)


def inherit(directory: Path, cloned: Cloned) -> None:
    """Let a clone have the file that it goes on from, which its source deletes one day.

    Raises CheckpointError where it is not there.
    """
    checkpoint = cloned.checkpoint
    if checkpoint is None:
        return
    there, here = directory / "members" / cloned.source, directory / "members" / cloned.member
    make_folder(here)
    name = checkpoint.file
    check(there / name)
    # A driver that was killed before it journaled the clone may have left one of that name.
    (here / name).unlink(missing_ok=True)
    try:
        os.link(there / name, here / name)
    except PermissionError:
        with opened(there / name) as file, replacing(here / name) as copy:
            shutil.copyfileobj(file, copy)  # a file system without links
    flush_folder(here)
