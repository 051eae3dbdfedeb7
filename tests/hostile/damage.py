"""Random damage to files, drawn by Hypothesis: changed bytes, and JSON values replaced by others."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

__all__ = ["damaged", "damaged_lines"]

Draw = Callable[[st.SearchStrategy[Any]], Any]

BOMBS = (
    b"[" * 20_000,
    b'{"a":' * 20_000,
    b'{"event": "SectionEnded", "event": "Saved"}',
    b"1" * 5_000,
    b"1e999",
    b"NaN",
    b"\xff\xfe",
    b"\x00" * 64,
    b"",
)
TEXTS = (
    "",
    "..",
    "../../../../../../etc/passwd",
    "/etc/passwd",
    "a\x00b",
    "\x1b]0;owned\x07\x1b[2J",
    "\u202egnp.exe",
    "\ud800",
    "[red]x[/red]",
    "<script>alert(1)</script>",
    "x" * 5_000,
    "cos\nsystem\n(S'touch owned'\ntR.",
    "train",
    "min",
    "SectionEnded",
)
NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    90,
    2**31,
    2**32,
    2**53,
    2**63,
    2**64,
    10**30,
    10**300,
    0.5,
    -0.0,
    1e-320,
    1e18,
    1e308,
    math.inf,
    math.nan,
)
VALUES = st.one_of(
    st.sampled_from([*TEXTS, *NUMBERS, None, True, False]),
    st.builds(list),
    st.builds(dict),
    st.text(max_size=12),
    st.integers(),
    st.floats(),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    ),
    st.integers(1, 900).map(lambda depth: json.loads("[" * depth + "]" * depth)),
)


def damaged(data: bytes, draw: Draw) -> bytes:
    """Return a file's bytes after one to three changes, mostly of values if the file is JSON."""
    for _ in range(draw(st.integers(1, 3))):
        data = (_other_value if draw(st.integers(0, 3)) else _other_bytes)(data, draw)
    return data


def damaged_lines(data: bytes, draw: Draw) -> bytes:
    """Return the bytes of a file with a JSON value on each line after one to three changes; lines may also vanish, repeat or move."""
    lines = data.split(b"\n")[:-1]
    for _ in range(draw(st.integers(1, 3))):
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        blow = draw(st.sampled_from(["value", "value", "value", "value", "bytes", "gone", "twice", "moved"]))
        if blow == "value":
            lines[at] = _other_value(lines[at], draw)
        elif blow == "bytes":
            lines[at] = _other_bytes(lines[at], draw)
        elif blow == "gone":
            del lines[at]
        else:
            line = lines[at] if blow == "twice" else lines.pop(at)
            lines.insert(draw(st.integers(0, len(lines))), line)
    return b"".join(line + b"\n" for line in lines)


def _other_bytes(data: bytes, draw: Draw) -> bytes:
    begin = draw(st.integers(0, len(data)))
    end = min(len(data), begin + draw(st.integers(0, 40)))
    new = draw(st.one_of(st.binary(max_size=20), st.sampled_from(BOMBS)))
    return data[:begin] + new + data[end:]


def _other_value(data: bytes, draw: Draw) -> bytes:
    """Replace, delete or rename a value anywhere inside, or overwrite it with another one from the file."""
    try:
        root = [json.loads(data)]
    except (ValueError, RecursionError):
        return _other_bytes(data, draw)
    places = list(_places(root, 0))
    inside, key = places[draw(st.integers(0, len(places) - 1))]
    blow = draw(st.sampled_from(["new", "new", "new", "gone", "renamed", "swapped"]))
    if blow == "gone" and inside is not root:
        del inside[key]
    elif blow == "renamed" and isinstance(inside, dict):
        inside[draw(st.sampled_from(TEXTS) | st.text(max_size=8))] = inside.pop(key)
    elif blow == "swapped":
        other, place = places[draw(st.integers(0, len(places) - 1))]
        inside[key] = json.loads(json.dumps(other[place]))
    else:
        inside[key] = draw(VALUES)
    return json.dumps(root[0]).encode()


def _places(value: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key or index) inside a value, for long arrays only the first six."""
    if depth > 12:
        return
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 6))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key], depth + 1)
