"""Weights alone: ``model.safetensors`` with the names of the ``state_dict``, and ``config.json``."""

from pathlib import Path

from safetensors.torch import save_model

from argosy.export.exported import Exported, write_config
from argosy.training.member.checkpoint import unmerge_weights

__all__ = ["write"]


def write(exported: Exported, folder: Path) -> None:
    """Write the weights; of tensors that share memory one is written, as ``safetensors.torch.load_model`` expects."""
    with unmerge_weights(exported.network):
        save_model(exported.network, str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_config(exported, folder)
