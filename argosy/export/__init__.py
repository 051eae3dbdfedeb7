"""Export networks in formats that load without Argosy; each format is a module with a function ``write``.

Importing a format's module imports the package that it needs. `argosy.ensembling.exporting` creates the exported networks.
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from argosy.errors import RunError
from argosy.errors.spelling import did_you_mean
from argosy.errors.system import system_refused
from argosy.export.exported import Exported

__all__ = ["FORMATS", "check_format", "push", "write"]

FORMATS: Mapping[str, tuple[str, ...]] = {
    "safetensors": ("safetensors",),
    "onnx": ("onnx", "onnxscript"),
    "torch-export": (),
    "hub": ("safetensors",),
}
"""Names, of the files too but for the dash, and the packages that each needs."""
MODELS: Mapping[str, str] = {
    "safetensors": "model.safetensors",
    "onnx": "model.onnx",
    "torch-export": "model.pt2",
    "hub": "model.safetensors",
}
"""The file of each format that has the network; ``config.json`` beside it says what that is."""
WEIGHTS_ALONE = ("safetensors", "hub")
"""Formats that hold no code."""


def check_format(format: str, *, push_to_hub: str | None) -> None:
    """Raise RunError for an unknown format, for one whose package is not installed, and where what is to be pushed is not for the Hub."""
    if format not in FORMATS:
        raise RunError(f"unknown format {format!r}{did_you_mean(format, FORMATS)}; choose one of {', '.join(FORMATS)}.")
    missing = [package for package in FORMATS[format] if importlib.util.find_spec(package) is None]
    if missing:
        raise RunError(
            f"format {format!r} needs packages that are not installed: {' and '.join(missing)}. Install "
            "them: pip install 'argosy[export]'."
        )
    if push_to_hub is not None and format != "hub":
        raise RunError(
            f"an export to {push_to_hub!r} needs format 'hub'; found {format!r}. Choose format 'hub', or remove "
            "push_to_hub."
        )


def write(exported: Exported, folder: Path, format: str) -> None:
    """Write a network into a folder, made where there is none; raises RunError for a network that the format cannot hold, and DiskError."""
    if exported.about.preprocessing and format in WEIGHTS_ALONE:
        raise RunError(
            f"format {format!r} holds only weights, but Data.on_device is code. Remove preprocess, or use format "
            "'onnx' or 'torch-export'."
        )
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{str(folder)!r} is a file, but an export is a folder of several files. Choose another name.")
    others = [name for name in dict.fromkeys(MODELS.values()) if name != MODELS[format] and (folder / name).exists()]
    if others:
        raise RunError(
            f"{str(folder)!r} holds {others[0]} of another export, whose config.json would be overwritten. Choose "
            "another folder."
        )
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # An earlier export there stays whole if this one is refused.
        with TemporaryDirectory(prefix=".", dir=folder) as unfinished:
            _module(format).write(exported, Path(unfinished))
            for file in [*Path(unfinished).rglob("*")]:
                place = folder / file.relative_to(unfinished)
                if file.is_dir():  # a network that writes itself may make some, as Sentence Transformers do
                    place.mkdir(exist_ok=True)
                else:
                    file.replace(place)
    except OSError as error:
        if (refused := system_refused(error, f"cannot write {folder}")) is None:
            raise
        raise refused from error
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            if made:
                folder.rmdir()


def push(folder: Path, repository: str) -> None:
    """Upload an export of format ``hub``; raises RunError where huggingface_hub is not installed."""
    _module("hub").push(folder, repository)


def _module(format: str) -> Any:
    """Return the file of a format, which imports the format's package."""
    return importlib.import_module(f"argosy.export.{format.replace('-', '_')}")
