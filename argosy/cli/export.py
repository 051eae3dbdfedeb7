"""``argosy export``: a trained network in a format that loads without Argosy."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from argosy.cli.steer import RunDirectory
from argosy.errors import PlanError
from argosy.views.output import Json, write

__all__ = ["export"]


def export(
    directory: RunDirectory,
    member: Annotated[str | None, typer.Argument(help="Its name, or a trial's; without, the best.")] = None,
    study_file: Annotated[
        Path, typer.Option("--study", help="Python file with the run's `study` or `search`, which builds the networks.")
    ] = Path("study.py"),
    format: Annotated[
        Literal["safetensors", "onnx", "torch-export", "hub"],
        typer.Option(help="Weights, a program for ONNX Runtime or for torch, or a folder of the Hugging Face Hub."),
    ] = "safetensors",
    to: Annotated[Path, typer.Option(help="Folder to write.")] = Path("exported"),
    ensemble: Annotated[bool, typer.Option("--ensemble", help="All members as one network, instead of one.")] = False,
    top: Annotated[int | None, typer.Option(help="The ensemble is of so many of the best.", min=1)] = None,
    preprocess: Annotated[
        bool, typer.Option("--with-preprocessing", help="`Data.on_device` inside (onnx, torch-export).")
    ] = False,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload the folder there (hub).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a trained network in a format that loads without Argosy (extra: export)."""
    ensemble = ensemble or top is not None
    if ensemble and member is not None:
        raise PlanError(f"member {member!r} was named, and --ensemble or --top is of several; leave one of them out.")
    to = to.absolute()  # what the file does may change the folder that this process is in
    directory = directory.absolute()
    from argosy.running.directory.studyfile import load_search, load_study  # imports torch with the study
    from argosy.running.search.loading import load

    asked: Any = (load_search if load(directory).is_search else load_study)(study_file)
    report = load(directory, study=asked)
    network: Any = getattr(report, "run", report).ensemble(top=top) if ensemble else member
    before = _files(to)
    report.export(to, network, format=format, preprocess=preprocess, push_to_hub=push_to_hub)
    files = sorted(name for name, _ in _files(to) - before)
    write({"folder": str(to), "files": files} if as_json else "\n".join(f"Written: {file}" for file in files))


def _files(folder: Path) -> set[tuple[str, tuple[int, int]]]:
    """Return the files of a folder, each with what another content of it changes."""
    there = [file for file in folder.glob("*") if file.is_file()]
    return {(str(file), (file.stat().st_ino, file.stat().st_mtime_ns)) for file in there}
