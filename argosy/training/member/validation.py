"""A member's validation: its loss and metrics of three kinds, independent of how the samples are batched.

A per-sample metric is averaged over the samples. A metric of the whole set is called once, at the end, with all outputs and
targets. A metric object with ``update`` and ``compute`` is updated with each batch and computed at the end. Whether a function is of the
first or the second kind is determined by its value for the first batch of each validation: ``[B]``, or one number.
"""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from torch import nn

from argosy.errors import StudyError
from argosy.errors.traces import USER_ERRORS
from argosy.stream.blocks import same_bits
from argosy.stream.order import Digest
from argosy.stream.trees import copied, flatten, map_leaves, unflatten
from argosy.study import Member, accuracy, ignored_class
from argosy.training.device.devices import Backend, DeviceEvent
from argosy.training.device.moved import copy_held
from argosy.training.member.answers import Answers
from argosy.training.member.averaging import check_halves, check_pairs
from argosy.training.member.mistakes import format_given
from argosy.training.member.tally import Tally, batch_total, to_float64

__all__ = ["Validation", "is_state", "makes_states", "new_state"]

KINDS = "one value per sample, one number for the whole set, or an object with update(outputs, targets) and compute()"
HOST = torch.device("cpu")
LOW_PRECISION = (torch.bfloat16, torch.float16)
NO_ARRAY = ("to numpy", "unsupported ScalarType")
"""Texts of torch's errors for tensors that cannot be read as arrays."""


class MetricState(Protocol):
    """A metric that is an object."""

    def update(self, outputs: Any, targets: Any) -> Any:
        """Add a batch."""

    def compute(self) -> Any:
        """Return the value over all batches so far."""


@dataclass(slots=True)
class Validation:
    """One validation of a member, from its first batch to its `values`. Metrics run only inside `Program.active`."""

    member: Member
    backend: Backend
    answers: Answers | None = None
    """Set if the study has an ensemble."""
    sums: Tally = field(init=False)
    """Sums of the loss and of the per-sample metrics."""
    _of_batches: dict[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    """Metrics that are functions, as they are called with a batch."""
    _per_sample: dict[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    _of_the_set: dict[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    _reading: set[str] = field(default_factory=set)
    """Metrics that have left the first batch as it was; others get copies of their own, because other metrics get the same tensors."""
    _states: dict[str, MetricState] = field(default_factory=dict)
    _gathered: "_Gathered" = field(init=False)
    _ended: dict[str, float] = field(default_factory=dict)
    """Metrics that were computed at the end."""

    def __post_init__(self) -> None:
        self.sums, self._gathered = Tally(self.backend), _Gathered(self.backend)

    @property
    def digest(self) -> Digest:
        """Digest of the samples so far."""
        return self.sums.digest

    def add(self, rows: int, digest: Digest, losses: torch.Tensor, output: Any, target: Any) -> None:
        """Add a batch: its per-sample losses or their mean, and the network's output."""
        if self.answers is not None:
            self.answers.add(output, target)
        if self.member.metrics and not self.sums.rows:
            self._sort_metrics(rows, output, target)
        batch = rows, output, target
        values = {name: self._sample_values(name, metric, *batch) for name, metric in self._per_sample.items()}
        for name, state in self._states.items():
            self._call(name, state.update, output, target)
        if self._of_the_set:
            self._gathered.add(rows, output, target, self._subject(next(iter(self._of_the_set))))
        totals = {name: batch_total(value, rows) for name, value in {"loss": losses, **values}.items()}
        self.sums.add(rows, digest, totals)

    @property
    def adds_up(self) -> bool:
        """Whether the validation needs only sums over batches: of the loss, and of the number of right answers."""
        return self.answers is None and all(metric is accuracy for metric in self.member.metrics.values())

    def bring(self, rows: int, digest: Digest, losses: torch.Tensor, right: torch.Tensor, event: DeviceEvent) -> None:
        """Add batches of a validation that `adds_up`, whose sums are still being copied to the host."""
        self._per_sample = dict(self.member.metrics)
        self.sums.bring(rows, digest, "loss", losses, event)
        for name in self._per_sample:
            self.sums.bring(0, Digest(), name, right, event)

    def end(self, *, tried: tuple[Any, Any] | None = None) -> None:
        """Compute the metrics that are computed once, after the last batch.

        If only one batch of (output, target) was `tried`, metrics that raise because it lacks a class or has one sample are skipped.
        """
        whole = self._gathered.whole() if self._of_the_set else ()
        for name in (*self._of_the_set, *self._states):
            try:
                value = self._end_value(name, whole)
            except ValueError:
                of_batch = partial(self._batch_value, name, self.member.metrics[name])
                if tried is None or _of_all_classes(of_batch, *tried) is None:
                    raise
                continue
            of = "compute()" if name in self._states else f"all {self.sums.rows} samples"
            self._ended[name] = self._number(name, value, of)
        self._gathered.clear()

    def values(self) -> dict[str, float]:
        """Return the loss and every metric; NaN without samples. A metric called loss takes the place of the mean over batches."""
        values = self.sums.means(["loss", *self._per_sample]) | self._ended
        return {name: values.get(name, math.nan) for name in ("loss", *self.member.metrics)}

    def check(self, rows: int, output: Any, target: Any) -> None:
        """Raise StudyError for a metric that, because of shapes, compares outputs with targets of other samples in the first batch."""
        for name, metric in self.member.metrics.items():
            value = partial(self._batch_value, name, metric)
            arguments = self.member, f"metric {name!r}", value, (output, target), rows
            check_pairs(*arguments)
            if name in self._per_sample:
                check_halves(*arguments)

    def _end_value(self, name: str, whole: Any) -> Any:
        if name in self._of_the_set:
            return self._call(name, self._bound_on(HOST, self._of_the_set[name]), *whole)
        with _naming_metric(name):
            return self._states[name].compute()

    def _batch_value(self, name: str, metric: Any, pair: tuple[Any, Any]) -> torch.Tensor | None:
        """Return a metric's value for one batch of (output, target), whatever its kind."""
        if name not in self._states:
            return _tensor(self._call(name, self._of_batches[name], *pair))
        state = self._state(name, metric)
        state.update(*pair)
        return _tensor(state.compute())

    # ---- kinds

    def _sort_metrics(self, rows: int, output: Any, target: Any) -> None:
        """Determine the kind of each metric.

        A batch of one sample is doubled, because a value per sample and one number for the set could look alike.
        """
        if rows == 1:
            rows, output, target = 2, map_leaves(_twice, output), map_leaves(_twice, target)
        for name, given in self.member.metrics.items():
            if is_state(given) or makes_states(given):
                self._states[name] = self._state(name, given)
                continue
            metric = self._bound_on(self.backend.device, given)
            if given is accuracy:
                metric = partial(accuracy, ignore_index=ignored_class(self.member.loss))
            try:
                value = self._first_value(name, metric, output, target)
            except TypeError as error:
                # Torch refuses to convert tensors of accelerators and of bfloat16 to arrays.
                if not any(words in str(error) for words in NO_ARRAY):
                    raise
                metric = partial(_as_gathered, self._bound_on(HOST, given))
                value = self._first_value(name, metric, output, target)
            self._of_batches[name] = metric
            if value is not None and value.dim() and len(value) == rows:
                self._per_sample[name] = metric
            elif value is not None and not value.dim():
                self._of_the_set[name] = given
            else:
                raise self._refusal(name, value, f"a batch of {rows}")

    def _first_value(self, name: str, metric: Any, output: Any, target: Any) -> torch.Tensor | None:
        """Return a metric's value for the first batch, with all classes as targets if it raises without."""
        try:
            return _tensor(self._call(name, metric, output, target))
        except ValueError:
            # Metrics of scikit-learn raise it if the batch lacks a class, which the whole set may contain.
            value = _of_all_classes(lambda pair: self._call(name, metric, *pair), output, target)
            if value is None:
                raise
            return value

    def _state(self, name: str, metric: Any) -> MetricState:
        """Return a metric object for this validation only."""
        with _naming_metric(name):
            state = new_state(metric)
        if not is_state(state):
            raise StudyError(
                f"{self._subject(name)} takes no arguments, so it must return an object with update(outputs, "
                f"targets) and compute(); it returned {type(state).__name__}. Return such an object, or take "
                "(outputs, targets)."
            )
        if hasattr(state, "reset"):
            state.reset()  # the object that was given may have been updated before
        if isinstance(state, nn.Module):
            state.to(self.backend.device)
        return state

    def _bound_on(self, device: torch.device, metric: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return a metric with what it binds, such as weights of classes, on the device of its arguments: metrics of the set get them on the host."""
        return metric if self.backend.device.type == "cpu" else copy_held(metric, device)

    # ---- values

    def _call(self, name: str, metric: Callable[[Any, Any], Any], output: Any, target: Any) -> Any:
        """Call a metric, with copies if it may write into its arguments."""
        with _naming_metric(name, output, target):
            if name in self._reading:
                return metric(output, target)
            copies = copied((output, target))
            value = metric(*copies)
        if _unwritten(copies, (output, target)):
            self._reading.add(name)
        return value

    def _sample_values(
        self, name: str, metric: Callable[[Any, Any], Any], rows: int, output: Any, target: Any
    ) -> torch.Tensor:
        returned = self._call(name, metric, output, target)
        value = _tensor(returned)
        if value is not None and rows == 1 and value.numel() == 1:
            return value.reshape(1)
        if value is None or not value.dim() or len(value) != rows:
            raise self._refusal(name, returned, f"a batch of {rows}")
        return value

    def _number(self, name: str, value: Any, of: str) -> float:
        tensor = _tensor(value)
        if tensor is None or tensor.numel() != 1:
            raise self._refusal(name, value, of)
        return float(tensor)

    def _refusal(self, name: str, value: Any, of: str) -> StudyError:
        described, advice = "neither a number nor a tensor of real numbers", ""
        if isinstance(value, Mapping):
            described, advice = "a dict", " Pass its parts as metrics, for example metrics=dict(collection)."
        elif (tensor := _tensor(value)) is not None:
            described = f"a tensor of shape {tuple(tensor.shape)}" if tensor.dim() else "one number"
        return StudyError(f"{self._subject(name)} returned {described} for {of}; it must return {KINDS}.{advice}")

    def _subject(self, name: str) -> str:
        return f"member {self.member.name!r}: metric {name!r}"


@contextmanager
def _naming_metric(name: str, *pair: Any) -> Iterator[None]:
    """Note in an error which metric raised it, and the outputs and targets that it was given, if any."""
    try:
        yield
    except USER_ERRORS as error:
        given = " of outputs {} and targets {}".format(*map(format_given, pair)) if pair else ""
        error.add_note(f"raised by metric {name!r}{given}")
        raise


def _of_all_classes(value: Callable[[Any], Any], output: Any, target: Any) -> torch.Tensor | None:
    """Return a metric's value for (output, target) of the batch, repeated, with all classes as targets if they may be class numbers.

    Returns None if they are not tensors of one row per sample, or the metric raises again.
    """
    if not (_has_rows(output) and _has_rows(target) and len(output) == len(target)):
        return None
    whole = not target.is_floating_point() or bool(((target == 0) | (target == 1)).all())
    single = target.numel() == len(target)  # otherwise each column of the output may have its own target, 0 or 1
    numbered = whole and output.dim() in (1, 2) and (single or target.shape == output.shape)
    classes = output.shape[1] if numbered and single and output.dim() == 2 and output.shape[1] > 1 else 2
    number = torch.arange(max(2 * classes, 4 * len(output)), device=output.device)
    repeated, targets = output[number % len(output)], target[number % len(output)]
    if numbered:
        targets = (number % classes).to(target).repeat_interleave(target[0].numel()).reshape(targets.shape)
    try:
        return _tensor(value((repeated, targets)))
    except ValueError:
        return None


def _has_rows(leaf: Any) -> bool:
    strided = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_nested
    return strided and leaf.dim() > 0


class _Gathered:
    """Outputs and targets of all batches on the host, in the order of the sequence, each leaf ``[rows, …]``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._batches: list[list[tuple[torch.Tensor, DeviceEvent]]] = []
        self._tree: Any = None

    def add(self, rows: int, output: Any, target: Any, subject: str) -> None:
        """Copy outputs and targets, which may be views of a block that is released; raises StudyError for leaves without one row per sample."""
        leaves, self._tree = flatten((output, target))
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or not leaf.dim() or len(leaf) != rows:
                described = (
                    f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__
                )
                raise StudyError(
                    f"{subject} is computed on the whole set, so outputs and targets are gathered as tensors with "
                    f"one row per sample; a batch of {rows} has {described} among them. Return less from the network "
                    "in eval(), or pass the metric as an object with update(outputs, targets) and compute()."
                )
        first = [part for part, _ in self._batches[0]] if self._batches else leaves
        for leaf, other in zip(leaves, first, strict=True):
            if leaf.shape[1:] != other.shape[1:]:
                raise StudyError(
                    f"{subject} is computed on the whole set, so outputs and targets are gathered. Samples vary in "
                    f"length: in one batch they have shape {list(other.shape[1:])}, in another {list(leaf.shape[1:])}. Pass "
                    "the metric as an object with update(outputs, targets) and compute(), or return one value per "
                    "sample."
                )
        self._batches.append([self._backend.fetch(_widened(leaf)) for leaf in leaves])

    def whole(self) -> Any:
        """Return (outputs, targets) of all batches. Waits for the device."""
        for batch in self._batches:
            for _, event in batch:
                event.synchronize()
        leaves = [torch.cat([part for part, _ in parts]) for parts in zip(*self._batches, strict=True)]
        return unflatten(leaves, self._tree)

    def clear(self) -> None:
        """Drop all outputs and targets."""
        self._batches.clear()


def _widened(leaf: torch.Tensor) -> torch.Tensor:
    """Return low-precision numbers as float32, because sums over a whole set need it."""
    return leaf.detach().float() if leaf.dtype in LOW_PRECISION else leaf.detach()


def _as_gathered(metric: Callable[[Any, Any], Any], output: Any, target: Any) -> Any:
    """Return a metric of a batch that is given like a whole set: on the host, and not in low precision. Waits for the device."""
    return metric(
        *map_leaves(lambda leaf: _widened(leaf).cpu() if isinstance(leaf, torch.Tensor) else leaf, (output, target))
    )


def _unwritten(copies: Any, originals: Any) -> bool:
    """Return whether a metric has left copies as they were; on a CPU it may also write through NumPy, which torch does not count."""
    pairs = zip(flatten(copies)[0], flatten(originals)[0], strict=True)
    return all(one._version == 0 and _as_before(one, other) for one, other in pairs if isinstance(one, torch.Tensor))


def _as_before(one: torch.Tensor, other: torch.Tensor) -> bool:
    has_array = one.device.type == "cpu" and one.layout == torch.strided and not (one.is_nested or one.is_conj())
    return not has_array or same_bits([one], [other])


def _twice(leaf: Any) -> Any:
    return torch.cat((leaf, leaf)) if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf


def _tensor(value: Any) -> torch.Tensor | None:
    """Return a metric's value as a tensor; None if it is neither a number nor a tensor of real numbers."""
    if isinstance(value, bool | int | float | np.number | np.bool_ | np.ndarray):
        value = to_float64(value) if isinstance(value, float) else torch.as_tensor(value)
    return value.detach() if isinstance(value, torch.Tensor) and not value.is_complex() else None


def is_state(metric: Any) -> TypeGuard[MetricState]:
    """Return whether the metric is an object."""
    return not isinstance(metric, type) and hasattr(metric, "update") and hasattr(metric, "compute")


def new_state(metric: Any) -> Any:
    """Return what one validation updates: a copy of a metric that is an object, or what a metric that makes such objects returns."""
    if not is_state(metric):
        return metric()
    try:
        return copy.deepcopy(metric)
    except TypeError as error:
        raise StudyError(
            f"a metric, of class {type(metric).__name__}, cannot be copied ({error}), but each validation begins with a copy. Pass "
            "a class or a function that makes it, or define __deepcopy__ on it."
        ) from error


def makes_states(metric: Any) -> bool:
    """Return whether the metric is called without arguments and returns a metric object: it is a class of such objects, or a function."""
    factory = metric.func if isinstance(metric, partial) else metric
    if isinstance(factory, type):
        return hasattr(factory, "update") and hasattr(factory, "compute")
    return _takes(metric) and not _takes(metric, None, None)


def _takes(function: Any, *arguments: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):  # ValueError if it has no signature
        return False
    return True
