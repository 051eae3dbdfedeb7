"""Tables as arrays: a column of numbers becomes one feature, a column of words one feature for each word."""

import contextlib
import csv
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from argosy.disk.files import user_path
from argosy.errors import StudyError
from argosy.errors.checks import check_choice, check_in_memory, describe_value
from argosy.errors.labels import is_missing, rows_of
from argosy.errors.optional import optional
from argosy.errors.spelling import did_you_mean

__all__ = ["Table", "check_same_columns", "columns", "table", "kind_of_texts", "names_of"]

Column = npt.NDArray[Any]
TargetIs = Literal["classes", "numbers"]
MOST_WORDS = 1000
"""Most different words in a column; a column with more holds names or texts, which differ in nearly every row."""
MOST_NAMED = 10
"""Most columns that an error names."""
MISSING_MARKS = {
    *("?", "NA", "N/A", "n/a", "<NA>", "#NA", "#N/A", "#N/A N/A", "NULL", "null", "None"),
    *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
}
"""Texts that stand for a missing value in a CSV file, besides the empty one: those of `pandas.read_csv`, and ``?``."""
FEWEST_NUMBERS, MOST_NUMBERS = 10, 0.9
"""A column is one of words if it has fewer numbers than the first, or at most this share of numbers. Else its words are errors among numbers."""
NUMBER_PATTERN = re.compile(r"[-+]? ?[$€£]? ?\d[\d.,' ]*[%$€£]?")
"""A number as people write it, such as 1,234 or $5 or 12%. It is not a word, though Python cannot parse it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Inputs and targets of a table, as `argosy.data.table` returns them."""

    inputs: npt.NDArray[np.float32]
    """``[rows, features]``."""
    targets: Column
    """Class numbers, int64 ``[rows]``, or numbers, float32 ``[rows]``."""
    features: tuple[str, ...]
    """Names of the columns of `inputs`; ``colour=red`` is 1 in rows whose column colour is red."""
    classes: tuple[Any, ...]
    """Classes by number; empty if targets are numbers."""
    words: Mapping[str, tuple[str, ...] | None]
    """The words of each column except the target, in order; None for a column of numbers."""

    @property
    def arrays(self) -> tuple[npt.NDArray[np.float32], Column]:
        """Inputs and targets, for ``Data(arrays=table.arrays)``."""
        return self.inputs, self.targets


def table(
    source: str | Path | Any,
    *,
    target: str,
    target_is: TargetIs | None = None,
    words: Collection[str] = (),
    like: Table | None = None,
) -> Table:
    """Return the rows of a table: a ``.csv`` or ``.parquet`` file, a DataFrame, an Arrow table, or a dict of columns.

    A column of numbers becomes one feature, a column of words one feature for each word. Targets that are words, flags or whole numbers are
    classes, as in `argosy.fit`; other numbers are regression targets. With ``target_is="numbers"`` whole numbers, such as prices, are regression
    targets too; with ``target_is="classes"`` all numbers are classes. Nothing is scaled: statistics of training rows, such as a mean, must be
    computed in each fold (see examples/tabular.py).

    A ``.csv`` file must be in UTF-8. Its first line determines whether commas, semicolons or tabs separate values. Empty values are missing, and
    so are ``NA``, ``null``, ``?`` and the like. Columns without a name, such as the index that pandas writes, are left out. Columns listed in
    `words` hold words, whatever they look like: for example floors, one of which is ``G``, or regions, one of which is ``NA``.

    Two files read separately would each number their own words and classes. Pass the table of the first as `like` to give the second the same
    features and classes: only its columns are used, and a word that it does not have is 0 in all features of its column. The second may lack the
    target, as rows to predict do; its `targets` are then empty.

    Raises:
        StudyError: if the file or a column does not exist, a value is missing, or a column holds neither numbers nor words, or numbers and a few
            words; with `like`, if a column holds another kind of value than in that table, or a class is not in it.

    Example:
        ``train = argosy.data.table("train.csv", target="kind")``, then
        ``val = argosy.data.table("val.csv", target="kind", like=train)``, for
        ``argosy.Data(arrays=train.arrays, val_arrays=val.arrays)``
    """
    _check_keywords(target_is, words, like)
    if like is not None:
        return _read_like(like, source, target)
    by_name = _columns(source, dict.fromkeys(words, MISSING_MARKS))
    for name in (target, *words):
        _check_there(name, by_name)
    _check_none_missing(by_name)
    for name, column in by_name.items():
        if name in words:
            by_name[name] = column.astype(str)
        elif name != target or target_is is None:
            _check_no_slips(name, column)
    by_column = {name: _words(name, column) for name, column in by_name.items() if name != target}
    if not by_column:
        raise StudyError(f"table: the target {target!r} is the only column. Pass a table that has features.")
    classes, targets = _targets(target, by_name[target], target_is)
    features = _features(by_name, by_column)
    return Table(inputs=_stack(features), targets=targets, features=tuple(features), classes=classes, words=by_column)


def _read_like(like: Table, source: Any, target: str) -> Table:
    """Return the rows of a source with the features and classes of the table `like`."""
    known = {name: words for name, words in like.words.items() if words is not None}
    if any(isinstance(one, str) for one in like.classes):
        known[target] = like.classes
    by_name = _columns(source, known)
    names = [*like.words, *([target] if target in by_name else [])]
    for name in names:
        _check_there(name, by_name)
    _check_none_missing({name: by_name[name] for name in names})
    for name in names:
        if name in known:
            by_name[name] = _as_known_words(name, by_name[name], known[name])
    features = _features(by_name, like.words)
    column = by_name.get(target, like.targets[:0])
    targets = _class_numbers(target, column, like.classes) if like.classes else _as_numbers(target, column)
    return replace(like, inputs=_stack(features), targets=targets)


def _check_keywords(target_is: TargetIs | None, words: Collection[str], like: Table | None) -> None:
    if target_is is not None:
        check_choice("table: target_is", target_is, ("classes", "numbers"))
    if like is None:
        return
    if not isinstance(like, Table):
        raise StudyError(
            f"table: like is {describe_value(like)}; it must be a table that was read before, for example "
            "argosy.data.table('train.csv', target='kind')."
        )
    if target_is is not None or words:
        raise StudyError(
            "table: with like=, columns and target are those of that table. Remove target_is= and words=, or pass "
            "them when reading that table."
        )


def columns(source: str | Path | Any, *names: str) -> tuple[Column, ...]:
    """Return columns of an Arrow table, a ``.parquet`` file or another source of `table`, for ``Data(arrays=columns(source, "image", "label"))``.

    Numbers in an Arrow column with a single chunk are not copied; lists of equal length become rows of that shape. A Parquet file is read once,
    and only these columns of it.

    Raises:
        StudyError: if the file or a column does not exist, or a value is missing.
    """
    if isinstance(source, str | Path) and Path(source).suffix == ".parquet":
        source = _read_parquet(user_path(source), names)
    columns_of = _columns(source, {}) if isinstance(source, str | Path) else source
    available = _names(columns_of)
    _check_once([str(name) for name in available if str(name) in names])
    by_name = {str(name): name for name in available}
    for name in names:
        _check_there(name, by_name)
    return tuple(_rows(name, columns_of[by_name[name]]) for name in names)


def _rows(name: str, column: Any) -> Column:
    """Return a column as an array; lists of equal length become rows."""
    column = column.to_arrow() if hasattr(type(column), "to_arrow") else column  # of Polars
    if not hasattr(column, "null_count"):
        rows = np.asarray(_unmasked(column))
        _check_filled({name: (_missing(rows), len(rows))})
        return rows
    whole = column.chunk(0) if getattr(column, "num_chunks", 0) == 1 else column
    whole = whole.combine_chunks() if hasattr(whole, "chunks") else whole
    shape = [len(whole)]
    _check_filled({name: (np.flatnonzero(whole.is_null()).tolist(), shape[0])})
    tensors = whole if hasattr(whole, "to_numpy_ndarray") else None  # of one shape, which their storage does not have
    while hasattr(whole, "storage") or len(sizes := _list_sizes(whole)) == 1:
        if hasattr(whole, "storage"):  # of an extension type, such as Array2D of Hugging Face
            whole = whole.storage
            continue
        shape.extend(sizes)
        whole = whole.flatten()
        inside = np.flatnonzero(whole.is_null()) // math.prod(shape[1:])
        _check_filled({name: (np.unique(inside).tolist(), shape[0])})
    return np.asarray(whole).reshape(shape) if tensors is None else tensors.to_numpy_ndarray()


def _unmasked(column: Any) -> Any:
    """Return a column with None, a missing value, in place of values that are masked."""
    return column.tolist() if np.ma.is_masked(column) else column


def _list_sizes(column: Any) -> set[int]:
    """Return the different lengths of an Arrow column's lists; none for a column of something else."""
    if hasattr(column.type, "list_size"):
        return {column.type.list_size}
    return {*np.unique(column.value_lengths()).tolist()} if hasattr(column, "value_lengths") else set()


def names_of(table: Any) -> list[Any] | None:
    """Return column names as a table has them, which are numbers in a DataFrame made from an array; None for what is no table."""
    if hasattr(type(table), "column_names"):
        # An Arrow table, whose `columns` are arrays. The type is asked, because a DataFrame may have a column of this name.
        return list(table.column_names)
    names = table if isinstance(table, Mapping) else getattr(table, "columns", None)
    return None if names is None else list(names)


def check_same_columns(names: Iterable[Any], wanted: Iterable[Any], what: str, choose: str) -> None:
    """Raise StudyError if a table to predict has other columns than the table of `what`, or in another order; `choose` is code that fixes the order."""
    names, wanted = list(names), list(wanted)
    if names == wanted:
        return
    unseen, missing = [name for name in names if name not in wanted], [name for name in wanted if name not in names]
    differences = [
        f"{word} {_format_names(some)}" for word, some in (("new", unseen), ("missing", missing)) if some
    ] or [f"in a different order, {_format_names(names)}"]
    raise StudyError(
        f"X has different columns from the X of {what}: {'; '.join(differences)}. Pass the same columns in "
        f"the same order, {choose}: {_format_names(wanted)}."
    )


def _format_names(names: Iterable[Any]) -> str:
    texts = list(map(repr, names))
    return ", ".join(texts[:MOST_NAMED]) + (f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else "")


def _names(source: Any) -> list[Any]:
    check_in_memory("table: source", source)
    names = names_of(source)
    if names is None:
        raise StudyError(
            f"table: source is {describe_value(source)}, which has no named columns. Pass a .csv or .parquet file, a "
            "DataFrame, an Arrow table or a dict of columns. For arrays, use Data(arrays=(x, y))."
        )
    return names


def _check_there(name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise StudyError(
            f"table: unknown column {name!r}{did_you_mean(name, names)}; choose one of {', '.join(map(repr, names))}."
        )


def _check_once(names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise StudyError(f"table: {count} columns have the name {name!r}. Rename or remove all but one.")


def _columns(source: Any, words: Mapping[str, Collection[str]]) -> dict[str, Column]:
    """Return columns by name. In a file, columns of `words` are read as texts, and these words do not count as missing values."""
    if isinstance(source, str | Path):
        path = user_path(source)
        if path.suffix == ".parquet":
            return _columns(_read_parquet(path), words)
        try:
            by_name = _read_csv(path, words)
        except (OSError, UnicodeError) as error:
            raise _unreadable(path, error) from error
    else:
        _check_once(map(str, _names(source)))
        by_name = {
            str(name): _as_numeric(rows_of(f"table: column {name!r}", _unmasked(source[name])))
            for name in _names(source)
        }
    if not by_name or not len(next(iter(by_name.values()))):
        raise StudyError("table: the source has 0 rows. Pass a table with column names and at least 1 row.")
    if len(lengths := {len(column) for column in by_name.values()}) > 1:
        raise StudyError(
            f"table: its columns have {', '.join(map(str, sorted(lengths)))} rows; all must have the same number of rows."
        )
    return by_name


def _read_csv(path: Path, words: Mapping[str, Collection[str]]) -> dict[str, Column]:
    with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes a byte order mark
        between = max(",;\t", key=file.readline().count)
        file.seek(0)
        reader = csv.reader(file, delimiter=between)
        lines = [(reader.line_num, [value.strip() for value in row]) for row in reader if row]
    (_, names), *rows = lines or [(1, [])]
    _check_once(filter(None, names))
    for number, row in rows:
        if len(row) != len(names):
            raise StudyError(
                f"table: line {number} of {path} has {len(row)} values, but the table has {len(names)} columns. Fix "
                "that line."
            )
    values = {name: [row[place] for _, row in rows] for place, name in enumerate(names) if name}
    return {
        name: _blank_missing(of, words[name]) if name in words else _parse_column(of) for name, of in values.items()
    }


def _read_parquet(path: Path, names: Sequence[str] | None = None) -> Any:
    """Return the Arrow table of a file, with those of these columns that it has."""
    with optional(StudyError, f"table: {path} needs pyarrow", "pyarrow"):
        from pyarrow import parquet
    try:
        if names is not None:
            available = parquet.read_schema(path).names
            names = [name for name in names if name in available] or available
        return parquet.read_table(path, columns=names)
    except (OSError, ValueError) as error:  # Arrow raises ValueError for damaged files
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> StudyError:
    why = getattr(error, "strerror", None) or str(error).strip().rstrip(".")
    return StudyError(f"table: {path} cannot be read: {why}. Pass a .csv file in UTF-8, or a .parquet file.")


def _as_numeric(column: Column) -> Column:
    """Return a column of numbers for one of objects that are all numbers, as a DataFrame of mixed rows has."""
    if column.dtype == object and all(isinstance(value, Real | np.bool_) for value in column.flat):
        return np.array(column.tolist())
    if column.dtype == object and all(isinstance(value, Real | np.bool_ | Decimal) for value in column.flat):
        return _parse_column(list(map(str, column)))  # decimals are numbers as a file has them: 7.00 is not whole
    return column


def _parse_column(values: list[str]) -> Column:
    """Return a column of whole numbers, of numbers or of words, whichever all values are; missing values become NaN or an empty word."""
    texts = _blank_missing(values, ())
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            if not any("_" in value for value in values):  # Python would read 1_000 as a number
                return np.array([kind(value) if value else np.nan for value in texts.tolist()])
    return texts


def _blank_missing(values: list[str], words: Collection[str]) -> Column:
    """Return the values as written, but empty for those that mark a missing value and are not among these words."""
    return np.array(["" if value in MISSING_MARKS and value not in words else value for value in values], dtype=object)


def _check_none_missing(by_name: Mapping[str, Column]) -> None:
    _check_filled({name: (_missing(column), len(column)) for name, column in by_name.items()})
    for name, column in by_name.items():
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            raise StudyError(
                f"table: column {name!r} has infinite values, the first in row {np.isinf(column).argmax()}. Replace "
                "them with finite numbers."
            )


def _missing(column: Column) -> list[int]:
    """Return the rows in which the value, or one of several, is missing: None, NaN, NaT, NA or an empty word."""
    if column.dtype.kind in "biu":
        return []  # none can be missing: skip the pass over a large column
    if column.dtype.kind in "OU":
        gone = np.frompyfunc(lambda value: is_missing(value) or (isinstance(value, str) and not value), 1, 1)(column)
    else:
        gone = column != column
    return np.flatnonzero(gone.astype(bool).any(axis=tuple(range(1, column.ndim)))).tolist()


def _check_no_slips(name: str, column: Column) -> None:
    """Raise StudyError if a column of numbers has a few words, which would turn all of it into words."""
    slips, rows, values = _slips(column), len(column), column.tolist()
    numbers = rows - sum(NUMBER_PATTERN.fullmatch(str(values[row])) is None for row in slips)
    if slips and numbers >= FEWEST_NUMBERS and numbers > MOST_NUMBERS * rows:
        raise StudyError(
            f"table: column {name!r} has numbers in {numbers} of {rows} rows, but {values[slips[0]]!r} in row "
            f"{slips[0]}. Fix every value that is not a plain number such as 1234.5, remove the column, or pass "
            f"words=[{name!r}] if its values are words."
        )
    if len(slips) == rows and all(map(_is_date, values)):
        raise _unknown_word(name, values[0])


def _slips(column: Column) -> list[int]:
    """Return the rows whose value is not a number."""
    if column.dtype.kind in "biuf":
        return []
    return [row for row, value in enumerate(column.tolist()) if not _is_number(value)]


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, or the text of a finite one."""
    with contextlib.suppress(ValueError):
        text = isinstance(value, str) and "_" not in value
        return isinstance(value, Real | np.bool_ | Decimal) or (text and math.isfinite(float(value)))
    return False


def kind_of_texts(texts: Sequence[str]) -> Literal["numbers", "dates"] | None:
    """Return whether nearly all texts are numbers, or all are dates; None for words, and for codes that consist of digits alone."""
    numbers = [text for text in texts if _is_number(text) or NUMBER_PATTERN.fullmatch(text)]
    if len(numbers) >= max(FEWEST_NUMBERS, MOST_NUMBERS * len(texts)) and not all(map(str.isdigit, numbers)):
        return "numbers"
    return "dates" if texts and all(map(_is_date, texts)) else None


def _is_date(value: Any) -> bool:
    """Return whether a value is the text of a date."""
    with contextlib.suppress(ValueError, TypeError):
        return datetime.fromisoformat(value) is not None
    return False


def _unknown_word(name: str, value: Any) -> StudyError:
    return StudyError(
        f"table: column {name!r} holds {value!r} of type {type(value).__name__}, which is neither a number nor a "
        "word. Convert the column (for example dates to days since the first one), or remove it."
    )


def _check_filled(by_name: Mapping[str, tuple[Sequence[int], int]]) -> None:
    """Raise StudyError if rows of some columns, of so many, have no value."""
    gaps = [
        f"column {name!r} has no value in {len(missing)} of {count} rows, the first in row {missing[0]}"
        for name, (missing, count) in by_name.items()
        if missing
    ]
    if gaps:
        more = f"; so do {len(gaps) - MOST_NAMED} more columns" if len(gaps) > MOST_NAMED else ""
        raise StudyError(
            f"table: {'; '.join(gaps[:MOST_NAMED])}{more} (for example an empty cell, or NA in a CSV file). Fill in "
            f"the values, or remove the rows or the column{'s' * (len(gaps) > 1)}."
        )


def _features(by_name: Mapping[str, Column], by_column: Mapping[str, tuple[str, ...] | None]) -> dict[str, Column]:
    features: dict[str, Column] = {}
    for name, words in by_column.items():
        if words is None:
            features[name] = _as_numbers(name, by_name[name])
        else:
            features |= {f"{name}={word}": by_name[name] == word for word in words}
    return features


def _stack(features: Mapping[str, Column]) -> npt.NDArray[np.float32]:
    return np.stack([column.astype(np.float32) for column in features.values()], axis=1)


def _words(name: str, column: Column) -> tuple[str, ...] | None:
    """Return the words of a column in order, or None if it holds numbers."""
    if column.dtype.kind in "biuf":
        return None
    other = next((value for value in column.tolist() if not isinstance(value, str)), None)
    if other is not None:
        raise _unknown_word(name, other)
    words = tuple(np.unique(column.astype(str)).tolist())
    if len(words) > MOST_WORDS:
        raise StudyError(
            f"table: column {name!r} has {len(words)} different words in {len(column)} rows, and each would become a "
            f"feature. Remove columns of names and texts, or use at most {MOST_WORDS} words."
        )
    return words


def _as_known_words(name: str, column: Column, words: Collection[str]) -> Column:
    """Return a column as words, for a column that holds words in another table."""
    texts = column.astype(str)
    if column.dtype.kind in "biuf" and not np.isin(texts, list(words)).any():
        raise StudyError(
            f"table: column {name!r} has {texts[0]} in row 0, but words such as {next(iter(words))!r} in the table of "
            "like=. Convert it to those words."
        )
    return texts


def _targets(name: str, column: Column, target_is: TargetIs | None) -> tuple[tuple[Any, ...], Column]:
    if target_is == "numbers" or (target_is is None and column.dtype.kind == "f"):
        return (), _as_numbers(name, column)
    if target_is is None and (
        column.dtype.kind in "mM" or any(isinstance(value, date | timedelta) for value in column.tolist())
    ):
        raise StudyError(
            f"table: target {name!r} holds dates or durations, of which each would be a class. Convert them to numbers, for example dates "
            "to days since the first one, or pass target_is='classes'."
        )
    classes, numbers = np.unique(column.astype(str) if column.dtype == object else column, return_inverse=True)
    return tuple(classes.tolist()), numbers.astype(np.int64)


def _class_numbers(name: str, column: Column, classes: tuple[Any, ...]) -> Column:
    numbers = {one: number for number, one in enumerate(classes)}
    for row, value in enumerate(column.tolist()):
        if value not in numbers:
            some = ", ".join(map(repr, classes[:5])) + ", …" * (len(classes) > 5)
            raise StudyError(
                f"table: target {name!r} is {value!r} in row {row}, which is not one of the {len(classes)} classes in "
                f"the table of like= ({some}). Fix the value, remove its rows, or pass a like= table that has this "
                "class."
            )
    return np.array([numbers[value] for value in column.tolist()], np.int64)


def _as_numbers(name: str, column: Column) -> Column:
    """Return a column as numbers; texts are parsed."""
    if slips := _slips(column):
        raise StudyError(
            f"table: column {name!r} has {column.tolist()[slips[0]]!r} in row {slips[0]}; it must be a number. Fix "
            "the value, or remove the row."
        )
    return column.astype(np.float32)
