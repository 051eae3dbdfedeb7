"""What commands print and write: text for people, or one JSON object, alone on the standard output; files."""

import functools
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from argosy.errors import PlanError
from argosy.errors.wording import visible

__all__ = [
    "Json",
    "as_text",
    "console",
    "finite",
    "open_what_is_closed",
    "show",
    "stdout_of_json",
    "to_be_written",
    "write",
]


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


def console(**settings: Any) -> Console:
    """A console, as rich has it, that shows names and messages as they are: ``iou[cat]`` is no style, and ``:x:`` no picture."""
    return Console(markup=False, emoji=False, highlight=False, **settings)


def as_text(value: object, style: str = "") -> Text:
    """The text as it is, for a table or a screen: no markup, and nothing that moves the cursor."""
    return Text(visible(str(value)), style)


def show(table: RenderableType) -> None:
    """A table, as wide as what it goes to."""
    # Files and pipes have no width of their own.
    terminal = sys.stdout.isatty()
    page = io.StringIO()
    console(file=page, force_terminal=terminal, width=None if terminal else 160).print(table)
    _put(page.getvalue().rstrip("\n"), sys.stdout)


def write(value: Any) -> None:
    """Text, or a value as JSON; where nobody can read it, what was done is done all the same."""
    if isinstance(value, str):
        _put(visible(value), sys.stdout)
    else:
        _put(json.dumps(finite(value), allow_nan=False), stdout_of_json())


def _put(text: str, stdout: TextIO) -> None:
    try:
        print(text, file=stdout, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


def to_be_written(path: Path) -> Path:
    """Where a file is to be written after minutes of measuring, and after what the study file does to this process's folder."""
    path = path.absolute()
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise PlanError(f"{path} cannot be written; give a file, in a folder that is there and that you may write in.")
    return path


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
