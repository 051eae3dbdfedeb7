"""A trained network to be exported, and the metadata that readers of its files need."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

__all__ = ["About", "Combination", "Exported", "InputLeaf", "write_config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputLeaf:
    """One tensor of the network's inputs."""

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    """Beginning with the word batch; the word length stands for a size that differs between samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """How an ensemble combines its members' outputs into one prediction."""

    members: tuple[str, ...]
    """In the order of the module list ``networks``."""
    combine: Any
    """One way for all outputs, or one for each, in their structure."""
    weights: tuple[float, ...]
    temperatures: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """Description and origin of a network, for ``config.json`` and the model card."""

    name: str
    network: str
    """Class of the network."""
    parameters: int
    inputs: tuple[InputLeaf, ...]
    preprocessing: bool
    """Whether inputs are as the dataset has them, and `Data.on_device` is inside."""
    trunk: str
    """Class of the frozen network whose outputs are the inputs, and which is not exported; empty where there is none."""
    dataset: str
    samples: Mapping[str, int]
    """By split, those that it was trained and validated on; of an ensemble all."""
    figures: Mapping[str, float]
    """On the validation samples."""
    epochs: float | None
    """Finished epochs when these weights were saved; None for an ensemble."""
    hyperparameters: Mapping[str, Any]
    ensemble: Combination | None
    argosy: str
    """Version that wrote it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A network and example inputs."""

    network: nn.Module
    """In ``eval()`` on the CPU."""
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    """Inputs of two samples, as the network is called with them."""
    about: About


def write_config(exported: Exported, folder: Path) -> None:
    """Write ``config.json``."""
    text = json.dumps(asdict(exported.about), indent=2, default=str)
    (folder / "config.json").write_text(f"{text}\n", encoding="utf-8")
