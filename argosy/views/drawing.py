"""A screen as text, in whatever room there is: one bar, what needs attention, and as many members as fit."""

import textwrap
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from argosy.errors.wording import lasting, shortened
from argosy.results.diagnosis import Diagnosis
from argosy.results.fold import OVER
from argosy.views.output import as_text
from argosy.views.screen import Berth, Row, Screen

__all__ = ["draw", "in_a_line"]

LINES_EACH = 12
"""Lines of a terminal for each line of devices and each line of what went wrong."""
BOTTLENECK_LINES = 3
SHORTEST_LABEL = 12
FIGURES = 44
"""Columns that a member's figures take."""
WIDE = 30
"""Columns left beside names from which on differing hyper-parameters are shown too."""
STYLES = {"failed": "red", "diverged": "red", "done": "dim", "stopped": "dim", "waiting": "dim", "resting": "dim"}


def in_a_line(screen: Screen) -> str:
    """Return the screen as one line of text."""
    if not screen.epochs:
        return f"{screen.phase[0].upper()}{screen.phase[1:]}, {lasting(screen.seconds)} so far."
    left = f", {_left(screen)}" if _left(screen) else ""
    best = "" if screen.best is None else f"; best {screen.objective} {screen.best.told} ({screen.best.name})"
    slow = f"; bottleneck: {screen.bottleneck.stage}" if screen.bottleneck is not None else ""
    return f"{screen.share:.0%} of all epochs ({_epochs(screen)}){left}; {_counts(screen)}{best}{slow}"


def draw(screen: Screen, width: int, height: int) -> RenderableType:
    """Draw the screen in this many columns and lines."""
    most = max(height // LINES_EACH, 1)
    head = [_title(screen), *_facts(screen, width, most), *_attention(screen, most)]
    bar = Table.grid()
    bar.add_row(ProgressBar(total=1.0, completed=min(screen.share, 1.0), width=width - 1))
    # The other four: the bar, the table's head, the line below it and the cursor's.
    room = max(height - len(head) - 4, 1)
    shown = screen.rows if len(screen.rows) <= room + 1 else screen.rows[:room]
    parts: list[RenderableType] = [
        *_lines(head[:1], width),
        bar,
        *_lines(head[1:], width),
        _table(screen, shown, width),
    ]
    hidden = len(screen.rows) - len(shown)
    more = [Text(f"and {hidden} more", style="dim")] if hidden else []
    return Group(*parts, *more)


def _lines(lines: Sequence[tuple[str, str]], width: int) -> list[Text]:
    found = [as_text(text, style) for text, style in lines]
    for text in found:
        text.no_wrap = True
        text.truncate(width, overflow="ellipsis")
    return found


def _title(screen: Screen) -> tuple[str, str]:
    left = f" · {_left(screen)}" if _left(screen) else ""
    share = f"{screen.share:.0%}, {_epochs(screen)} epochs · " if screen.epochs else ""
    return f"{share}{screen.phase}, {lasting(screen.seconds)}{left} · {screen.directory.name}", "bold"


def _facts(screen: Screen, width: int, most: int) -> list[tuple[str, str]]:
    lines = [(_counts(screen), "")]
    if len(screen.berths) > most:
        lines.append((_fleet(screen.berths), ""))
    else:
        lines += [(_berth(berth), "") for berth in screen.berths]
    if screen.bottleneck is not None:
        told = f"Bottleneck ({_queues(screen.bottleneck)}): {screen.bottleneck.verdict}"
        lines += [
            (line, "")
            for line in textwrap.wrap(
                told, width - 1, subsequent_indent="  ", max_lines=BOTTLENECK_LINES, placeholder="…"
            )
        ]
    return lines


def _queues(found: Diagnosis) -> str:
    behind = "" if found.queue_behind is None else f", behind it {found.queue_behind:.0%}"
    return f"queue before it {found.queue_before:.0%} full{behind}"


def _attention(screen: Screen, most: int) -> list[tuple[str, str]]:
    lines = [(text, "red") for text in screen.attention[:most]]
    more = len(screen.attention) - len(lines)
    return [*lines, (f"and {more} more", "red")] if more else lines


def _left(screen: Screen) -> str:
    if screen.seconds_left is None:
        return ""
    about = "about " if screen.seconds_left >= 1 else ""
    return f"{about}{lasting(screen.seconds_left)} left"


def _epochs(screen: Screen) -> str:
    return f"{screen.epochs:,.0f} of {screen.epochs + screen.to_come:,.0f}"


def _counts(screen: Screen) -> str:
    order = ("training", "waiting", "resting", "paused", *OVER)
    counts = [f"{screen.counts[status]} {status}" for status in order if screen.counts.get(status)]
    return f"{_members(len(screen.rows))}: {', '.join(counts)}"


def _members(count: int) -> str:
    return f"{count} member{'s' * (count != 1)}"


def _berth(berth: Berth) -> str:
    flotilla = "" if berth.flotilla is None else f" in flotilla {berth.flotilla}"
    rate = f", {berth.samples_per_second:,.0f} samples/s" if berth.samples_per_second else ""
    waits = f", waits for data {berth.waiting:.0%} of its time" if berth.waiting >= 0.005 else ""
    return f"{berth.device}: {_members(berth.members)}{flotilla}{rate}{waits}"


def _fleet(berths: Sequence[Berth]) -> str:
    busy = [berth for berth in berths if berth.members]
    rate = sum(berth.samples_per_second for berth in berths)
    hungry = max(berths, key=lambda berth: berth.waiting)
    waits = f"; {hungry.device} waits for data {hungry.waiting:.0%} of its time" if hungry.waiting >= 0.005 else ""
    flotillas = len({berth.flotilla for berth in busy})
    together = f" in {flotillas} flotillas" if flotillas > 1 else ""
    return f"{len(busy)} of {len(berths)} devices train{together}, {rate:,.0f} samples/s{waits}"


def _table(screen: Screen, shown: Sequence[Row], width: int) -> Table:
    label = max(width - FIGURES - max(len(screen.objective) - 8, 0), SHORTEST_LABEL)
    labels = _labels(screen.rows, label)
    longest = max((len(labels[row.name]) for row in shown), default=0)
    beside = label - longest >= WIDE and any(row.differs for row in shown)
    columns = ["member", *(["differs in"] if beside else []), "epoch", "loss", screen.objective, "samples/s"]
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        text = number < 1 + beside
        table.add_column(as_text(column), justify="left" if text else "right", no_wrap=True, overflow="ellipsis")
    for row in shown:
        named = [labels[row.name], *([row.differs] if beside else [])]
        table.add_row(*map(as_text, (*named, *_figures(row))), style=_style(row))
    return table


def _labels(rows: Sequence[Row], width: int) -> dict[str, str]:
    """Return names if they fit; else differing hyper-parameters, if these fit and are unique; else the names' ends."""
    differs = {row.differs for row in rows}
    names = [row.name for row in rows]
    if max(map(len, names), default=0) > width and len(differs) == len(rows) and max(map(len, differs)) <= width:
        return {row.name: row.differs for row in rows}
    return shortened(names, width)


def _figures(row: Row) -> tuple[str, ...]:
    epochs = f"{row.epochs:.1f}".removesuffix(".0")
    of = "" if row.of is None else f"/{row.of:g}"
    last = row.status
    if row.status == "training":
        last = f"{row.samples_per_second:,.0f}" if row.samples_per_second else ""
    return f"{epochs}{of}", _number(row.loss), _number(row.value), last


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


def _style(row: Row) -> str:
    return STYLES.get(row.status, "") or ("bold" if row.best else "")
