"""The program of several different MLPs: one pass by `waves`, and a step of each member's own optimizer.

Depth, widths, activations, dropout rates and optimizers may differ; batches, losses and the number of outputs must be the same.
"""

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from argosy.training.device.own_kernels import find_kernels
from argosy.training.device.recorders import InBranches, Uncaptured, run_in_turn
from argosy.training.member.live import BatchLengths, LiveMember
from argosy.training.member.tally import batch_totals
from argosy.training.optim.flat_kernel import FlatKernel
from argosy.training.optim.kernels import optimizer_kind
from argosy.training.optim.one_pass import apply_moves, prepare_moves
from argosy.training.optim.parameter_buffer import outside_buffer
from argosy.training.optim.rules import has_momentum
from argosy.training.programs.fused.fingerprint import token
from argosy.training.programs.fused.forward import PackInputs, losses_of
from argosy.training.programs.fused.lockstep import Lockstep
from argosy.training.programs.fused.several import ProgramOfSeveral, not_none
from argosy.training.programs.fused.waves import Waves, layer_sort_key, layers_of

__all__ = ["Grouped", "grouping_key"]


def grouping_key(live: LiveMember) -> Any:
    """Return what members must have in common to be one program of different MLPs; None if a member can be in no such program."""
    member, layers = live.member, layers_of(live.model)
    plain = member.step is None and member.augment is None and member.accumulate == 1 and member.average is None
    device = live.backend.device
    if layers is None or not plain or member.precision != "float32":
        return None
    if device.type != "cpu" and find_kernels(device) is None:
        return None
    last, size = layers[-1].linear, member.eval_batch_size or member.batch_size
    ends = layers[0].linear.in_features, last.out_features, last.weight.dtype
    return token(member.loss), member.batch_size, size, *ends


OF_EACH = 32
"""Fixed cost of a member's step, as a number of outputs per sample that take as long (measured with batches of 32 to 256)."""


class Grouped(ProgramOfSeveral):
    """The `ProgramOfSeveral` for different MLPs."""

    buffers: ClassVar[Mapping[str, Tensor]] = MappingProxyType({})
    """Implement `ProgramOfSeveral.buffers`: MLPs have none."""

    def __init__(self, lives: Sequence[LiveMember], lengths: BatchLengths | None) -> None:
        super().__init__(lives, lengths)
        costs = [OF_EACH + _numbers(live) for live in lives]
        total = sum(costs)
        self._parts = [cost / total for cost in costs]
        self.waves: Waves = Waves.of([live.model for live in lives])
        """The members' layers."""
        gradients = {id(weight): gradient for weight, gradient in self.waves.gradients()}
        self._gradients: list[list[tuple[nn.Parameter, Tensor]]] = [
            [(weight, gradients[id(weight)]) for weight in live.model.parameters()] for live in lives
        ]
        """Each member's weights with their gradients, which a pass overwrites."""
        self._keeping: list[bool] = [optimizer_kind(live.optimizer) is None for live in lives]
        """Whether each member's optimizer may keep its gradients from one step to the next."""
        self._moves: dict[tuple[int, Hashable], Sequence[Callable[[], object]]] = {}
        """Prepared steps by row and by whether there is momentum, reused because they only run kernels on the same tensors."""
        self.kernels: Sequence[FlatKernel] = ()
        """The kernel of all members, after `gather_states`."""

    @classmethod
    def of(cls, lives: Sequence[LiveMember], lengths: BatchLengths | None = None) -> "Grouped":
        """Return the program of members that passed the equivalence check; they step as one on batches of these `lengths`."""
        return cls(sorted(lives, key=lambda live: (layer_sort_key(live.model), live.member.name)), lengths)

    def gather_states(self) -> None:
        """Move the optimizers' states next to the weights, for one kernel that steps all members.

        Raises Uncaptured if some of a member's weights have made fewer steps than others.
        """
        kernel = FlatKernel.of([live.optimizer for live in self.members], not_none(self.waves.memory))
        if kernel is None:
            raise Uncaptured("some of a member's weights have made fewer steps than others")
        self.kernels = (kernel,)

    @property
    def weights(self) -> Tensor:
        """All trained weights, as one row."""
        return not_none(self.waves.memory).weights.unsqueeze(0)

    def gradients(self, row: int) -> dict[str, Tensor]:
        """Implement `ProgramOfSeveral.gradients`."""
        names = [name for name, _ in self.members[row].model.named_parameters()]
        return {name: gradient for name, (_, gradient) in zip(names, self._gradients[row], strict=True)}

    def _train(self, mode: bool) -> None:
        """Do nothing: layers drop out if random states are given."""

    def _for_kernels(self, passed: Tensor) -> tuple[Tensor, Tensor]:
        return passed, not_none(self.waves.memory).gradients.unsqueeze(0)

    def _differentiated(self, data: PackInputs, in_branches: InBranches = run_in_turn) -> Tensor:
        """Compute the gradients of all members; returns their loss sums, float64 ``[members]``."""
        with torch.no_grad():
            outputs = self.waves.forward(data.tree[0], self._states, in_branches)
        self._foreseen.check_output(outputs[0])
        leaf = outputs.detach().requires_grad_()
        losses = losses_of(self.members[0].member.loss, leaf, data, self._states)
        (slopes,) = torch.autograd.grad(losses, leaf, self._share(losses))
        with torch.no_grad():
            self.waves.backward(data.tree[0], slopes, in_branches)
        return batch_totals(losses.detach(), data.samples)

    def _finish_as_one(self, passed: Tensor) -> Tensor:
        for row, live in enumerate(self.members):
            key = row, tuple(map(has_momentum, live.optimizer.param_groups))  # a schedule may switch it on
            if key in self._moves:
                apply_moves(live.optimizer, self._moves[key])
                continue
            with self._own(row):
                self._move(row, key)
        return passed

    def _move(self, row: int, key: tuple[int, Hashable]) -> None:
        """Step a member along its gradients, as it does alone."""
        live = self.members[row]
        for weight, gradient in self._gradients[row]:
            weight.grad = gradient
        moves = prepare_moves(live.optimizer) if live.one_pass else None
        if moves is None or live.member.clip_grad_norm is not None or live.has_batch_schedule:
            for weight, gradient in self._gradients[row] if self._keeping[row] else ():
                weight.grad = gradient.clone()
            with self._states[row].active():
                self._solos[row].move()
        else:
            apply_moves(live.optimizer, moves)
            self._moves[key] = moves
            self._solos[row].drop_gradients()

    def evaluated(self, data: PackInputs, in_branches: InBranches = run_in_turn) -> tuple[Tensor, Any]:
        """Implement `ProgramOfSeveral.evaluated`."""
        outputs = self.waves.forward(data.tree[0], None, in_branches).clone()
        self._foreseen.check_output(outputs[0])
        return losses_of(self.members[0].member.loss, outputs, data, self._states), outputs

    def _evaluate(self, lockstep: Lockstep) -> None:
        values, into = self._found(self._samples(lockstep)), [live.val for live in self.members]
        self._validate(lockstep, range(len(self.members)), values, into)

    def _samples(self, lockstep: Lockstep) -> PackInputs:
        """Return the samples of a lockstep; raises ValueError unless they are the same pairs of tensors for all members."""
        data = self.inputs(lockstep)
        if data.apart or not data.has_tensor_inputs:
            raise ValueError("different members can be one program only on the same pairs of inputs and targets")
        return data

    def _outside(self, row: int) -> contextlib.AbstractContextManager[None]:
        return outside_buffer([weight for weight, _ in self._gradients[row]])

    def _dissolve(self) -> None:
        for kernel in self.kernels:
            kernel.dissolve()
        self._gradients, self._moves, self.kernels = [], {}, ()
        self.waves.dissolve()


def _numbers(live: LiveMember) -> int:
    """Return the number of outputs that a network's layers compute per sample; its time in a program grows in proportion."""
    return sum(layer.linear.out_features for layer in layers_of(live.model) or ())
