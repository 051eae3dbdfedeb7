"""``argosy doctor``: what would fail on this machine, or between the nodes of a job, and what mends it."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argosy.errors import StudyError
from argosy.views.output import Json, show, write

if TYPE_CHECKING:
    from argosy.running.doctor.machine_checks import Check

__all__ = ["doctor"]


def doctor(
    study_file: Annotated[
        Path | None, typer.Argument(help="With --cluster: a study whose data all nodes are to open.")
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Directory of a run to come.")] = Path("runs/argosy"),
    cluster: Annotated[
        bool, typer.Option("--cluster", help="The nodes of a job instead, as in srun argosy doctor --cluster.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine: what would fail, and what mends it; exit code 1 if something would."""
    if study_file is not None and not cluster:
        raise StudyError(
            f"{study_file}: doctor opens a study's data only to compare them between nodes. Start it as in srun argosy doctor "
            f"--cluster {study_file}, or leave the file out."
        )
    checks = _of_nodes(directory.absolute(), study_file) if cluster else _of_this_machine(directory)
    if as_json:
        write({"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]})
    else:
        from argosy.views.checks import checks_table

        show(checks_table(checks))
    raise typer.Exit(0 if all(check.ok for check in checks) else 1)


def _of_this_machine(directory: Path) -> "list[Check]":
    from argosy.running.doctor.machine import examine

    return examine(directory)


def _of_nodes(directory: Path, study_file: Path | None) -> "list[Check]":
    """At rank 0 of the job; another process of it answers, and exits."""
    from argosy.running.doctor.cluster import answer, examine_cluster, place_in

    place = place_in(os.environ)
    if place.rank > 0:
        raise typer.Exit(answer(place, directory, study_file))
    return examine_cluster(place, directory, study_file)
