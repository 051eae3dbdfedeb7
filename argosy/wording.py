"""How figures are told to people: times in words, memory in units of its size, values in few letters, members by what they differ in."""

from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["differing", "html_table", "lasting", "shortened", "sized", "spelled", "told"]

SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
UNITS = ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"))


def lasting(seconds: float) -> str:
    """A time in words, to two units.

    >>> [lasting(seconds) for seconds in (0.25, 42, 200, 3600, 90061)]
    ['under 1 s', '42 s', '3 min 20 s', '1 h', '1 day 1 h']
    """
    left = round(seconds)
    if left < 1:
        return "under 1 s"
    largest = next(place for place, (unit, _) in enumerate(UNITS) if left >= unit)
    words = []
    for unit, name in UNITS[largest : largest + 2]:
        count, left = divmod(left, unit)
        if count:
            words.append(f"{count} {'day' if name == 'days' and count == 1 else name}")
    return " ".join(words)


def sized(count: float) -> str:
    """Bytes in the largest unit that they fill.

    >>> [sized(count) for count in (300, 5 * 2**20, 16e9)]
    ['0.3 KiB', '5.0 MiB', '14.9 GiB']
    """
    unit, name = next(((unit, name) for unit, name in SIZES if count >= unit), SIZES[-1])
    return f"{count / unit:.1f} {name}"


def told(value: Any) -> str:
    """A value in few letters."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def differing(parameters: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the hyper-parameters that are not the same in all members, in the order in which they come."""
    names = dict.fromkeys(name for found in parameters.values() for name in found)
    return tuple(name for name in names if len({repr(found.get(name)) for found in parameters.values()}) > 1)


def spelled(found: Mapping[str, Any], names: Sequence[str]) -> str:
    """These hyper-parameters of one member, as ``lr=0.1 hidden=16``; without where they are bound, as far as one can tell."""
    last = [name.rpartition(".")[2] for name in names]
    short = {name: tail if last.count(tail) == 1 else name for name, tail in zip(names, last, strict=True)}
    return " ".join(f"{short[name]}={told(found[name])}" for name in names if name in found)


def shortened(names: Collection[str], width: int) -> dict[str, str]:
    """Each name in so many letters, with what tells it from the others: what all begin with goes first, then its middle.

    >>> shortened(["resnet-wide-lr=0.1", "resnet-wide-lr=0.01"], 10)
    {'resnet-wide-lr=0.1': '…0.1', 'resnet-wide-lr=0.01': '…0.01'}
    """
    if all(len(name) <= width for name in names):
        return {name: name for name in names}
    begins = _common_beginning(names)
    return {name: _fitting(f"…{name[begins:]}" if begins > 1 else name, width) for name in names}


def _common_beginning(names: Collection[str]) -> int:
    """Letters that all begin with, cut before the last word or number that differs within."""
    first, last = min(names), max(names)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    while same and (first[same - 1].isalnum() or first[same - 1] == "."):
        same -= 1
    return same


def _fitting(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    head = width // 3
    return f"{name[:head]}…{name[len(name) - (width - head - 1) :]}"


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table as HTML; numbers are to the right, and in few letters."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    style = ' style="text-align:right"' if number else ""
    return f"<td{style}>{escape(told(value))}</td>"
