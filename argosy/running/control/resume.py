"""The checkpoints from which members resume: the latest valid one of each."""

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from argosy.disk.files import sha256_of
from argosy.errors import CheckpointError
from argosy.errors.spelling import format_names
from argosy.protocol.events import Checkpoint
from argosy.results.fold import MemberState
from argosy.training.member.files import settle_links

__all__ = ["ResumePoint", "resume_point", "resume_points", "settle_files"]

STAY = 2
"""Number of latest checkpoints of a member that are never deleted (`argosy.training.member.files`)."""
MOST_NAMED = 8
"""Most members that a message advises to start over one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumePoint:
    """Where a member resumes; without a checkpoint, at its beginning."""

    member: str
    stream_epoch: int
    """Stream epoch of the member's current epoch."""
    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()
    """Why checkpoints could not be used."""

    @property
    def epoch(self) -> int:
        """Number of epochs that the member has finished."""
        return self.checkpoint.epoch if self.checkpoint else 0

    @property
    def section(self) -> int:
        """Number of sections of the current epoch that the member has finished."""
        return self.checkpoint.section if self.checkpoint else 0

    @property
    def elements(self) -> int:
        """Number of elements of its sequence in the current epoch that it has consumed."""
        return self.checkpoint.reaches if self.checkpoint else 0

    @property
    def is_at_epoch_end(self) -> bool:
        """Whether the member is at the beginning of an epoch."""
        return self.section == 0 and self.elements == 0 and (self.checkpoint is None or self.checkpoint.position == 0)


def resume_points(states: Collection[MemberState], directory: Path, *, search: bool = False) -> dict[str, ResumePoint]:
    """Return for each member the latest journaled checkpoint whose checksum matches; checksums are computed in parallel.

    Raises CheckpointError if members, which are trials if `search`, have none, and what `resume_point` raises.
    """
    with ThreadPoolExecutor() as pool:
        points = {point.member: point for point in pool.map(lambda state: resume_point(state, directory), states)}
    lost = [name for name, point in points.items() if point.notes and point.checkpoint is None]
    if lost:
        # Neither a trial nor a clone that continued from weights can start over by itself.
        alone = not search and len(lost) <= MOST_NAMED and not any(s.inherited for s in states if s.name in lost)
        fresh, flags = (lost, " ".join(f"--fresh {name}" for name in lost)) if alone else (True, "--fresh")
        raise CheckpointError(
            f"no checkpoint of {format_names(lost)} in {directory / 'members'} is sound: none has the SHA-256 that the journal "
            f"gives. Restore one of each from a copy, or start over with fresh={fresh} ({flags}), which keeps the old files."
        )
    return points


def resume_point(state: MemberState, directory: Path, *, proved: bool = False) -> ResumePoint:
    """Return where one member resumes; with `proved`, checksums are not verified.

    Raises CheckpointError if a checkpoint among the latest two is missing, because Argosy never deletes these.
    """
    notes: list[str] = []
    folder = directory / "members" / state.name
    for age, saved in enumerate(reversed(state.saved)):
        path = folder / saved.file
        if not path.is_file():
            if age < STAY:
                raise CheckpointError(
                    f"checkpoint {path} is in the journal but does not exist: it was moved or deleted, or written "
                    f"where this node cannot see it. Without it, {state.name} would start over. Restore it, or "
                    "train in another directory."
                )
            continue
        if proved or sha256_of(path) == saved.sha256:
            if not proved and saved.best is not None and not (folder / saved.best).is_file():
                notes.append(
                    f"its best weights, {saved.best}, do not exist: restore a copy, unless a later section is better"
                )
            return _point(state, saved, notes)
        notes.append(f"checkpoint {saved.file} is damaged and was skipped")
    return _point(state, None, notes)


def _point(state: MemberState, saved: Checkpoint | None, notes: Iterable[str]) -> ResumePoint:
    epoch = saved.epoch if saved else 0
    stream_epoch = state.stream_epoch(epoch)
    return ResumePoint(
        member=state.name,
        stream_epoch=epoch if stream_epoch is None else stream_epoch,
        checkpoint=saved,
        notes=tuple(notes),
    )


def settle_files(state: MemberState, directory: Path) -> None:
    """Update a member's links and delete its old files as the journal says, because its trainer may have been lost before it did."""
    folder = directory / "members" / state.name
    present = [saved for saved in state.saved if (folder / saved.file).exists()]
    if present:
        settle_links(folder, present[-1])
    kept = {name for saved in present[-STAY:] for name in (saved.file, saved.best)}
    # By name, because a section that was trained again is journaled twice with the same file.
    for file in dict.fromkeys(saved.file for saved in present[:-STAY] if saved.file not in kept):
        (folder / file).unlink()
