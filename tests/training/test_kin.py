"""Tests how measured costs decide the number of members in a program and its kind, without running any program."""

from collections.abc import Mapping

import pytest

from argosy.training.choice.fusion_group import ALONE, SECONDS, FusionGroup, ProgramCandidate, divide_evenly


def measured(fusion_group: FusionGroup, count: int, cost: float, *, samples: int = 100) -> None:
    """Note two rounds of the current candidate, of which the first does not count."""
    fusion_group.note(1000.0, samples)
    assert fusion_group.next(count) == fusion_group.now  # the rounds of one try are not interrupted
    fusion_group.note(cost * samples, samples)


def settle(fusion_group: FusionGroup, count: int, costs: Mapping[ProgramCandidate, float]) -> list[ProgramCandidate]:
    """Measure until a candidate is settled; return the candidates tried, the settled one last."""
    tried = []
    while True:
        fusion_group.switch_to(fusion_group.next(count))
        tried.append(fusion_group.now)
        if not fusion_group.needs_measuring(count):
            fusion_group.settled_for = count
            return tried
        measured(fusion_group, count, costs[fusion_group.now])


def choose(
    count: int, costs: dict[int, float], fusion_group: FusionGroup | None = None
) -> tuple[FusionGroup, list[int]]:
    """Settle between plain programs; return the group and the sizes tried, the settled one last."""
    fusion_group = fusion_group or FusionGroup()
    tried = settle(fusion_group, count, {ProgramCandidate(size): cost for size, cost in costs.items()})
    return fusion_group, [candidate.size for candidate in tried]


@pytest.mark.parametrize(
    ("together", "sizes"),
    [(0.25, [1, 8, 8]), (0.94, [1, 8, 1, 8, 8]), (0.99, [1, 8, 1, 8, 1]), (1.2, [1, 8, 1, 8, 1]), (2.5, [1, 8, 1])],
    ids=["faster", "a bit", "too little", "slower", "much slower"],
)
def test_one_program_steps_them_where_it_is_faster_and_not_by_a_hair(together: float, sizes: list[int]) -> None:
    fusion_group, tried = choose(8, {1: 1.0, 8: together})
    assert tried == sizes
    assert not fusion_group.needs_choice(8)


@pytest.mark.parametrize("busy", range(4))
def test_one_disturbed_try_does_not_decide(busy: int) -> None:
    fusion_group, tried = FusionGroup(), 0
    while not fusion_group.settled_for:
        fusion_group.switch_to(fusion_group.next(4))
        if fusion_group.needs_measuring(4):
            measured(fusion_group, 4, (0.7 if fusion_group.now.size == 4 else 1.0) * (1.8 if tried == busy else 1.0))
            tried += 1
        else:
            fusion_group.settled_for = 4
    assert fusion_group.now.size == 4


def test_tries_that_disagree_are_not_believed() -> None:
    fusion_group, busy = FusionGroup(), {1: [1.3, 1.2], 4: [1.0]}
    while not fusion_group.settled_for:
        fusion_group.switch_to(fusion_group.next(4))
        if fusion_group.needs_measuring(4):
            others = busy[fusion_group.now.size]
            measured(
                fusion_group, 4, (1.15 if fusion_group.now.size == 4 else 1.0) * (others.pop(0) if others else 1.0)
            )
        else:
            fusion_group.settled_for = 4
    assert fusion_group.now == ALONE, "its first two tries were disturbed"
    assert {one.size: len(tries) for one, tries in fusion_group.tries.items()} == {1: 4, 4: 2}


def test_one_by_itself_is_not_tried() -> None:
    assert choose(1, {})[1] == [1]


def test_a_group_chooses_again_when_a_member_joins_or_half_have_left() -> None:
    fusion_group, _ = choose(16, {1: 1.0, 16: 0.2})
    assert [fusion_group.needs_choice(count) for count in (17, 16, 9, 8)] == [True, False, False, True]
    # The costs measured are near enough for one member more, but not for half of them.
    assert choose(17, {}, fusion_group)[1] == [17]
    assert choose(8, {8: 0.4}, fusion_group)[1] == [8, 8]
    assert choose(4, {1: 1.0, 4: 1.3}, fusion_group)[1] == [4, 1, 4, 1]


def test_where_memory_ends_it_is_divided() -> None:
    fusion_group, _ = choose(10, {1: 1.0, 10: 0.2})
    fusion_group.restrict(5, "out of memory")
    assert fusion_group.needs_choice(10)
    assert choose(10, {5: 0.3}, fusion_group)[1] == [5, 5]
    fusion_group.restrict(1, "out of memory")
    assert choose(10, {}, fusion_group)[1] == [1]


def test_what_memory_is_not_expected_to_hold_is_not_tried() -> None:
    """A tenth of the memory left stays free, and a program needs its gradients twice."""
    fusion_group = FusionGroup(weight_bytes=20)
    fusion_group.estimate_fit(12, 1000)
    assert fusion_group.next(12) == ALONE
    fusion_group.needs[ALONE] = 80
    fusion_group.estimate_fit(12, 1000)
    assert choose(12, {1: 1.0, 6: 0.3}, fusion_group)[1] == [1, 6, 6]
    assert fusion_group.reason == "12 members in a program would take 1.2 KiB for a step; 1.0 KiB are free"
    # The smaller program took less per member; this changes nothing until the group chooses again.
    fusion_group.needs[ProgramCandidate(6)] = 50
    fusion_group.settled_for = 0
    fusion_group.estimate_fit(12, 1000)
    assert fusion_group.next(12).size == 6
    fusion_group.settled_for = 12
    fusion_group.estimate_fit(13, 1000)
    assert fusion_group.next(13).size == 13
    assert not fusion_group.reason
    fusion_group.settled_for = 13
    fusion_group.estimate_fit(14, 100)
    assert fusion_group.next(14) == ALONE


def test_no_memory_is_estimated_on_a_device_that_does_not_count_it() -> None:
    fusion_group = FusionGroup(needs={ALONE: 80})
    fusion_group.estimate_fit(12, None)
    assert choose(12, {1: 1.0, 12: 0.3}, fusion_group)[1] == [1, 12, 12]


def test_a_round_is_short_where_steps_are_long() -> None:
    fusion_group = FusionGroup()
    fusion_group.note(10.0, 8)
    fusion_group.note(2 * SECONDS, 8)
    assert fusion_group.cost(ALONE) == 2 * SECONDS / 8


GRAPHED, ALL_GRAPHED, ALL, COMPILED = (
    ProgramCandidate(1, "graphed"),
    ProgramCandidate(8, "graphed"),
    ProgramCandidate(8),
    ProgramCandidate(8, "compiled"),
)


def test_every_kind_is_tried_in_its_sizes_and_the_cheapest_stays() -> None:
    fusion_group = FusionGroup(kinds=("plain", "graphed", "compiled"))
    costs = {ALONE: 1.0, ALL: 0.4, GRAPHED: 0.3, ALL_GRAPHED: 0.1, COMPILED: 0.12}
    tried = settle(fusion_group, 8, costs)
    # Each is tried once; later only those that cost less than twice the cheapest are tried again.
    assert tried == [ALONE, ALL, GRAPHED, ALL_GRAPHED, COMPILED, ALL_GRAPHED, COMPILED, ALL_GRAPHED]
    assert fusion_group.costs == costs
    # Half of them are left: no costs of programs of four are known, so all kinds are tried again.
    assert fusion_group.needs_choice(4)
    half = ProgramCandidate(4, "compiled")
    assert (
        settle(fusion_group, 4, {ProgramCandidate(4): 0.5, ProgramCandidate(4, "graphed"): 0.2, half: 0.05})[-1] == half
    )


def test_between_kinds_that_cost_the_same_the_simpler_one_stays() -> None:
    fusion_group = FusionGroup(kinds=("plain", "graphed"))
    assert settle(fusion_group, 8, {ALONE: 1.0, ALL: 0.5, GRAPHED: 0.9, ALL_GRAPHED: 0.49})[-1] == ALL


def test_a_member_alone_has_only_a_choice_of_kinds() -> None:
    fusion_group = FusionGroup(kinds=("plain", "graphed"))
    assert settle(fusion_group, 1, {ALONE: 1.0, GRAPHED: 0.3}) == [ALONE, GRAPHED, GRAPHED]
    assert not fusion_group.needs_choice(1)


def test_a_kind_that_is_refused_is_tried_no_more() -> None:
    fusion_group = FusionGroup(kinds=("plain", "graphed"))
    settle(fusion_group, 8, {ALONE: 1.0, ALL: 0.5, GRAPHED: 0.3, ALL_GRAPHED: 0.1})
    fusion_group.refuse("graphed", "it reads a value")
    assert fusion_group.needs_choice(8)
    assert settle(fusion_group, 8, {}) == [ALL]


def test_parts_are_as_equal_as_can_be() -> None:
    assert list(map(list, divide_evenly(range(7), 3))) == [[0, 1], [2, 3], [4, 5, 6]]
    assert list(map(list, divide_evenly(range(4), 8))) == [[0, 1, 2, 3]]
