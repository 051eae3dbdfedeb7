"""The protocol of adapters that let the full step of a program be captured in one CUDA graph.

A whole step has two parts. The host runs `inputs`, with members' own code, `StepKernel.numbers` and `StepKernel.note_step`. The
device runs `gradients` and `StepKernel.move`, which can be captured.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from argosy.training.device.recorders import InBranches, Uncaptured
from argosy.training.optim.kernels import Settings
from argosy.training.optim.rules import Numbers, Steps
from argosy.training.programs.fused.device_draws import DeviceDraws
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.lockstep import Lockstep
from argosy.training.programs.fused.recorded import UnrecordedSteps

__all__ = ["EffectCheck", "StepKernel", "Stored", "Whole", "all_have_gradients"]

EffectCheck = Callable[[], None]
"""Raises Uncaptured if a replay would omit an effect of the work done since `Whole.watch`."""


class Stored(Protocol):
    """Tensors that a step updates."""

    @property
    def weights(self) -> Tensor:
        """All trained weights ``[rows, columns]``."""

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The networks' buffers, each ``[rows, …]``."""


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

    def numbers(self, count: int) -> Sequence[Numbers] | None:
        """Return the values for the next `count` steps, each ``[count, rows, numbers]``, valid as long as settings stay the same.

        None if a schedule has changed which operations make a step.
        """

    def move(self, gradients: Tensor, numbers: Sequence[Tensor], in_branches: InBranches) -> None:
        """Make the device's part of a step along gradients ``[rows, columns]``; independent work runs `in_branches`."""

    def note_step(self) -> None:
        """Make the host's part of a step."""


class Whole(Protocol):
    """A program stepped as a whole."""

    @property
    def parameter_buffer(self) -> Stored:
        """The members' weights and buffers."""

    @property
    def kernels(self) -> Sequence[StepKernel]:
        """The kernels that step all members, by row; empty if kernels cannot step them at present."""

    @property
    def draws(self) -> DeviceDraws | None:
        """Draws on the device inside `gradients`; None if nothing is drawn, or from the device's own generator."""

    @property
    def made(self) -> UnrecordedSteps:
        """The locksteps that the members have made as a whole."""

    def lockstep(self, batch: Any) -> Lockstep | None:
        """Return each member's batch from what the program cut; None if these batches are not stepped as a whole."""

    def mark(self) -> Any:
        """Return a snapshot of the members' random states and all else that `undo` has to restore."""

    def undo(self, to: Any) -> None:
        """Restore a snapshot, unless it is None, and drop the gradients."""

    def inputs(self, lockstep: Lockstep) -> PackInputs:
        """Return the members' samples, augmented and checked; updates the statistics of averages with them."""

    def gradients(self, data: PackInputs, in_branches: InBranches) -> tuple[Tensor, Tensor]:
        """Compute loss sums, float64 ``[members]``, and clipped gradients ``[members, columns]``; independent work runs `in_branches`.

        Raises Uncaptured if kernels cannot step along the gradients.
        """

    def follow(self) -> None:
        """Update the averages after a step."""

    def watch(self) -> EffectCheck:
        """Start to watch for effects that a replay would omit; returns the check for them."""

    def release(self) -> None:
        """Release everything but the members' states."""


def all_have_gradients(idle: Collection[str]) -> None:
    """Raise Uncaptured for weights without a gradient."""
    if idle:
        raise Uncaptured(f"the weight {min(idle)!r} gets no gradient, so its optimizer skips it")
