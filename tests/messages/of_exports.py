"""Errors in exports: of the network, or of the place where it goes."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn
from torch.onnx import errors

import argosy
from argosy.cli.export import export
from argosy.export.hub import push
from messages.of_ensembles import halved, member, report
from messages.of_studies import VALIDATED

__all__ = ["CASES"]


class Branching(nn.Linear):
    """A network that branches on the values of its inputs."""

    def __init__(self) -> None:
        super().__init__(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Counting(nn.Linear):
    """A network whose state holds a number."""

    def __init__(self) -> None:
        super().__init__(12, 10)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 0}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Take nothing."""


def without_packages(patch: pytest.MonkeyPatch) -> None:
    """Export without the packages of a format."""
    found = report()
    patch.setattr("importlib.util.find_spec", lambda name: None)
    found.export("out", format="onnx")


def without_hub(patch: pytest.MonkeyPatch) -> None:
    """Push without huggingface_hub."""
    patch.setitem(sys.modules, "huggingface_hub", None)
    push(Path("out"), "us/mlp")


def weights_that_prepare() -> None:
    """Export code in a format that holds only weights."""
    data = argosy.Data(arrays=VALIDATED.arrays, val_arrays=VALIDATED.arrays, on_device=halved)
    report(data=data).export("out", preprocess=True)


def over_a_file() -> None:
    """Export to the path of a file."""
    Path("out").write_text("")
    report().export("out")


def beside_another() -> None:
    """Export to a folder that holds an export in another format."""
    Path("out").mkdir()
    Path("out/model.onnx").write_bytes(b"")
    report().export("out")


def without_room(patch: pytest.MonkeyPatch) -> None:
    """Export to a full disk."""

    def refused(*_: Any, **__: Any) -> None:
        raise BlockingIOError("Error while serializing: I/O error: No space left on device (os error 28)")

    found, ours = report(), "argosy.export.safetensors"
    patch.setattr("importlib.util.find_spec", lambda name: object())
    patch.setitem(sys.modules, "safetensors", SimpleNamespace(SafetensorError=BlockingIOError))
    patch.setitem(sys.modules, "safetensors.torch", SimpleNamespace(save_model=refused))
    patch.setitem(sys.modules, ours, ModuleType(ours))
    del sys.modules[ours]  # it is imported again, and forgotten afterwards
    found.export("out")


def unknown_to_onnx(patch: pytest.MonkeyPatch) -> None:
    """Export an operator that ONNX does not have."""

    def refused(*_: Any, **__: Any) -> None:
        raise errors.OnnxExporterError("No ONNX function found for <OpOverload(op='aten._cdist_forward')>")

    patch.setattr("importlib.util.find_spec", lambda name: object())
    patch.setattr("torch.onnx.export", refused)
    report().export("out", format="onnx")


CASES = {
    "an export in an unknown format": lambda: report().export("out", format="onxx"),  # type: ignore[arg-type]
    "an export without the packages of its format": without_packages,
    "an export to the Hub in another format": lambda: report().export(
        "out", format="torch-export", push_to_hub="us/mlp"
    ),
    "an export to the Hub without its package": without_hub,
    "an export to a full disk": without_room,
    "an export of code in a format that holds only weights": weights_that_prepare,
    "an export of weights whose network has more than tensors": lambda: report(member(model=Counting)).export("out"),
    "an export to the path of a file": over_a_file,
    "an export to the folder of another export": beside_another,
    "an export of a network that torch cannot follow": lambda: report(member(model=Branching)).export(
        "out", format="torch-export"
    ),
    "an export of a network that ONNX has no operators for": unknown_to_onnx,
    "an export of one member and of several": lambda: export(Path("runs/x"), "mlp", top=2),
}
