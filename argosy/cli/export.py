"""``argosy export``: a trained network in a format that loads without Argosy."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from argosy.cli.steer import RunDirectory
from argosy.errors import PlanError
from argosy.views.output import Json, print_output

__all__ = ["export"]


def export(
    directory: RunDirectory,
    member: Annotated[str | None, typer.Argument(help="Name of a member or trial; the best by default.")] = None,
    study_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--study",
            help="Python file with the `study` or `search` of the run, which builds the networks; study.py by default. Name also the files "
            "of `argosy add`: --study study.py --study more.py.",
        ),
    ] = None,
    format: Annotated[
        Literal["safetensors", "onnx", "torch-export", "hub"],
        typer.Option(help="Weights, a program for ONNX Runtime or torch, or a folder for the Hugging Face Hub."),
    ] = "safetensors",
    to: Annotated[Path, typer.Option(help="Output folder.")] = Path("exported"),
    ensemble: Annotated[
        bool,
        typer.Option("--ensemble", help="Export all members as one network, or all folds or seeds of the one named."),
    ] = False,
    top: Annotated[int | None, typer.Option(help="Export an ensemble of this many of the best members.", min=1)] = None,
    preprocess: Annotated[
        bool, typer.Option("--with-preprocessing", help="Include `Data.on_device` (onnx, torch-export).")
    ] = False,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload the folder to this repository (hub).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a trained network in a format that loads without Argosy (extra: export)."""
    if top is not None and member is not None:
        raise PlanError(f"member {member!r} was named, but --top chooses the best ones; omit the name or this option.")
    to, directory = to.absolute(), directory.absolute()  # a study file may change the working directory
    study_files = [file.absolute() for file in study_files or [Path("study.py")]]
    from argosy.running.directory.studyfile import load_search, load_study  # imports torch with the study
    from argosy.running.search.loading import load

    is_search = load(directory).is_search
    first, *added = study_files
    described: Any = [load_search(first) if is_search else load_study(first), *map(load_study, added)]
    report = load(directory, study=described)
    network: Any = member
    if ensemble or top is not None:
        network = getattr(report, "run", report).ensemble(top=top, members=None if member is None else [member])
    before = _files(to)
    report.export(to, network, format=format, preprocess=preprocess, push_to_hub=push_to_hub)
    files = sorted(name for name, _ in _files(to) - before)
    print_output({"folder": str(to), "files": files} if as_json else "\n".join(f"Written: {file}" for file in files))


def _files(folder: Path) -> set[tuple[str, tuple[int, int]]]:
    """Return the files of a folder, each with metadata that changes with its content."""
    present = [file for file in folder.glob("*") if file.is_file()]
    return {(str(file), (file.stat().st_ino, file.stat().st_mtime_ns)) for file in present}
