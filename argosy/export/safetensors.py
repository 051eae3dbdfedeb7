"""Weights alone: ``model.safetensors`` with the names of the ``state_dict``, and ``config.json``."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import Tensor

from argosy.errors import DiskError, RunError
from argosy.export.exported import Exported, write_config
from argosy.training.member.checkpoint import unmerge_weights

__all__ = ["write"]


def write(exported: Exported, folder: Path) -> None:
    """Write the weights; of tensors that share memory one is written, as ``safetensors.torch.load_model`` expects."""
    file = folder / "model.safetensors"
    others = [name for name, value in exported.network.state_dict().items() if not isinstance(value, Tensor)]
    if others:
        raise RunError(
            f"safetensors hold only tensors, but the state of {exported.about.name!r} also holds {others[0]!r}, as from "
            "get_extra_state. Use format 'torch-export' or 'onnx'."
        )
    try:
        with unmerge_weights(exported.network):
            save_model(exported.network, str(file), metadata={"format": "pt"})
    except SafetensorError as error:
        raise DiskError(
            f"cannot write {file.name}: {error}. Free disk space there, or choose another folder."
        ) from error
    write_config(exported, folder)
