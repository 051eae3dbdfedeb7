"""Where members go on: the newest sound checkpoint of each, and the stretch of the stream that they need together."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from argosy.commands import Leg
from argosy.events import Checkpoint
from argosy.report import MemberState
from argosy.stopping import Mode
from argosy.stream.order import Selection, split_order
from argosy.study import Study
from argosy.training import checkpoint

__all__ = ["Resume", "leg_for", "resume_points", "settle_links"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """Where one member goes on; at its beginning where it has no checkpoint."""

    member: str
    stream_epoch: int = 0
    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()
    """Checkpoints that could not be used, and why."""

    @property
    def epoch(self) -> int:
        """Epochs that are behind the member."""
        return self.checkpoint.epoch if self.checkpoint else 0


def resume_points(states: Iterable[MemberState], directory: Path) -> dict[str, Resume]:
    """For each member the newest journaled checkpoint whose sum matches; sums are computed in parallel."""
    with ThreadPoolExecutor() as pool:
        points = pool.map(lambda state: _resume_point(state, directory / "members" / state.name), states)
        return {point.member: point for point in points}


def _resume_point(state: MemberState, folder: Path) -> Resume:
    notes: list[str] = []
    for stream_epoch, saved in reversed(state.saved):
        path = folder / saved.file
        if not path.exists():
            continue
        if checkpoint.sum_of(path) == saved.sha256:
            return Resume(member=state.name, stream_epoch=stream_epoch, checkpoint=saved, notes=tuple(notes))
        notes.append(f"checkpoint {saved.file} is damaged and was passed over")
    return Resume(member=state.name, notes=tuple(notes))


def settle_links(states: Iterable[MemberState], directory: Path, objective: str, mode: Mode) -> None:
    """Let ``last.pt`` and ``best.pt`` point to what the journal says: a trainer may have died before it moved them."""
    for state in states:
        folder = directory / "members" / state.name
        newest = next((saved.file for _, saved in reversed(state.saved) if (folder / saved.file).exists()), None)
        best = state.best(objective, mode)
        for name, file in (("last.pt", newest), ("best.pt", best.checkpoint.file if best else None)):
            if file is not None and (folder / file).exists():
                checkpoint.link(folder / file, name)


def leg_for(study: Study, points: Iterable[Resume], lengths: Mapping[str, int], *, number: int) -> Leg:
    """The stream from where the least advanced of these members goes on to where the last of them can end."""
    starts, ends = [], []
    for point in points:
        member = study.member(point.member)
        starts.append((point.stream_epoch, _stream_position(study, point, lengths["train"])))
        bound = study.stop_of(member).max_epochs
        ends.append(None if bound is None else point.stream_epoch + bound - point.epoch)
    epoch, position = min(starts)
    until = None if None in ends else max(end for end in ends if end is not None)
    return Leg(number=number, epoch=epoch, position=position, until=until)


def _stream_position(study: Study, point: Resume, length: int) -> int:
    if point.checkpoint is None or point.checkpoint.position == 0:
        return 0
    elements = point.checkpoint.position
    order = split_order(study.seed, "train", point.stream_epoch, length)
    positions = Selection.of(study.member(point.member).subset, length).positions(order)
    if positions is None:
        return elements
    return int(positions[elements]) if elements < len(positions) else length
