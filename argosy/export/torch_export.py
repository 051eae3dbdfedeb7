"""The whole network as a program of torch: ``model.pt2``, which ``torch.export.load`` opens, and ``config.json``."""

from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.utils import _pytree as pytree

from argosy.errors import ArgosyError, RunError
from argosy.export.exported import Exported, write_config

__all__ = ["program_of", "write"]


def write(exported: Exported, folder: Path) -> None:
    """Write the program; raises what `program_of` raises."""
    content = BytesIO()
    torch.export.save(program_of(exported), content)  # in a file of its own, torch ends the process if the disk is full
    (folder / "model.pt2").write_bytes(content.getbuffer())
    write_config(exported, folder)


def program_of(exported: Exported) -> ExportedProgram:
    """Return the network as a program for batches of any size; raises RunError where torch.export refuses it."""
    collection: Any = ShapesCollection  # which has no types
    shapes = collection()
    leaves = pytree.tree_leaves((exported.arguments, exported.keywords))
    for leaf, described in zip(leaves, exported.about.inputs, strict=True):
        named = {"batch": Dim("batch"), "length": Dim.DYNAMIC}
        shapes[leaf] = {axis: named[size] for axis, size in enumerate(described.shape) if isinstance(size, str)}
    try:
        with torch.no_grad(), exported.network.register_forward_hook(_logits):
            return torch.export.export(
                exported.network, exported.arguments, dict(exported.keywords), dynamic_shapes=shapes, strict=False
            )
    except ArgosyError:
        raise
    except Exception as error:  # boundary to the network's code, and to torch.export, which raises errors of any type
        first = " ".join(str(error).strip().partition("\n")[0].split()).rstrip(".")
        raise RunError(
            f"torch.export refuses {exported.about.name!r}: {type(error).__name__}: {first}. Write forward() without "
            "branches on tensor values in eval() and for batches of any size, or use format 'safetensors', which "
            "holds only the weights."
        ) from error


def _logits(network: nn.Module, inputs: Any, output: Any) -> Any:
    """Return the logits of an output of Hugging Face, so that no class of that library is needed to load the program."""
    return getattr(output, "logits", output)
