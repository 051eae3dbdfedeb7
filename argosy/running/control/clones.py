"""Clones that the user asks for. A warm clone waits for a checkpoint of its source, and is then added.

The source's trainer writes a checkpoint at the next end of an epoch. It is linked into the clone's folder, and the journal notes its
source and the changed hyper-parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy.errors import ArgosyError, RunError, StudyError
from argosy.errors.spelling import did_you_mean, format_names
from argosy.protocol.events import REFUSED, Checkpoint, Cloned
from argosy.protocol.trainer import Save
from argosy.results.fold import FINAL_STATUSES
from argosy.running.control.additions import Additions
from argosy.running.control.carry_out import CarryOut
from argosy.running.control.refusals import check_batches
from argosy.running.control.run import Run
from argosy.running.directory.clone import Clone, newest_checkpoint
from argosy.training.member.checkpoint import check_file

__all__ = ["Clones"]


@dataclass(kw_only=True, slots=True)
class WaitingClone:
    """A clone that has not been added yet."""

    clone: Clone
    older: Checkpoint | None
    """The latest checkpoint of its source when the clone was requested."""
    asked: int = -1
    """Number of sections that the source had ended when its trainer was asked for a checkpoint."""


class Clones:
    """Clones that wait for a checkpoint of their source."""

    def __init__(self, run: Run, carry_out: CarryOut, additions: Additions) -> None:
        self.run = run
        self.carry_out = carry_out
        self.additions = additions
        self._waiting: dict[str, WaitingClone] = {}
        """Waiting clones, by the file name of their unanswered command."""

    def accept(self, file: str, command: Mapping[str, Any]) -> None:
        """Accept a command; raises StudyError or RunError if it is impossible."""
        clone, study = Clone.of(command), self.run.study
        if clone.source not in study.names:
            raise RunError(
                f"the run has no member {clone.source!r}{did_you_mean(clone.source, study.names)}; clone one of "
                f"{format_names(study.names)}."
            )
        if self.run.members.addition(clone.source):
            raise RunError(f"member {clone.source!r} is still being added. Clone it once that request is answered.")
        self._check_name(clone.name)
        clone.member(study.member(clone.source))
        self._waiting[file] = WaitingClone(clone=clone, older=self._newest(clone))

    def poll(self) -> None:
        """Add clones whose source has been saved, or that need nothing from it."""
        for file, waiting in list(self._waiting.items()):
            clone, newest = waiting.clone, self._newest(waiting.clone)
            device, source = self._device(clone.source) if clone.warm else None, self.run.state.member(clone.source)
            if device is not None and newest in (None, waiting.older):
                # The next checkpoint may be from the middle of an epoch, or already be deleted.
                ended = len(source.sections)
                if waiting.asked != ended:
                    waiting.asked = ended
                    self.carry_out.send({device: Save()})
                continue
            if clone.warm and newest is None and source.epochs >= 1 and source.status not in FINAL_STATUSES:
                continue  # it is in the middle of an epoch, and waits for a device
            del self._waiting[file]
            try:
                self._take_up(file, clone, newest)
            except ArgosyError as error:
                self.carry_out.answer(file, f"{REFUSED}{error}")

    def _take_up(self, file: str, clone: Clone, newest: Checkpoint | None) -> None:
        run, checkpoint = self.run, newest if clone.warm else None
        self._check_name(clone.name)  # another member of this name may have joined meanwhile
        if clone.warm and checkpoint is None:
            raise RunError(
                f"member {clone.source!r} has no checkpoint of a finished epoch for a clone to start from. Clone "
                "it once it has finished an epoch, or without --warm."
            )
        source = run.study.member(clone.source)
        member, before = clone.member(source), source.hyperparameters
        check_batches([member], run.lengths)
        changes = {name: (before[name], value) for name, value in clone.changes.items()}
        state = run.state.member(clone.source)
        if checkpoint is not None and checkpoint == state.inherited:
            # The source, itself a clone, has no later file: this one has the hyper-parameters of the member that it was cloned from.
            filed = {name: (state.changes.get(name, pair)[0], pair[1]) for name, pair in changes.items()}
            changes = {**state.changes, **filed}
        if checkpoint is not None:
            check_file(run.directory / "members" / clone.source / checkpoint.file, checkpoint.sha256)
        cloned = Cloned(member=clone.name, source=clone.source, changes=changes, checkpoint=checkpoint)
        self.carry_out.inherit(cloned)
        self.additions.admit(file, [member])

    def _check_name(self, name: str) -> None:
        repeated = (member.repetition.of for member in self.run.study.members if member.repetition is not None)
        if name in (*self.run.study.names, *repeated, *(waiting.clone.name for waiting in self._waiting.values())):
            raise StudyError(f"a member {name!r} already exists or has been requested. Give the clone another name.")
        self.run.positions.check_new(name)

    def _device(self, member: str) -> str | None:
        """Return the device that saves a training member; None if it does not train."""
        leg = self.run.legs.of(member)
        return None if leg is None else leg.savers[member]

    def _newest(self, clone: Clone) -> Checkpoint | None:
        return newest_checkpoint(self.run.state.member(clone.source))
