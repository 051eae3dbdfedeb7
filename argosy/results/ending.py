"""The summary at the end of a run or a search: the best result, failures and their reasons, one table, and what to do next."""

import math
import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from argosy.errors.wording import as_html, columns_shown, escape_unprintable, html_table, text_table

__all__ = ["Ending", "format_counts", "output_size"]

MOST_ROWS = 10
"""Rows of the table; the others are folded."""
FEWEST_ROWS = 3
"""Rows that are shown however low the terminal is."""
MOST_LINES = 1000
"""Lines of a file or a pipe."""
MANY_COLUMNS = 10
"""So many columns without room are mentioned."""
MOST_FAILURES = 5
"""Most failed members that are listed with their reasons."""
MOST_ACTIONS = 3
"""Most next actions; the bottleneck counts as one."""
WITHOUT_TERMINAL = 160
"""Columns of a file or a pipe."""
LABEL = 17
"""Columns of the words before what is to be typed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """The end of a run or a search, for a terminal and for a notebook."""

    best: tuple[str, ...]
    """Name, metric, value and epoch of the best result, then how to load it."""
    failures: tuple[str, ...]
    """Number of samples left out, then each failed member and the reason."""
    logs: str
    """Path of a failed member's log."""
    columns: tuple[str, ...]
    """The name, and then the others, the most important first: as many are shown as there is room for."""
    rows: tuple[tuple[Any, ...], ...]
    """Best first."""
    everything: str
    """Command that shows the other rows."""
    note: str
    """Explanation of the figures, if they need one."""
    state: str
    """Status of the run, number of members, and the location of all files."""
    limit: str
    """The bottleneck and what would help; empty if only the members' own steps limit the run."""
    actions: tuple[tuple[str, str], ...]
    """Next actions and the commands for them, most urgent first."""

    def text(self, width: int, height: int) -> str:
        """Return the ending as text: no word and nothing to type is broken; the table leaves room for the best in a low terminal."""
        head, end, note = [[*self.best], self._failed(width)], self._end(width), _wrap(self.note, width)
        lines = [*head[0], *head[1], *note, *end]
        # Between and below these are the table's head and its fold, four empty lines at most, and the prompt.
        room = height - sum(math.ceil(len(line) / width) for line in lines) - 6
        shown = self.rows[: min(max(room, FEWEST_ROWS), MOST_ROWS)]
        folded = [*self._folded(len(shown)), *self._hidden(shown, width)]
        table = [*text_table(self.columns, shown, width), *folded, *note] if shown else []
        return escape_unprintable("\n\n".join("\n".join(part) for part in (*head, table, end) if part))

    def html(self) -> str:
        """Return the ending for a notebook: with all columns, and with the other rows behind a click."""
        best, *how = self.best
        summary, end = (
            "".join(f"<p>{as_html(line)}</p>" for line in lines)
            for lines in ((*how, *self._failed(WITHOUT_TERMINAL)), (self.note, *self._end(WITHOUT_TERMINAL)))
        )
        first, others = self.rows[:MOST_ROWS], self.rows[MOST_ROWS:]
        folded = (
            f"<details><summary>{as_html(self._folded(MOST_ROWS)[0])}</summary>{html_table(self.columns, others)}</details>"
            if others
            else ""
        )
        table = f"{html_table(self.columns, first)}{folded}" if first else ""
        return f"<p><b>{as_html(best)}</b></p>{summary}{table}{end}"

    def _end(self, width: int) -> list[str]:
        limit = _wrap(f"{'Bottleneck:':<{LABEL}}{self.limit}", width, " " * LABEL) if self.limit else []
        actions = self.actions[: MOST_ACTIONS - bool(limit)]
        return [self.state, *limit, *(f"{f'{label}:':<{LABEL}}{what}" for label, what in actions)]

    def _failed(self, width: int) -> list[str]:
        lines = [line for one in self.failures[:MOST_FAILURES] for line in _wrap(one, width, "  ")]
        more = len(self.failures) - MOST_FAILURES
        return [
            *lines,
            *([f"and {more} more failed or diverged"] if more > 0 else []),
            *([self.logs] if self.logs else []),
        ]

    def _folded(self, shown: int) -> list[str]:
        more = len(self.rows) - shown
        return [f"and {more} more: {self.everything}"] if more > 0 else []

    def _hidden(self, rows: Sequence[Sequence[Any]], width: int) -> list[str]:
        """Return a line about columns without room if they are many: at 80 columns most tables leave some out."""
        hidden = len(self.columns) - columns_shown(self.columns, rows, width)
        return [f"and {hidden} more columns: {self.everything}"] if hidden >= MANY_COLUMNS else []


def format_counts(statuses: Sequence[str]) -> str:
    """Return the number of members with each status.

    >>> format_counts(["done", "failed", "done"])
    '2 done, 1 failed'
    """
    return ", ".join(f"{count} {status}" for status, count in Counter(statuses).most_common())


def output_size() -> tuple[int, int]:
    """Return the columns and lines of the terminal that output goes to."""
    return shutil.get_terminal_size((WITHOUT_TERMINAL, MOST_LINES))


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
