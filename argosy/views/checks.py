"""What ``argosy doctor`` found, for people."""

from collections.abc import Sequence

from rich.table import Table

from argosy.running.doctor.machine_checks import Check
from argosy.views.output import as_text

__all__ = ["checks_table"]


def checks_table(checks: Sequence[Check]) -> Table:
    """One row for each check; what fails is red and says what mends it."""
    table = Table("", "check", "found", "wanted", "mend", box=None, pad_edge=False)
    for check in checks:
        mark = as_text("ok", "green") if check.ok else as_text("FAILS", "red")
        table.add_row(mark, *map(as_text, (check.name, check.found, check.wanted, check.mend)))
    return table
