"""What commands print and write: text for users, or one JSON object, alone on the standard output; and files."""

import contextlib
import errno
import functools
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from argosy.disk.json_values import without_infinities
from argosy.errors import PlanError
from argosy.errors.system import disk_refused
from argosy.errors.wording import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

__all__ = [
    "All",
    "Json",
    "as_text",
    "console",
    "open_missing_streams",
    "shorten_lists",
    "print_table",
    "reporting_interrupts",
    "reserve_stdout",
    "output_path",
    "print_output",
]

SCHEMA = 1
"""Version of all JSON outputs; it changes when a field is removed or changes its meaning."""
MOST_CHARACTERS = 8000
"""Most characters of a JSON output where not all was asked for: 2,000 tokens of a language model, of four each."""
SHORTEST = 2
"""Lists with this many entries are pairs, such as intervals, and are never cut."""
MOST_OF_TEXT = 1000
"""Longer texts are cut."""
MOST_FIELDS = 100
"""Objects with more fields, such as members with many metrics, are cut like lists."""
LAST_FIELDS = 20
"""Last fields of an object that are never cut: a row ends with its device and its reason."""


@functools.cache
def reserve_stdout() -> TextIO:
    """Return the standard output; from here on, prints of study files and their programs go to the standard error."""
    sys.stdout.flush()
    alone = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return alone


@contextlib.contextmanager
def reporting_interrupts() -> Iterator[None]:
    """Print what an interrupt inside the block says, because Typer ends without a word."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        console(stderr=True).print(str(interrupt) or "interrupted", style="red", soft_wrap=True)
        raise


def _reserve_if_json(wanted: bool) -> bool:
    if wanted:
        reserve_stdout()
    return wanted


Json = Annotated[
    bool,
    typer.Option("--json", callback=_reserve_if_json, help="Print one JSON object instead of a table (argosy schema)."),
]
All = Annotated[bool, typer.Option("--all", help="Every row; without it as many as fit into 2,000 tokens.")]


def console(**settings: Any) -> "Console":
    """Return a rich console that shows messages literally: ``iou[cat]`` is no style, and ``:x:`` no picture."""
    from rich.console import Console  # most commands print plain lines

    return Console(markup=False, emoji=False, highlight=False, **settings)


def as_text(value: object, style: str = "") -> "Text":
    """Return the text as it is, for a table or a screen: without markup, and nothing that moves the cursor."""
    from rich.text import Text

    return Text(escape_unprintable(str(value)), style)


def print_table(table: "RenderableType", *, whole: bool = False) -> None:
    """Print a table, as wide as its destination; a `whole` one is wider where numbers or names would be cut."""
    # Files and pipes have no width.
    terminal = sys.stdout.isatty()
    page = io.StringIO()
    paper = console(file=page, force_terminal=terminal, width=None if terminal else 160)
    if whole:
        paper.width = max(
            paper.width, paper.measure(table, options=paper.options.update(max_width=sys.maxsize)).minimum
        )
    paper.print(table)
    _write_text(page.getvalue().rstrip("\n"), sys.stdout)


def print_output(value: str | dict[str, Any], *, every: bool = False, table: str = "") -> None:
    """Print text, or a value as JSON, with `every` row of its lists; a closed output is ignored, since the command's work is done.

    Raises DiskError where a disk has no room for it. Where it is a table with its rows under this key, whole rows alone are left out.
    """
    if isinstance(value, str):
        _write_text(escape_unprintable(value), sys.stdout)
    else:
        shown = without_infinities({"schema": SCHEMA, **value})
        _write_text(_json(shown if every else shorten_lists(shown, only=table)), reserve_stdout())


def shorten_lists(value: dict[str, Any], most: int = MOST_CHARACTERS, *, only: str = "") -> dict[str, Any]:
    """Return the value with its longest lists, or the `only` one, cut at their ends until its JSON fits; ``left_out`` says how many entries went.

    Objects with many fields, and long texts, lose some in the middle.

    >>> shorten_lists({"rows": ["a", "b", "c", "d"], "pair": [1, 2]}, most=66)
    {'rows': ['a', 'b'], 'pair': [1, 2], 'left_out': {'rows': 2}}
    """
    if len(_json(value)) <= most:
        return value
    left_out: dict[str, int] = {}
    short = {**_cut_texts(value), "left_out": left_out}
    while len(_json(short)) > most:
        found = [(only, short[only])] if only else _lists(short)
        name, longest = max(found, key=lambda one: len(one[1]), default=("", []))
        if len(longest) <= SHORTEST:
            break
        same = [one for of, one in _lists(short) if of == name] if isinstance(longest, dict) else [longest]
        for one in same:
            left_out[name] = left_out.get(name, 0) + _cut(one)
    return short


def _cut_texts(value: Any) -> Any:
    """Return a copy in which long texts, such as errors that list all weights of a network, have no middle."""
    if isinstance(value, dict):
        return {key: _cut_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut_texts(item) for item in value]
    if isinstance(value, str) and len(value) > MOST_OF_TEXT:
        half = MOST_OF_TEXT // 2
        return f"{value[:half]}[{len(value) - 2 * half} characters left out]{value[-half:]}"
    return value


def _cut(entries: list[Any] | dict[str, Any]) -> int:
    """Remove the second half of a list, or of an object's fields but the last. Returns how many went."""
    half = len(entries) // 2
    if isinstance(entries, list):
        gone = entries[half:]
        del entries[half:]
    else:
        gone = [*entries][half:-LAST_FIELDS]
        for field in gone:
            del entries[field]
    return len(gone)


def _lists(value: Any, name: str = "") -> Iterator[tuple[str, list[Any] | dict[str, Any]]]:
    """Yield all lists in a value, each with the key that it is found under, and all objects with many fields."""
    if isinstance(value, dict):
        if len(value) > MOST_FIELDS:
            yield f"fields of {name}", value
        for key, item in value.items():
            yield from _lists(item, key)
    elif isinstance(value, list):
        yield name, value
        for item in value:
            yield from _lists(item, name)


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _write_text(text: str, stdout: TextIO) -> None:
    encoding = stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stdout, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise disk_refused(
                error, "the command's output cannot be written in full", "then repeat the command"
            ) from error


def output_path(path: Path) -> Path:
    """Return the absolute path, checked early: writing follows after minutes, and study files may change the folder."""
    path = path.absolute()
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise PlanError(f"{path} cannot be written. Choose a file in an existing folder that you may write in.")
    return path


def open_missing_streams() -> None:
    """Open missing standard streams on /dev/null, so that no file opened later gets their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
