"""Read untrusted or edited JSON as values of declared types, or refuse it in one sentence.

Python's parser accepts what JSON does not allow (NaN, duplicate keys), fails in the middle of deeply nested values, and checks no
types. `parse_json` refuses the first two; `convert` checks a value against its annotation.
"""

import contextlib
import functools
import json
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from argosy.errors import StudyError
from argosy.errors.checks import check_name

__all__ = ["Name", "Positive", "convert", "without_infinities", "parse_json"]

DEEPEST = 64
"""Most levels of nesting."""
MOST_SHOWN = 60
"""Most characters of a value in a message."""
LARGEST = 2**256
"""Exclusive bound of integers: seeds may be long, and every integer must be convertible to a float."""


def _check_positive(value: int) -> None:
    if value < 1:
        raise ValueError(f"{value} must be at least 1")


Name = Annotated[str, functools.lru_cache(2**16)(check_name)]
"""Name of a member or file: a single path component that leads to no other folder."""
Positive = Annotated[int, _check_positive]
Read = Callable[[Any, str, set[str]], Any]
"""(value, its location in words, set of fields that this version does not know) -> the converted value; raises ValueError."""


def without_infinities(value: Any) -> Any:
    """Return the value with None for numbers that are not finite, because JSON has no such numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    return [without_infinities(item) for item in value] if isinstance(value, list | tuple) else value


def parse_json(text: str, *, infinite: bool = False) -> Any:
    """Return the value of a JSON text; raises ValueError for invalid JSON. `infinite` allows NaN and infinity."""
    try:
        value = _decoder(infinite).decode(text)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from error
    # A value that is nested deeper has more opening brackets than that.
    if text.count("[") + text.count("{") > DEEPEST:
        _check_depth(value)
    return value


@functools.cache
def _decoder(infinite: bool) -> json.JSONDecoder:
    strict: dict[str, Any] = {} if infinite else {"parse_constant": _finite, "parse_float": _finite}
    return json.JSONDecoder(object_pairs_hook=_without_duplicates, **strict)


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    as_dict = dict(pairs)
    if len(as_dict) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it has the key {_shorten(repr(next(key for key in keys if keys.count(key) > 1)))} twice")
    return as_dict


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{_shorten(text)} is not a finite number")
    return number


def _check_depth(value: Any) -> None:
    """Raise ValueError for deep nesting; not recursive, because deep nesting would exhaust the stack."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        inside = [one for one in level if isinstance(one, dict | list)]
        level = [item for one in inside for item in (one.values() if isinstance(one, dict) else one)]


def convert(value: Any, kind: Any, where: str, strange: set[str] | None = None) -> Any:
    """Return a JSON value converted to an annotation: arrays become tuples, objects become dictionaries or dataclasses.

    Raises ValueError, which names `where`, what was found and what was expected. A single number must be finite; numbers by name,
    for example losses, may be NaN or infinite. Fields that a dataclass does not have are dropped and added to `strange` as
    ``Kind.field``; fields that a TypedDict does not have are kept.
    """
    return _reader(kind)(value, where, set() if strange is None else strange)


def _refused(value: Any, where: str, wanted: str) -> ValueError:
    return ValueError(f"{_shorten(where)} is {_shorten(repr(value))}, but must be {wanted}")


def _shorten(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


@functools.cache
def _reader(kind: Any) -> Read:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is NotRequired:
        return _reader(inside[0])
    if origin is Annotated:
        return _checked(_reader(inside[0]), inside[1:])
    if origin in (Union, types.UnionType):
        return _union([_reader(one) for one in inside if one is not type(None)], optional=type(None) in inside)
    if origin is Literal:
        return _of_type(lambda value: value in inside, f"one of {', '.join(map(repr, inside))}")
    if origin is tuple:
        whole = len(inside) == 2 and inside[1] is Ellipsis
        return _array(_reader(inside[0])) if whole else _row([_reader(one) for one in inside])
    if origin is Mapping or origin is dict:
        return _object(_reader(inside[0]), _read_any_number if inside[1] is float else _reader(inside[1]))
    return _fields(kind) if is_dataclass(kind) or is_typeddict(kind) else PLAIN[kind]


def _of_type(is_one: Callable[[Any], bool], wanted: str) -> Read:
    def read(value: Any, where: str, strange: set[str]) -> Any:
        if not is_one(value):
            raise _refused(value, where, wanted)
        return value

    return read


def _read_int(value: Any, where: str, strange: set[str]) -> int:
    if type(value) is int and 0 <= value < LARGEST:
        return value
    raise _refused(value, where, "an integer of at least 0")


def _read_str(value: Any, where: str, strange: set[str]) -> str:
    if type(value) is str:
        return sys.intern(value)  # the lines of a journal repeat names of members, devices and metrics
    raise _refused(value, where, "a string")


def _read_any_number(value: Any, where: str, strange: set[str]) -> float:
    if type(value) is float or (type(value) is int and -LARGEST < value < LARGEST):
        number: float = value
        return number
    raise _refused(value, where, "a number")


def _read_finite(value: Any, where: str, strange: set[str]) -> float:
    number = _read_any_number(value, where, strange)
    if math.isfinite(number):
        return number
    raise _refused(value, where, "a finite number")


def _as_tuples(value: Any, where: str = "", strange: Any = None) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


PLAIN: dict[Any, Read] = {
    bool: _of_type(lambda value: type(value) is bool, "true or false"),
    int: _read_int,
    float: _read_finite,
    str: _read_str,
    Any: _as_tuples,
}
"""Readers of values without nested values."""


def _checked(reader: Read, checks: Sequence[Callable[[Any], None]]) -> Read:
    def read(value: Any, where: str, strange: set[str]) -> Any:
        value = reader(value, where, strange)
        for check in checks:
            try:
                check(value)
            except StudyError as error:
                raise _refused(value, where, "a name that a file or folder can have") from error
        return value

    return read


def _union(readers: Sequence[Read], *, optional: bool) -> Read:
    def read(value: Any, where: str, strange: set[str]) -> Any:
        if value is None and optional:
            return None
        for reader in readers[:-1]:
            with contextlib.suppress(ValueError):
                return reader(value, where, strange)
        return readers[-1](value, where, strange)

    return read


def _array(reader: Read) -> Read:
    def read(value: Any, where: str, strange: set[str]) -> Any:
        if not isinstance(value, list | tuple):
            raise _refused(value, where, "an array")
        return tuple([reader(item, where, strange) for item in value])

    return read


def _row(readers: Sequence[Read]) -> Read:
    def read(value: Any, where: str, strange: set[str]) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise _refused(value, where, f"an array of {len(readers)} items")
        return tuple([reader(item, where, strange) for reader, item in zip(readers, value, strict=True)])

    return read


def _object(keys: Read, values: Read) -> Read:
    def read(value: Any, where: str, strange: set[str]) -> Any:
        if type(value) is not dict:
            raise _refused(value, where, "an object")
        return {keys(key, where, strange): values(item, key, strange) for key, item in value.items()}

    return read


def _fields(kind: Any) -> Read:
    hints, keeps = get_type_hints(kind, include_extras=True), is_typeddict(kind)
    readers = {name: _reader(hints[name]) for name in (hints if keeps else [field.name for field in fields(kind)])}
    if keeps:
        needed = kind.__required_keys__
    else:
        needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}

    def read(value: Any, where: str, strange: set[str]) -> Any:
        if type(value) is not dict:
            raise _refused(value, where, "an object")
        if not needed <= value.keys():
            raise ValueError(f"{where} lacks {', '.join(sorted(needed - value.keys()))}")
        values = {}
        for name, item in value.items():
            if name in readers:
                values[name] = readers[name](item, name, strange)
            elif keeps:
                values[name] = item
            else:
                strange.add(_shorten(f"{kind.__name__}.{name}"))
        return kind(**values)

    return read
