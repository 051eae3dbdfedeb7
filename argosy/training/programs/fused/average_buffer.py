"""The averages of members in one program, as one matrix with the layout of their weights (`ParameterBuffer`).

As in that buffer, each member's own average holds views of the matrix until `dissolve` gives it memory of its own again.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from argosy.training.member.live import LiveMember
from argosy.training.member.running_average import RunningAverage
from argosy.training.optim.parameter_buffer import ParameterBuffer, aligned_rows, restorer, stack_tensors

__all__ = ["AverageBuffer"]


class AverageBuffer:
    """The averages of members, by row."""

    def __init__(self, averages: Sequence[RunningAverage], parameter_buffer: ParameterBuffer, values: Tensor) -> None:
        self._averages = averages
        self._own: dict[str, Tensor] = stack_tensors([average.buffers for average in averages])
        self._weights = parameter_buffer.weights
        self._values = values
        averaged = {piece.name: piece.over(values) for piece in parameter_buffer.pieces}
        self.named: dict[str, Tensor] = averaged | parameter_buffer.fixed
        """Weights for a forward pass with averages, each ``[members, *shape]``."""
        self.buffers: dict[str, Tensor] = self._own or parameter_buffer.buffers
        """Buffers for that pass, likewise."""
        shares = [average.share for average in averages]
        self._shares = None if shares[0] is None else values.new_tensor(shares).unsqueeze(1)
        """How far a step moves each average ``[members, 1]``; None if only ends of epochs move them."""

    @classmethod
    def of(cls, lives: Sequence[LiveMember], parameter_buffer: ParameterBuffer) -> "AverageBuffer | None":
        """Move the averages of members into a new buffer; returns None if they have no averages."""
        averages = [live.average for live in lives if live.average is not None]
        if not averages:
            return None
        weights = parameter_buffer.weights
        values = aligned_rows(weights, *weights.shape)
        for row, average, own in zip(values, averages, parameter_buffer.parameters, strict=True):
            numbers = {id(weight): number for number, weight in enumerate(average.weights)}
            for piece, weight in zip(parameter_buffer.pieces, own, strict=True):
                number = numbers[id(weight)]
                average.values[number] = piece.of(row).copy_(average.values[number])
        return cls(averages, parameter_buffer, values)

    @torch.no_grad()
    def step(self) -> None:
        """Update the averages after a step of all members, with the bits of `RunningAverage.step`."""
        if self._shares is None:
            return
        self._values.lerp_(self._weights, self._shares)
        for row, average in enumerate(self._averages):
            if not average.count:
                self._values[row].copy_(self._weights[row])
            average.count += 1

    def statistics_restorer(self) -> Callable[[], None]:
        """Return a function that restores all statistics, as `RunningAverage.statistics_restorer` does."""
        restore, batches = restorer([*self._own.values()]), [one.batches for one in self._averages]

        def go_back() -> None:
            restore()
            for average, count in zip(self._averages, batches, strict=True):
                average.batches = count

        return go_back

    def dissolve(self) -> None:
        """Give each average memory of its own."""
        for average in self._averages:
            for buffer in average.buffers.values():
                buffer.data = buffer.data.clone()
        self.named, self.buffers, self._own = {}, {}, {}
        self._weights, self._values = self._weights.new_empty(0), self._values.new_empty(0)
        for average in self._averages:
            average.values[:] = [value.clone() for value in average.values]
