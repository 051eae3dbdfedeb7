"""Stopping rules: what they promise they keep, whatever comes of a member."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy import MaxEpochs, Plateau, Target
from argosy.errors import StudyError
from argosy.stopping import Both, Either, MaxSeconds, Stop, sections_in

VALUES = st.sampled_from([float("nan"), -1.0, 0.0, 0.5, 1.0, 2.0, float("inf")])


def leaves(sections: int) -> st.SearchStrategy[Stop]:
    """Rules of one part."""
    return st.one_of(
        st.integers(0, 12).map(lambda count: MaxEpochs(count / sections)),
        st.floats(0, 4).map(MaxEpochs),
        st.integers(0, 9).map(MaxSeconds),
        st.builds(Plateau, st.just("val_loss"), st.integers(1, 4), st.sampled_from([0.0, 0.5])),
        st.builds(Target, st.just("val_loss"), VALUES, st.sampled_from([None, "max"])),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Stop, list[dict[str, float]], int]:
    """A rule, what comes of a member, and the sections of an epoch."""
    sections = draw(st.integers(1, 7))
    rule = draw(
        st.recursive(leaves(sections), lambda inner: st.builds(Either, inner, inner) | st.builds(Both, inner, inner))
    )
    rows = [
        {"val_loss": draw(VALUES), "seconds": 1.0, "epochs": number // sections + (number % sections + 1) / sections}
        for number in range(draw(st.integers(0, 14)))
    ]
    return rule, rows, sections


@given(cases())
def test_what_is_certain_comes_before_the_rule_can_stop_the_member(
    case: tuple[Stop, list[dict[str, float]], int],
) -> None:
    rule, rows, sections = case
    for seen in range(len(rows) + 1):
        certain = rule.certain(rows[:seen], sections)
        assert certain >= 1
        for more in range(1, certain):
            if seen + more <= len(rows):
                assert rule.reason(rows[: seen + more]) is None, (seen, certain, more)


@given(cases())
def test_no_rule_goes_on_beyond_its_bound(case: tuple[Stop, list[dict[str, float]], int]) -> None:
    rule, rows, sections = case
    if rule.max_epochs is None:
        return
    last = sections_in(rule.max_epochs, sections)
    if 0 < last <= len(rows):
        assert rule.reason(rows[:last]) is not None


@given(st.integers(1, 50), st.integers(1, 500))
def test_parts_of_an_epoch_are_as_many_sections_as_they_say(sections: int, count: int) -> None:
    """Five thirds are five sections of three, though no floating-point number is a third."""
    for epochs in (count / sections, float(Fraction(count, sections)), count * (1 / sections)):
        assert sections_in(epochs, sections) == count
        rows = [{"epochs": n // sections + (n % sections + 1) / sections, "seconds": 0.0} for n in range(count)]
        assert MaxEpochs(epochs).reason(rows) is not None
        assert MaxEpochs(epochs).reason(rows[:-1]) is None
        assert MaxEpochs(epochs).certain([], sections) == count


def test_a_metric_that_is_not_there_is_named() -> None:
    with pytest.raises(StudyError, match="watches 'val_f1'; this member reports seconds, val_loss"):
        Target("val_f1", 1.0).reason([{"val_loss": 1.0, "seconds": 1.0}])
    with pytest.raises(StudyError, match="epochs must be 0 or more"):
        MaxEpochs(-1)
