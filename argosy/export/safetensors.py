"""Weights alone: ``model.safetensors`` with the names of the ``state_dict``, and ``config.json``."""

from pathlib import Path

from safetensors.torch import save_model

from argosy.export.exported import Exported, write_config

__all__ = ["write"]


def write(exported: Exported, folder: Path) -> None:
    """Write the weights; of tensors that share memory one is written, as ``safetensors.torch.load_model`` expects."""
    network, mode = exported.network, exported.network.training
    # In train(): layers that merge weights in eval(), as LoRA's, would merge those of a file once more.
    save_model(network.train(), str(folder / "model.safetensors"), metadata={"format": "pt"})
    network.train(mode)
    write_config(exported, folder)
