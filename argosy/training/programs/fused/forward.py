"""The forward pass of several members of one architecture at once: `torch.vmap` over their tensors.

One copy of the network computes for all members. During a pass it holds their stacked parameters and buffers, which a vectorised
function sees as those of one member; afterwards it holds its own again.
"""

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from argosy.stream.copied import copy_network
from argosy.stream.trees import flatten, map_leaves, unflatten
from argosy.study import Member
from argosy.training.member.precision import autocast, autocast_dtype, widen_losses
from argosy.training.member.running_average import norms_of
from argosy.training.programs.fused.device_draws import States
from argosy.training.programs.fused.draws import PerMemberDraws, set_own_rates
from argosy.training.programs.fused.layers import Layers
from argosy.training.programs.fused.vectorised import vectorise
from argosy.training.programs.program import UnfitProgram
from argosy.training.programs.solo import cross_entropy, pair_of

__all__ = ["PackInputs", "Forward", "losses_of"]

Slots = list[tuple[dict[str, Any], str]]
"""Places of a tensor in modules' tables; a tied tensor has more than one."""


@dataclass(frozen=True, slots=True)
class PackInputs:
    """The samples of several members: the same for all, or each member's own."""

    tree: Any
    """Each leaf is ``[samples, …]``, or ``[members, samples, …]`` if `apart`."""
    samples: int
    apart: bool

    @classmethod
    def of(cls, trees: Sequence[Any], samples: int) -> "PackInputs":
        """Stack each member's own samples."""
        parts, structures = zip(*map(flatten, trees), strict=True)
        leaves = [torch.stack(own) for own in zip(*parts, strict=True)]
        return cls(unflatten(leaves, structures[0]), samples, apart=True)

    @property
    def has_tensor_inputs(self) -> bool:
        """Whether the samples are pairs whose input is a tensor ``[samples, …]`` of at least two dimensions."""
        pair = isinstance(self.tree, tuple | list) and len(self.tree) == 2
        return pair and isinstance(self.tree[0], Tensor) and self.tree[0].dim() >= 2 + self.apart

    def pieces(self, count: int) -> Iterator["PackInputs"]:
        """Yield `count` micro-batches."""
        if count == 1:
            yield self
            return
        size = -(-self.samples // count)
        for start in range(0, self.samples, size):
            part: Any = slice(start, start + size)
            select = operator.itemgetter((slice(None), part) if self.apart else part)
            yield PackInputs(map_leaves(select, self.tree), min(size, self.samples - start), self.apart)


class Forward:
    """Computes the losses and outputs of members; between two passes it holds none of their tensors."""

    def __init__(self, network: nn.Module, member: Member, device: torch.device) -> None:
        self._network = network
        self._member = member
        self._device = device
        self._slots = _slots(network)
        self._own = {name: self._held(name) for name in self._slots}
        plain = device.type == "cpu" and self.compute_dtype == torch.float32 and member.step is None
        self._layers = Layers.of(network) if plain else None
        self.norms: list[Any] = norms_of(network)
        """Layers with batch statistics."""
        self._training = True

    @classmethod
    def of(cls, models: Sequence[nn.Module], member: Member, device: torch.device) -> "Forward":
        """Return the forward pass of networks with one fingerprint; `member` has the loss and metrics of all."""
        network = copy_network(models[0])
        set_own_rates(network, models)
        return cls(network, member, device)

    def train(self, mode: bool) -> None:
        """Switch to training or evaluation."""
        self._training = mode
        self._network.train(mode)

    def values(
        self,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        data: PackInputs,
        states: States,
        check_output: Callable[[Any], None],
    ) -> tuple[Tensor, Any]:
        """Return the losses of each member ``[members, …]`` and, in evaluation, the networks' outputs; updates `buffers` in place.

        Weights and buffers are ``[members, *shape]``, leaves of outputs ``[members, samples, …]``; `states` are the members' random
        states. `check_output` is called with a network's output before the loss.
        """
        if self._layers is not None and data.has_tensor_inputs:  # for a plain MLP, only a custom loss is vectorised
            inputs = data.tree[0] if data.apart else data.tree[0].expand(len(states), *data.tree[0].shape)
            output = self._layers.outputs(inputs, weights, states)
            check_output(output[0])
            return losses_of(self._member.loss, output, data, states), None if self._training else output
        member, (leaves, structure) = self._member, flatten(data.tree)
        moved: list[str] = []
        made_as: list[Any] = []

        def of_one(*given: Tensor) -> tuple[Tensor, ...]:
            tensors = dict(zip((*weights, *buffers), given, strict=False))
            samples = unflatten(given[len(tensors) :] if data.apart else leaves, structure)
            try:
                self._hold(tensors)
                with PerMemberDraws(states):
                    losses, output = self._of_one(samples, check_output)
                after = {name: self._held(name) for name in buffers}
            finally:
                self._hold(self._own)
            # In lists from outside, because a vectorised function returns tensors only.
            moved[:] = [name for name, tensor in after.items() if tensor is not tensors[name]]
            parts, tree = flatten(output)
            for part in parts:
                if not isinstance(part, Tensor):  # such as a distribution: it would hold all members' tensors
                    raise UnfitProgram(f"its network returns {type(part).__name__}, which is not a tensor")
            made_as[:] = [tree]
            return (*losses, *parts, *(after[name] for name in moved))

        own_data = leaves if data.apart else ()
        with self.autocast():
            results = vectorise(of_one, (*weights.values(), *buffers.values(), *own_data))
            with torch.no_grad():
                # They come last, behind losses and output.
                for name in reversed(moved):
                    buffers[name].copy_(results.pop())
            own = [] if member.step is None and member.loss is None else [results.pop(0)]
            output = unflatten(results, made_as[0])
            losses = own[0] if own else _cross_entropies(output, data)
        return losses, None if self._training or member.step is not None else output

    def losses_of_one(
        self, tensors: Mapping[str, Tensor], buffers: Sequence[str], leaves: Sequence[Tensor], data: PackInputs
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute one member's losses with these tensors, and its buffers afterwards, for compiled code."""
        samples = unflatten(leaves, flatten(data.tree)[1])
        try:
            self._hold(tensors)
            own, output = self._of_one(samples, lambda output: None)
            losses = own[0] if own else cross_entropy(output, pair_of(self._member, samples)[1])
            return widen_losses(losses), [self._held(name) for name in buffers]
        finally:
            self._hold(self._own)

    def _of_one(self, data: Any, check_output: Callable[[Any], None]) -> tuple[tuple[Tensor, ...], Any]:
        """Compute as `Solo` does: the losses (none for the default loss), and the output if it is needed."""
        member = self._member
        if member.step is not None:
            result = member.step(self._network, data)
            return (result[0] if isinstance(result, tuple) else result,), ()
        inputs, target = pair_of(member, data)
        output = self._network(inputs)
        check_output(output)
        if member.loss is None:
            return (), output
        return (member.loss(output, target),), () if self._training else output

    def _hold(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            for table, key in self._slots[name]:
                table[key] = tensor

    def _held(self, name: str) -> Tensor:
        table, key = self._slots[name][0]
        tensor: Tensor = table[key]
        return tensor

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of operators that torch autocasts."""
        return autocast_dtype(self._member)

    def autocast(self, *, cached: bool = True) -> contextlib.AbstractContextManager[Any]:
        """Compute in the members' precision inside."""
        return autocast(self._member, self._device, cached=cached)


def losses_of(loss: Callable[[Any, Any], Any] | None, output: Tensor, data: PackInputs, states: States) -> Tensor:
    """Return the losses of all members ``[members, …]`` from outputs ``[members, samples, …]`` and the targets in `data`."""
    if loss is None:
        return _cross_entropies(output, data)
    leaves, structure = flatten(data.tree[1])

    def of_one(output: Tensor, *own: Tensor) -> tuple[Tensor]:
        with PerMemberDraws(states):
            return (loss(output, unflatten(own or leaves, structure)),)

    (losses,) = vectorise(of_one, (output, *(leaves if data.apart else ())))
    return losses


def _cross_entropies(output: Tensor, data: PackInputs) -> Tensor:
    """Return the default loss ``[members, samples]`` of outputs ``[members, samples, classes]``.

    This loss is per sample, so members are simply more samples, each with the bits that it has alone. Vectorised by torch it takes
    ten times as long. (With classes before samples it takes a quarter of the time, but rounds differently.)
    """
    target: Tensor = data.tree[1] if data.apart else data.tree[1].expand(len(output), *data.tree[1].shape)
    losses = cross_entropy(output.flatten(0, 1), target.flatten(0, 1))
    return losses.view(*output.shape[:2], *losses.shape[1:])


def _slots(network: nn.Module) -> dict[str, Slots]:
    """Return the places of each tensor in the modules' tables, by the tensor's first name."""
    names = {id(tensor): name for name, tensor in (*network.named_parameters(), *network.named_buffers())}
    slots: dict[str, Slots] = {name: [] for name in names.values()}
    for module in network.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for key, tensor in table.items():
                if tensor is not None:
                    slots[names[id(tensor)]].append((table, key))
    return slots
