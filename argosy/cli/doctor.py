"""``argosy doctor``: problems of this machine, or between the nodes of a job, and how to fix them."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argosy.errors import StudyError
from argosy.views.output import Json, print_output, print_table

if TYPE_CHECKING:
    from argosy.running.doctor.checks import Check

__all__ = ["doctor"]


def doctor(
    study_file: Annotated[
        Path | None, typer.Argument(help="With --cluster: a study whose data all nodes open.")
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Directory of a planned run.")] = Path("runs/argosy"),
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Check the nodes of a job instead: srun argosy doctor --cluster.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine for problems and show how to fix them; exit code 1 if there are any."""
    if study_file is not None and not cluster:
        raise StudyError(
            f"{study_file}: doctor opens a study's data only to compare it between nodes. Run srun argosy doctor "
            f"--cluster {study_file}, or omit the file."
        )
    checks = _check_nodes(directory.absolute(), study_file) if cluster else _check_machine(directory)
    if as_json:
        print_output({"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]})
    else:
        from argosy.views.checks import checks_table

        print_table(checks_table(checks))
    raise typer.Exit(0 if all(check.ok for check in checks) else 1)


def _check_machine(directory: Path) -> "list[Check]":
    from argosy.running.doctor.machine import examine

    return examine(directory)


def _check_nodes(directory: Path, study_file: Path | None) -> "list[Check]":
    """Examine the cluster at rank 0 of the job; other processes answer it and exit."""
    from argosy.running.doctor.cluster import examine_cluster, examine_other_node, require_job_place

    place = require_job_place(os.environ)
    if place.rank > 0:
        raise typer.Exit(examine_other_node(place, directory, study_file))
    return examine_cluster(place, directory, study_file)
