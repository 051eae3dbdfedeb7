"""A page in one file that needs no network: its values as JSON, and one script that draws them as SVG.

`page.html` is its frame, `page.css` its looks, `page.js` its script. A live page never loads these again: it polls a small
script beside it, which has its values anew. A policy in the page's head keeps a browser from asking anything else of anyone.
"""

import importlib.resources
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any

from argosy.disk.files import replacing
from argosy.disk.json_values import without_infinities
from argosy.errors.wording import as_html, escape_unprintable

__all__ = ["LIVE_SECONDS", "Bars", "Block", "Lines", "Sheet", "live_script", "page", "section", "write_page"]

LIVE_SECONDS = 5.0
"""Seconds between two polls of a live page for news."""
LETTERS = 6
"""Significant digits of numbers on a page."""
FOLDER = importlib.resources.files("argosy.views.html")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Horizontal bars, each of one part or several in a row."""

    unit: str
    parts: Sequence[str]
    """Names of the parts."""
    rows: Sequence[tuple[str, Sequence[float]]]
    """Label and parts of each bar."""
    stacked: bool = True
    """Whether a bar's parts are in one line and not below each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """Lines over one axis."""

    across: str
    """Name of the horizontal axis."""
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]]
    """Name, places and values of each line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """A table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


Block = tuple[str, Bars | Lines | Sheet | None]
"""A sentence, and the figure or the table that it is about, if it is about one."""


def section(title: str, blocks: Iterable[Block]) -> dict[str, Any]:
    """Return a part of a page with its own title, as a plain value; what a block shows is named by its kind."""
    blocks_json = [{"text": text, **({type(it).__name__.lower(): asdict(it)} if it else {})} for text, it in blocks]
    return {"title": title, "blocks": blocks_json}


def page(values: Mapping[str, Any], *, without_script: str = "", news: str = "") -> str:
    """Return the whole page; a live one polls `news`, a file beside it.

    `without_script` is HTML for readers that run no script. ``values["title"]`` is the page's title.
    """
    live = {"news": news, "seconds": LIVE_SECONDS} if news else None
    return Template(_text("page.html")).substitute(
        title=as_html(values["title"]),
        script_sources="'unsafe-inline' 'self' file:" if news else "'unsafe-inline'",
        style=_text("page.css"),
        without_script=without_script,
        # A member's name must not end the element that contains it.
        values=_json({**values, "live": live}).replace("<", "\\u003c"),
        script=_text("page.js"),
    )


def live_script(values: Mapping[str, Any]) -> str:
    """Return the script that shows these values in a live page."""
    text = _json(values)
    return f'show("{zlib.crc32(text.encode()):08x}",{text});\n'


def write_page(path: Path, text: str) -> None:
    """Write a page atomically: a browser may reload it at any moment."""
    with replacing(path) as new:
        new.write(text.encode(errors="backslashreplace"))


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(without_infinities(_round_values(values)), allow_nan=False, separators=(",", ":"))


def _round_values(value: Any) -> Any:
    """Return a value with texts that can be seen, and numbers in few digits."""
    if isinstance(value, str):
        return escape_unprintable(value)
    if isinstance(value, float):
        return float(f"{value:.{LETTERS}g}")
    if isinstance(value, Mapping):
        return {escape_unprintable(str(key)): _round_values(item) for key, item in value.items()}
    return [_round_values(item) for item in value] if isinstance(value, list | tuple) else value
