"""The whole network as ``model.onnx``, for ONNX Runtime and others, and ``config.json``."""

import warnings
from itertools import chain
from pathlib import Path

import torch
from torch.onnx import errors

from argosy.errors import RunError
from argosy.export.exported import Exported, write_config
from argosy.export.torch_export import program_of

__all__ = ["write"]

MOST_BYTES = 2**30
"""Weights that a file may have; larger ones go into a file of their own, because a message of protobuf ends at 2 GiB."""


def write(exported: Exported, folder: Path) -> None:
    """Write the network as torch exports it; raises RunError where torch does not, and what `program_of` raises."""
    program = program_of(exported)
    outputs = range(len(program.graph_signature.user_outputs))
    size = sum(tensor.nbytes for tensor in chain(exported.network.parameters(), exported.network.buffers()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's and onnxscript's, of their own code
        try:
            torch.onnx.export(
                program,
                f=folder / "model.onnx",
                input_names=[leaf.name for leaf in exported.about.inputs],
                output_names=[f"output_{number}" if number else "output" for number in outputs],
                external_data=size > MOST_BYTES,
                dynamo=True,
                verbose=False,
            )
        except errors.OnnxExporterError as error:
            problem = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
            raise RunError(
                f"ONNX cannot represent {exported.about.name!r}: {problem}. Use operators that ONNX has, or format "
                "'torch-export'."
            ) from error
    write_config(exported, folder)
