"""``argosy runs``: the runs below a folder, with their states and best members."""

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from argosy.cli.report import load_reports
from argosy.errors import ArgosyError
from argosy.errors.wording import text_table
from argosy.results.ending import output_size
from argosy.views.output import All, Json, print_output

__all__ = ["runs"]

ROWS_SHOWN = 20
"""Runs that are listed unless all are requested."""


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that contains run directories.")] = Path("runs"),
    every: All = False,
    as_json: Json = False,
) -> None:
    """List the runs below a folder, the latest first, with their progress and best members."""
    journals_found = [*folder.glob("journal.jsonl"), *folder.glob("*/journal.jsonl")]
    journals = sorted(journals_found, key=lambda path: -path.stat().st_mtime)
    rows = [_row(journal) for journal in (journals if every or as_json else journals[:ROWS_SHOWN])]
    if as_json:
        print_output({"runs": rows}, every=every)
    elif not rows:
        print_output(f"No run found in {folder}. Start one:  argosy run study.py")
    else:
        columns, unlisted = ("run", "status", "changed"), len(journals) - len(rows)
        table = text_table(columns, [[row[name] for name in columns] for row in rows], output_size()[0])
        lines = [f"{line}  {best}" for line, best in zip(table, ("best", *(row["best"] for row in rows)), strict=True)]
        more = [f"and {unlisted} more: --all lists them"] if unlisted else []
        print_output(
            "\n".join([*lines, *more, "", f"Look at one:     argosy report {shlex.quote(str(journals[0].parent))}"])
        )


def _row(journal: Path) -> dict[str, Any]:
    changed = time.strftime("%F %H:%M", time.localtime(journal.stat().st_mtime))
    try:
        report, search = load_reports(journal.parent)
        status, best = report.status, (search or report).ending().best[0].removeprefix("Best: ")
    except ArgosyError as error:
        status, best = "unreadable", f"{error}"  # the other runs are still listed
    return {"run": journal.parent.resolve().name, "status": status, "changed": changed, "best": best}
