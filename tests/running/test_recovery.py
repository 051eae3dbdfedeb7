"""A regrouping waits for exactly those that it asked; what did not fit is divided so that it can be stepped."""

from random import Random

import studies
from hypothesis import given
from hypothesis import strategies as st

from argosy.running.recovery import Regrouping, next_division

TRAINERS = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]


@given(st.integers(0, 2**32))
def test_it_is_over_when_all_that_were_asked_have_let_go(seed: int) -> None:
    draw, regrouping = Random(seed), Regrouping()
    assert not regrouping.over
    for _ in range(3):
        regrouping.let_go(draw.choice(TRAINERS))  # One may be lost at any time.
        assert not regrouping.over
        asked = draw.sample(TRAINERS, draw.randint(0, 4))
        regrouping.begin(asked)
        left = set(asked)
        while left:
            assert regrouping.under_way
            assert not regrouping.over
            trainer = draw.choice(TRAINERS)
            regrouping.let_go(trainer)
            left.discard(trainer)
        assert regrouping.over
        regrouping.end()
        assert not regrouping.over
        assert not regrouping.under_way


def cut(rows: int, size: int) -> set[int]:
    """Samples of the pieces of this size, and of the last one."""
    return {min(size, rows - start) for start in range(0, rows, size)}


@given(st.integers(1, 60), st.integers(1, 200), st.integers(1, 60), st.booleans(), st.booleans())
def test_divided_batches_get_smaller_and_leave_batch_norm_no_sample_alone(
    batch_size: int, more: int, now: int, batch_norm: bool, drop_last: bool
) -> None:
    member, length = studies.member(batch_size=batch_size, drop_last=drop_last), batch_size + more

    def parts_of(number: int) -> set[int]:
        """Samples of all micro-batches, as a step cuts them."""
        batches = cut(length, batch_size) if not drop_last else {batch_size}
        return {part for rows in batches for part in cut(rows, -(-rows // number))}

    def fits(number: int) -> bool:
        return max(parts_of(number)) < max(parts_of(now)) and not (batch_norm and 1 in parts_of(number))

    found = next_division(member, length, now, batch_norm=batch_norm)
    if found is None:
        assert not any(fits(number) for number in range(now + 1, batch_size + 1))
    else:
        assert fits(found)
        assert found == 2 * now or found == batch_size or not fits(2 * now)
