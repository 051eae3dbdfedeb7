"""The view in a terminal: a redrawn screen, or periodic lines if the cursor cannot move back."""

import os
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from argosy.results.fold import RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.views.drawing import draw, format_screen_line
from argosy.views.output import as_text
from argosy.views.screen import Screen
from argosy.views.watch import Watching

__all__ = ["Terminal"]

FIRST_LINES = 10
LINE_SECONDS = 10.0
"""Seconds between two of the first lines without a terminal; changes of phase add lines."""
LATER_SECONDS = 60.0
"""Seconds between two later lines."""
FEWEST_COLUMNS = 8
"""Columns that a screen is drawn for in a terminal that has fewer, as while it is resized: text cannot be wrapped into one or two."""

Drawing = Callable[[Screen, int, int], RenderableType]
"""Draws a screen in this many columns and lines."""


class Terminal(Watching):
    """A view in a terminal."""

    def __init__(self, console: Console, drawing: Drawing = draw) -> None:
        super().__init__()
        self.console = console
        self.drawing = drawing
        self._live: Live | None = None
        self._lines, self._last_line = 0, 0.0
        self._phase: Phase | None = None

    def begin(self, job: Job, state: RunState) -> None:
        """Start to watch, and take over the terminal if it can be redrawn."""
        self.watch(job, state)
        self._last_line = time.monotonic()
        self._hold_terminal()

    def handle(self, worker: str, message: Any) -> None:
        """Watch the message, and print its notices."""
        for text, style in self.take_notices(worker, message):
            self._print(text, style)

    def tick(self, phase: Phase) -> None:
        """Redraw the screen, or print a line if one is due."""
        self._hold_terminal()
        if self._live is not None:
            self.refresh(phase, self._draw)
        elif self._line_due(phase):
            self._lines, self._last_line, self._phase = self._lines + 1, time.monotonic(), phase
            self._print(format_screen_line(self.screen(phase)))

    def end(self) -> None:
        """Release the terminal."""
        if self._live is not None:
            self._live.stop()

    def _hold_terminal(self) -> None:
        """Take over the terminal if it can be redrawn, and release it if not: a shell moves jobs to the background and back."""
        if not _can_redraw(self.console):
            self.console.quiet = True  # to release it would erase as many lines of the shell as the screen had
            self.end()
            self.console.quiet, self._live = False, None
        elif self._live is None:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
            self.console.show_cursor()  # a process that is stopped or killed cannot do it then

    def _draw(self, screen: Screen) -> None:
        assert self._live is not None
        size = self.console.size
        self._live.update(self.drawing(screen, max(size.width, FEWEST_COLUMNS), size.height), refresh=True)

    def _line_due(self, phase: Phase) -> bool:
        since, early = time.monotonic() - self._last_line, self._lines < FIRST_LINES
        return (early and phase is not self._phase) or since > (LINE_SECONDS if early else LATER_SECONDS)

    def _print(self, text: str, style: str = "") -> None:
        self.console.print(as_text(text, style), soft_wrap=True)


def _can_redraw(console: Console) -> bool:
    """Return whether the cursor can move back: rich treats any file as a terminal under FORCE_COLOR, and some terminals are dumb.

    In a terminal whose foreground has another job, that job's text stands there.
    """
    if not console.is_interactive or console.is_dumb_terminal or not console.file.isatty():
        return False
    try:
        return os.tcgetpgrp(console.file.fileno()) == os.getpgrp()
    except OSError:
        return True  # not this process's own terminal, which has no jobs
