"""Where members resume: the latest valid checkpoint of each, and its position in the stream."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from argosy.disk.files import sum_of
from argosy.errors import CheckpointError
from argosy.protocol.events import Checkpoint
from argosy.protocol.feeder import Leg
from argosy.results.fold import MemberState
from argosy.stopping import sections_in
from argosy.stream.order import Selection, split_order
from argosy.stream.schedule import section_start
from argosy.study import Study
from argosy.training.member.files import settle_links

__all__ = ["Resume", "last_section", "leg_for", "resume_point", "resume_points", "settle_files"]

STAY = 2
"""Number of latest checkpoints of a member that are never deleted (`argosy.training.member.files`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
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
    def at_an_epochs_end(self) -> bool:
        """Whether the member is at the beginning of an epoch."""
        return self.section == 0 and self.elements == 0 and (self.checkpoint is None or self.checkpoint.position == 0)


def resume_points(states: Iterable[MemberState], directory: Path) -> dict[str, Resume]:
    """Return for each member the latest journaled checkpoint whose checksum matches; checksums are computed in parallel."""
    with ThreadPoolExecutor() as pool:
        return {point.member: point for point in pool.map(lambda state: resume_point(state, directory), states)}


def resume_point(state: MemberState, directory: Path, *, proved: bool = False) -> Resume:
    """Return where one member resumes; with `proved`, checksums are not verified.

    Raises CheckpointError if a checkpoint among the latest two is missing, because Argosy never deletes these.
    """
    notes: list[str] = []
    folder = directory / "members" / state.name
    for age, saved in enumerate(reversed(state.saved)):
        path = folder / saved.file
        if not path.exists():
            if age < STAY:
                raise CheckpointError(
                    f"checkpoint {path} is journaled and does not exist: it was moved or deleted, or was written where this "
                    f"node does not see it. Put it back, or train in another directory: {state.name} would begin anew."
                )
            continue
        if proved or sum_of(path) == saved.sha256:
            return _point(state, saved, notes)
        notes.append(f"checkpoint {saved.file} is damaged and was passed over")
    return _point(state, None, notes)


def _point(state: MemberState, saved: Checkpoint | None, notes: Iterable[str]) -> Resume:
    epoch = saved.epoch if saved else 0
    stream_epoch = state.stream_epoch(epoch)
    return Resume(
        member=state.name,
        stream_epoch=epoch if stream_epoch is None else stream_epoch,
        checkpoint=saved,
        notes=tuple(notes),
    )


def settle_files(states: Iterable[MemberState], directory: Path) -> None:
    """Update links and delete old files as the journal says, because a trainer may have been lost before it did."""
    for state in states:
        folder = directory / "members" / state.name
        there = [saved for saved in state.saved if (folder / saved.file).exists()]
        if there:
            settle_links(folder, there[-1])
        kept = {name for saved in there[-STAY:] for name in (saved.file, saved.best)}
        # By name, because a section that was trained again is journaled twice with the same file.
        for file in dict.fromkeys(saved.file for saved in there[:-STAY] if saved.file not in kept):
            (folder / file).unlink()


def leg_for(study: Study, points: Iterable[Resume], lengths: Mapping[str, int], shards: Sequence[int]) -> Leg:
    """The stream from where the least advanced of these members goes on; the leg has no number yet."""
    points, per_epoch, length = tuple(points), study.validations_per_epoch, lengths["train"]
    section = min(point.stream_epoch * per_epoch + point.section for point in points)
    positions = [
        _stream_position(study, point, length, shards) for point in points if point.stream_epoch == section // per_epoch
    ]
    return Leg(number=0, section=section, position=min(positions))


def last_section(study: Study, point: Resume) -> int | None:
    """Return the first section of the stream that a member certainly does not need; None if its rule has no bound."""
    bound, per_epoch = study.stop_of(study.member(point.member)).max_epochs, study.validations_per_epoch
    if bound is None:
        return None
    return point.stream_epoch * per_epoch + sections_in(bound, per_epoch) - point.epoch * per_epoch


def _stream_position(study: Study, point: Resume, length: int, shards: Sequence[int]) -> int:
    start = section_start(point.section, length, study.validations_per_epoch)
    if point.checkpoint is None or point.at_an_epochs_end:
        return start
    selection = Selection.of(study.member(point.member).subset, length)
    if selection.multiplicity is None:
        return point.elements
    positions = selection.positions(split_order(study.seed, "train", point.stream_epoch, length, shards))
    assert positions is not None
    # A member at the end of its sequence needs nothing more of the epoch.
    return int(positions[point.elements]) if point.elements < len(positions) else length
