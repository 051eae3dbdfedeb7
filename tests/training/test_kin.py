"""How many members a program steps, and by which kind of it, by what was measured; pure."""

from collections.abc import Mapping

import pytest

from argosy.training.choice.kin import ALONE, SECONDS, Kin, ProgramCandidate, divided


def measured(kin: Kin, count: int, cost: float, *, samples: int = 100) -> None:
    """The rounds of the present candidate, of which the first one says nothing."""
    kin.note(1000.0, samples)
    assert kin.next(count) == kin.now  # between two rounds of a try
    kin.note(cost * samples, samples)


def settle(kin: Kin, count: int, costs: Mapping[ProgramCandidate, float]) -> list[ProgramCandidate]:
    """Go on until one is settled; the candidates on the way."""
    tried = []
    while True:
        kin.go_on_with(kin.next(count))
        tried.append(kin.now)
        if not kin.measures(count):
            kin.settled_for = count
            return tried
        measured(kin, count, costs[kin.now])


def choose(count: int, costs: dict[int, float], kin: Kin | None = None) -> tuple[Kin, list[int]]:
    """The same of plain programs: their sizes."""
    kin = kin or Kin()
    tried = settle(kin, count, {ProgramCandidate(size): cost for size, cost in costs.items()})
    return kin, [candidate.size for candidate in tried]


@pytest.mark.parametrize(
    ("together", "sizes"),
    [(0.25, [1, 8, 8]), (0.94, [1, 8, 1, 8, 8]), (0.99, [1, 8, 1, 8, 1]), (1.2, [1, 8, 1, 8, 1]), (2.5, [1, 8, 1])],
    ids=["faster", "a bit", "too little", "slower", "much slower"],
)
def test_one_program_steps_them_where_it_is_faster_and_not_by_a_hair(together: float, sizes: list[int]) -> None:
    kin, tried = choose(8, {1: 1.0, 8: together})
    assert tried == sizes
    assert not kin.asks(8)


@pytest.mark.parametrize("busy", range(4))
def test_who_was_busy_beside_one_try_does_not_decide(busy: int) -> None:
    kin, tried = Kin(), 0
    while not kin.settled_for:
        kin.go_on_with(kin.next(4))
        if kin.measures(4):
            measured(kin, 4, (0.7 if kin.now.size == 4 else 1.0) * (1.8 if tried == busy else 1.0))
            tried += 1
        else:
            kin.settled_for = 4
    assert kin.now.size == 4


def test_tries_that_disagree_are_not_believed() -> None:
    kin, busy = Kin(), {1: [1.3, 1.2], 4: [1.0]}
    while not kin.settled_for:
        kin.go_on_with(kin.next(4))
        if kin.measures(4):
            others = busy[kin.now.size]
            measured(kin, 4, (1.15 if kin.now.size == 4 else 1.0) * (others.pop(0) if others else 1.0))
        else:
            kin.settled_for = 4
    assert kin.now == ALONE, "somebody was busy beside each of its first two tries"
    assert {one.size: len(tries) for one, tries in kin.tries.items()} == {1: 4, 4: 2}


def test_one_by_itself_is_not_tried() -> None:
    assert choose(1, {})[1] == [1]


def test_it_is_asked_again_when_somebody_joins_or_half_have_left() -> None:
    kin, _ = choose(16, {1: 1.0, 16: 0.2})
    assert [kin.asks(count) for count in (17, 16, 9, 8)] == [True, False, False, True]
    # What was measured is near enough for one more; for half of them it is not.
    assert choose(17, {}, kin)[1] == [17]
    assert choose(8, {8: 0.4}, kin)[1] == [8, 8]
    assert choose(4, {1: 1.0, 4: 1.3}, kin)[1] == [4, 1, 4, 1]


def test_where_memory_ends_it_is_divided() -> None:
    kin, _ = choose(10, {1: 1.0, 10: 0.2})
    kin.restrict(5, "out of memory")
    assert kin.asks(10)
    assert choose(10, {5: 0.3}, kin)[1] == [5, 5]
    kin.restrict(1, "out of memory")
    assert choose(10, {}, kin)[1] == [1]


def test_what_memory_is_not_expected_to_hold_is_not_tried() -> None:
    """A tenth of what is left stays free; and a program has gradients twice."""
    kin = Kin(weight_bytes=20)
    kin.foresee(12, 1000)
    assert kin.next(12) == ALONE
    kin.needs[ALONE] = 80
    kin.foresee(12, 1000)
    assert choose(12, {1: 1.0, 6: 0.3}, kin)[1] == [1, 6, 6]
    assert kin.reason == "12 in a program would take 0.0 MiB for a step, of 0.0 that are left"
    # A smaller program took less for each, and nothing changes for that until it is asked again.
    kin.needs[ProgramCandidate(6)] = 50
    kin.settled_for = 0
    kin.foresee(12, 1000)
    assert kin.next(12).size == 6
    kin.settled_for = 12
    kin.foresee(13, 1000)
    assert kin.next(13).size == 13
    assert not kin.reason
    kin.settled_for = 13
    kin.foresee(14, 100)
    assert kin.next(14) == ALONE


def test_where_nobody_counts_memory_nothing_is_foreseen() -> None:
    kin = Kin(needs={ALONE: 80})
    kin.foresee(12, None)
    assert choose(12, {1: 1.0, 12: 0.3}, kin)[1] == [1, 12, 12]


def test_a_round_is_short_where_steps_are_long() -> None:
    kin = Kin()
    kin.note(10.0, 8)
    kin.note(2 * SECONDS, 8)
    assert kin.cost(ALONE) == 2 * SECONDS / 8


GRAPHED, ALL_GRAPHED, ALL, COMPILED = (
    ProgramCandidate(1, "graphed"),
    ProgramCandidate(8, "graphed"),
    ProgramCandidate(8),
    ProgramCandidate(8, "compiled"),
)


def test_every_kind_is_tried_in_its_sizes_and_the_cheapest_stays() -> None:
    kin = Kin(kinds=("plain", "graphed", "compiled"))
    costs = {ALONE: 1.0, ALL: 0.4, GRAPHED: 0.3, ALL_GRAPHED: 0.1, COMPILED: 0.12}
    tried = settle(kin, 8, costs)
    # Each once; at another moment those alone that are less than twice as dear as the cheapest.
    assert tried == [ALONE, ALL, GRAPHED, ALL_GRAPHED, COMPILED, ALL_GRAPHED, COMPILED, ALL_GRAPHED]
    assert kin.costs == costs
    # Half of them are left: what a compiled one of four costs is known no more than what others of four do.
    assert kin.asks(4)
    half = ProgramCandidate(4, "compiled")
    assert settle(kin, 4, {ProgramCandidate(4): 0.5, ProgramCandidate(4, "graphed"): 0.2, half: 0.05})[-1] == half


def test_between_kinds_that_cost_the_same_the_simpler_one_stays() -> None:
    kin = Kin(kinds=("plain", "graphed"))
    assert settle(kin, 8, {ALONE: 1.0, ALL: 0.5, GRAPHED: 0.9, ALL_GRAPHED: 0.49})[-1] == ALL


def test_who_is_alone_has_a_choice_between_kinds_only() -> None:
    kin = Kin(kinds=("plain", "graphed"))
    assert settle(kin, 1, {ALONE: 1.0, GRAPHED: 0.3}) == [ALONE, GRAPHED, GRAPHED]
    assert not kin.asks(1)


def test_a_kind_that_is_refused_is_tried_no_more() -> None:
    kin = Kin(kinds=("plain", "graphed"))
    settle(kin, 8, {ALONE: 1.0, ALL: 0.5, GRAPHED: 0.3, ALL_GRAPHED: 0.1})
    kin.refuse("graphed", "it reads a value")
    assert kin.asks(8)
    assert settle(kin, 8, {}) == [ALL]


def test_parts_are_as_equal_as_can_be() -> None:
    assert list(map(list, divided(range(7), 3))) == [[0, 1], [2, 3], [4, 5, 6]]
    assert list(map(list, divided(range(4), 8))) == [[0, 1, 2, 3]]
