"""The weights of members that run as one program, side by side: one matrix with a row for each member.

Contract. While they are in an parameter_buffer, the members' own modules hold views of its rows: what is written here is seen there and
the other way round, so a member's `state_dict`, optimizer, schedule and checkpoint stay what they are. `dissolve` gives each
tensor its own memory again. The modules' tensors stay the same objects all the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["ParameterBuffer", "Piece"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One trained weight's columns in an parameter_buffer."""

    name: str
    shape: torch.Size
    start: int
    stop: int

    def of(self, row: Tensor) -> Tensor:
        """The weight's view of a row ``[columns]``."""
        return row[self.start : self.stop].view(self.shape)

    def over(self, rows: Tensor) -> Tensor:
        """The weight's view of rows ``[members, columns]`` -> ``[members, *shape]``."""
        return rows[:, self.start : self.stop].view(len(rows), *self.shape)


class ParameterBuffer:
    """The tensors of some equal networks."""

    def __init__(
        self,
        weights: Tensor,
        pieces: Sequence[Piece],
        groups: Sequence[Sequence[Piece]],
        fixed: dict[str, Tensor],
        buffers: dict[str, Tensor],
        parameters: Sequence[Sequence[nn.Parameter]],
        tensors: Sequence[Tensor],
    ) -> None:
        self.weights = weights
        """All trained weights ``[members, columns]``."""
        self.pieces = pieces
        """In the order of the columns."""
        self.groups = groups
        """The pieces of each group of the optimizer, side by side."""
        self.fixed = fixed
        """Those that nobody trains."""
        self.named = {piece.name: piece.over(weights).requires_grad_() for piece in pieces} | fixed
        """What autograd sees of the weights, of those too that nobody trains: each ``[members, *shape]``."""
        self.buffers = buffers
        """The same of buffers."""
        self.parameters = parameters
        """Each member's own trained weights, in the order of the pieces."""
        self._tensors = tensors
        """All of the members' own that are views of this."""

    @classmethod
    def of(cls, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> "ParameterBuffer":
        """Take up networks that have one fingerprint."""
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
        weights = trained[0][0].detach().new_empty(len(models), start)
        for row, parameters in zip(weights, trained, strict=True):
            for piece, parameter in zip(pieces, parameters, strict=True):
                parameter.data = piece.of(row).copy_(parameter.detach())
        fixed = _stacked([{n: p for n, p in own.items() if not p.requires_grad} for own in named])
        buffers = _stacked([dict(model.named_buffers()) for model in models])
        tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
        return cls(weights, pieces, groups, fixed, buffers, trained, tensors)

    def dissolve(self) -> None:
        """Give the members' tensors memory of their own; what they shared is gone as soon as nobody has a view of it."""
        self.weights, self.fixed, self.named, self.buffers = self.weights.new_empty(0), {}, {}, {}
        for tensor in self._tensors:
            tensor.data = tensor.data.clone()


def _stacked(named: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of one name side by side; the members' own are views of that from here on."""
    stacked = {name: torch.stack([tensors[name].detach() for tensors in named]) for name in named[0]}
    for row, tensors in enumerate(named):
        for name, tensor in tensors.items():
            tensor.data = stacked[name][row]
    return stacked
