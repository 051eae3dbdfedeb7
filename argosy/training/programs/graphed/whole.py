"""The protocol of programs whose full step can be captured in one CUDA graph.

A whole step has two parts. The host runs `Whole.begin_whole` and `Whole.finish_whole`, with members' own code, `StepKernel.numbers` and
`StepKernel.note_step`. The device runs `Whole.whole_gradients` and `StepKernel.move`, which can be captured.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from argosy.training.device.recorders import InBranches
from argosy.training.optim.kernels import Settings
from argosy.training.optim.rules import Numbers, Steps
from argosy.training.programs.fused.device_draws import DeviceDraws
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.recorded import UnrecordedSteps

__all__ = ["StepKernel", "Whole"]


class StepKernel(Protocol):
    """Steps the weights in some rows, with optimizer values (numbers) that are read beforehand."""

    @property
    def rows(self) -> slice:
        """The rows that this kernel steps."""

    @property
    def moved(self) -> Sequence[Tensor]:
        """The tensors ``[rows, …]`` that a step updates besides the weights."""

    @property
    def allocates(self) -> bool:
        """Whether a step may run out of memory after it has updated some weights."""

    @property
    def settings(self) -> Settings:
        """Optimizer options, which schedules change. With `steps` they determine `numbers`."""

    @property
    def steps(self) -> Steps:
        """Counts of steps made, each of which a step increments; empty if `numbers` do not depend on them."""

    @property
    def form(self) -> Hashable:
        """What decides which operations make a step; a schedule may change it."""

    def numbers(self, count: int) -> Numbers:
        """Return the values for the next `count` steps, ``[count, rows of numbers, 8]``, valid as long as settings stay the same."""

    def move(self, gradients: Tensor, numbers: Tensor, in_branches: InBranches) -> None:
        """Make the device's part of a step along gradients ``[rows, columns]``; independent work runs `in_branches`."""

    def note_step(self) -> None:
        """Make the host's part of a step."""


class Whole(Protocol):
    """A program stepped as a whole."""

    @property
    def weights(self) -> Tensor:
        """All trained weights ``[rows, columns]``."""

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The networks' buffers, each ``[rows, …]``."""

    @property
    def kernels(self) -> Sequence[StepKernel]:
        """The kernels that step all members, by row; empty if kernels cannot step them at present."""

    @property
    def draws(self) -> DeviceDraws | None:
        """Draws on the device inside `whole_gradients`; None if nothing is drawn, or from the device's own generator."""

    @property
    def made(self) -> UnrecordedSteps:
        """The locksteps that the members have made as a whole."""

    def begin_whole(self, batch: Any) -> PackInputs | None:
        """Return the members' samples in what the program cut, augmented and checked; updates the statistics of averages with them.

        Returns None for batches that are not stepped as a whole.
        """

    def whole_gradients(self, data: PackInputs, in_branches: InBranches) -> tuple[Tensor, Tensor]:
        """Compute loss sums, float64 ``[members]``, and clipped gradients ``[rows, columns]``; independent work runs `in_branches`.

        Raises Uncaptured if kernels cannot step along the gradients.
        """

    def finish_whole(self, totals: Tensor) -> int:
        """Update the averages and commit, after all members have stepped; returns the number of samples."""

    def undo(self) -> None:
        """Undo what `begin_whole` has changed since the last finished step, and drop the gradients."""

    def watch(self) -> Callable[[], None]:
        """Start to watch for effects that a replay would omit; returns a function that raises Uncaptured if there were any."""

    def release(self) -> None:
        """Release everything but the members' states."""
