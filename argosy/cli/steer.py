"""``argosy stop``, ``add`` and ``clone``: change a running run, and wait for its answer."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argosy.disk.json_values import parse_json
from argosy.errors import RefusedError, StudyError
from argosy.views.output import Json, print_output, reporting_interrupts

if TYPE_CHECKING:
    from argosy.running.directory.attached import AttachedRun

__all__ = ["RunDirectory", "StudyFile", "add", "clone", "stop"]

RunDirectory = Annotated[Path, typer.Argument(help="Directory of a run.")]
StudyFile = Annotated[Path, typer.Argument(help="Python file with a variable `study`.")]


def stop(
    directory: RunDirectory,
    members: Annotated[
        list[str] | None, typer.Argument(help="Names of members; by default all, which ends the run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Save and stop members of a run, or save everything and end it, like Ctrl-C; exit code 2 if the run refuses."""
    _ask(directory, lambda run: run.stop(members or None), as_json=as_json)


def add(directory: RunDirectory, study_file: StudyFile, as_json: Json = False) -> None:
    """Add the members of a study file that a run does not have yet; exit code 2 if the run refuses."""
    _ask(directory, lambda run: [run.add(study_file)], as_json=as_json)


def clone(
    directory: RunDirectory,
    member: Annotated[str, typer.Argument(help="Member to clone.")],
    name: Annotated[str, typer.Argument(help="Name of the new member.")],
    changes: Annotated[
        list[str], typer.Option("--set", help="Changed hyper-parameter, such as optimizer.lr=0.01; repeatable.")
    ],
    warm: Annotated[bool, typer.Option("--warm", help="Start from its weights instead of from scratch.")] = False,
    as_json: Json = False,
) -> None:
    """Add a copy of a member with some hyper-parameters changed; exit code 2 if the run refuses."""
    settings = dict(_setting(change) for change in changes)
    _ask(directory, lambda run: [run.clone(member, name, settings, warm=warm)], as_json=as_json)


def _ask(directory: Path, request: Callable[["AttachedRun"], Sequence[str]], *, as_json: bool) -> None:
    from argosy.running.directory.attached import AttachedRun

    refused = False
    try:
        with reporting_interrupts():
            answers = request(AttachedRun(directory=directory))
    except RefusedError as error:
        answers, refused = error.answers, True
    print_output({"answer": "\n".join(answers), "refused": refused} if as_json else "\n".join(answers))
    raise typer.Exit(2 if refused else 0)


def _setting(change: str) -> tuple[str, Any]:
    """Return a name and its value, parsed as JSON if possible, else as text."""
    name, equals, text = change.partition("=")
    if not equals:
        raise StudyError(f"--set {change!r} has no value; write, for example, --set optimizer.lr=0.01.")
    try:
        return name, parse_json(text)
    except ValueError:
        return name, text
