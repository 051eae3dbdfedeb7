"""The parameter buffer: the weights of members that run as one program, in one matrix with a row for each member.

Contract. The modules of members in a parameter buffer hold views of its rows. Writes are seen on both sides, so a member's
`state_dict`, optimizer, schedule and checkpoint work unchanged. `dissolve` gives each tensor its own memory again. The modules'
tensors stay the same objects throughout.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

__all__ = ["ParameterBuffer", "Piece", "aligned_rows", "copy_into", "outside_buffer", "restorer", "stack_tensors"]

ALIGNED = 16
"""The distance between the starts of two rows is a multiple of this number of elements."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One trained weight's columns in a parameter buffer."""

    name: str
    shape: torch.Size
    start: int
    stop: int

    def of(self, row: Tensor) -> Tensor:
        """Return this weight as a view of a row ``[columns]``."""
        return row[self.start : self.stop].view(self.shape)

    def over(self, rows: Tensor) -> Tensor:
        """Return this weight of all rows ``[members, columns]`` as a view ``[members, *shape]``."""
        return rows[:, self.start : self.stop].view(len(rows), *self.shape)


@dataclass(eq=False)
class ParameterBuffer:
    """The stacked tensors of networks of one architecture."""

    weights: Tensor
    """All trained weights ``[members, columns]``."""
    pieces: Sequence[Piece]
    """Weights in the order of columns."""
    groups: Sequence[Sequence[Piece]]
    """The pieces of each parameter group of the optimizer, in adjacent columns."""
    fixed: dict[str, Tensor]
    """Untrained weights, by name."""
    buffers: dict[str, Tensor]
    """Buffers, stacked over members, by name."""
    parameters: Sequence[Sequence[nn.Parameter]]
    """Each member's own trained weights, in the order of the pieces."""
    _tensors: Sequence[Tensor]
    """All tensors of the members that are views of this buffer."""
    named: dict[str, Tensor] = field(init=False)
    """All weights as autograd sees them, including untrained ones, each ``[members, *shape]``."""
    _versions: dict[str, int] = field(default_factory=dict, init=False)
    """Versions of the untrained weights at the first call of `moving`."""

    def __post_init__(self) -> None:
        self.named = {piece.name: piece.over(self.weights).requires_grad_() for piece in self.pieces} | self.fixed

    @classmethod
    def of(cls, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> "ParameterBuffer":
        """Move networks with equal fingerprints into a new buffer."""
        named = [dict(model.named_parameters()) for model in models]
        names = {id(parameter): name for name, parameter in named[0].items() if parameter.requires_grad}
        groups: list[list[Piece]] = []
        start = 0
        for group in optimizers[0].param_groups:
            groups.append([])
            for parameter in group["params"]:
                if parameter.requires_grad:
                    stop = start + parameter.numel()
                    groups[-1].append(Piece(name=names[id(parameter)], shape=parameter.shape, start=start, stop=stop))
                    start = stop
        pieces = [piece for group in groups for piece in group]
        trained = [[parameters[piece.name] for piece in pieces] for parameters in named]
        weights = aligned_rows(trained[0][0], len(models), start)
        for row, parameters in zip(weights, trained, strict=True):
            for piece, parameter in zip(pieces, parameters, strict=True):
                parameter.data = piece.of(row).copy_(parameter.detach())
        fixed = stack_tensors([{n: p for n, p in own.items() if not p.requires_grad} for own in named])
        buffers = stack_tensors([dict(model.named_buffers()) for model in models])
        tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
        return cls(weights, pieces, groups, fixed, buffers, trained, tensors)

    def moving(self) -> list[Tensor]:
        """Return the untrained weights that a forward pass may change, as that of a momentum encoder does: at first all, then those that have changed."""
        before = self._versions
        self._versions = before or {name: weight._version for name, weight in self.fixed.items()}
        return [weight for name, weight in self.fixed.items() if weight._version != before.get(name)]

    def dissolve(self) -> None:
        """Give the members' tensors their own memory; the shared memory is freed with its last view."""
        self.weights, self.fixed, self.named, self.buffers = self.weights.new_empty(0), {}, {}, {}
        for tensor in self._tensors:
            tensor.data = tensor.data.clone()


def aligned_rows(like: Tensor, count: int, columns: int) -> Tensor:
    """Return new memory ``[count, columns]`` whose rows have the same alignment, because the rounding of a product may depend on it."""
    return like.detach().new_empty(count, -(-columns // ALIGNED) * ALIGNED)[:, :columns]


@contextlib.contextmanager
def outside_buffer(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Give weights that are views of common memory their own memory inside, so that products round as for a member alone."""
    views = [parameter.data for parameter in parameters]
    for parameter in parameters:
        parameter.data = parameter.data.clone()
    try:
        yield
    finally:
        for parameter, view in zip(parameters, views, strict=True):
            # A step inside may have moved the weights.
            parameter.data = view.copy_(parameter.data)


def stack_tensors(named: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack tensors of the same name; the members' own tensors become views of the stack."""
    stacked = {name: torch.stack([tensors[name].detach() for tensors in named]) for name in named[0]}
    for row, tensors in enumerate(named):
        for name, tensor in tensors.items():
            tensor.data = stacked[name][row]
    return stacked


@torch.no_grad()
def copy_into(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy values into tensors, to restore or set them."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def restorer(tensors: Sequence[Tensor]) -> Callable[[], None]:
    """Return a function that restores the present values of tensors."""
    return partial(copy_into, [tensor.clone() for tensor in tensors], tensors)
