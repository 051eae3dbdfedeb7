"""A page of sections in one file that needs no network: figures are values, which plotly's script draws when seen.

A browser loads that script once the page can be read, and a live page never loads it again: it polls a small script
beside it, which has the same page as values. `plotly/` has plotly's own bundle of scatter, bar and pie, unmodified: a
fourth of the whole, which is all that a page needs.
"""

import importlib.resources
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from argosy.disk.files import replacing
from argosy.disk.json_values import finite
from argosy.errors.wording import as_html, visible

__all__ = ["COLOURS", "LIVE_SECONDS", "Section", "bars", "figure", "news_of", "page", "write_page"]

TEMPLATES = ("hovertemplate", "hovertext")
"""Keys of figures with texts that contain plotly's line breaks and fields."""
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
let figures = JSON.parse(document.getElementById("figures").textContent);
const plot = (way, place) => {
  const {data, layout} = structuredClone(figures[place.id]);
  return Plotly[way](place, data, layout, {responsive: true, displaylogo: false});
};
const draw = new IntersectionObserver(places => places.filter(place => place.isIntersecting).forEach(({target}) => {
  draw.unobserve(target);
  plot("newPlot", target);
}), {rootMargin: "300px"});
const watch = () => self.Plotly
  && document.querySelectorAll("main [id^=f]:not(.js-plotly-plot)").forEach(place => draw.observe(place));
const sort = (head, up) => {
  const table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
  table.dataset.at = at, table.dataset.up = up;
  const key = row => row.cells[at].textContent, number = text => text === "" ? NaN : Number(text);
  const compare = (a, b) => { const x = number(a), y = number(b);
    return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) || a.localeCompare(b) : x - y; };
  [...body.rows].sort((a, b) => (up === "1" ? 1 : -1) * compare(key(a), key(b))).forEach(row => body.append(row));
};
document.addEventListener("click", ({target}) => {
  const head = target.closest("th");
  if (!head) return;
  const {at, up} = head.closest("table").dataset;
  sort(head, at === String(head.cellIndex) && up === "1" ? "0" : "1");
});
setTimeout(() => {  // The page is shown first.
  const script = document.createElement("script");
  script.textContent = document.getElementById("plotly").textContent;
  document.head.append(script);
  watch();
});
"""
LIVE_SECONDS = 5.0
"""Seconds between two polls of a live page for news."""
LIVE = """
let mark = "";
function show(other, title, body, news) {
  if (other === mark) return;
  const old = document.querySelector("main"), main = document.createElement("main"), before = figures;
  mark = other, document.title = title, main.innerHTML = body, figures = news;
  const plots = [...old.querySelectorAll(".js-plotly-plot")].filter(place => figures[place.id]);
  for (const place of plots) {
    const free = main.querySelector("#" + place.id);
    place.style.height = free.style.height;
    free.replaceWith(place);
  }
  const tops = [...old.querySelectorAll(".scrolls")].map(part => [part.closest("section").id, part.scrollTop, part.firstChild]);
  old.replaceWith(main);
  for (const [id, top, {dataset: {at, up}}] of tops) {
    const part = main.querySelector(`#${id} .scrolls`), head = part?.querySelectorAll("th")[at];
    if (head) sort(head, up);
    if (part) part.scrollTop = top;
  }
  for (const place of plots) {
    if (JSON.stringify(before[place.id]) === JSON.stringify(figures[place.id])) continue;
    const chosen = place.layout.updatemenus?.[0].active ?? 0, {updatemenus} = figures[place.id].layout;
    const choose = () => chosen && Plotly.update(place, ...structuredClone(updatemenus[0].buttons[chosen].args));
    plot("react", place).then(choose);
  }
  watch();
}
function look() {
  const script = document.createElement("script");
  script.onload = () => { script.remove(); setTimeout(look, SECONDS * 1000); };
  // Who has seen news that are gone has a page beside it that is whole; a copy of a live page has none.
  script.onerror = () => { if (mark) location.reload(); };
  script.src = "NEWS?" + Date.now();
  document.head.append(script);
}
look();
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
    """Return traces with a layout that fits the page."""
    margin = {"l": 60, "r": 20, "t": 30, "b": 50}
    base = {"height": height, "margin": margin, "hovermode": "closest", "template": {}, "colorway": COLOURS}
    # Keeps the user's zoom and selections when the values change.
    base["uirevision"] = True
    return {"data": list(data), "layout": {**base, **layout}}


def bars(name: str, labels: Sequence[str], values: Sequence[float]) -> Mapping[str, Any]:
    """Return horizontal bars, one a label."""
    return {"type": "bar", "orientation": "h", "name": name, "y": list(labels), "x": list(values)}


def page(title: str, sections: Sequence[Section], *, news: str = "") -> str:
    """Return the whole page; a live one polls `news`, a file beside it."""
    body, figures = _parts(sections)
    links = "".join(f'<a href="#s{n}">{as_html(s.title)}</a>' for n, s in enumerate(sections) if n)
    live = LIVE.replace("SECONDS", f"{LIVE_SECONDS:g}").replace("NEWS", news) if news else ""
    # A member's name must not end the element that contains it.
    values = _json(figures).replace("<", "\\u003c")
    plotly = (importlib.resources.files("argosy.views.html") / "plotly" / "plotly-basic.min.js").read_text(
        encoding="utf-8"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{as_html(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body><nav>{links}</nav><main>{body}</main>'
        f'<script type="text/plain" id="plotly">{plotly}</script>'
        f'<script type="application/json" id="figures">{values}</script>'
        f"<script>{SCRIPT}{live}</script></body></html>\n"
    )


def news_of(title: str, sections: Sequence[Section]) -> str:
    """Return the script that shows these sections in a live page."""
    body, figures = _parts(sections)
    values = f"{_json(title)},{_json(body)},{_json(figures)}"
    return f'show("{zlib.crc32(values.encode()):08x}",{values});\n'


def write_page(path: Path, text: str) -> None:
    """Write a page atomically: a browser may reload it at any moment."""
    with replacing(path) as new:
        new.write(text.encode(errors="backslashreplace"))


def _parts(sections: Sequence[Section]) -> tuple[str, dict[str, Figure]]:
    figures: dict[str, Figure] = {}
    return "".join(_html(number, section, figures) for number, section in enumerate(sections)), figures


def _plain(value: Any) -> Any:
    """Return a figure with texts that plotly shows literally: it interprets some HTML, which only templates have."""
    if isinstance(value, str):
        return escape(visible(value), quote=False)
    if isinstance(value, Mapping):
        return {key: item if key in TEMPLATES else _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _json(value: Any) -> str:
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":"))


def _html(number: int, section: Section, figures: dict[str, Figure]) -> str:
    level = 2 if number else 1
    text = "".join(f"<p>{as_html(paragraph)}</p>" for paragraph in section.text)
    places = [f"f{number}-{place}" for place in range(len(section.figures))]
    figures.update(zip(places, map(_plain, section.figures), strict=True))
    drawn = "".join(
        f'<div id="{place}" style="height:{figures[place]["layout"]["height"]}px"></div>' for place in places
    )
    table = f'<div class="scrolls">{section.table}</div>' if section.table else ""
    return f'<section id="s{number}"><h{level}>{as_html(section.title)}</h{level}>{text}{drawn}{table}</section>'
