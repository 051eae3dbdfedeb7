"""``argosy runs``: the runs below a folder, with their states and their best."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from argosy.errors import ArgosyError
from argosy.errors.wording import text_table
from argosy.results.ending import size_of_output
from argosy.views.output import All, Json, write

__all__ = ["runs"]

SHOWN = 20
"""Runs that are listed where not all are asked for."""


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with directories of runs.")] = Path("runs"),
    every: All = False,
    as_json: Json = False,
) -> None:
    """List the runs that are here, the latest first: how far each is, and its best."""
    journals = sorted(folder.glob("*/journal.jsonl"), key=lambda path: -path.stat().st_mtime)
    rows = [_row(journal) for journal in journals]
    if as_json:
        write({"runs": rows}, every=every)
    elif not rows:
        write(f"There is no run in {folder}. Begin one:  argosy run study.py")
    else:
        columns, shown = ("run", "status", "changed"), rows if every else rows[:SHOWN]
        table = text_table(columns, [[row[name] for name in columns] for row in shown], size_of_output()[0])
        lines = [f"{line}  {best}" for line, best in zip(table, ("best", *(row["best"] for row in shown)), strict=True)]
        left = [f"and {len(rows) - len(shown)} more: --all lists them"] if len(rows) > len(shown) else []
        write("\n".join([*lines, *left, "", f"Look at one:     argosy report {folder}/NAME"]))


def _row(journal: Path) -> dict[str, Any]:
    from argosy.running.directory.loading import load, search_of

    changed = time.strftime("%F %H:%M", time.localtime(journal.stat().st_mtime))
    try:
        found = load(journal.parent)
        status, best = found.status, (search_of(found) or found).ending().best[0].removeprefix("Best: ")
    except ArgosyError as error:
        status, best = "unreadable", f"{error}"  # the other runs are listed all the same
    return {"run": journal.parent.name, "status": status, "changed": changed, "best": best}
