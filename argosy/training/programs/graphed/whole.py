"""The protocol of adapters that let the full step of a program be captured in one CUDA graph.

A whole step has two parts. The host's are `inputs`, with members' own code, `StepKernel.note_step` and the numbers of kernels; the
device's are `gradients` and `StepKernel.move`, which can be captured.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from argosy.training.device.recorders import InBranches, Uncaptured
from argosy.training.optim.kernels import Numbers, Settings, Steps
from argosy.training.programs.fused.device_draws import DeviceDraws
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.lockstep import Lockstep
from argosy.training.programs.fused.recorded import Made

__all__ = ["EffectCheck", "StepKernel", "Stored", "Whole", "all_have_gradients"]

EffectCheck = Callable[[], None]
"""Raises Uncaptured where a captured step would leave out an effect of the work done since."""


class Stored(Protocol):
    """Tensors that a step moves."""

    @property
    def weights(self) -> Tensor:
        """All trained weights ``[rows, columns]``."""

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The networks' buffers, each ``[rows, …]``."""


class StepKernel(Protocol):
    """Steps the weights in some rows, by numbers that are read before."""

    @property
    def rows(self) -> slice:
        """Its rows."""

    @property
    def moved(self) -> Sequence[Tensor]:
        """The tensors ``[rows, …]`` that a step moves beside the weights."""

    @property
    def allocates(self) -> bool:
        """Whether a step may run out of memory when it has moved some weights."""

    @property
    def settings(self) -> Settings:
        """What the numbers of steps come from, beside the `steps` made: options of optimizers, which schedules change."""

    @property
    def steps(self) -> Steps:
        """The numbers of steps made, all of which grow by one with each; none where the numbers of steps do not depend on them."""

    def numbers(self, count: int) -> Sequence[Numbers] | None:
        """Return the numbers of the coming steps, each ``[count, rows, numbers]``, as long as settings stay.

        None where a schedule changed what a step is made of.
        """

    def move(self, gradients: Tensor, numbers: Sequence[Tensor], in_branches: InBranches) -> None:
        """Do the device's part of a step along gradients ``[rows, columns]``; independent work `in_branches`."""

    def note_step(self) -> None:
        """Do the host's part of a step."""


class Whole(Protocol):
    """A program stepped as a whole."""

    @property
    def parameter_buffer(self) -> Stored:
        """The members' weights and buffers."""

    @property
    def kernels(self) -> Sequence[StepKernel]:
        """The kernels that step all members, by row; none where they cannot at present."""

    @property
    def draws(self) -> DeviceDraws | None:
        """What draws on the device inside of `gradients`; None where nothing does, or the device's one generator."""

    @property
    def made(self) -> Made:
        """The locksteps that the members have made as a whole."""

    def lockstep(self, batch: Any) -> Lockstep | None:
        """Return each member's batch from what the program cut; None where they are not stepped as a whole."""

    def mark(self) -> Any:
        """Return a snapshot of the members' random states, and of what else `undo` has to restore."""

    def undo(self, to: Any) -> None:
        """Return to a snapshot, None for none, and drop the gradients."""

    def inputs(self, lockstep: Lockstep) -> PackInputs:
        """Return the members' samples, augmented and checked; statistics of averages follow them."""

    def gradients(self, data: PackInputs, in_branches: InBranches) -> tuple[Tensor, Tensor]:
        """Compute loss sums, float64 ``[members]``, and clipped gradients ``[members, columns]``; independent work `in_branches`.

        Raises Uncaptured where kernels cannot step along them.
        """

    def follow(self) -> None:
        """Bring the averages up to date after a step."""

    def watch(self) -> EffectCheck:
        """Watch from here on; returns the check."""

    def release(self) -> None:
        """Release everything but the members' states."""


def all_have_gradients(idle: Collection[str]) -> None:
    """Raise Uncaptured for weights without a gradient."""
    if idle:
        raise Uncaptured(f"the weight {min(idle)!r} gets no gradient, and its optimizer leaves it alone")
