"""The programs whose full step can be captured in one CUDA graph.

A whole step has two parts. The host runs a program's `begin_whole` and `finish_whole`, with members' own code, and its kernels' `numbers` and
`note_step`. The device runs `whole_gradients` and the kernels' `move`, which can be captured.
"""

from argosy.training.optim.flat_kernel import FlatKernel
from argosy.training.optim.kernels import Kernel
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.graphed.single import Single

__all__ = ["StepKernel", "Whole"]

StepKernel = Kernel | FlatKernel
"""Steps the weights in some rows, with optimizer values (numbers) that are read beforehand."""

Whole = Fused | Grouped | Single
"""A program stepped as a whole. Its `kernels` step all members, by row; there are none if kernels cannot step them at present."""
