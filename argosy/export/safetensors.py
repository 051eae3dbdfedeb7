"""Weights alone: ``model.safetensors`` with the names of the ``state_dict``, and ``config.json``."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_model

from argosy.errors import DiskError
from argosy.export.exported import Exported, write_config
from argosy.training.member.checkpoint import unmerge_weights

__all__ = ["write"]


def write(exported: Exported, folder: Path) -> None:
    """Write the weights; of tensors that share memory one is written, as ``safetensors.torch.load_model`` expects."""
    file = folder / "model.safetensors"
    try:
        with unmerge_weights(exported.network):
            save_model(exported.network, str(file), metadata={"format": "pt"})
    except SafetensorError as error:
        raise DiskError(f"cannot write {file}: {error}. Free disk space there, or choose another folder.") from error
    write_config(exported, folder)
