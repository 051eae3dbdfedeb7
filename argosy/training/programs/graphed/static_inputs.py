"""Static buffers for the numbers of optimizer kernels (learning rates, decays, corrections), updated before each replay.

The numbers of several steps are computed and sent to the device at once, and each step copies its own on the device. They are valid
while the optimizers' settings do not change and step counts advance one by one. This is checked before each step that does not
directly follow another one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from argosy.stream.batches import copy_to_device
from argosy.training.device.kernel_forms import NUMBERS_PER_STEP, STEPS_AHEAD
from argosy.training.device.recorders import Uncaptured
from argosy.training.optim.kernels import Settings
from argosy.training.optim.rules import Steps
from argosy.training.programs.graphed.whole import StepKernel

__all__ = ["StaticInputs"]


class StaticInputs:
    """Static numbers of kernels whose weights have one dtype and device; initially zero."""

    def __init__(self, kernels: Sequence[StepKernel], like: Tensor) -> None:
        self._kernels = kernels
        self._form = [kernel.form for kernel in kernels]
        rows = [kernel.numbers(1).shape[1] for kernel in kernels]
        self._all = like.new_zeros(sum(rows), NUMBERS_PER_STEP)
        self.of_kernels: Sequence[Tensor] = torch.split(self._all, rows)
        """Arguments of `StepKernel.move`, by kernel."""
        self._settings: Settings = ()
        """Settings from which `_coming` was computed."""
        self._first: Steps = np.empty(0, np.float32)
        """Counts of steps made before the first step of `_coming`."""
        self._coming: Tensor = self._all.new_empty(0)
        """Numbers of coming steps on the device ``[steps, rows, 8]``."""
        self._next = 0
        """Index of the next step in `_coming`."""
        self._shown: int | None = None
        """Index of the step whose numbers are in the static buffers."""
        self._sure = False
        """Whether nothing has happened since `note_step`, so that settings and step counts need no check."""

    def forget(self) -> None:
        """Set all numbers to zero."""
        self._all.zero_()
        self._shown = None

    def set_numbers(self) -> None:
        """Set the numbers of the next step. Raises Uncaptured if a schedule changed which numbers a step takes."""
        if not self._sure or self._next == len(self._coming):
            self._find()
        self._sure = False
        if self._shown != self._next:
            self._shown = self._next
            self._all.copy_(self._coming[self._next])

    def note_step(self) -> None:
        """Advance to the next step: the last one was made, and settings have not changed."""
        self._sure = True
        if len(self._first):
            self._next += 1

    def invalidate(self) -> None:
        """Check settings and step counts before the next step: other code may have run."""
        self._sure = False

    def _find(self) -> None:
        """Find the numbers of the next step, or compute them."""
        settings = [own for kernel in self._kernels for own in kernel.settings]
        steps = np.concatenate([kernel.steps for kernel in self._kernels])
        if settings != self._settings:
            self._look_ahead(settings, steps, 1)  # only one, as a schedule may change settings at each step
        done = int(steps[0] - self._first[0]) if len(steps) else 0
        if not (0 <= done < len(self._coming) and np.array_equal(steps, self._first + done)):
            self._look_ahead(settings, steps, STEPS_AHEAD)
            done = 0
        self._next = done

    def _look_ahead(self, settings: Settings, steps: Steps, count: int) -> None:
        if [kernel.form for kernel in self._kernels] != self._form:
            raise Uncaptured("a schedule has changed the form of its steps")
        coming = torch.from_numpy(np.concatenate([kernel.numbers(count) for kernel in self._kernels], 1))
        self._coming = copy_to_device(coming.to(self._all.dtype), self._all.device)
        self._settings, self._first, self._shown = settings, steps, None
