"""Recomputes from the study alone what every member must have stepped on, and compares it with what was journaled."""

import itertools
import json
from pathlib import Path
from typing import Any

from argosy.errors import RunError
from argosy.fold import MemberState, RunState
from argosy.running.journal import read_journal
from argosy.stream.order import Selection, split_order, used_elements

__all__ = ["audit"]


def audit(directory: Path) -> list[str]:
    """Everything that is wrong with a run's record; empty where each member saw its samples exactly once per epoch."""
    state = RunState.of(read_journal(directory))
    path = directory / "study.json"
    if not path.exists():
        raise RunError(f"{directory} holds no study.json: its run ended before anything was trained.")
    summary = json.loads(path.read_text())
    found = []
    for name, described in summary["members"].items():
        found += _audit_member(state.members.get(name, MemberState(name)), described, summary, state.holes)
    return found


def _audit_member(
    member: MemberState,
    described: dict[str, Any],
    summary: dict[str, Any],
    holes: dict[tuple[str, int], set[int]],
) -> list[str]:
    found = []
    if sorted(member.epochs) != list(range(len(member.epochs))):
        found.append(f"{member.name}: epochs {sorted(member.epochs)} are journaled, some are missing")
    stream_epochs = [member.epochs[k].stream_epoch for k in sorted(member.epochs)]
    if any(later <= earlier for earlier, later in itertools.pairwise(stream_epochs)):
        found.append(f"{member.name}: its stream epochs {stream_epochs} do not ascend")
    for ended in member.epochs.values():
        for split, words in (("train", ended.digest), ("val", ended.val_digest)):
            if words is None:
                continue
            length = summary["lengths"][split]
            selection = Selection.of(described["subset" if split == "train" else "val_subset"], length)
            order = split_order(summary["seed"], split, ended.stream_epoch, length)
            drop_last = described["drop_last"] and split == "train"
            elements = used_elements(selection.length, described["batch_size"], drop_last=drop_last)
            expected = selection.digest(
                order, elements=elements, holes=sorted(holes.get((split, ended.stream_epoch), ()))
            )
            if tuple(words) != expected:
                found.append(
                    f"{member.name}: epoch {ended.epoch} ({split}) has digest {tuple(words)}; the order of stream epoch "
                    f"{ended.stream_epoch} gives {tuple(expected)}"
                )
    return found
