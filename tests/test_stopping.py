"""Tests that stopping rules keep their promises whatever a member's history is, and refuse invalid values."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy import MaxEpochs, MaxSamples, MaxSeconds, MaxSteps, Plateau, Target
from argosy.errors import StudyError
from argosy.stopping import Both, Either, GrowingHistory, Stop, mode_of, sections_in

VALUES = st.sampled_from([float("nan"), -1.0, 0.0, 0.5, 1.0, 2.0, float("inf")])


def leaves(sections: int) -> st.SearchStrategy[Stop]:
    """Generate rules that are not combined from others."""
    return st.one_of(
        st.integers(1, 12).map(lambda count: MaxEpochs(count / sections)),
        st.floats(0.01, 4).map(MaxEpochs),
        st.integers(1, 9).map(MaxSeconds),
        st.integers(1, 90).map(MaxSteps),
        st.integers(1, 900).map(MaxSamples),
        st.builds(Plateau, st.just("val_loss"), st.integers(1, 4), st.sampled_from([0.0, 0.5])),
        st.builds(Target, st.just("val_loss"), VALUES.filter(math.isfinite), st.sampled_from([None, "max"])),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Stop, list[dict[str, float]], int]:
    """Generate a rule, a member's history, and the number of sections in an epoch."""
    sections = draw(st.integers(1, 7))
    rule = draw(
        st.recursive(leaves(sections), lambda inner: st.builds(Either, inner, inner) | st.builds(Both, inner, inner))
    )
    rows = [
        {
            "val_loss": draw(VALUES),
            "seconds": 1.0,
            "epochs": number // sections + (number % sections + 1) / sections,
            "steps": 7 * (number + 1),
            "samples": 70 * (number + 1),
        }
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


@given(cases(), st.data())
def test_a_history_that_grows_and_shrinks_is_judged_as_a_list_of_its_rows(
    case: tuple[Stop, list[dict[str, float]], int], data: st.DataObject
) -> None:
    """A rule folds each row of a run's history once; after a fault, the run drops the last rows and appends others."""
    rule, rows, sections = case
    growing = GrowingHistory()
    for row in [*rows, *reversed(rows)]:
        if data.draw(st.integers(0, 3)) == 0:
            del growing[data.draw(st.integers(0, len(growing))) :]
        growing.append(row)
        assert rule.reason(growing) == rule.reason([*growing])
        assert rule.certain(growing, sections) == rule.certain([*growing], sections)


@given(cases())
def test_no_rule_is_met_before_the_first_section(case: tuple[Stop, list[dict[str, float]], int]) -> None:
    assert case[0].reason([]) is None, "the member would end without training"


@given(cases())
def test_no_rule_goes_on_beyond_its_bound(case: tuple[Stop, list[dict[str, float]], int]) -> None:
    rule, rows, sections = case
    if rule.max_epochs is None:
        return
    last = sections_in(rule.max_epochs, sections)
    if last <= len(rows):
        assert rule.reason(rows[:last]) is not None


@given(st.integers(1, 50), st.integers(1, 500))
def test_parts_of_an_epoch_are_as_many_sections_as_they_say(sections: int, count: int) -> None:
    """A rule of n/k epochs ends after n sections of k per epoch, although n/k is rounded in floating point."""
    for epochs in (count / sections, float(Fraction(count, sections)), count * (1 / sections)):
        assert sections_in(epochs, sections) == count
        rows = [{"epochs": n // sections + (n % sections + 1) / sections, "seconds": 0.0} for n in range(count)]
        assert MaxEpochs(epochs).reason(rows) is not None
        assert MaxEpochs(epochs).reason(rows[:-1]) is None
        assert MaxEpochs(epochs).certain([], sections) == count


def test_a_metric_that_is_not_there_is_named() -> None:
    with pytest.raises(
        StudyError, match=r"watches 'f1', which this member does not report\. Choose one of seconds, val_loss"
    ):
        Target("f1", 1.0).reason([{"val_loss": 1.0, "seconds": 1.0}])


def test_rows_from_before_a_metric_was_added_do_not_count() -> None:
    before, rows = [{"val_loss": 1.0}] * 3, [{"val_loss": 1.0, "val_f1": value} for value in (0.5, 0.4, 0.3)]
    plateau, target = Plateau("val_f1", 2, mode="max"), Target("val_f1", 0.45, mode="max")
    assert plateau.reason(before) is None and plateau.certain(before, 1) == 2
    assert target.reason(before) is None
    for ended in range(1, 4):
        for rule in (plateau, target):
            assert rule.reason([*before, *rows[:ended]]) == rule.reason(rows[:ended])


def test_nan_reaches_no_target_and_is_no_plateaus_best() -> None:
    nan = math.nan
    for mode in ("min", "max"):
        assert Target("score", 0.5, mode).reason([{"score": nan}]) is None
        rule = Plateau("score", 2, mode=mode)
        assert rule.reason([{"score": value} for value in (nan, 1.0, nan)]) is None
        assert rule.reason([{"score": value} for value in (1.0, nan, nan)]) is not None
        assert rule.reason([{"score": nan}] * 3) is not None


def test_the_direction_of_a_metric_is_told_by_the_words_of_its_name_or_asked_for() -> None:
    for name in ("val_loss", "val_rmse", "val_mae", "val_perplexity", "val_error_rate", "train_loss", "val_top1_error"):
        assert mode_of(name) == "min", name
    for name in ("val_accuracy", "val_top5_acc", "val_f1", "val_f1_macro", "val_mean-AUC"):
        assert mode_of(name) == "max", name
    # Only whole words count. A name with words for both directions, or with "neg", has no direction.
    for name in ("val_score", "val_lossless", "val_terror", "val_accuracy_loss", "val_neg_mse", "lr"):
        for asked in (lambda name=name: Plateau(name, 3), lambda name=name: Target(name, 0.5)):
            with pytest.raises(
                StudyError, match=f"{name!r} does not show whether lower or higher is better; set mode="
            ):
                asked()
    for name in ("val_map", "val_mar", "val_bits_per_char"):  # not mape, mae and wer
        with pytest.raises(StudyError, match=r"or mode='max'\.$"):
            mode_of(name)
    assert Target("val_score", 0.5, mode="min").reason([{"val_score": 0.4}]) == "val_score 0.4 reached 0.5"


REFUSED = {
    "epochs": (lambda: MaxEpochs(-1), "MaxEpochs: epochs is -1; it must be a finite number greater than 0."),
    "no epochs": (lambda: MaxEpochs(0), "MaxEpochs: epochs is 0; it must be a finite number greater than 0."),
    "no seconds": (lambda: MaxSeconds(0.0), "MaxSeconds: seconds is 0.0; it must be a finite number greater than 0."),
    "no steps": (lambda: MaxSteps(0), "MaxSteps: steps is 0; it must be an int of at least 1."),
    "no samples": (lambda: MaxSamples(0), "MaxSamples: samples is 0; it must be an int of at least 1."),
    "epochs in words": (lambda: MaxEpochs("3"), "MaxEpochs: epochs is '3'"),
    "no end": (lambda: MaxEpochs(math.inf), "MaxEpochs: epochs is inf; it must be a finite number"),
    "seconds": (lambda: MaxSeconds(math.nan), "MaxSeconds: seconds is nan"),
    "steps": (lambda: MaxSteps(0.5), "MaxSteps: steps is 0.5; it must be an int of at least 1."),
    "samples": (lambda: MaxSamples(True), "MaxSamples: samples is True; it must be an int"),
    "patience": (lambda: Plateau("val_loss", 0), "Plateau: patience is 0; it must be an int of at least 1."),
    "delta": (lambda: Plateau("val_loss", 1, -0.1), "Plateau: min_delta is -0.1"),
    "value": (lambda: Target("val_loss", math.nan), "Target: value is nan"),
    "mode": (lambda: Target("val_loss", 1.0, "low"), "Target('val_loss'): mode is 'low'; it must be 'min' or 'max'."),
    "either": (
        lambda: MaxEpochs(3) | 5,
        "a part of a combined rule is 5; it must be a stopping rule, such as MaxEpochs",
    ),
    "both": (lambda: MaxEpochs(3) & None, "a part of a combined rule is None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_that_cannot_be_meant_is_refused_when_it_is_made(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(StudyError) as error:
        make()
    assert message in str(error.value)


@pytest.mark.parametrize("combine", [lambda a, b: a or b, lambda a, b: a and b, lambda a, b: not a])
def test_words_of_python_do_not_combine_rules(combine: Callable[[Stop, Stop], object]) -> None:
    with pytest.raises(StudyError, match=r"MaxEpochs\(epochs=3\) was combined by `or`, .* Use \| or &"):
        combine(MaxEpochs(3), MaxSteps(4))
