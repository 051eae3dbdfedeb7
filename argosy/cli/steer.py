"""``argosy stop``, ``add`` and ``clone``: change a run while it goes on, and wait for its answer."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from argosy.errors import StudyError
from argosy.protocol.events import REFUSED
from argosy.views.output import Json, write

__all__ = ["RunDirectory", "StudyFile", "add", "clone", "stop"]

RunDirectory = Annotated[Path, typer.Argument(help="Directory of a run.")]
StudyFile = Annotated[Path, typer.Argument(help="Python file with a variable `study`.")]


def stop(
    directory: RunDirectory, members: Annotated[list[str], typer.Argument(help="Their names.")], as_json: Json = False
) -> None:
    """Tell a run to save members and stop them; exit code 2 if it refuses one."""
    _tell(directory, *({"command": "stop", "member": member} for member in members), as_json=as_json)


def add(directory: RunDirectory, study_file: StudyFile, as_json: Json = False) -> None:
    """Add the members of a study file that a run does not have yet; exit code 2 if it refuses."""
    _tell(directory, {"command": "add", "study": str(study_file)}, as_json=as_json)


def clone(
    directory: RunDirectory,
    member: Annotated[str, typer.Argument(help="Whose clone it is.")],
    name: Annotated[str, typer.Argument(help="Of the clone.")],
    changes: Annotated[
        list[str], typer.Option("--set", help="What is to differ, as optimizer.lr=0.01; several times.")
    ],
    warm: Annotated[bool, typer.Option("--warm", help="Go on from its weights, instead of from nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Add a member to a run that is another one but for some hyper-parameters; exit code 2 if it refuses."""
    settings = dict(_setting(change) for change in changes)
    command = {"command": "clone", "member": member, "name": name, "set": settings, "warm": warm}
    _tell(directory, command, as_json=as_json)


def _tell(directory: Path, *commands: dict[str, Any], as_json: bool) -> None:
    from argosy.running.directory.inbox import tell

    answers = tell(directory, *commands)
    refused = any(answer.startswith(REFUSED) for answer in answers)
    write({"answer": "\n".join(answers), "refused": refused} if as_json else "\n".join(answers))
    raise typer.Exit(2 if refused else 0)


def _setting(change: str) -> tuple[str, Any]:
    """A name and its value: JSON, or the text itself."""
    name, equals, text = change.partition("=")
    if not equals:
        raise StudyError(f"--set {change!r} has no value; write it as --set optimizer.lr=0.01.")
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text
