"""The averages of members that run as one program, in one matrix that is laid out as their weights are (`ParameterBuffer`).

As there, each member's own average holds views while it is here, and `dissolve` gives them memory of their own again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from argosy.training.member.live import LiveMember
from argosy.training.member.running_average import RunningAverage, Statistics
from argosy.training.optim.parameter_buffer import ParameterBuffer, stacked

__all__ = ["AverageBuffer"]


class AverageBuffer:
    """The averages of members, by row."""

    def __init__(self, averages: Sequence[RunningAverage], parameter_buffer: ParameterBuffer, values: Tensor) -> None:
        self._averages = averages
        self._own: dict[str, Tensor] = stacked([average.buffers for average in averages])
        self._weights = parameter_buffer.weights
        self._values = values
        self.named: dict[str, Tensor] = {
            piece.name: piece.over(values) for piece in parameter_buffer.pieces
        } | parameter_buffer.fixed
        """What a forward pass with averaged weights takes, each ``[members, *shape]``."""
        self.buffers: dict[str, Tensor] = self._own or parameter_buffer.buffers
        """Likewise its buffers."""
        shares = [average.share for average in averages]
        self._shares = None if shares[0] is None else values.new_tensor(shares).unsqueeze(1)
        """How far a step moves each average ``[members, 1]``; None where only ends of epochs do."""

    @classmethod
    def of(cls, lives: Sequence[LiveMember], parameter_buffer: ParameterBuffer) -> "AverageBuffer | None":
        """Move the averages of members into a new buffer; None where they have none."""
        averages = [live.average for live in lives if live.average is not None]
        if not averages:
            return None
        weights = parameter_buffer.weights
        values = weights.new_empty(len(weights), weights.stride(0))[:, : weights.shape[1]]
        for row, average, own in zip(values, averages, parameter_buffer.parameters, strict=True):
            numbers = {id(weight): number for number, weight in enumerate(average.weights)}
            for piece, weight in zip(parameter_buffer.pieces, own, strict=True):
                number = numbers[id(weight)]
                average.values[number] = piece.of(row).copy_(average.values[number])
        return cls(averages, parameter_buffer, values)

    @torch.no_grad()
    def step(self) -> None:
        """Follow the weights after a step of all members, with the bits of `RunningAverage.step`."""
        if self._shares is None:
            return
        self._values.lerp_(self._weights, self._shares)
        for row, average in enumerate(self._averages):
            if not average.count:
                self._values[row].copy_(self._weights[row])
            average.count += 1

    def statistics(self) -> Statistics:
        """Return a snapshot of all statistics for `go_back`."""
        return {name: buffer.clone() for name, buffer in self._own.items()}, [one.batches for one in self._averages]

    def go_back(self, to: Statistics) -> None:
        """Return to a snapshot."""
        buffers, batches = to
        for name, buffer in buffers.items():
            self._own[name].copy_(buffer)
        for average, count in zip(self._averages, batches, strict=True):
            average.batches = count

    def dissolve(self) -> None:
        """Give the averages memory of their own."""
        for average in self._averages:
            for buffer in average.buffers.values():
                buffer.data = buffer.data.clone()
        self.named, self.buffers, self._own = {}, {}, {}
        self._weights, self._values = self._weights.new_empty(0), self._values.new_empty(0)
        for average in self._averages:
            average.values[:] = [value.clone() for value in average.values]
