"""The files of one member: which there are, which of them the driver has journaled, and which may go.

Contract. A journaled file is never written again, and stays until a newer one is journaled: the driver may be slow, or have
died. The newest two stay, and the files that hold the best weights of each of them. The links move with the driver's word.
"""

from dataclasses import dataclass
from pathlib import Path

from argosy.events import Checkpoint
from argosy.training import checkpoint
from argosy.training.member import LiveMember

__all__ = ["Draft", "Files"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Files that are to be written."""

    checkpoint: Checkpoint
    files: tuple[tuple[bytes, Path], ...]


class Files:
    """Of a member aboard; it goes on from a checkpoint, or from nothing."""

    def __init__(self, folder: Path, resumed: Checkpoint | None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.newest = resumed
        self.proved = resumed is not None
        """Whether a file of this member was opened again: the first one proves that all later ones can be."""
        self._settled: tuple[Checkpoint, ...] = () if resumed is None else (resumed,)
        """Newest ones that are journaled: at most two."""
        self._unsettled: tuple[Checkpoint, ...] = ()

    def draft(self, live: LiveMember, *, carried: bool) -> Draft | None:
        """What to write for a member where it stands; None where the newest file says it all."""
        position, elements = live.position, live.carried if carried else 0
        here = (live.epoch, live.section, position, elements)
        newest = self.newest
        if newest is not None and (newest.epoch, newest.section, newest.position, newest.carried) == here:
            return None
        section = f".{live.section}" if live.section else ""
        name = f"e{live.epoch:04d}{section}-s{position:07d}{f'+{elements}' if elements else ''}.pt"
        data = checkpoint.serialize(live.state_dict(carried=carried))
        digest = checkpoint.sum_of_bytes(data)
        files, best = [(data, self.folder / name)], (newest.best, newest.best_sha256) if newest else (None, None)
        if live.best is not None:
            best_name = f"best-e{live.best.epoch:04d}.{live.best.section}.pt"
            if live.best_is_current:
                best = name, digest
            elif best_name != best[0] and (weights := live.best_state()) is not None:
                best_data = checkpoint.serialize(weights)
                best = best_name, checkpoint.sum_of_bytes(best_data)
                files.insert(0, (best_data, self.folder / best_name))
        saved = Checkpoint(
            file=name,
            sha256=digest,
            epoch=live.epoch,
            section=live.section,
            position=position,
            carried=elements,
            best=best[0],
            best_sha256=best[1],
        )
        return Draft(checkpoint=saved, files=tuple(files))

    def written(self, draft: Draft) -> Checkpoint:
        """Its files are on the disk; to be journaled."""
        self.newest = draft.checkpoint
        self._unsettled = (*self._unsettled, draft.checkpoint)
        if not self.proved:
            checkpoint.load(self.folder / draft.checkpoint.file, draft.checkpoint.sha256)
            self.proved = True
        return draft.checkpoint

    def journaled(self, file: str) -> None:
        """The driver has journaled this file: move the links, and delete what is older than the one before it."""
        names = [saved.file for saved in self._unsettled]
        if file not in names:
            return
        count = names.index(file) + 1
        self._settled = (*self._settled, *self._unsettled[:count])[-2:]
        self._unsettled = self._unsettled[count:]
        settle_links(self.folder, self._settled[-1])
        kept = (*self._settled, *self._unsettled)
        checkpoint.keep_newest(self.folder, {name for saved in kept for name in (saved.file, saved.best) if name})


def settle_links(folder: Path, saved: Checkpoint) -> None:
    """Let ``last.pt`` and ``best.pt`` point to a checkpoint and to the best weights until then."""
    for name, file in (("last.pt", saved.file), ("best.pt", saved.best)):
        if file is not None and (folder / file).exists():
            checkpoint.link(folder / file, name)
