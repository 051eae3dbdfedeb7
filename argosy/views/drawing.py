"""Draw a screen as text that fits the available space: one bar, the best members, and whatever needs attention."""

import textwrap
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from argosy.errors.wording import format_duration, shorten_names, text_table
from argosy.results.fold import FINAL_STATUSES
from argosy.running.watch.phase import Phase
from argosy.views.output import as_text
from argosy.views.screen import DeviceRow, Row, Screen, SearchProgress

__all__ = ["draw", "format_screen_line"]

LINES_EACH = 12
"""Lines of a terminal for each line of devices and each line of what went wrong."""
BOTTLENECK_LINES = 3
MOST_ROWS = 10
"""Best members that are shown if not all fit."""
LONG_NAME = 0.4
"""Share of the columns above which names are shortened to the hyper-parameters that differ."""
QUIET = ("done", "pruned", "stopped", "waiting", "resting")
STYLES = {"failed": "red", "diverged": "red", **dict.fromkeys(QUIET, "dim")}


def format_screen_line(screen: Screen) -> str:
    """Return the screen as one line of text."""
    phase = f"{screen.phase[0].upper()}{screen.phase[1:]}"
    if not screen.epochs:
        return f"{phase}, {format_duration(screen.seconds)} so far."
    time_left = f", {_format_time_left(screen)}" if _format_time_left(screen) else ""
    best = "" if screen.best is None else f"; best {screen.objective} {screen.best.told} ({screen.best.name})"
    slow = f"; bottleneck: {screen.bottleneck.stage}" if screen.bottleneck is not None else ""
    phase = "" if screen.phase == Phase.TRAINING.value else f"{phase}: "
    return (
        f"{phase}{screen.share:.0%} of all epochs ({_format_epochs(screen)}){time_left}; {_counts(screen)}{best}{slow}"
    )


def draw(screen: Screen, width: int, height: int) -> RenderableType:
    """Draw the screen in this many columns and lines."""
    most = max(height // LINES_EACH, 1)
    head, wrong = [_title(screen), *_facts(screen, width, most)], _attention(screen, width, most)
    bar = Table.grid()
    bar.add_row(ProgressBar(total=1.0, completed=min(screen.share, 1.0), width=width - 1))
    # The other four: the bar, the table's head, the line below it and the cursor's.
    room = max(height - len(head) - len(wrong) - 4, 1)
    shown = screen.rows if len(screen.rows) <= room + 1 else screen.rows[: min(room, MOST_ROWS)]
    hidden = len(screen.rows) - len(shown)
    more = [(f"and {hidden} more", "dim")] if hidden else []
    return Group(
        *_lines(head[:1], width),
        bar,
        *_lines([*head[1:], *_table(screen, shown, width), *more, *wrong], width),
    )


def _lines(lines: Sequence[tuple[str, str]], width: int) -> list[Text]:
    texts = [as_text(text, style) for text, style in lines]
    for text in texts:
        text.no_wrap = True
        text.truncate(width, overflow="ellipsis")
    return texts


def _title(screen: Screen) -> tuple[str, str]:
    time_left = f" · {_format_time_left(screen)}" if _format_time_left(screen) else ""
    share = f"{screen.share:.0%}, {_format_epochs(screen)} epochs · " if screen.epochs else ""
    return f"{share}{screen.phase}, {format_duration(screen.seconds)}{time_left} · {screen.directory.name}", "bold"


def _facts(screen: Screen, width: int, most: int) -> list[tuple[str, str]]:
    lines = [(_counts(screen), ""), *([] if screen.search is None else _found(screen, screen.search))]
    if len(screen.devices) > most:
        lines.append((_fleet(screen.devices), ""))
    else:
        lines += [(_device_line(device), "") for device in screen.devices]
    if screen.bottleneck is not None:
        bottleneck = f"Bottleneck: {screen.bottleneck.verdict}"
        lines += [
            (line, "")
            for line in textwrap.wrap(
                bottleneck,
                width - 1,
                subsequent_indent="  ",
                max_lines=BOTTLENECK_LINES,
                placeholder=" …",
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
    return lines


def _attention(screen: Screen, width: int, most: int) -> list[tuple[str, str]]:
    lines = [(textwrap.shorten(text, width - 1, placeholder=" …"), "red") for text in screen.attention[:most]]
    more = len(screen.attention) - len(lines)
    return [*lines, (f"and {more} more went wrong", "red")] if more else lines


def _format_time_left(screen: Screen) -> str:
    if screen.seconds_left is None:
        return ""
    about = "about " if screen.seconds_left >= 1 else ""
    return f"{about}{format_duration(screen.seconds_left)} left"


def _format_epochs(screen: Screen) -> str:
    return f"{screen.epochs:,.0f} of {screen.epochs + screen.to_come:,.0f}"


def _found(screen: Screen, search: SearchProgress) -> list[tuple[str, str]]:
    lines = []
    if screen.best is not None:
        lines.append((f"Best {screen.objective} {screen.best.told}: {screen.best.name}, {search.best}", "bold"))
    rungs = [f"{one.reached}{'' if one.of is None else f' of {one.of}'} at {one.epochs:g}" for one in search.rungs]
    return [*lines, (f"Rungs (trials at epochs): {', '.join(rungs)}", "")] if rungs else lines


def _counts(screen: Screen) -> str:
    order = ("training", "waiting", "resting", "paused", "done", "pruned", *FINAL_STATUSES)
    counts = [f"{screen.counts[status]} {status}" for status in dict.fromkeys(order) if screen.counts.get(status)]
    return (
        f"{_format_members(len(screen.rows)) if screen.search is None else _trials(screen.search)}: {', '.join(counts)}"
    )


def _trials(search: SearchProgress) -> str:
    return f"{search.begun}{'' if search.of is None else f' of {search.of}'} trials"


def _format_members(count: int) -> str:
    return f"{count} member{'s' * (count != 1)}"


def _device_line(row: DeviceRow) -> str:
    flotilla = "" if row.flotilla is None else f" in flotilla {row.flotilla}"
    rate = f", {row.samples_per_second:,.0f} samples/s in all" if row.samples_per_second else ""
    waits = f", waits for data {row.waiting:.0%} of its time" if row.waiting >= 0.005 else ""
    return f"{row.device}: {_format_members(row.members)}{flotilla}{rate}{waits}"


def _fleet(devices: Sequence[DeviceRow]) -> str:
    busy = [device for device in devices if device.members]
    rate = sum(device.samples_per_second for device in devices)
    hungry = max(devices, key=lambda device: device.waiting)
    waits = f"; {hungry.device} waits for data {hungry.waiting:.0%} of its time" if hungry.waiting >= 0.005 else ""
    flotillas = len({device.flotilla for device in busy})
    together = f" in {flotillas} flotillas" if flotillas > 1 else ""
    return f"{len(busy)} of {len(devices)} devices train{together}, {rate:,.0f} samples/s in all{waits}"


def _table(screen: Screen, shown: Sequence[Row], width: int) -> list[tuple[str, str]]:
    labels = _labels(screen.rows, int(width * LONG_NAME))
    metrics = dict.fromkeys(name for row in shown for name in row.metrics if name not in (screen.objective, "lr"))
    validated = [name for name in metrics if name.startswith("val_")]
    others = [name for name in metrics if name not in validated]
    parameters = dict.fromkeys(name for row in shown for name in row.parameters)
    rows = [
        [
            *(labels[row.name], _format_number(row.metrics.get(screen.objective))),
            *(_format_progress(row), *(_format_number(row.metrics.get(name)) for name in validated)),
            *(row.status, *(row.parameters.get(name, "") for name in parameters)),
            *(_format_number(row.loss), *(_format_number(row.metrics.get(name)) for name in others)),
        ]
        for row in shown
    ]
    what = "member" if screen.search is None else "trial"
    columns = [what, f"best {screen.objective}", "epoch", *validated, "status", *parameters, "loss", *others]
    head, *lines = text_table(columns, rows, width - 1)
    styles = [STYLES.get(row.status, "bold" if row is screen.rows[0] and row.metrics else "") for row in shown]
    return [(head, "bold"), *zip(lines, styles, strict=True)]


def _labels(rows: Sequence[Row], width: int) -> dict[str, str]:
    """Return names if they fit; else differing hyper-parameters, if these fit and are unique; else the names' ends."""
    differs = {row.differs for row in rows}
    names = [row.name for row in rows]
    if max(map(len, names), default=0) > width and len(differs) == len(rows) and max(map(len, differs)) <= width:
        return {row.name: row.differs for row in rows}
    return shorten_names(names, width) if max(map(len, names), default=0) > width else {name: name for name in names}


def _format_progress(row: Row) -> str:
    epochs = f"{row.epochs:.1f}".removesuffix(".0")
    return epochs if row.of is None else f"{epochs}/{row.of:g}"


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
