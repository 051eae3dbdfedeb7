"""Encode a table as one array of numbers, by the names of its columns and their words; nothing is learnt from the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy.data.tables import check_same_columns, kind_of_texts, names_of
from argosy.errors import StudyError
from argosy.errors.labels import is_missing, rows_of
from argosy.errors.warned import warn_caller

__all__ = ["Columns", "is_table"]

Rows = npt.NDArray[np.float64]
"""``[N, columns]``: numbers, NaN where one is missing; of a column of words their codes from 1, and 0 for a word that is not known."""
MISSING = "<missing>"
"""Placeholder for a row without a word."""


def is_table(X: Any) -> bool:
    """Return whether X has named columns with a type each, like a DataFrame."""
    return hasattr(X, "columns") and hasattr(X, "__getitem__")


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The columns of the table that an estimator was fitted to."""

    names: tuple[Any, ...] | None
    """Their names; None for an array. Scikit-learn compares names only if all of them are strings."""
    words: tuple[tuple[str, ...] | None, ...]
    """By column its words in order, of which the first has code 1; None for a column of numbers, and none for one without any value."""
    gaps: tuple[bool, ...]
    """By column whether it holds numbers of which some are missing."""

    @classmethod
    def of(cls, X: Any) -> "Columns":
        """Return the columns of a table, or of an array of numbers. Raises StudyError for values that are neither numbers nor words."""
        columns = _columns(X)
        words = tuple(map(_words, columns))
        gaps = tuple(one is None and bool(np.isnan(column).any()) for one, column in zip(words, columns, strict=True))
        return cls(names=tuple(_names(X)) if is_table(X) else None, words=words, gaps=gaps)

    def rows(self, X: Any) -> Rows:
        """Return the rows of a table with these columns; warns of columns of words without a known one."""
        names = _names(X)
        if self.names is not None and is_table(X):
            check_same_columns(names, self.names, "fit", "X[list(estimator.columns_.names)]")
        columns = _columns(X, self.words)
        codes = [_codes(*column) for column in zip(names, columns, self.words, strict=True)]
        unknown = [repr(name) for name, *column in zip(names, columns, codes, strict=True) if _is_unknown(*column)]
        if unknown:
            warn_caller(
                f"no word of column {', '.join(unknown)} occurred in fit, so all count as unknown. Check that the "
                "words are spelt the same.",
            )
        return np.stack(codes, axis=1)


def _words(column: npt.NDArray[Any]) -> tuple[str, ...] | None:
    if column.dtype.kind != "f":
        return tuple(sorted(set(column.tolist())))
    return () if np.isnan(column).all() else None


def _codes(name: Any, column: npt.NDArray[Any], words: tuple[str, ...] | None) -> Rows:
    if words == ():
        return np.zeros(len(column))  # without a value in fit, it may hold numbers or words here
    if words is not None and column.dtype.kind == "f" and np.isnan(column).all():
        column = np.full(len(column), MISSING, object)  # of what type, its values do not tell
    if (words is None) != (column.dtype.kind == "f"):
        was, is_now = ("numbers", "words") if words is None else ("words", "numbers")
        raise StudyError(
            f"column {name!r} held {was} when the estimator was fitted, and holds {is_now} now. Convert it to the "
            "type that it had."
        )
    if words is None:
        return column
    codes = {word: code for code, word in enumerate(words, start=1)}
    return np.array([codes.get(word, 0) for word in column.tolist()], np.float64)


def _is_unknown(column: npt.NDArray[Any], codes: Rows) -> bool:
    return column.dtype == object and not codes.any() and any(word != MISSING for word in column.tolist())


def _names(X: Any) -> Sequence[Any]:
    return names_of(X) or range(X.shape[1])


def _columns(X: Any, fitted: Sequence[tuple[str, ...] | None] = ()) -> list[npt.NDArray[Any]]:
    """Return each column as numbers, float64, or as words. `fitted` are the words of each column in `fit`."""
    if not is_table(X):
        return list(np.asarray(X, np.float64).T)
    return [_column(name, X[name], held_words=words is not None) for name, words in zip_longest(_names(X), fitted)]


def _column(name: Any, values: Any, *, held_words: bool) -> npt.NDArray[Any]:
    kind = str(getattr(values, "dtype", getattr(values, "type", ""))).lower()  # `type` of Arrow's
    categorical = kind.startswith(("categor", "enum", "dictionary"))
    # NumPy's array of pandas' categories would be of floats where they are whole numbers and some are missing.
    array = rows_of(f"column {name!r}", values.astype(object) if categorical and hasattr(values, "astype") else values)
    if array.dtype.kind in "biuf" and array.ndim == 1 and not categorical:
        return _check_finite(name, array.astype(np.float64))
    are_words = categorical or held_words  # in a few rows of words all may look like numbers or dates
    cells = list(array) if array.dtype.kind in "mM" else array.tolist()  # dates in nanoseconds would be whole numbers
    missing = np.fromiter(map(is_missing, cells), bool, len(cells))
    present = [value for value, gone in zip(cells, missing, strict=True) if not gone]
    other = next((one for one in present if not _is_cell(one, are_words)), None)
    if other is not None:
        raise StudyError(
            f"column {name!r} holds {other!r} of type {type(other).__name__}, which is neither a number nor a word. "
            "Convert the column (for example dates to days since the first one), or remove it."
        )
    texts = [value for value in present if isinstance(value, str)]
    if not are_words and (really := kind_of_texts(texts)):
        raise StudyError(
            f"column {name!r} holds {really} as texts, such as {texts[0]!r}, and each would become a separate word. "
            "Convert the column to numbers (dates to days since the first one), or to the dtype category if its "
            "values are words."
        )
    if not are_words and not texts:
        numbers = np.full(len(cells), np.nan)
        numbers[~missing] = present
        return _check_finite(name, numbers)
    return np.array([MISSING if gone else _word(value) for value, gone in zip(cells, missing, strict=True)], object)


def _is_cell(value: Any, categorical: bool) -> bool:
    """Return whether a value is a number or a word; an interval, for example from pandas' `cut`, is the word of a category."""
    if isinstance(value, np.timedelta64):
        return False  # which NumPy has among whole numbers
    return isinstance(value, str | Real | np.bool_ | Decimal) or (categorical and type(value).__name__ == "Interval")


def _word(value: Any) -> str:
    """Return the word of a value: one for 1 and 1.0, as whole numbers become floats where a table has missing ones."""
    return str(int(value) if isinstance(value, float | np.floating) and value.is_integer() else value)


def _check_finite(name: Any, column: Rows) -> Rows:
    if np.isinf(column).any():
        raise StudyError(
            f"column {name!r} has infinite values, the first in row {np.isinf(column).argmax()}. Replace them with "
            "finite numbers or missing values."
        )
    return column
