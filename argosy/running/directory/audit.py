"""Recompute from the study alone what every member must have stepped on, and compare it with the journal."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from argosy.errors import RunError
from argosy.protocol.events import SectionEnded
from argosy.results.fold import MemberState, RunState
from argosy.running.directory.journal import read_journal
from argosy.running.directory.study_json import ranges_of, read_study
from argosy.stream.order import Digest, Indices, Selection, split_order, used_elements, window_elements
from argosy.stream.schedule import section_stop

__all__ = ["audit"]

EPOCHS = 2**32
"""Epochs of a stream, one for each value of the seed of its order."""


def audit(directory: Path) -> list[str]:
    """Return all errors in a run's record; empty if each member saw its samples exactly once per epoch."""
    state = RunState.of(read_journal(directory))
    summary = read_study(directory)
    if summary is None:
        raise RunError(
            f"{directory} has no study.json: the run ended before anything was trained. Run the same command again."
        )
    _check_lengths(directory, state, summary)
    auditor = _Auditor(state, summary)
    return [
        error
        for name, described in summary["members"].items()
        for error in auditor.errors_of(state.members.get(name, MemberState(name)), described)
    ]


def _check_lengths(directory: Path, state: RunState, summary: dict[str, Any]) -> None:
    """Raise RunError if ``study.json`` and the journal differ in lengths, on which orders depend."""
    lengths = summary["lengths"]
    counted = {split: sum(shards) for split, shards in state.shards.items()}
    if state.started is not None and lengths != (journaled := {**state.started.lengths, **counted}):
        raise RunError(
            f"{directory / 'study.json'} has {lengths} samples, but the journal beside it has {journaled}, so one "
            "of them was changed. Restore a copy of it."
        )


class _Auditor:
    """Recomputes what members must have stepped on."""

    def __init__(self, state: RunState, summary: dict[str, Any]) -> None:
        self._summary = summary
        self._holes = state.holes
        self._shards: Sequence[int] = state.shards.get("train", ())
        self._known: dict[tuple[str, int, int], Digest] = {}
        """Digests of all samples, by split, stream epoch and elements: the same for every member without a subset."""

    def errors_of(self, member: MemberState, described: dict[str, Any]) -> Iterator[str]:
        """Yield the errors of a member's record."""
        per_epoch = self._summary["validations_per_epoch"]
        numbers = [row.epoch * per_epoch + row.section for row in member.sections]
        if numbers != list(range(len(numbers))):
            yield f"{member.name}: the journal has sections {numbers}; some are missing"
        stream_epochs = [row.stream_epoch for row in member.sections if row.section == 0]
        if any(later <= earlier for earlier, later in itertools.pairwise(stream_epochs)):
            yield f"{member.name}: its stream epochs {stream_epochs} are not in ascending order"
        for ended in member.sections:
            assigned = member.stream_epoch(ended.epoch)
            if assigned != ended.stream_epoch:
                yield (
                    f"{member.name}: epoch {ended.epoch + 1} was trained on stream epoch {ended.stream_epoch}, but "
                    f"was assigned {assigned}"
                )
            for split, words in (("train", ended.digest), ("val", ended.val_digest)):
                if words is not None and (error := self._compare(ended, split, words, described)) is not None:
                    yield f"{member.name}: epoch {ended.epoch + 1} ({split}) has {error}"

    def _compare(
        self, ended: SectionEnded, split: str, words: tuple[int, int, int], described: dict[str, Any]
    ) -> str | None:
        """Return what is wrong with the digest of one split of a section; None if it is that of its samples."""
        length: int = self._summary["lengths"].get(split, 0)
        subset = described["subset" if split == "train" else "val_subset"]
        selection = _selection(subset, length)
        if selection is None or ended.stream_epoch >= EPOCHS:
            return f"samples beyond the study's {length}, or an impossible stream epoch ({ended.stream_epoch})"
        order = cache(partial(split_order, self._summary["seed"], split, ended.stream_epoch, length, self._shards))
        elements = selection.length
        if split == "train":
            stop = section_stop(ended.section, length, self._summary["validations_per_epoch"])
            elements = _elements(selection, order, stop, described, by_length=self._summary["ragged"] is not None)
        at = split, ended.stream_epoch, elements
        expected = self._known.get(at) if subset is None else None
        if expected is None:
            broken = sorted(hole for hole in self._holes.get(at[:2], ()) if hole < length)
            expected = selection.digest(order(), elements=elements, holes=broken)
            if subset is None:
                self._known[at] = expected
        if tuple(words) == expected:
            return None
        return f"digest {tuple(words)}, but the order of stream epoch {ended.stream_epoch} gives {tuple(expected)}"


@lru_cache(maxsize=2)  # a member's sections are compared in turn, on two splits
def _selection(subset: str | None, length: int) -> Selection | None:
    """Return the samples of a subset as ``study.json`` has it; None if some are beyond the study's."""
    ranges = ranges_of(subset)
    if ranges and max(run.stop for run in ranges) > length:
        return None
    return Selection.of(None if ranges is None else [*itertools.chain(*ranges)], length)


def _elements(
    selection: Selection, order: Callable[[], Indices], stop: int, described: dict[str, Any], *, by_length: bool
) -> int:
    """Return how many elements of a member's sequence its batches have used up to position `stop` of the order."""
    positions = None if selection.multiplicity is None else selection.positions(order())
    batch_size = int(described["batch_size"])
    passed = stop if positions is None else int(np.searchsorted(positions, stop))
    used = used_elements(selection.length, batch_size, drop_last=described["drop_last"])
    return used if passed >= used else passed - passed % (window_elements(batch_size) if by_length else batch_size)
