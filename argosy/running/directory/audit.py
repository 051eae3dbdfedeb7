"""Recompute from the study alone what every member must have stepped on, and compare it with the journal."""

import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from argosy.errors import RunError
from argosy.results.fold import MemberState, RunState
from argosy.running.directory.journal import read_journal
from argosy.running.directory.study_json import read_study
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
    found, shards, known = [], state.shards.get("train", ()), dict[tuple[str, int, int], Digest]()
    for name, described in summary["members"].items():
        member = state.members.get(name, MemberState(name))
        found += _audit_member(member, described, summary, state.holes, shards, known)
    return found


def _check_lengths(directory: Path, state: RunState, summary: dict[str, Any]) -> None:
    """Raise RunError if ``study.json`` and the journal differ in lengths, on which orders depend."""
    lengths = summary["lengths"]
    counted = {split: sum(shards) for split, shards in state.shards.items()}
    if state.started is not None and lengths != (journaled := {**state.started.lengths, **counted}):
        raise RunError(
            f"{directory / 'study.json'} has {lengths} samples, but the journal beside it has {journaled}, so one "
            "of them was changed. Restore a copy of it."
        )


def _audit_member(
    member: MemberState,
    described: dict[str, Any],
    summary: dict[str, Any],
    holes: dict[tuple[str, int], set[int]],
    shards: Sequence[int],
    known: dict[tuple[str, int, int], Digest],
) -> list[str]:
    """Return the errors of a member's record; `known` has digests of all samples, by split, stream epoch and elements, for the next members."""
    found, per_epoch = [], summary["validations_per_epoch"]
    numbers = [row.epoch * per_epoch + row.section for row in member.sections]
    if numbers != list(range(len(numbers))):
        found.append(f"{member.name}: the journal has sections {numbers}; some are missing")
    stream_epochs = [row.stream_epoch for row in member.sections if row.section == 0]
    if any(later <= earlier for earlier, later in itertools.pairwise(stream_epochs)):
        found.append(f"{member.name}: its stream epochs {stream_epochs} are not in ascending order")
    for ended in member.sections:
        assigned = member.stream_epoch(ended.epoch)
        if assigned != ended.stream_epoch:
            found.append(
                f"{member.name}: epoch {ended.epoch + 1} was trained on stream epoch {ended.stream_epoch}, but "
                f"was assigned {assigned}"
            )
        for split, words in (("train", ended.digest), ("val", ended.val_digest)):
            if words is None:
                continue
            length = summary["lengths"].get(split, 0)
            subset = described["subset" if split == "train" else "val_subset"]
            if (subset and max(subset) >= length) or ended.stream_epoch >= EPOCHS:
                found.append(
                    f"{member.name}: epoch {ended.epoch + 1} ({split}) has samples beyond the study's {length}, "
                    f"or an impossible stream epoch ({ended.stream_epoch})"
                )
                continue
            selection = Selection.of(subset, length)
            order = cache(partial(split_order, summary["seed"], split, ended.stream_epoch, length, shards))
            elements = selection.length
            if split == "train":
                stop = section_stop(ended.section, length, per_epoch)
                elements = _elements(selection, order, stop, described, by_length=summary["ragged"] is not None)
            at = split, ended.stream_epoch, elements
            expected = known.get(at) if subset is None else None
            if expected is None:
                broken = sorted(hole for hole in holes.get(at[:2], ()) if hole < length)
                expected = selection.digest(order(), elements=elements, holes=broken)
                if subset is None:
                    known[at] = expected
            if tuple(words) != expected:
                found.append(
                    f"{member.name}: epoch {ended.epoch + 1} ({split}) has digest {tuple(words)}, but the order "
                    f"of stream epoch {ended.stream_epoch} gives {tuple(expected)}"
                )
    return found


def _elements(
    selection: Selection, order: Callable[[], Indices], stop: int, described: dict[str, Any], *, by_length: bool
) -> int:
    """Return how many elements of a member's sequence its batches have used up to position `stop` of the order."""
    positions = None if selection.multiplicity is None else selection.positions(order())
    batch_size = int(described["batch_size"])
    passed = stop if positions is None else int(np.searchsorted(positions, stop))
    used = used_elements(selection.length, batch_size, drop_last=described["drop_last"])
    return used if passed >= used else passed - passed % (window_elements(batch_size) if by_length else batch_size)
