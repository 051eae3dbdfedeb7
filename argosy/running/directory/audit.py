"""Recompute from the study alone what every member must have stepped on, and compare it with the journal."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from argosy.errors import RunError
from argosy.protocol.events import SectionEnded
from argosy.results.fold import MemberState, RunState
from argosy.running.directory.journal import read_journal
from argosy.running.directory.study_json import ranges_of, read_study
from argosy.stream.order import (
    Digest,
    Hashes,
    Indices,
    Selection,
    running_sums,
    split_order,
    used_elements,
    window_elements,
)
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
            f"{directory} has no study.json: the run ended before anything was trained, or the file was deleted. Run the same command again."
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
        self._epoch = lru_cache(maxsize=2)(self._recompute)
        """Epochs of the two splits: all sections of an epoch are compared with one order."""

    def errors_of(self, member: MemberState, described: dict[str, Any]) -> Iterator[str]:
        """Yield the errors of a member's record."""
        per_epoch = self._summary["validations_per_epoch"]
        if (at := member.gap(per_epoch)) is not None:
            number = member.sections[at].epoch * per_epoch + member.sections[at].section
            yield f"{member.name}: the journal has section {number} where section {at} belongs; some are missing"
        stream_epochs = [row.stream_epoch for row in member.sections if row.section == 0]
        for earlier, later in itertools.pairwise(stream_epochs):
            if later <= earlier:
                yield f"{member.name}: stream epoch {later} follows {earlier}, but they must be in ascending order"
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
        elements = selection.length
        if split == "train":
            passed = section_stop(ended.section, length, self._summary["validations_per_epoch"])
            if subset is not None:
                passed = int(np.searchsorted(self._epoch(split, ended.stream_epoch, subset).positions, passed))
            elements = _elements(selection, passed, described, by_length=self._summary["ragged"] is not None)
        at = split, ended.stream_epoch, elements
        expected = self._known.get(at) if subset is None else None
        if expected is None:
            expected = self._epoch(split, ended.stream_epoch, subset).digest(elements)
            if subset is None:
                self._known[at] = expected
        if tuple(words) == expected:
            return None
        return f"digest {tuple(words)}, but the order of stream epoch {ended.stream_epoch} gives {tuple(expected)}"

    def _recompute(self, split: str, stream_epoch: int, subset: str | None) -> "_Epoch":
        """Recompute the sequence of one epoch of a member with this subset."""
        length: int = self._summary["lengths"].get(split, 0)
        order = split_order(self._summary["seed"], split, stream_epoch, length, self._shards)
        broken = [hole for hole in self._holes.get((split, stream_epoch), ()) if hole < length]
        selection = _selection(subset, length)
        assert selection is not None, "a section is compared with an epoch only if its subset is within the data"
        return _Epoch.of(selection, order, broken)


@dataclass(frozen=True, slots=True)
class _Epoch:
    """A member's sequence in one epoch."""

    positions: Indices
    """Position of each element in the stream, ascending."""
    counted: Indices
    """Number of samples that are not broken among the first 0 … n elements."""
    sums: tuple[Hashes, Hashes]
    """Sums of both hashes over the first 0 … n elements."""

    @classmethod
    def of(cls, selection: Selection, order: Indices, broken: Sequence[int]) -> "_Epoch":
        """Return the sequence of a selection in an epoch of this order."""
        numbers = np.arange(selection.length, dtype=np.int64)
        positions = selection.positions(order)
        positions = numbers if positions is None else positions
        indices = order[positions]
        sound = ~np.isin(indices, np.asarray(broken, dtype=np.int64))
        return cls(positions, np.concatenate([[0], np.cumsum(sound)]), running_sums(indices, numbers, sound))

    def digest(self, elements: int) -> Digest:
        """Return the digest of a correct program for the first `elements`."""
        return Digest(*(int(sums[elements]) for sums in (self.counted, *self.sums)))


@lru_cache(maxsize=2)  # a member's sections are compared in turn, on two splits
def _selection(subset: str | None, length: int) -> Selection | None:
    """Return the samples of a subset as ``study.json`` has it; None if some are beyond the study's."""
    ranges = ranges_of(subset)
    if ranges and max(run.stop for run in ranges) > length:
        return None
    return Selection.of(None if ranges is None else [*itertools.chain(*ranges)], length)


def _elements(selection: Selection, passed: int, described: dict[str, Any], *, by_length: bool) -> int:
    """Return how many elements of a member's sequence its batches have used when `passed` of them have passed."""
    batch_size = int(described["batch_size"])
    used = used_elements(selection.length, batch_size, drop_last=described["drop_last"])
    return used if passed >= used else passed - passed % (window_elements(batch_size) if by_length else batch_size)
