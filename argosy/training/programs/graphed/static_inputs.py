"""Static buffers for the numbers of optimizer kernels, updated before each replay of a captured step."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from argosy.stream.batches import sent
from argosy.training.device.recorders import Uncaptured
from argosy.training.optim.kernels import Numbers
from argosy.training.programs.graphed.whole import StepKernel

__all__ = ["StaticInputs"]


class StaticInputs:
    """Static numbers of kernels with weights of one dtype and device; zero at first."""

    def __init__(self, kernels: Sequence[StepKernel], like: Tensor) -> None:
        self._kernels = kernels
        self._shapes = [[own.shape for own in numbers] for numbers in _numbers(kernels)]
        sizes = [rows * columns for shapes in self._shapes for rows, columns in shapes]
        self._all = like.new_zeros(sum(sizes))
        parts = iter(torch.split(self._all, sizes))
        self.of_kernels: Sequence[Sequence[Tensor]] = [
            [next(parts).view(shape) for shape in shapes] for shapes in self._shapes
        ]
        """Arguments of `StepKernel.move`, by kernel."""
        self._shown: Numbers | None = None

    def forget(self) -> None:
        """Set all numbers to zero."""
        self._all.zero_()
        self._shown = None

    def set_numbers(self) -> None:
        """Set the numbers of the coming step. Raises Uncaptured where a schedule changed which numbers a step takes."""
        numbers = _numbers(self._kernels)
        if [[own.shape for own in of_kernel] for of_kernel in numbers] != self._shapes:
            raise Uncaptured("a schedule has changed what its steps are made of")
        shown = np.concatenate([own.ravel() for of_kernel in numbers for own in of_kernel])
        if self._shown is None or not np.array_equal(shown, self._shown):
            self._shown = shown
            self._all.copy_(sent(torch.from_numpy(shown).to(self._all.dtype), self._all.device))


def _numbers(kernels: Sequence[StepKernel]) -> Sequence[Sequence[Numbers]]:
    found = [kernel.numbers() for kernel in kernels]
    there = [own for own in found if own is not None]
    if len(there) < len(found):
        raise Uncaptured("a schedule has changed what its steps are made of")
    return there
