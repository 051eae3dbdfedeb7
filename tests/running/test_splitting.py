"""Tests that a run knows before its first plan where members may be split and at what cost, or why none may be."""

import math
from typing import Any

import pytest

from argosy.cluster import Cluster, Device, Node
from argosy.protocol.trainer import SumsTimed
from argosy.running.control.cost_table import AllReduceTiming, CostTable
from argosy.settings import Settings


def cluster(count: int, kind: str = "cpu") -> Cluster:
    devices = tuple(Device(name=f"{kind}:{n}", node="local", kind=kind, memory_bytes=2**30) for n in range(count))
    return Cluster(nodes=(Node(name="local", devices=devices, cores=count),))


@pytest.mark.parametrize(
    ("count", "kind", "numerics", "side_by_side", "words", "groups"),
    [
        (1, "cpu", "exact", False, "", 1),
        (2, "cpu", "equivalent", True, "", 2),
        (9, "cpu", "equivalent", True, "", 4),
        (2, "cpu", "exact", True, "numerics is 'exact'", 1),
        (2, "cpu", "equivalent", False, "one after another", 1),
        (2, "cuda", "equivalent", True, "", 2),
    ],
)
def test_which_members_may_be_split_where(
    count: int, kind: str, numerics: Any, side_by_side: bool, words: str, groups: int
) -> None:
    measuring = CostTable.of(Settings(numerics=numerics), cluster(count, kind), side_by_side=side_by_side)
    assert measuring.groups == groups
    assert [note for note in measuring.notes if words and words in note] == list(measuring.notes)
    assert bool(measuring.notes) == bool(words)


def test_sums_are_timed_once_by_the_slowest_and_again_after_a_loss() -> None:
    timing = AllReduceTiming()
    assert [*timing.commands("abcdefg", lambda: "there")] == list("abcd")
    assert not timing.commands("abcdefg", lambda: "there")
    assert timing.handle("a", SumsTimed(short_seconds=1.0, long_seconds=2.0)) is None
    timing.forget()
    assert timing.handle("b", SumsTimed(short_seconds=1.0, long_seconds=2.0)) is None
    again = timing.commands("ab", lambda: "elsewhere")
    assert {device: (at.rendezvous, at.rank, at.size) for device, at in again.items()} == {
        "a": ("elsewhere", 0, 2),
        "b": ("elsewhere", 1, 2),
    }
    assert timing.handle("a", SumsTimed(short_seconds=0.2, long_seconds=1.2)) is None and not timing.over
    link = timing.handle("b", SumsTimed(short_seconds=0.1, long_seconds=0.3))
    assert link is not None and timing.over
    assert link.seconds(2, 0) == pytest.approx(0.2) and link.seconds(2, 4 * 2**20) == pytest.approx(1.2)


def test_no_member_is_split_if_no_group_can_be_formed() -> None:
    timing = AllReduceTiming()
    assert timing.commands("ab", lambda: "there")
    assert timing.handle("a", SumsTimed(short_seconds=math.inf, long_seconds=math.inf)) is None
    assert timing.handle("b", SumsTimed(short_seconds=0.1, long_seconds=0.2)) is None
    assert timing.over
