"""The average of one member's trained weights, as its rule has it (`argosy.averages`).

Contract. Programs call `step` after each of the member's optimizer steps, and the member itself `end_epoch` after the last step of an
epoch. Tensors stay the same objects, and may be views of a program's memory (`argosy.training.programs.fused.average_buffer`).

A mean of epochs has other statistics of BatchNorm than the raw weights. They are computed anew, as `torch.optim.swa_utils.update_bn` does,
on the batches of the epoch after those of which it is the mean: programs pass each batch, before its step, through the averaged
weights inside of `recomputing`. So such an average stays as it is for an epoch, and `end_epoch` is called when the next one begins.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from argosy.averages import EMA, SWA, Average, LastK

__all__ = ["RunningAverage", "Statistics", "counting", "norms_of"]

Statistics = tuple[Mapping[str, Tensor], Sequence[int]]
"""Snapshot of statistics that are being computed: buffers by name, and numbers of batches."""


def norms_of(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers of BatchNorm that keep statistics."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


@contextlib.contextmanager
def counting(norms: Sequence[_BatchNorm], batches: int) -> Iterator[None]:
    """Let statistics, the mean over so many batches, become the mean over these and the next one inside."""
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 1 / (batches + 1)
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class RunningAverage:
    """What is averaged are the weights that want a gradient, and with `thaws` frozen ones; all else of the network belongs to raw and averaged
    weights alike.

    Buffers do not, where statistics are computed anew: those of the average begin each epoch as copies, statistics as of no batch.
    """

    def __init__(self, rule: Average, model: nn.Module, *, thaws: bool = False) -> None:
        self._rule, self._model = rule, model
        self._switches = any(type(part).train is not nn.Module.train for part in model.modules())
        self.share: float | None = 1 - rule.decay if isinstance(rule, EMA) else None
        """How far a step moves the average towards the weights; None where only ends of epochs do."""
        averaged = {
            id(weight)
            for weight in model.parameters()
            if weight.requires_grad or (thaws and weight.is_floating_point() and weight.isfinite().all())
        }
        held = {id(weight): (module, key) for module in model.modules() for key, weight in module._parameters.items()}
        self._held = [(module._parameters, key) for weight, (module, key) in held.items() if weight in averaged]
        """Tables of modules in which weights are, with their keys. Infinite ones, as of a mask, are never trained, and would become NaN."""
        self.values: list[Tensor] = [weight.detach().clone() for weight in self.weights]
        """The average of each of them, of use once there is a `count`."""
        self.count: int = 0
        """Number of steps, or of ends of epochs, that it was brought up to date with."""
        self._last: list[list[Tensor]] = []
        """Weights at the ends of the last epochs, for `LastK`."""
        self._norms = norms_of(model) if self.share is None else []
        names = {id(buffer): name for name, buffer in model.named_buffers()} if self._norms else {}
        self._places = [
            (module._buffers, key, names[id(buffer)])
            for module in model.modules()
            for key, buffer in module._buffers.items()
            if id(buffer) in names
        ]
        """Tables of modules in which the network's buffers are, with their keys and names."""
        self.buffers: dict[str, Tensor] = {name: _there(table[key]).clone() for table, key, name in self._places}
        """The average's own buffers, by name; none where it has those of the raw weights."""
        self.batches: int = 0
        """Number of batches of the current epoch over which its statistics are computed."""
        self._ended = 0
        """Number of epochs whose ends it has seen."""

    @property
    def weights(self) -> list[Tensor]:
        """The member's own: those that are there, as a network may assign others, which a codebook of moving averages does."""
        return [_there(table[key]) for table, key in self._held]

    @property
    def recomputes(self) -> bool:
        """Whether it has statistics of its own to compute, of an average that is there."""
        return bool(self._norms and self.count)

    @property
    def waits(self) -> bool:
        """Whether it takes in the end of an epoch only when the next one begins."""
        return bool(self._norms)

    @property
    def copies(self) -> int:
        """How many times the weights it comes to hold, on their device."""
        return 1 + (self._rule.epochs if isinstance(self._rule, LastK) else 0)

    def step(self) -> None:
        """Follow the weights after a step."""
        if self.share is None:
            return
        with torch.no_grad():
            if self.count:
                torch._foreach_lerp_(self.values, self.weights, self.share)
            else:
                torch._foreach_copy_(self.values, self.weights)
        self.count += 1

    @torch.no_grad()
    def end_epoch(self, epoch: int) -> None:
        """Take in the weights at the end of an epoch, once."""
        if epoch < self._ended:
            return
        self._ended = epoch + 1
        if isinstance(self._rule, SWA) and epoch + 1 >= self._rule.from_epoch:
            self._take(self.weights, self.count)
            self.count += 1
        elif isinstance(self._rule, LastK):
            self._last = [*self._last, [weight.detach().clone() for weight in self.weights]][-self._rule.epochs :]
            for number, weights in enumerate(self._last):
                self._take(weights, number)
            self.count += 1
        if self._norms:
            self._begin_statistics()

    def _begin_statistics(self) -> None:
        self.batches = 0
        for table, key, name in self._places:
            self.buffers[name].copy_(_there(table[key]))
        with self.held():
            for norm in self._norms:
                norm.reset_running_stats()

    def _take(self, weights: list[Tensor], number: int) -> None:
        """Add weights to the mean of `number` earlier ones."""
        if number:
            torch._foreach_lerp_(self.values, weights, 1 / (number + 1))
        else:
            torch._foreach_copy_(self.values, weights)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let the network hold the average instead of its weights inside, and the average's buffers."""
        mode = self._model.training
        self._switch(True)
        own, buffers = [weight.data for weight in self.weights], [table[key] for table, key, _ in self._places]
        try:
            _put(self.values, self.weights)
            for table, key, name in self._places:
                table[key] = self.buffers[name]
            self._switch(mode)
            yield
        finally:
            self._switch(True)
            _put(own, self.weights)
            for (table, key, name), buffer in zip(self._places, buffers, strict=True):
                if table[key] is not self.buffers[name]:  # a pass may assign another tensor
                    self.buffers[name].copy_(_there(table[key]))
                table[key] = buffer
            self._switch(mode)

    def _switch(self, mode: bool) -> None:
        """Put a network that has its own `train` into a mode: layers that merge weights in eval(), as LoRA's, do so with those that it holds."""
        if self._switches:
            self._model.train(mode)

    @contextlib.contextmanager
    def recomputing(self) -> Iterator[None]:
        """Pass a training batch through the averaged weights inside, for their statistics."""
        with torch.no_grad(), self.held(), counting(self._norms, self.batches):
            yield
        self.batches += 1

    def statistics(self) -> Statistics:
        """Return a snapshot for `go_back`."""
        return {name: buffer.clone() for name, buffer in self.buffers.items()}, [self.batches]

    def go_back(self, to: Statistics) -> None:
        """Return to a snapshot."""
        buffers, (self.batches,) = to
        for name, buffer in buffers.items():
            self.buffers[name].copy_(buffer)

    @torch.no_grad()
    def double(self) -> None:
        """Become the average of a network that became float64."""
        self.values = [value.double() for value in self.values]
        self.buffers = {n: b.double() if b.is_floating_point() else b for n, b in self.buffers.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "values": self.values,
            "count": self.count,
            "last": self._last,
            "buffers": self.buffers if self.count else {},
            "batches": self.batches,
            "ended": self._ended,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a checkpoint's state."""
        torch._foreach_copy_(self.values, state["values"])
        self.count, self.batches, self._ended = state["count"], state.get("batches", 0), state.get("ended", 0)
        for name, buffer in state.get("buffers", {}).items():
            self.buffers[name].copy_(buffer)
        self._last = [[t.to(w, copy=True) for t, w in zip(last, self.weights, strict=True)] for last in state["last"]]


def _put(values: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.data = value


def _there(held: Tensor | None) -> Tensor:
    assert held is not None
    return held
