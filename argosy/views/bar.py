"""A progress bar for scripts and notebooks: one line below what a script prints, or the output of a notebook's cell."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from argosy.errors.wording import as_html
from argosy.results.fold import RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import View
from argosy.views.drawing import format_screen_line
from argosy.views.output import as_text, console
from argosy.views.screen import Screen
from argosy.views.terminal import Terminal
from argosy.views.watch import Watching

__all__ = ["Notebook", "draw_bar", "progress_bar"]

BAR_COLUMNS = 20

Update = Callable[[str], None]
"""Replaces the HTML shown in the same place."""


def progress_bar() -> View:
    """Return a progress bar for a terminal or a notebook, whichever this program runs in."""
    if _in_notebook():
        return Notebook(_display)
    return Terminal(console(stderr=True), draw_bar)


def draw_bar(screen: Screen, width: int, height: int) -> RenderableType:
    """Draw the screen in one line."""
    text = as_text(format_screen_line(screen))
    text.no_wrap = True
    text.truncate(max(width - BAR_COLUMNS - 2, 1), overflow="ellipsis")
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=1.0, completed=min(screen.share, 1.0), width=BAR_COLUMNS), text)
    return line


class Notebook(Watching):
    """A view that is the output of a notebook's cell."""

    def __init__(self, display: Callable[[str], Update]) -> None:
        super().__init__()
        self._display = display
        self._told: list[str] = []

    def begin(self, job: Job, state: RunState) -> None:
        """Start to watch, and create the output."""
        self.watch(job, state)
        self._update = self._display("")

    def handle(self, worker: str, message: Any) -> None:
        """Watch the message, and keep its notices."""
        self._told += [text for text, _ in self.take_notices(worker, message)]

    def tick(self, phase: Phase) -> None:
        """Update the output."""
        self.refresh(phase, self._show)

    def end(self) -> None:
        """Show the last state, which stays in the notebook."""
        self._show(replace(self.screen(Phase.OVER), phase="over", seconds_left=None))

    def _show(self, screen: Screen) -> None:
        lines = "".join(f"<pre>{as_html(text)}</pre>" for text in self._told)
        bar = f'<progress max="1" value="{min(screen.share, 1.0):.4f}"></progress>'
        self._update(f"{lines}{bar} {as_html(format_screen_line(screen))}")


def _in_notebook() -> bool:
    """Return whether output goes to a notebook: only a notebook's shell has a kernel, whatever its class."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _display(html: str) -> Update:
    from IPython.display import HTML, display  # a notebook has it

    handle = display(HTML(html), display_id=True)
    return lambda other: handle.update(HTML(other))
