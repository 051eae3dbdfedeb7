"""What commands print: text for people, or one JSON object, alone on the standard output."""

import functools
import io
import json
import math
import os
import sys
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console, RenderableType

__all__ = ["Json", "finite", "open_what_is_closed", "show", "stdout_of_json", "write"]


@functools.cache
def stdout_of_json() -> TextIO:
    """The standard output; from here on, what study files and programs that they start print goes to the standard error."""
    sys.stdout.flush()
    alone = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return alone


def _for_json(wanted: bool) -> bool:
    if wanted:
        stdout_of_json()
    return wanted


Json = Annotated[
    bool,
    typer.Option("--json", callback=_for_json, help="Print one JSON object instead of a table."),
]


def show(table: RenderableType) -> None:
    """A table, as wide as what it goes to."""
    # Files and pipes have no width of their own.
    terminal = sys.stdout.isatty()
    page = io.StringIO()
    Console(file=page, force_terminal=terminal, width=None if terminal else 160).print(table, highlight=False)
    write(page.getvalue().rstrip("\n"))


def write(value: Any) -> None:
    """Text, or a value as JSON; where nobody can read it, what was done is done all the same."""
    if isinstance(value, str):
        text, stdout = value, sys.stdout
    else:
        text, stdout = json.dumps(finite(value), allow_nan=False), stdout_of_json()
    try:
        print(text, file=stdout, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


def finite(value: Any) -> Any:
    """The value with null for what is no number, or beyond all: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def open_what_is_closed() -> None:
    """A file that is opened first must not become the standard output of everybody who prints."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
