"""The checkpoint files of one member: which exist, which the driver has journaled, and which may be deleted.

Contract. A journaled file is never overwritten, and stays until a newer one is journaled, because the driver may be slow or
dead. The two newest journaled checkpoints are kept, and the files with the best weights of each. Links change only after the driver
has journaled a file.
"""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from argosy.disk.files import make_folder
from argosy.protocol.events import Checkpoint
from argosy.training.member import checkpoint
from argosy.training.member.live import LiveMember

__all__ = ["Draft", "Files", "KeptFiles", "Saving", "settle_links"]

SAVING_SHARE = 0.005
"""Share of the time that saving at section ends may take."""


class Draft(NamedTuple):
    """Files to write for one member."""

    saved: Checkpoint
    """The checkpoint, without checksums."""
    items: Sequence[tuple[Mapping[str, Any], Path]]
    """Weights of the best section, if they must be written and differ from those of the state; then the state."""


class KeptFiles:
    """Decides which files of one member are kept, depending on which the driver has journaled."""

    def __init__(self, folder: Path, resumed: Checkpoint | None) -> None:
        self.folder = folder
        self._settled: tuple[Checkpoint, ...] = () if resumed is None else (resumed,)
        """The newest journaled checkpoints: at most two."""
        self._unsettled: tuple[Checkpoint, ...] = ()

    @property
    def newest(self) -> Checkpoint | None:
        """The newest file, journaled or not; None before the first."""
        return next(reversed((*self._settled, *self._unsettled)), None)

    def add(self, saved: Checkpoint) -> None:
        """Note a file that is written but not journaled yet."""
        self._unsettled = (*self._unsettled, saved)

    def note_journaled(self, file: str) -> None:
        """Note that the driver has journaled this file: update the links, and delete files older than the previous one."""
        names = [saved.file for saved in self._unsettled]
        if file not in names:
            return
        count = names.index(file) + 1
        self._settled = (*self._settled, *self._unsettled[:count])[-2:]
        self._unsettled = self._unsettled[count:]
        settle_links(self.folder, self._settled[-1])
        kept = (*self._settled, *self._unsettled)
        checkpoint.keep_newest(self.folder, {name for saved in kept for name in (saved.file, saved.best) if name})


class Files:
    """Writes the files of an assigned member, resumed or new."""

    def __init__(self, folder: Path, resumed: Checkpoint | None, *, inherited: bool = False) -> None:
        self.folder = folder
        make_folder(folder)
        self.own: bool = resumed is not None and not inherited
        """Whether the newest file was written for this member; the file of a clone's source has other hyper-parameters."""
        self.kept: KeptFiles = KeptFiles(folder, resumed)

    def draft(self, live: LiveMember, *, carried: bool) -> Draft | None:
        """Return the files to write for a member; None if the newest file is up to date.

        Raises CheckpointError for a state that could not be loaded again.
        """
        position, elements, newest = live.position, live.carried if carried else 0, self.kept.newest
        position_now = (live.epoch, live.section, position, elements)
        if newest is not None and (newest.epoch, newest.section, newest.position, newest.carried) == position_now:
            return None
        section = f".{live.section}" if live.section else ""
        file = f"e{live.epoch:04d}{section}-s{position:07d}{f'+{elements}' if elements else ''}.pt"
        state = checkpoint.to_plain(live.state_dict(carried=carried))
        items = [(state, self.folder / file)]
        best = newest.best if newest else None
        if live.best.is_current:
            best = file
        elif (weights := live.best.state()) is not None:
            best = _file_of_best(weights)
            items.insert(0, (checkpoint.to_plain(weights), self.folder / best))
        saved = Checkpoint(
            file=file,
            sha256="",
            epoch=live.epoch,
            section=live.section,
            position=position,
            carried=elements,
            again=live.again,
            best=best,
            best_sha256=newest.best_sha256 if newest else None,
        )
        live.best.note_saved()
        return Draft(saved, items)

    def note_written(self, draft: Draft, sums: Sequence[str], read: set[Hashable]) -> Checkpoint:
        """Note a written draft with its checksums; returns the checkpoint to be journaled.

        A member's first file is read, unless a state of the same form has been (`read`).
        """
        has_best = draft.saved.best == draft.saved.file or len(sums) > 1
        saved = replace(draft.saved, sha256=sums[-1], best_sha256=sums[0] if has_best else draft.saved.best_sha256)
        if self.kept.newest is None:  # if the first file can be read, later ones can be too
            form = checkpoint.form_of(draft.items[-1][0])
            if form not in read:
                checkpoint.load(self.folder / saved.file, saved.sha256)
                read.add(form)
        self.own = True
        self.kept.add(saved)
        return saved

    def save_best(self, live: LiveMember) -> Checkpoint | None:
        """Write the best weights of a member that ends, if they are only in memory.

        Returns the newest checkpoint updated with them, to be journaled, or None if there is nothing to write. No other state of
        the member is saved, because it may be in the middle of a step.
        """
        weights, newest = None if live.best.is_current else live.best.state(), self.kept.newest
        if weights is None or newest is None or not self.own:
            return None
        file = _file_of_best(weights)
        sha256 = checkpoint.save(checkpoint.to_plain(weights), self.folder / file)
        return replace(newest, best=file, best_sha256=sha256)


class Saving:
    """Decides when the members of an assignment are saved, and saves them together.

    A crash repeats at most `checkpoint_seconds` of training. At section ends members are saved more often, as long as saving takes
    only a small share of the time.
    """

    def __init__(self, checkpoint_seconds: float) -> None:
        self.checkpoint_seconds = checkpoint_seconds
        self.wanted = False
        """Whether a command asked to save at the end of the section."""
        self._last = time.monotonic()
        self.seconds: float = 0.0
        """Duration of the last save."""
        self._read: set[Hashable] = set()
        """Forms of states whose files were read back."""

    @property
    def overdue(self) -> bool:
        """Whether a crash would repeat more than `checkpoint_seconds`."""
        return time.monotonic() - self._last > self.checkpoint_seconds

    @property
    def due(self) -> bool:
        """Whether to save at the end of a section."""
        return self.wanted or self.overdue or time.monotonic() - self._last >= self.seconds / SAVING_SHARE

    @contextlib.contextmanager
    def timed(self, *, all_members: bool) -> Iterator[None]:
        """Time a save inside, of all members of the assignment or of some."""
        started = time.monotonic()
        yield
        ended = time.monotonic()
        self.seconds = ended - started
        if all_members:
            self._last = ended

    def write(self, drafts: Mapping[str, tuple[Files, Draft]]) -> Iterator[tuple[str, Callable[[], Checkpoint]]]:
        """Write all drafts together; yields for each member a function that returns the checkpoint to be journaled."""
        sums = iter(checkpoint.save_all([item for _, draft in drafts.values() for item in draft.items]))
        for name, (files, draft) in drafts.items():
            yield name, partial(files.note_written, draft, [next(sums) for _ in draft.items], self._read)


def _file_of_best(weights: Mapping[str, Any]) -> str:
    return f"best-e{weights['epoch']:04d}.{weights['section']}.pt"


def settle_links(folder: Path, saved: Checkpoint) -> None:
    """Point ``last.pt`` to a checkpoint, and ``best.pt`` to the best weights up to it."""
    for name, file in (("last.pt", saved.file), ("best.pt", saved.best)):
        link = f"{folder}/{name}"  # a path of its own is made only where it is needed: this happens in every section
        if file is not None and not _links_to(link, file) and os.path.exists(f"{folder}/{file}"):  # noqa: PTH110
            checkpoint.link(folder / name, file)


def _links_to(link: str, file: str) -> bool:
    try:
        return os.readlink(link) == file  # noqa: PTH115
    except OSError:
        return False  # it does not exist, or is no link
