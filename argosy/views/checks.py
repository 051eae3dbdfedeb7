"""The results of ``argosy doctor``, for users."""

from collections.abc import Sequence

from rich.table import Table

from argosy.running.doctor.checks import Check
from argosy.views.output import as_text

__all__ = ["checks_table"]


def checks_table(checks: Sequence[Check]) -> Table:
    """Return a table with one row for each check; failures are red and say what fixes them."""
    table = Table("", "check", "found", "wanted", "fix", box=None, pad_edge=False)
    for check in checks:
        mark = as_text("ok", "green") if check.ok else as_text("FAILS", "red")
        table.add_row(mark, *map(as_text, (check.name, check.found, check.wanted, check.fix)))
    return table
