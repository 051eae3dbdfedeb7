"""Figures of a run by matplotlib, an optional package that is imported here alone."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from argosy.disk.files import replacing
from argosy.errors import RunError
from argosy.errors.optional import optional
from argosy.errors.wording import escape_unprintable
from argosy.results.bands import Band, Curve

with optional(RunError, "figures are drawn with matplotlib", "'argosy[report]'"):
    import matplotlib
    from matplotlib import pyplot
    from matplotlib.ticker import AutoLocator

__all__ = ["draw_bands", "draw_curves", "draw_parameters", "paper_style", "new_axes", "save_figures"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours that colour-blind readers can distinguish, and that mostly differ in print too (Okabe and Ito 2008)."""
GREY = "#b8b8b8"
STYLES = ("-", "--", ":", "-.")
"""Line styles; the next one is used after each full cycle of the colours."""
KINDS = ("png", "svg", "pdf")
PAPER: Mapping[str, Any] = {
    "figure.figsize": (3.5, 2.6),
    "figure.dpi": 300,
    "font.size": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "argosy",
}
"""Settings for a column of a paper, in inches and points; text stays text in PDF and SVG."""
MOST_NAMED = 12
"""Most entries of a legend inside the axes; for a longer one the figure grows beside them."""
LOG_RATIO = 50.0
"""Least ratio of the largest to the smallest value for a logarithmic axis."""
WIDTH, HEIGHT = 2.6, 2.4
"""Inches of one of several axes side by side."""


def new_axes(count: int = 1) -> list[Any]:
    """Return this many new axes, at most three in a row."""
    columns, rows = min(count, 3), math.ceil(count / 3)
    size = (columns * WIDTH, rows * HEIGHT) if count > 1 else None
    _, axes = pyplot.subplots(rows, columns, squeeze=False, layout="constrained", figsize=size)
    for unused in axes.flat[count:]:
        unused.remove()
    return [*axes.flat[:count]]


def draw_curves(axes: Any, curves: Sequence[Curve], metric: str, best: str | None) -> None:
    """Draw one line for each member, best first: the first in colour under this name, if there is one, the others in grey."""
    for number, curve in reversed([*enumerate(curves)]):  # the best is drawn last, on top
        style: dict[str, Any] = {"color": GREY, "linewidth": 0.8}
        if best is not None and number == 0:
            style = {"color": COLOURS[0], "label": f"best: {_escape_name(best).strip()}"}
        axes.plot([*curve], [*curve.values()], marker=_marker(len(curve)), **style)
    _finish_axes(axes, metric, named=best is not None)


def draw_bands(axes: Any, bands: Sequence[Band], metric: str) -> None:
    """Draw the mean of each group of members and the band around it."""
    for number, band in enumerate(bands):
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}
        label = f"{_escape_name(band.name)} (n = {band.count})"
        axes.plot(band.epochs, band.means, marker=_marker(len(band.epochs)), label=label, **style)
        if band.bounds:
            low, high = zip(*band.bounds, strict=True)
            axes.fill_between(band.epochs, low, high, color=style["color"], alpha=0.2, linewidth=0)
    _finish_axes(axes, metric, named=bool(bands))


def draw_parameters(names: Sequence[str], rows: Sequence[tuple[Mapping[str, Any], float]], metric: str) -> list[Any]:
    """Draw the metric over each of these parameters, and return the axes; rows of (parameters, value) are best first, and the best is in colour."""
    axes = new_axes(len(names)) if names else []
    best = rows[0] if rows else None
    for one, name in zip(axes, names, strict=True):
        with_name = [row for row in reversed(rows) if name in row[0]]  # the best is drawn last, on top
        values = [parameters[name] for parameters, _ in with_name]
        xs, words = values, sorted({*map(str, values)})
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
            xs = [words.index(str(value)) for value in values]
            one.set_xticks(range(len(words)), [*map(_escape_name, words)])
        elif xs and min(xs) > 0 and max(xs) / min(xs) >= LOG_RATIO:
            one.set_xscale("log")
        one.scatter(
            xs, [value for _, value in with_name], s=12, c=[COLOURS[0] if row is best else GREY for row in with_name]
        )
        one.set(xlabel=_escape_name(name), ylabel=_escape_name(metric))
    return axes


def save_figures(folder: Path, figures: Mapping[str, Any]) -> list[Path]:
    """Write each of these axes' figures as PNG, SVG and PDF, and return the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"figures cannot be written to {folder}: {error.strerror}. Choose another folder.") from error
    files = []
    for name, axes in figures.items():
        for kind in KINDS:
            files.append(folder / f"{name}.{kind}")
            # Without a date and random identifiers, equal results give identical files.
            metadata = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
            with replacing(files[-1]) as file:
                axes.figure.savefig(file, format=kind, metadata=metadata)
        pyplot.close(axes.figure)
    return files


def paper_style() -> Any:
    """Return a context in which figures are made for a paper."""
    return matplotlib.rc_context(dict(PAPER))


def _escape_name(name: str) -> str:
    """Return a name that matplotlib shows literally: it reads ``$`` as a formula, and leaves names that begin with ``_`` out of legends."""
    escaped = escape_unprintable(name, lines=False).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def _marker(points: int) -> str:
    """Return the marker of a curve; a single point would show no line."""
    return "o" if points == 1 else ""


def _finish_axes(axes: Any, metric: str, *, named: bool) -> None:
    axes.set(xlabel="epoch", ylabel=_escape_name(metric))
    locator = axes.xaxis.get_major_locator()
    if isinstance(locator, AutoLocator) and axes.dataLim.x1 >= 2:  # within one epoch no whole number may be in sight
        locator.set_params(integer=True)
    if named:
        if len(axes.get_legend_handles_labels()[0]) <= MOST_NAMED:
            axes.legend()
            return
        legend = axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        width, height = axes.figure.get_size_inches()
        beside, below = legend.get_window_extent().size / axes.figure.dpi
        # Of more than 600 lines not all are in sight: matplotlib limits the pixels of a figure.
        axes.figure.set_size_inches(width + beside, max(height, min(below + height / 4, 100)))
