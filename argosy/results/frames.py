"""Tables as DataFrames of pandas, an optional package that is imported here alone."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from argosy.errors import RunError

__all__ = ["to_frame"]

WITH_GAPS: Mapping[type, str] = {int: "Int64", bool: "boolean"}
"""Types of columns with missing values; by default pandas makes floats of such integers and objects of such booleans."""


def to_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, whole: Sequence[str] = ()) -> Any:
    """Return rows as a DataFrame whose first columns are these, even without rows; columns in `whole` hold integers or NA."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise RunError(
            "a DataFrame needs pandas, which is not installed. Install it: pip install 'argosy[report]'. Without "
            "pandas, report.table() and `argosy report DIR --csv` return the same rows."
        ) from error
    frame = pandas.DataFrame(rows, columns=[*dict.fromkeys([*columns, *itertools.chain.from_iterable(rows)])])
    for name in frame.columns:
        column = [row.get(name) for row in rows]
        kinds = {type(value) for value in column if value is not None}
        if len(kinds) == 1 and None in column and (kind := WITH_GAPS.get(kinds.pop())):
            frame[name] = pandas.array(column, dtype=kind)
    return frame.astype(dict.fromkeys(whole, "Int64"))
