"""Tests that missing labels are refused with their rows, incomparable ones are refused, and all others divide the samples."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import studies
import torch
from torch import nn
from torch.optim import SGD

import argosy
from argosy.adapters.arrays import Fitted
from argosy.errors import StudyError


class Own:
    """A label of a user's class, in which one operation raises or returns arrays."""

    def __init__(self, value: int, raises: str) -> None:
        self.value = value
        self.raises = raises

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> Any:
        return self._value("eq") == getattr(other, "value", None)

    def __lt__(self, other: "Own") -> Any:
        return self._value("lt") < other.value

    def _value(self, asked: str) -> Any:
        if self.raises == asked:
            raise RuntimeError(asked)
        return np.full(2, self.value) if self.raises == f"{asked} gives arrays" else self.value


def objects(values: Any) -> Any:
    """Return an array of these objects, which NumPy must not unpack."""
    found = np.empty(len(values), object)
    found[:] = values
    return found


PAIR = [("a", float), ("b", int)]
MASKED = np.ma.array([0, 1] * 10, mask=[False, True] + [False] * 18)
MISSING = {
    "NaN": np.array([0.0, np.nan] + [0.0, 1.0] * 9),
    "None": [0, None] + [0, 1] * 9,
    "None among strings": ["a", None] + ["a", "b"] * 9,
    "NaN among strings": ["a", float("nan")] + ["a", "b"] * 9,
    "NumPy's NaN among strings": ["a", np.nan] + ["a", "b"] * 9,
    "pandas.NA among strings": pd.Series(["a", pd.NA] + ["a", "b"] * 9, dtype="string"),
    "pandas.NA in objects": np.array(["a", pd.NA] + ["a", "b"] * 9, dtype=object),
    "a column of strings": pd.Series(["a", None] + ["a", "b"] * 9),
    "a categorical": pd.Categorical(["a", None] + ["a", "b"] * 9),
    "a categorical column": pd.Series(["a", None] + ["a", "b"] * 9, dtype="category"),
    "nullable integers": pd.Series([0, None] + [0, 1] * 9, dtype="Int64"),
    "nullable flags": pd.Series([False, None] + [False, True] * 9, dtype="boolean"),
    "NaT": pd.Series([pd.Timestamp(0), pd.NaT] + [pd.Timestamp(0), pd.Timestamp(1)] * 9),
    "NumPy's NaT": np.array(["2000", "NaT"] + ["2000", "2001"] * 9, dtype="datetime64[D]"),
    "a mask": MASKED,
    "a tensor": torch.tensor([0.0, float("nan")] + [0.0, 1.0] * 9),
    "complex numbers": np.array([0, complex("nan")] + [0, 1j] * 9),
    "complex numbers as objects": np.array([0, complex("nan")] + [0, 1] * 9, dtype=object),
    "decimals": [Decimal(0), Decimal("NaN")] + [Decimal(0), Decimal(1)] * 9,
    "decimals that signal": [Decimal(0), Decimal("sNaN")] + [Decimal(0), Decimal(1)] * 9,
    "a decimal among strings": ["a", Decimal("-NaN")] + ["a", "b"] * 9,
    "half precision among objects": np.array([0, np.float16("nan")] + [0, 1] * 9, dtype=object),
    "records": np.array([(0, 0), (np.nan, 0)] + [(0, 0), (1, 0)] * 9, dtype=PAIR),
    "records with a mask": np.ma.array([(0, 0), (1, 0)] * 10, dtype=PAIR, mask=[(0, 0), (0, 1)] + [(0, 0)] * 18),
}
SOUND = {
    "strings": ["a", "b"] * 10,
    "strings of which one is empty": ["", "b"] * 10,
    "a string that says nan": ["nan", "b"] * 10,
    "floats that are whole": [0.0, 1.0] * 10,
    "flags": [False, True] * 10,
    "flags and numbers": [False, 1] * 10,
    "whole numbers and floats": [0, 1.0] * 10,
    "objects": np.array(["a", "b"] * 10, dtype=object),
    "a categorical": pd.Categorical(["a", "b"] * 10),
    "nullable integers": pd.Series([0, 1] * 10, dtype="Int64"),
    "a column with another index": pd.Series([0, 1] * 10, index=range(100, 120)),
    "dates": pd.Series([pd.Timestamp(0), pd.Timestamp(1)] * 10),
    "a tensor that wants gradients": torch.tensor([0.0, 1.0] * 10, requires_grad=True),
    "a mask that hides nothing": np.ma.array([0, 1] * 10),
    "big-endian numbers": np.array([0, 1] * 10, dtype=">i4"),
    "a tuple": (0, 1) * 10,
    "decimals": [Decimal("0.1"), Decimal("0.25")] * 10,
    "fractions and decimals": [Fraction(1, 3), Decimal(1)] * 10,
    "a class that has an order": [Own(0, "nothing"), Own(1, "nothing")] * 10,
}
ODD = {
    "numbers and strings": ([0, "a"] * 10, "types int, str"),
    "numbers and strings as objects": (np.array([0, "a"] * 10, dtype=object), "types int, str"),
    "rows of unlike lengths": ([[0], [0, 1]] * 10, "one dimension"),
    "a column of two dimensions": (np.zeros((20, 1), int), r"shape \(20, 1\)"),
    "a frame": (pd.DataFrame({"label": [0, 1] * 10}), r"shape \(20, 1\)"),
    "tuples as objects": (objects([(0, 1), (1, 1)] * 10), r"shape \(20, 2\)"),
    "sets, of which none is less": (objects([frozenset("a"), frozenset("b")] * 10), "types frozenset, which cannot"),
    "a tensor that NumPy has no type for": (
        torch.zeros(20, dtype=torch.bfloat16),
        "Tensor that NumPy cannot read: .*BF",
    ),
    **{
        f"a class in which {what}": ([Own(index % 2, what) for index in range(20)], "types Own, which cannot")
        for what in ("eq", "lt", "eq gives arrays", "lt gives arrays")
    },
    "nothing": ([], r"shape \(0,\)"),
    "one label": ("cat", r"shape \(\)"),
}


def folds(how: str, labels: Any) -> list[argosy.Member]:
    """Return two folds that are stratified or grouped by these labels."""
    return argosy.kfold(studies.member("a"), 2, **{how: labels})


@pytest.mark.parametrize("how", ["stratify", "groups"])
@pytest.mark.parametrize("labels", MISSING.values(), ids=MISSING)
def test_a_missing_label_is_refused_by_its_row(how: str, labels: Any) -> None:
    with pytest.raises(
        StudyError, match=rf"kfold: {how}= has no value for 1 of its 20 samples \(row 1; counted from 0\)"
    ):
        folds(how, labels)


def test_the_first_of_many_rows_are_named() -> None:
    with pytest.raises(StudyError, match=r"10 of its 20 samples \(rows 1, 3, 5, 7, 9, …; counted"):
        folds("stratify", ["a", None] * 10)


@pytest.mark.parametrize("how", ["stratify", "groups"])
@pytest.mark.parametrize("labels", SOUND.values(), ids=SOUND)
def test_labels_of_every_kind_divide_the_samples(how: str, labels: Any) -> None:
    members = folds(how, labels)
    assert sorted(np.concatenate([member.val_subset for member in members])) == list(range(20))
    odd = [sum(index % 2 for index in member.val_subset) for member in members]
    assert odd == ([5, 5] if how == "stratify" else odd)
    assert how == "stratify" or sorted(odd) == [0, 10]


@pytest.mark.parametrize("how", ["stratify", "groups"])
@pytest.mark.parametrize(("labels", "words"), ODD.values(), ids=ODD)
def test_labels_that_are_none_are_refused(how: str, labels: Any, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        folds(how, labels)


def fitted(y: Any, loss: Callable[..., Any] | None = None, outputs: int = 2) -> Fitted:
    """Fit a network for one epoch on 20 samples."""
    net = argosy.Member(
        "net", model=lambda: nn.Linear(3, outputs), optimizer=lambda p: SGD(p, lr=0.1), batch_size=5, loss=loss
    )
    how = {"launcher": "inline", "devices": "cpu:1", "stop": argosy.MaxEpochs(1)}
    return argosy.fit(np.random.RandomState(0).normal(size=(20, 3)), y, net, **how)


@pytest.mark.parametrize("labels", MISSING.values(), ids=MISSING)
def test_fit_refuses_a_target_that_is_missing(labels: Any) -> None:
    with pytest.raises(StudyError, match=r"fit: y has no value for 1 of its 20 samples \(row 1; counted from 0\)"):
        fitted(labels)


def test_fit_refuses_a_row_of_numbers_with_one_missing() -> None:
    y = np.zeros((20, 2))
    y[7, 1] = np.nan
    with pytest.raises(StudyError, match=r"1 of its 20 samples \(row 7;"):
        fitted(y)


@pytest.mark.parametrize(("labels", "words"), ODD.values(), ids=ODD)
def test_fit_refuses_targets_that_are_no_labels(labels: Any, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        fitted(labels)


def test_fit_keeps_empty_strings_and_takes_floats_among_objects_as_numbers() -> None:
    assert list(fitted(["", "b"] * 10).classes) == ["", "b"]
    numbers = np.array([[0.5], [1.5]] * 10).ravel().astype(object)
    assert fitted(numbers, loss=lambda out, y: (out[:, 0] - y) ** 2, outputs=1).classes is None
