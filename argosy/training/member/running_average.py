"""The average of one member's trained weights, according to its rule (`argosy.averages`).

Contract. Programs call `step` after each of the member's optimizer steps. The member itself calls `end_epoch` after the last step of an
epoch. Tensors stay the same objects, and may be views of a program's memory (`argosy.training.programs.fused.average_buffer`).

A mean of epochs needs other BatchNorm statistics than the raw weights. They are recomputed, as `torch.optim.swa_utils.update_bn` does,
on the batches of the epoch after the averaged ones: programs pass each batch, before its step, through the averaged weights inside
`recomputing`. Such an average therefore does not change during an epoch, and `end_epoch` is called when the next epoch begins.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from argosy.averages import EMA, SWA, Average, LastK
from argosy.training.optim.parameter_buffer import restorer

__all__ = ["RunningAverage", "copy_to_spares", "extend_statistics", "norms_of"]


def norms_of(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers that keep statistics."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


@contextlib.contextmanager
def extend_statistics(norms: Sequence[_BatchNorm], batches: int) -> Iterator[None]:
    """Let a forward pass inside extend statistics, the mean over `batches` batches, by one more batch."""
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 1 / (batches + 1)
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class RunningAverage:
    """The average of weights that require gradients, and with `thaws` also of frozen ones; raw and averaged weights share the rest of the network.

    If statistics are recomputed, the average has its own buffers too: each epoch they start as copies, whose BatchNorm statistics the first batch
    replaces.
    """

    def __init__(self, rule: Average, model: nn.Module, *, thaws: bool = False) -> None:
        self._rule, self._model = rule, model
        self._switches = any(type(part).train is not nn.Module.train for part in model.modules())
        self.share: float | None = 1 - rule.decay if isinstance(rule, EMA) else None
        """Fraction by which a step moves the average towards the weights; None if only ends of epochs change it."""
        averaged = {
            id(weight)
            for weight in model.parameters()
            if weight.requires_grad or (thaws and weight.is_floating_point() and weight.isfinite().all())
        }
        tables: list[dict[str, Any]] = [module._parameters for module in model.modules()]
        places = {id(weight): (table, key) for table in tables for key, weight in table.items()}
        self._held = [place for weight, place in places.items() if weight in averaged]
        """Parameter tables of modules that hold the weights, with their keys. Frozen infinite weights, as in a mask, would average to NaN."""
        self._trained = [weight.requires_grad for weight in self.weights]
        self.values: list[Tensor] = [weight.detach().clone() for weight in self.weights]
        """The average of each weight; valid if `count` is not 0."""
        self.count: int = 0
        """Number of steps, or of ends of epochs, that have updated it."""
        self._last: list[list[Tensor]] = []
        """Weights at the ends of the last epochs, for `LastK`."""
        self._norms = norms_of(model) if self.share is None else []
        names = {id(buffer): name for name, buffer in model.named_buffers()} if self._norms else {}
        self._places: list[tuple[dict[str, Any], str, str]] = [
            (module._buffers, key, names[id(buffer)])
            for module in model.modules()
            for key, buffer in module._buffers.items()
            if id(buffer) in names
        ]
        """Buffer tables of modules that hold the network's buffers, with their keys and names."""
        self.buffers: dict[str, Tensor] = {name: table[key].clone() for table, key, name in self._places}
        """The average's own buffers, by name; empty if it shares those of the raw weights."""
        self.batches: int = 0
        """Number of batches of the current epoch in its statistics so far."""
        self._ended = 0
        """Number of epochs whose ends were processed."""
        self._spares: dict[str, Tensor] = {}
        """Memory for each frozen weight, by name, which a pass with the averaged weights may change."""

    @property
    def weights(self) -> list[Tensor]:
        """The member's current weights, read from the modules because a network may assign new ones, for example to a codebook."""
        return [table[key] for table, key in self._held]

    @property
    def recomputes(self) -> bool:
        """Whether there is an average whose own statistics must be computed."""
        return bool(self._norms and self.count)

    @property
    def waits(self) -> bool:
        """Whether the end of an epoch is processed only when the next epoch begins."""
        return bool(self._norms)

    @property
    def copies(self) -> int:
        """Largest number of copies of the weights that it will hold on their device."""
        return 1 + (self._rule.epochs if isinstance(self._rule, LastK) else 0)

    def step(self) -> None:
        """Update the average after a step."""
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
        """Update the average at the end of an epoch; repeated calls for one epoch do nothing."""
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
            self.buffers[name].copy_(table[key])
        with self.held():
            for norm in self._norms:
                # The first batch replaces the statistics, but not those of a layer that is frozen in eval().
                if norm.num_batches_tracked is not None:
                    norm.num_batches_tracked.zero_()

    def _take(self, weights: list[Tensor], number: int) -> None:
        """Add weights to the mean of `number` earlier ones."""
        if number:
            torch._foreach_lerp_(self.values, weights, 1 / (number + 1))
        else:
            torch._foreach_copy_(self.values, weights)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let the network hold the averaged weights and the average's buffers inside."""
        mode = self._model.training
        self._switch(True)
        # By `data`: optimizers refer to the parameters themselves, which stay the same objects.
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
                if table[key] is not self.buffers[name]:  # a forward pass may assign another tensor
                    self.buffers[name].copy_(table[key])
                table[key] = buffer
            self._switch(mode)

    def _switch(self, mode: bool) -> None:
        """Set the mode of a network that overrides `train`: layers that merge weights in eval(), such as LoRA's, then merge the current ones."""
        if self._switches:
            self._model.train(mode)

    @contextlib.contextmanager
    def recomputing(self) -> Iterator[None]:
        """Let a forward pass inside add one training batch to the statistics of the averaged weights, and change nothing else."""
        with (
            torch.no_grad(),
            self.held(),
            _unchanged(self._model, self._spares),
            extend_statistics(self._norms, self.batches),
        ):
            yield
        self.batches += 1

    def statistics_restorer(self) -> Callable[[], None]:
        """Return a function that restores the statistics that are being computed."""
        restore, batches = restorer([*self.buffers.values()]), self.batches

        def go_back() -> None:
            restore()
            self.batches = batches

        return go_back

    @torch.no_grad()
    def double(self) -> None:
        """Convert the average to float64, like its network."""
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
        torch._foreach_copy_(self.values, self._complete(state["values"]))
        self.count, self.batches, self._ended = state["count"], state.get("batches", 0), state.get("ended", 0)
        for name, buffer in state.get("buffers", {}).items():
            self.buffers[name].copy_(buffer)
        lasts = map(self._complete, state["last"])
        self._last = [[t.to(w, copy=True) for t, w in zip(last, self.weights, strict=True)] for last in lasts]

    def _complete(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return a checkpoint's values with the current frozen weights, if an earlier version wrote it, which averaged these only with a step."""
        if len(values) == len(self._trained):
            return [*values]
        given = iter(values)
        return [next(given) if own else weight for own, weight in zip(self._trained, self.weights, strict=True)]


@contextlib.contextmanager
def _unchanged(model: nn.Module, spares: dict[str, Tensor]) -> Iterator[None]:
    """Undo what a forward pass inside does to attributes, such as counters, and to frozen weights, such as those of a momentum encoder,
    which are copied into `spares`."""
    modules = [*model.modules()]
    attributes = [{**vars(module)} for module in modules]
    tables = [(module._parameters, {**module._parameters}) for module in modules]
    frozen = {name: weight for name, weight in model.named_parameters() if not weight.requires_grad}
    values = [weight.data for weight in frozen.values()]
    copy_to_spares(frozen, spares)
    try:
        _put([spares[name] for name in frozen], [*frozen.values()])
        yield
    finally:
        for held, before in [*zip(map(vars, modules), attributes, strict=True), *tables]:
            held.clear()
            held.update(before)
        _put(values, [*frozen.values()])


def copy_to_spares(weights: Mapping[str, Tensor], spares: dict[str, Tensor]) -> None:
    """Copy weights to memory that is kept, by name, because allocating it for each pass would take several times as long as the copy."""
    for name, weight in weights.items():
        if (spare := spares.get(name)) is None or (spare.dtype, spare.shape) != (weight.dtype, weight.shape):
            spares[name] = torch.empty_like(weight)
        spares[name].copy_(weight)


def _put(values: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.data = value
