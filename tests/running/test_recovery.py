"""A regrouping waits for exactly those that it asked."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from argosy.running.recovery import Regrouping

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
