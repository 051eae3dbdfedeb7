"""``argosy cache``: prepared samples and choices of programs that are kept on this machine."""

import time
from typing import Annotated

import typer

from argosy.disk.cached import choices_folder
from argosy.views.output import All, Json, print_output, print_table

__all__ = ["cache"]


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete the cache; runs in progress keep the files that they have open.")
    ] = False,
    every: All = False,
    as_json: Json = False,
) -> None:
    """List or delete what is kept for later runs: prepared samples (none with Data(keep=False)), and choices of programs and device shares."""
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
    choices = [*choices_folder().glob("*.json")]
    if clear:
        kept.clear()
        for file in choices:
            file.unlink(missing_ok=True)
    message = (
        f"{len(choices)} choices of programs and shares {'deleted from' if clear else 'kept in'} {choices_folder()}"
    )
    if as_json:
        print_output(
            {"folder": str(kept.folder), "deleted" if clear else "kept": rows, "choices": len(choices)}, every=every
        )
    elif not rows:
        print_output(f"No samples are kept in {kept.folder}.")
    else:
        print_table(kept_table(rows, f"{'Deleted from' if clear else 'Kept in'} {kept.folder}"))
    if choices and not as_json:
        print_output(message)
