"""Clones: copies of a member with some other hyper-parameters, that start from scratch or from the member's weights.

A warm clone starts from a checkpoint of its source that was written at the end of an epoch.
"""

import errno
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from argosy.bindings import rebind
from argosy.disk.files import NO_LINKS, flush, make_folder, open_plain, replacing
from argosy.errors import RunError, StudyError
from argosy.errors.spelling import did_you_mean
from argosy.protocol.events import Checkpoint, Cloned
from argosy.results.fold import MemberState
from argosy.study import Member
from argosy.training.member.checkpoint import check_file

__all__ = ["LOADED", "Clone", "link_checkpoint", "newest_checkpoint"]

LOADED = ("optimizer", "loss", "augment")
"""Fields whose hyper-parameters may differ from the source's in a warm clone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clone:
    """A requested clone."""

    source: str
    name: str
    changes: Mapping[str, Any]
    """New values by hyper-parameter, such as ``optimizer.lr``."""
    warm: bool
    """Whether it starts from the source's weights instead of from scratch."""

    @classmethod
    def of(cls, command: Mapping[str, Any]) -> "Clone":
        """Return the clone of a command; raises RunError if the command is incomplete."""
        match command:
            case {"member": str(source), "name": str(name), "set": dict(changes), "warm": bool(warm)}:
                return cls(source=source, name=name, changes=changes, warm=warm)
        raise RunError(f"the command to clone {command.get('member')!r} is incomplete. Use argosy clone.")

    def member(self, source: Member) -> Member:
        """Return the clone as a member; raises StudyError for impossible changes."""
        if not self.changes:
            raise StudyError(
                f"{self.name!r} would be identical to {source.name!r}. Change a hyper-parameter with --set, for "
                "example --set optimizer.lr=0.01."
            )
        known, changed = source.hyperparameters, source
        for name, value in self.changes.items():
            if name not in known:
                raise StudyError(
                    f"member {source.name!r} has no hyper-parameter {name!r}{did_you_mean(name, known)}; set one of {', '.join(known)}."
                )
            _check(name, known[name], value, warm=self.warm)
            part, _, key = name.partition(".")
            new: Any = rebind(getattr(changed, part), key, value) if key else value
            changed = replace(changed, **cast(Any, {part: new}))
        return replace(changed, name=self.name, repetition=None)


def _check(name: str, before: Any, value: Any, *, warm: bool) -> None:
    """Raise StudyError for a value that cannot replace the previous one."""
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (before, value))
    if not numbers and type(value) is not type(before):
        kind = "an int" if isinstance(before, int) and not isinstance(before, bool) else f"a {type(before).__name__}"
        raise StudyError(f"{name} is {before!r} and cannot become {value!r}; it must be {kind}.")
    if warm and name.partition(".")[0] not in LOADED:
        raise StudyError(
            f"{name} is fixed when a member is built, and a --warm clone continues with the built member. Clone "
            f"it without --warm, or change only hyper-parameters of {', '.join(LOADED)}."
        )


def newest_checkpoint(source: MemberState) -> Checkpoint | None:
    """Return the latest checkpoint at the end of an epoch among the two that certainly still exist, without its best weights."""
    newest = source.saved[-2:]
    if len({saved.file for saved in newest}) == 1:
        newest = newest[:1]  # the best weights of the second one are newer than the file
    newest.reverse()
    # A file of epoch 0 has the weights from before the first step.
    ends = (saved for saved in newest if saved.epoch and (saved.section, saved.position, saved.carried) == (0, 0, 0))
    return next((replace(saved, best=None, best_sha256=None) for saved in ends), None)


def link_checkpoint(directory: Path, cloned: Cloned) -> None:
    """Link the checkpoint that a clone starts from, because its source will delete it.

    Raises CheckpointError if it does not exist.
    """
    checkpoint = cloned.checkpoint
    if checkpoint is None:
        return
    source_folder, folder = directory / "members" / cloned.source, directory / "members" / cloned.member
    make_folder(folder)
    name = checkpoint.file
    check_file(source_folder / name)
    # A driver that was killed before it journaled the clone may have left such a link.
    (folder / name).unlink(missing_ok=True)
    try:
        os.link(source_folder / name, folder / name)
    except OSError as error:
        if error.errno not in (*NO_LINKS, errno.EACCES, errno.EXDEV):  # the latter two of SELinux and AFS
            raise
        with open_plain(source_folder / name) as file, replacing(folder / name, durable=True) as copy:
            shutil.copyfileobj(file, copy)
    flush(folder, os.fsync)
