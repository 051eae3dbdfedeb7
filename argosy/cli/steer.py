"""``argosy stop``, ``add`` and ``clone``: change a run while it goes on, and wait for its answer."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argosy.disk.json_values import parsed
from argosy.errors import RefusedError, StudyError
from argosy.views.output import Json, write

if TYPE_CHECKING:
    from argosy.running.directory.attached import AttachedRun

__all__ = ["RunDirectory", "StudyFile", "add", "clone", "stop"]

RunDirectory = Annotated[Path, typer.Argument(help="Directory of a run.")]
StudyFile = Annotated[Path, typer.Argument(help="Python file with a variable `study`.")]


def stop(
    directory: RunDirectory,
    members: Annotated[list[str] | None, typer.Argument(help="Their names; without, all, and the run ends.")] = None,
    as_json: Json = False,
) -> None:
    """Tell a run to save members and stop them, or to save all and end, as Ctrl-C does; exit code 2 if it refuses one."""
    _ask(directory, lambda run: run.stop(members or None), as_json=as_json)


def add(directory: RunDirectory, study_file: StudyFile, as_json: Json = False) -> None:
    """Add the members of a study file that a run does not have yet; exit code 2 if it refuses."""
    _ask(directory, lambda run: [run.add(study_file)], as_json=as_json)


def clone(
    directory: RunDirectory,
    member: Annotated[str, typer.Argument(help="Member to clone.")],
    name: Annotated[str, typer.Argument(help="Name of the new member.")],
    changes: Annotated[
        list[str], typer.Option("--set", help="What is to differ, as optimizer.lr=0.01; several times.")
    ],
    warm: Annotated[bool, typer.Option("--warm", help="Go on from its weights, instead of from nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Add a member to a run that is another one but for some hyper-parameters; exit code 2 if it refuses."""
    settings = dict(_setting(change) for change in changes)
    _ask(directory, lambda run: [run.clone(member, name, settings, warm=warm)], as_json=as_json)


def _ask(directory: Path, request: Callable[["AttachedRun"], Sequence[str]], *, as_json: bool) -> None:
    from argosy.running.directory.attached import AttachedRun

    refused = False
    try:
        answers = request(AttachedRun(directory=directory))
    except RefusedError as error:
        answers, refused = error.answers, True
    write({"answer": "\n".join(answers), "refused": refused} if as_json else "\n".join(answers))
    raise typer.Exit(2 if refused else 0)


def _setting(change: str) -> tuple[str, Any]:
    """A name and its value: JSON, or the text itself."""
    name, equals, text = change.partition("=")
    if not equals:
        raise StudyError(f"--set {change!r} has no value; write it as --set optimizer.lr=0.01.")
    try:
        return name, parsed(text)
    except ValueError:
        return name, text
