"""Tests recovery from losses: a regrouping waits for exactly the trainers it asked, but not forever; the cheapest way on is chosen;
and a batch that ran out of memory is divided so that it can be stepped."""

from random import Random

import studies
from hypothesis import given
from hypothesis import strategies as st

from argosy.running.control.losses import Loss, RecoveryWay, Regrouping, next_micro_batches

TRAINERS = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]


@given(st.integers(0, 2**32))
def test_it_is_over_when_all_that_were_asked_have_let_go(seed: int) -> None:
    draw, regrouping = Random(seed), Regrouping()
    assert not regrouping.over
    for _ in range(3):
        regrouping.mark_released(draw.choice(TRAINERS))  # a trainer may be lost at any time
        assert not regrouping.over
        asked = draw.sample(TRAINERS, draw.randint(0, 4))
        regrouping.begin(asked, until=1.0)
        left = set(asked)
        while left:
            assert regrouping.under_way
            assert not regrouping.over
            trainer = draw.choice(TRAINERS)
            regrouping.mark_released(trainer)
            left.discard(trainer)
        assert regrouping.over
        regrouping.end()
        assert not regrouping.over
        assert not regrouping.under_way


def cut(rows: int, size: int) -> set[int]:
    """Return the numbers of samples of the pieces into which `rows` samples are cut, including the shorter last one."""
    return {min(size, rows - start) for start in range(0, rows, size)}


@given(st.integers(1, 60), st.integers(1, 200), st.integers(1, 60), st.booleans(), st.booleans())
def test_divided_batches_get_smaller_and_leave_batch_norm_no_sample_alone(
    batch_size: int, more: int, now: int, batch_norm: bool, drop_last: bool
) -> None:
    member, length = studies.member(batch_size=batch_size, drop_last=drop_last), batch_size + more

    def parts_of(number: int) -> set[int]:
        """Return the numbers of samples of all micro-batches into which steps cut their batches."""
        batches = cut(length, batch_size) if not drop_last else {batch_size}
        return {part for rows in batches for part in cut(rows, -(-rows // number))}

    def fits(number: int) -> bool:
        return max(parts_of(number)) < max(parts_of(now)) and not (batch_norm and 1 in parts_of(number))

    found = next_micro_batches(member, length, now, batch_norm=batch_norm)
    if found is None:
        assert not any(fits(number) for number in range(now + 1, batch_size + 1))
    else:
        assert fits(found)
        assert found == 2 * now or found == batch_size or not fits(2 * now)


def test_a_trainer_that_does_not_release_in_time_is_named_once_and_waited_for_until_it_is_gone() -> None:
    regrouping = Regrouping()
    regrouping.begin(["cpu:0", "cpu:1"], until=10.0)
    regrouping.begin(["cpu:2"], until=20.0)
    regrouping.mark_released("cpu:1")
    assert regrouping.take_overdue(10.0) == []
    assert regrouping.take_overdue(11.0) == ["cpu:0"]
    assert regrouping.take_overdue(12.0) == []
    assert not regrouping.over
    regrouping.mark_released("cpu:0")
    assert regrouping.take_overdue(21.0) == ["cpu:2"]
    regrouping.mark_released("cpu:2")
    assert regrouping.over


def loss(**changed: float) -> Loss:
    """Return the loss of 10 s of work with 1,000 samples left to the end of the epoch, and 100 to the end of the current section."""
    figures = {"repeated_seconds": 10.0, "restart_seconds": 1.0, "to_meeting": 100, "to_end": 1000}
    return Loss(**{**figures, "sample_seconds": 0.0, **changed})  # type: ignore[arg-type]


def test_a_stream_that_costs_nothing_is_had_to_the_end() -> None:
    assert loss().cheapest is RecoveryWay.APART
    assert loss(sample_seconds=0.010).cheapest is RecoveryWay.APART


def test_a_dear_stream_is_had_until_the_others_are_met() -> None:
    assert loss(sample_seconds=0.012, to_meeting=10).cheapest is RecoveryWay.MEET
    assert loss(sample_seconds=0.012, to_meeting=10).costs == {
        RecoveryWay.APART: 12.0,
        RecoveryWay.MEET: 10.12,
        RecoveryWay.BACK: 11.0,
    }


def test_where_even_that_is_dearer_than_a_restart_all_go_back() -> None:
    assert loss(sample_seconds=0.012).cheapest is RecoveryWay.BACK
