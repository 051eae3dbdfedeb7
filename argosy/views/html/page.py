"""A page of sections in one file that needs no network: figures are plain values, and plotly's script draws them when they are seen."""

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from argosy.errors import PlanError
from argosy.output import finite

__all__ = ["COLOURS", "Section", "bars", "figure", "page", "write_page"]

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 1200px; padding: 1em 1.5em 4em; }
h1 { font-size: 1.5em; margin-bottom: 0.2em; } h2 { font-size: 1.15em; margin: 2em 0 0.3em; }
p { margin: 0.3em 0; } nav a { margin-right: 1.2em; } .scrolls { max-height: 34em; overflow: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { position: sticky; top: 0; background: #f2f2f2; text-align: left; cursor: pointer; }
th, td { padding: 0.15em 0.7em; border-bottom: 1px solid #e4e4e4; white-space: nowrap; }
"""
SCRIPT = """
const figures = JSON.parse(document.getElementById("figures").textContent);
const draw = new IntersectionObserver(places => places.filter(place => place.isIntersecting).forEach(({target}) => {
  draw.unobserve(target);
  Plotly.newPlot(target, figures[target.id].data, figures[target.id].layout, {responsive: true, displaylogo: false});
}), {rootMargin: "300px"});
Object.keys(figures).forEach(id => draw.observe(document.getElementById(id)));
for (const head of document.querySelectorAll("th")) head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], at = head.cellIndex, up = head.dataset.up = head.dataset.up === "1" ? "0" : "1";
  const key = row => row.cells[at].textContent, number = text => text === "" ? NaN : Number(text);
  const compare = (a, b) => { const x = number(a), y = number(b);
    return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) || a.localeCompare(b) : x - y; };
  [...body.rows].sort((a, b) => (up === "1" ? 1 : -1) * compare(key(a), key(b))).forEach(row => body.append(row));
});
"""

Figure = Mapping[str, Any]
"""``data`` and ``layout``, as plotly's script takes them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of a page with its own title."""

    title: str
    text: Sequence[str] = ()
    """Paragraphs above."""
    figures: Sequence[Figure] = ()
    table: str = ""
    """HTML, below."""


def figure(data: Sequence[Mapping[str, Any]], *, height: int = 360, **layout: Any) -> Figure:
    """Traces with a layout that fits the page."""
    margin = {"l": 60, "r": 20, "t": 30, "b": 50}
    base = {"height": height, "margin": margin, "hovermode": "closest", "template": {}, "colorway": COLOURS}
    return {"data": list(data), "layout": {**base, **layout}}


def bars(name: str, labels: Sequence[str], values: Sequence[float]) -> Mapping[str, Any]:
    """Horizontal bars, one a label."""
    return {"type": "bar", "orientation": "h", "name": name, "y": list(labels), "x": list(values)}


def page(title: str, sections: Sequence[Section], *, reload_seconds: float | None = None) -> str:
    """The whole page; one that is written anew while something goes on loads itself again. Raises PlanError without plotly."""
    figures: dict[str, Figure] = {}
    body = "".join(_html(number, section, figures) for number, section in enumerate(sections))
    links = "".join(f'<a href="#s{n}">{escape(s.title)}</a>' for n, s in enumerate(sections) if n)
    reload = "" if reload_seconds is None else f'<meta http-equiv="refresh" content="{reload_seconds:g}">'
    # A name of a member must not end the element that it stands in.
    values = json.dumps(finite(figures), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{reload}<title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body><nav>{links}</nav>{body}'
        f'<script>{_plotly()}</script><script type="application/json" id="figures">{values}</script>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def write_page(path: Path, text: str) -> None:
    """Whole or not at all: whoever has the old one open may load it again at any moment."""
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    new.replace(path)


def _html(number: int, section: Section, figures: dict[str, Figure]) -> str:
    level = 2 if number else 1
    text = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in section.text)
    places = [f"f{number}-{place}" for place in range(len(section.figures))]
    figures.update(zip(places, section.figures, strict=True))
    drawn = "".join(
        f'<div id="{place}" style="height:{figures[place]["layout"]["height"]}px"></div>' for place in places
    )
    table = f'<div class="scrolls">{section.table}</div>' if section.table else ""
    return f'<section id="s{number}"><h{level}>{escape(section.title)}</h{level}>{text}{drawn}{table}</section>'


def _plotly() -> str:
    try:
        package = importlib.resources.files("plotly")
    except ImportError as error:
        raise PlanError("pages need plotly, which is not installed; pip install 'argosy[report]'.") from error
    return (package / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
