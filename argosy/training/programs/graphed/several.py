"""Adapters that let the steps of programs of several members be captured (`argosy.training.programs.graphed.whole`)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from argosy.training.device.recorders import InBranches, Uncaptured
from argosy.training.member.randomness import Mark
from argosy.training.optim.flat_kernel import FlatKernel
from argosy.training.optim.kernels import Kernel
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.device_draws import DeviceDraws
from argosy.training.programs.fused.draws import has_dropout
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.fused.lockstep import Lockstep, common_length
from argosy.training.programs.fused.recorded import UnrecordedSteps
from argosy.training.programs.fused.several import ProgramOfSeveral, not_none
from argosy.training.programs.graphed.whole import EffectCheck, all_have_gradients

__all__ = ["OfFused", "OfGrouped", "OfSeveral"]


class OfSeveral:
    """The common part of the adapters."""

    def __init__(self, program: ProgramOfSeveral) -> None:
        self._program = program
        self.made: UnrecordedSteps = program.made
        drops = any(has_dropout(live.model) for live in program.members)
        states = [live.randomness for live in program.members]
        self.draws: DeviceDraws | None = DeviceDraws.of(states) if drops else None
        """`Whole.draws`."""

    def lockstep(self, batch: Lockstep) -> Lockstep | None:
        """Return the batches if they are equally long, else None."""
        return None if common_length(batch) is None else batch

    def mark(self) -> Sequence[Mark]:
        """Return each member's random state."""
        return self._program.marks()

    def undo(self, to: Sequence[Mark] | None) -> None:
        """Implement `Whole.undo`."""
        if to is not None:
            self._program.go_back(to)
        self._program.undo()  # restores the program's own snapshots if the lockstep was not made as a whole

    def watch(self) -> EffectCheck:
        """Watch only random states: the equivalence check has excluded other effects."""
        before = self._program.marks()

        def again() -> None:
            # Each member draws from its own state, which the host copies into the generator; a replay does not repeat that.
            if self._program.drew_since(before):
                raise Uncaptured("its members draw random numbers, each from its own state")

        return again


class OfFused(OfSeveral):
    """The `Whole` of a `Fused` program."""

    def __init__(self, fused: Fused) -> None:
        super().__init__(fused)
        self._fused = fused
        self.parameter_buffer: ParameterBuffer = fused.parameter_buffer

    @property
    def kernels(self) -> Sequence[Kernel]:
        """Kernels of the fused program."""
        return self._fused.kernels

    def inputs(self, lockstep: Lockstep) -> PackInputs:
        """Implement `Whole.inputs`."""
        data = self._fused.inputs(lockstep)
        self._fused.recompute(data)
        return data

    def gradients(self, data: PackInputs, in_branches: InBranches) -> tuple[Tensor, Tensor]:
        """Implement `Whole.gradients`."""
        with self._fused.drawing(self.draws):
            part = self._fused.whole(data)
        all_have_gradients(part.idle)
        return part.totals, part.gradients

    def follow(self) -> None:
        """Implement `Whole.follow`."""
        self._fused.follow()

    def release(self) -> None:
        """Implement `Whole.release`."""
        self._fused.release()


class AsOneRow(NamedTuple):
    """The weights of different members as one row."""

    weights: Tensor
    buffers: Mapping[str, Tensor] = MappingProxyType({})


class OfGrouped(OfSeveral):
    """The `Whole` of a `Grouped` program."""

    def __init__(self, grouped: Grouped, kernel: FlatKernel) -> None:
        super().__init__(grouped)
        self._grouped = grouped
        self.kernels: Sequence[FlatKernel] = (kernel,)
        """The kernel of all members."""

    @classmethod
    def of(cls, grouped: Grouped) -> "OfGrouped":
        """Move the optimizers' states next to the weights. Raises Uncaptured if some of a member's weights have made fewer steps than others."""
        kernel = FlatKernel.of([live.optimizer for live in grouped.members], not_none(grouped.waves.memory))
        if kernel is None:
            raise Uncaptured("some of a member's weights have made fewer steps than others")
        return cls(grouped, kernel)

    @property
    def parameter_buffer(self) -> AsOneRow:
        """The weights."""
        return AsOneRow(not_none(self._grouped.waves.memory).weights.unsqueeze(0))

    def inputs(self, lockstep: Lockstep) -> PackInputs:
        """Implement `Whole.inputs`."""
        return self._grouped.shared(lockstep)

    def gradients(self, data: PackInputs, in_branches: InBranches) -> tuple[Tensor, Tensor]:
        """Implement `Whole.gradients`."""
        with self._grouped.drawing(self.draws):
            totals = self._grouped.passed(data, in_branches)
        return totals, not_none(self._grouped.waves.memory).gradients.unsqueeze(0)

    def follow(self) -> None:
        """Do nothing: no member of a grouped program has an average."""

    def release(self) -> None:
        """Implement `Whole.release`."""
        self.kernels[0].dissolve()
        self._grouped.release()
