"""``argosy cache``: prepared samples that are kept on this machine."""

import time
from typing import Annotated

import typer

from argosy.views.output import All, Json, show, write

__all__ = ["cache"]


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete them; runs that use them keep what they have open.")
    ] = False,
    every: All = False,
    as_json: Json = False,
) -> None:
    """List prepared samples that are kept for later runs, or delete them; Data(keep=False) keeps none."""
    from argosy.stream.kept.cache import RowCache
    from argosy.views.tables import kept_table

    kept = RowCache()
    entries = kept.entries()
    rows = [
        {
            "dataset": entry.header.subject,
            "samples": entry.found,
            "of": entry.header.length,
            "bytes": entry.bytes,
            "used": time.strftime("%F %T", time.localtime(entry.used)),
            "folder": entry.folder.name,
        }
        for entry in entries
    ]
    for entry in entries if clear else ():
        kept.discard(entry.folder)
    if as_json:
        write({"folder": str(kept.folder), "deleted" if clear else "kept": rows}, every=every)
    elif not rows:
        write(f"Nothing is kept in {kept.folder}.")
    else:
        show(kept_table(rows, f"{'Deleted from' if clear else 'Kept in'} {kept.folder}"))
