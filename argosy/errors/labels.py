"""Labels of samples as sortable arrays: classes to predict, strata and groups of folds. A missing value is not a label."""

from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy.errors import StudyError

__all__ = ["check_no_times", "check_none_missing", "is_missing", "labels_of", "rows_of"]

SHOWN = 5
"""Most rows that a message lists."""


def labels_of(what: str, values: Any) -> npt.NDArray[Any]:
    """Return one label per row as a sortable array.

    Raises StudyError if labels are missing (None, NaN, NaT, NA, masked), have types without a common order, or have more than one dimension.
    """
    labels = _check_one_per_row(what, values)
    if isinstance(values, list | tuple) and labels.dtype.kind in "US":
        # NumPy has made strings of a NaN or a number among strings.
        labels = np.fromiter(values, dtype=object, count=len(values))
    check_none_missing(what, values, labels)
    if labels.dtype != object:
        return labels
    _check_ordered(what, labels)
    return _check_one_per_row(what, labels.tolist())  # as the type that all of them have, where NumPy has one for it


def check_none_missing(what: str, values: Any, array: npt.NDArray[Any]) -> None:
    """Raise StudyError if some rows have missing values; `array` holds the values ``[N, …]``."""
    missing = np.zeros(array.shape, bool)
    if array.dtype == object:
        # Not np.vectorize: under Python 3.12 it warns of an invalid value where NaN is compared.
        missing = np.fromiter(map(is_missing, array.flat), bool, array.size).reshape(array.shape)
    elif array.dtype.kind in "fcmMV":
        missing = array != array
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        missing = missing | (mask != np.zeros((), mask.dtype))  # of records, the mask has one flag for each field
    rows = np.flatnonzero(missing.reshape(len(array), -1).any(1)).tolist()
    if rows:
        named = (
            f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN]))}{', …' if len(rows) > SHOWN else ''}"
        )
        raise StudyError(
            f"{what} has no value for {len(rows)} of its {len(array)} samples ({named}; counted from 0). Give these samples a "
            "value of their own, or remove them."
        )


def check_no_times(what: str, values: Any) -> None:
    """Raise StudyError for an array of dates or durations, which would become whole numbers, and missing ones the least of these."""
    if np.asarray(values).dtype.kind in "mM":
        raise StudyError(
            f"{what} holds dates or durations. Convert them to numbers, for example dates to days since the first one, "
            "and durations by dividing them by np.timedelta64(1, 'D')."
        )


def rows_of(what: str, values: Any) -> npt.NDArray[Any]:
    """Return values as an array; raises StudyError if rows differ in length or NumPy cannot convert them."""
    if hasattr(values, "combine_chunks"):
        # In an Arrow dictionary in chunks, NumPy reads a missing value as the last word.
        values = values.combine_chunks()
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except ValueError:
        raise StudyError(f"{what} has rows of varying length. Pass one value per sample, in one dimension.") from None
    except TypeError as error:  # a tensor of bfloat16, or a sparse one
        raise StudyError(
            f"{what} is a {type(values).__name__} that NumPy cannot read: {str(error).rstrip('.')}. Pass a list or an array with one "
            "value per sample."
        ) from error


def _check_one_per_row(what: str, values: Any) -> npt.NDArray[Any]:
    rows = rows_of(what, values)
    if rows.ndim != 1 or not len(rows):
        raise StudyError(f"{what} has shape {rows.shape}. Pass one value per sample, in one dimension.")
    return rows


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, NaT, NA or masked."""
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, Decimal):
        return value.is_nan()  # a signalling one raises where it is compared
    return isinstance(value, Number | np.generic) and bool(value != value)


def _check_ordered(what: str, labels: npt.NDArray[Any]) -> None:
    """Raise StudyError unless different objects are ordered: of two sets neither may be less, so sorting would group them arbitrarily."""
    try:
        ordered = all(bool(one < other) for one, other in pairwise(sorted(set(labels))))
    except Exception:  # the user's code: __hash__, __eq__ and __lt__ of labels
        ordered = False
    if not ordered:
        raise StudyError(
            f"{what} has values of the types {_types(labels)}, which cannot be compared with each other. Use one type for all, "
            "for example strings: [str(label) for label in labels]."
        )


def _types(values: Iterable[Any]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values}))
