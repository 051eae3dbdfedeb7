"""Static buffers for the numbers of optimizer kernels, updated before each replay of a captured step.

Those of several steps are computed and brought to the device at once, and each step copies its own there. They hold as long as the
optimizers' settings stay and steps are counted as foreseen: that is asked before each step that does not come directly after another one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from argosy.stream.batches import sent
from argosy.training.device.kernel_forms import AHEAD
from argosy.training.device.recorders import Uncaptured
from argosy.training.optim.kernels import Numbers, Settings, Steps
from argosy.training.programs.graphed.whole import StepKernel

__all__ = ["StaticInputs"]


class StaticInputs:
    """Static numbers of kernels with weights of one dtype and device; zero at first."""

    def __init__(self, kernels: Sequence[StepKernel], like: Tensor) -> None:
        self._kernels = kernels
        self._shapes = [own.shape[1:] for own in self._numbers(1)]
        sizes = [rows * columns for rows, columns in self._shapes]
        self._all = like.new_zeros(sum(sizes))
        parts = iter(torch.split(self._all, sizes))
        views = [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        counts = [len(kernel.numbers(1) or ()) for kernel in kernels]
        self.of_kernels: Sequence[Sequence[Tensor]] = [[views.pop(0) for _ in range(count)] for count in counts]
        """Arguments of `StepKernel.move`, by kernel."""
        self._settings: Settings = ()
        """Settings that the numbers at hand are of."""
        self._first: Steps = np.empty(0, np.float32)
        """Steps made before the first step that these are for."""
        self._coming: Tensor = self._all.new_empty(0)
        """These numbers on the device ``[steps, all]``."""
        self._next = 0
        """Which of them the coming step takes."""
        self._shown: int | None = None
        """Which of them the static ones are."""
        self._sure = False
        """Whether nothing but the last step has been done since it was told."""

    def forget(self) -> None:
        """Set all numbers to zero."""
        self._all.zero_()
        self._shown = None

    def set_numbers(self) -> None:
        """Set the numbers of the coming step. Raises Uncaptured where a schedule changed which numbers a step takes."""
        if not self._sure or self._next == len(self._coming):
            self._find()
        self._sure = False
        if self._shown != self._next:
            self._shown = self._next
            self._all.copy_(self._coming[self._next])

    def note_step(self) -> None:
        """Take the following numbers for the coming step: the last one was made, and settings have stayed."""
        self._sure = True
        if len(self._first):
            self._next += 1

    def doubt(self) -> None:
        """Look at settings and steps again: other code may have run."""
        self._sure = False

    def _find(self) -> None:
        """Find the numbers of the coming step, or compute them."""
        settings = [own for kernel in self._kernels for own in kernel.settings]
        steps = np.concatenate([kernel.steps for kernel in self._kernels])
        if settings != self._settings:
            self._look_ahead(settings, steps, 1)  # not farther, as a schedule may change them at each step
        made = int(steps[0] - self._first[0]) if len(steps) else 0
        if not (0 <= made < len(self._coming) and np.array_equal(steps, self._first + made)):
            self._look_ahead(settings, steps, AHEAD)
            made = 0
        self._next = made

    def _look_ahead(self, settings: Settings, steps: Steps, count: int) -> None:
        numbers = self._numbers(count)
        if [own.shape[1:] for own in numbers] != self._shapes:
            raise Uncaptured("a schedule has changed what its steps are made of")
        coming = torch.from_numpy(np.concatenate([own.reshape(count, -1) for own in numbers], 1))
        self._coming = sent(coming.to(self._all.dtype), self._all.device)
        self._settings, self._first, self._shown = settings, steps, None

    def _numbers(self, count: int) -> Sequence[Numbers]:
        found = [kernel.numbers(count) for kernel in self._kernels]
        there = [own for own in found if own is not None]
        if len(there) < len(found):
            raise Uncaptured("a schedule has changed what its steps are made of")
        return [own for of_kernel in there for own in of_kernel]
