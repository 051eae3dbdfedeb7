"""A member: one network to train, with everything that is its own. Plain values; nothing here trains or imports torch."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

from argosy.averages import Average, check_average
from argosy.bindings import bound_arguments, unwrap_partials
from argosy.described import document_fields, short_repr
from argosy.errors import StudyError
from argosy.errors.checks import (
    check_choice,
    check_classes,
    check_factory,
    check_flag,
    check_indices,
    check_instance,
    check_metric,
    check_name,
    check_number,
    check_takes,
    check_whole,
    describe_value,
)
from argosy.errors.spelling import known_keywords
from argosy.readings import Outside
from argosy.stopping import Stop, check_rule

__all__ = [
    "FACTORIES",
    "IGNORED",
    "Member",
    "Repetition",
    "accuracy",
    "check_outside",
    "ignored_class",
    "own_loss",
    "sharing_warnings",
]

LARGEST_SEED = 2**63
CALLS = {
    "model": (0, "a factory without arguments, for example functools.partial(Class, width=64)"),
    "optimizer": (1, "a factory: parameters -> optimizer, for example functools.partial(SGD, lr=0.1)"),
    "optimizers": (1, "a factory: network -> optimizers by name"),
    "loss": (2, "a function: (output, target) -> losses, such as nn.CrossEntropyLoss() or your own"),
    "schedule": (1, "a factory: optimizer -> scheduler, for example functools.partial(StepLR, step_size=10)"),
    "augment": (1, "a function: batch -> batch"),
    "step": (2, "a function: (model, batch) -> loss"),
    "validate": (2, "a function: (model, batch) -> loss"),
}
"""For each field, how many arguments it is called with and what it must be; a step that updates the weights itself takes one more."""
FACTORIES = tuple(CALLS)
"""Fields whose bound arguments are hyper-parameters."""
BUILT = {
    "model": "the network",
    "optimizer": "the optimizer of the parameters that it is given",
    "optimizers": "the optimizers of the network that it is given",
}
"""What those fields build that make a member's own objects, for messages."""
MOVES_ITSELF: Mapping[str, Any] = {"clip_grad_norm": None, "accumulate": 1, "precision": "float32"}
"""Fields that a step which updates the weights has to take care of itself, with the values that switch them off."""
IGNORED = -100
"""The class index that torch's cross-entropy ignores, for example for padding tokens."""
Metric = Any
"""A metric is of one of three kinds. None of them depends on the batch size:

* (output, target) -> one value per sample ``[B]``; it is averaged over the samples.
* (outputs, targets) -> one number; it is called once on the whole set, gathered on the host. The first batch shows which kind a function is.
* An object with ``update(outputs, targets)`` and ``compute()``, as in torchmetrics, or a class or partial that creates one without
  arguments. Each validation uses its own instance, on the member's device.
"""


def accuracy(output: Any, target: Any, *, ignore_index: int = IGNORED) -> Any:
    """Return 1 for each correct prediction and 0 for each wrong one: output ``[B, classes]``, target ``[B]`` of class indices -> ``[B]``.

    With further dimensions, ``[B, classes, …]`` and ``[B, …]``, return the share of correct predictions in each sample; targets that are
    no class, such as -100 or 255, or are the ``ignore_index`` do not count. As a metric of a member it takes the ``ignore_index`` of the
    member's loss. An output that contains NaN is wrong. Raises StudyError for other shapes, for example a single logit."""
    check_classes(output, target)
    largest, predicted = output.max(dim=1)  # NaN where any is, and NaN alone is unlike itself
    right = ((predicted == target) & (largest == largest)).float()
    if right.dim() == 1:
        return right
    number = target.long()  # torch compares bytes with 256 as with 0
    counts = ((number >= 0) & (number < output.shape[1]) & (number != ignore_index)).flatten(1)
    return (right.flatten(1) * counts).sum(1) / counts.sum(1).clamp(min=1)


def own_loss(loss: Any) -> Any:
    """Return the loss that compares outputs with targets: a student's loss binds it (`argosy.distill`)."""
    return loss.keywords.get("students_own_loss", loss) if isinstance(loss, functools.partial) else loss


def ignored_class(loss: Any) -> int:
    """Return the class index that a loss ignores: its ``ignore_index``, as a module's or bound in a partial, or `IGNORED`.

    >>> ignored_class(functools.partial(print, ignore_index=255))
    255
    """
    loss = own_loss(loss)
    bound = loss.keywords if isinstance(loss, functools.partial) else {}
    index: object = bound.get("ignore_index", getattr(loss, "ignore_index", None))
    return int(index) if isinstance(index, Integral) else IGNORED  # other libraries' may be None, or a list


def is_torchs(loss: Any) -> bool:
    """Return whether a loss is one of torch, or none: their means are known to be over samples, or over the targets that are not ignored."""
    loss = own_loss(loss)
    module, function = type(loss).__module__, getattr(unwrap_partials(loss), "__module__", "")
    return loss is None or module == "torch.nn.modules.loss" or function == "torch.nn.functional"


accuracy.__module__ = "argosy.study"  # where users import it from, and its name in the directories of earlier versions


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """Which repetition of a network a member is; the report compares networks over their repetitions."""

    of: str
    """Name of the network that is repeated."""
    under: str
    """What distinguishes the repetition, such as ``seed=3``. Repetitions of two networks with the same value and the same validation
    samples are compared as a pair."""
    overlap: float = 0.0
    """Number of validation samples per distinct training sample, if the repetitions share training samples by design, as folds do; else 0."""

    @property
    def fold(self) -> int | None:
        """Number of the fold that the member is validated on, as in its name; None without folds."""
        match = re.search(r"(?:^|-)fold=(\d+)", self.under)
        return None if match is None else int(match[1])

    @property
    def draw(self) -> str:
        """Key of the repetitions that share one draw of samples, such as all seeds of a fold: their mean is one value of an interval."""
        return re.sub(r"(?:^|-)seed=\d+", "", self.under) if self.overlap else self.under


@known_keywords("argosy.Member")
@document_fields
@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One network to train, with everything that is its own."""

    name: str = field(kw_only=False)
    """Unique in the study; letters, digits and ``. _ = + -``."""
    model: Callable[[], Any]
    """Function that builds the network, such as ``partial(Mlp, hidden=64)``; it is called under the member's own seed."""
    optimizer: Callable[[Any], Any] | None = None
    """Parameters -> optimizer, such as ``partial(SGD, lr=0.1)``. It may return a list of optimizers for disjoint parameters, such as Muon
    and AdamW."""
    batch_size: int
    """Number of samples per optimizer step, over all devices of the member."""
    batch_tokens: int | None = None
    """With `Data.ragged`: the largest number of elements along the ragged dimension that a batch may hold, padding included. `batch_size` is
    then the largest number of samples."""
    loss: Callable[[Any, Any], Any] | None = None
    """(output, target) -> per-sample losses ``[B]`` or their mean, such as ``nn.MSELoss()``; cross-entropy by default."""
    schedule: Callable[[Any], Any] | None = None
    """Optimizer -> learning-rate scheduler of torch, such as ``partial(CosineAnnealingLR, T_max=10)``. With `optimizers`: optimizers by name
    -> schedulers by name."""
    schedule_per: Literal["epoch", "step"] = "epoch"
    """Whether the schedule advances after each epoch or after each step. ``ReduceLROnPlateau`` follows the objective at the end of each
    epoch."""
    stop: Stop | None = None
    """Stopping rule, such as ``MaxEpochs(20)``, that replaces the study's."""
    augment: Callable[[Any], Any] | None = None
    """Batch -> batch, applied in training only, on the member's device and with its own random state. A callable object given here, as
    `loss` or as `step` is copied for each member. Tensors, arrays and networks bound by a partial are shared by all members; a moving
    average of weights therefore belongs into the network. Tensors and networks among them, and modules such as a loss with weights of
    classes, are moved to the member's device."""
    subset: Sequence[int] | Any | None = None
    """Indices of the training samples that the member sees, as a list, an array or a tensor; an index that is given twice is seen twice per
    epoch (bootstrap)."""
    val_subset: Sequence[int] | Any | None = None
    """Indices of the validation samples, likewise (cross-validation)."""
    drop_last: bool = False
    """Whether to drop the last batch of an epoch if it is smaller than `batch_size`."""
    eval_batch_size: int | None = None
    """Number of samples per validation batch; `batch_size` by default."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Metrics by name, such as ``{"accuracy": argosy.accuracy}``, reported as ``val_<name>``; ``val_loss`` is always reported. A metric is a
    function (outputs, targets) that returns one value per sample or one number for the whole set, or an object with ``update`` and
    ``compute``."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the forward and backward pass, for the operations that `torch.autocast` runs in it; weights keep their dtype. With float16
    the loss is scaled as by `torch.amp.GradScaler`."""
    clip_grad_norm: float | None = None
    """Largest total norm of the gradients in a step, such as 1.0; gradients are not clipped by default."""
    accumulate: int = 1
    """Number of micro-batches per step; together they are one batch of `batch_size` samples, and the step's loss is the mean of theirs. What
    depends on several samples, such as BatchNorm, or cross-entropy with weights of classes, knows only those of one micro-batch."""
    average: Average | None = None
    """An average of the weights that is validated beside the raw weights: `argosy.EMA`, `argosy.SWA` or `argosy.LastK`. The better of the
    two by the objective is the result of a section: its metrics are ``val_*``, beside ``raw_val_*`` and ``average_val_*``, and its weights
    can become the best weights. Training uses the raw weights only. The average has the buffers of the raw weights, such as BatchNorm
    statistics; for `SWA` and `LastK` these statistics are recomputed on the batches of the next epoch, and the average is validated after it."""
    seed: int | None = None
    """Non-negative seed; derived from the study's seed and the member's name by default."""
    step: Callable[..., Any] | None = None
    """Custom training step, (model, batch) -> loss, instead of ``loss(model(x), y)`` on batches ``(x, y)``. It may return (loss, outputs,
    targets); `metrics` then get these outputs and targets."""
    validate: Callable[[Any, Any], Any] | None = None
    """Custom validation step with the signature of `step`; `step` by default."""
    optimizers: Callable[[Any], Mapping[str, Any]] | None = None
    """Network -> optimizers by name, instead of `optimizer`, for a step that updates the weights itself, such as a GAN's. The step is then
    (model, batch, optimizers) -> loss, its loss is only reported, and gradients are cleared after each step."""
    repetition: Repetition | None = None
    """Set by `argosy.replicate`, `argosy.kfold` and `argosy.bootstrap` for the report; it does not affect training."""
    _outside: Mapping[str, Outside] = field(init=False, repr=False, compare=False)
    """For each factory, the outside values that it reads when it is called, as they were when the member was created."""

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_name(self.name)
        # Noted now, because variables of the script may change before the member is used.
        object.__setattr__(self, "_outside", {name: Outside.of(getattr(self, name)) for name in FACTORIES})
        _check_numbers(self)
        _check_steps(self)
        _check_functions(self)
        _check_metrics(self)
        for name in ("subset", "val_subset"):
            if getattr(self, name) is not None:
                check_indices(f"member {self.name!r}: {name}", getattr(self, name))
        if self.stop is not None:
            check_rule(f"member {self.name!r}: stop", self.stop)
        if self.average is not None:
            check_average(f"member {self.name!r}: average", self.average)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Scalars bound in the member's partials, such as ``optimizer.lr`` or ``model.hidden``, and its batch size."""
        settings: dict[str, Any] = {"batch_size": self.batch_size}
        if self.batch_tokens is not None:
            settings["batch_tokens"] = self.batch_tokens
        for name in FACTORIES:
            factory = getattr(self, name)
            if isinstance(factory, functools.partial):
                values = bound_arguments(factory).items()
                settings.update({f"{name}.{k}": v for k, v in values if isinstance(v, bool | int | float | str)})
        return settings

    def reported(self, *, has_val: bool) -> set[str]:
        """Return the names of the metrics in the member's history rows."""
        validated = [f"val_{name}" for name in ("loss", *self.metrics)] if has_val else []
        if self.average is not None:
            validated += ["averaged", *(f"{weights}_{name}" for weights in ("raw", "average") for name in validated)]
        return {"train_loss", *validated}


def _check_numbers(member: Member) -> None:
    whole = {"batch_size": 1, "batch_tokens": 1, "accumulate": 1, "eval_batch_size": 1, "seed": 0}
    for name, least in whole.items():
        if name in ("batch_size", "accumulate") or getattr(member, name) is not None:
            check_whole(f"member {member.name!r}: {name}", getattr(member, name), least=least)
    if member.seed is not None and member.seed >= LARGEST_SEED:
        raise StudyError(f"member {member.name!r}: seed is {member.seed}; it must be less than 2**63.")
    if member.clip_grad_norm is not None:
        check_number(f"member {member.name!r}: clip_grad_norm", member.clip_grad_norm, above=0)
    check_flag(f"member {member.name!r}: drop_last", member.drop_last)
    check_choice(f"member {member.name!r}: precision", member.precision, ("float32", "bfloat16", "float16"))
    check_choice(f"member {member.name!r}: schedule_per", member.schedule_per, ("epoch", "step"))


def _check_steps(member: Member) -> None:
    """Raise StudyError unless exactly one field computes the loss and one updates the weights."""
    if (member.optimizer is None) == (member.optimizers is None):
        named = "neither optimizer= nor" if member.optimizer is None else "both optimizer= and"
        raise StudyError(
            f"member {member.name!r} has {named} optimizers=. Set exactly one; optimizers= needs a step that updates the "
            "weights itself."
        )
    if member.step is not None and member.loss is not None:
        raise StudyError(f"member {member.name!r}: `step` computes the loss itself. Remove loss.")
    if member.step is None and (member.validate is not None or member.optimizers is not None):
        named = "validate" if member.validate is not None else "optimizers"
        raise StudyError(f"member {member.name!r} has {named}=, which needs step=. Set both or neither.")
    if member.optimizers is None:
        return
    for name, without in MOVES_ITSELF.items():
        if getattr(member, name) != without:
            raise StudyError(
                f"member {member.name!r}: {name} is {describe_value(getattr(member, name))}, but its step updates the weights itself. "
                "Remove it, and do that in the step (of a LightningModule: in training_step, with automatic_optimization = False)."
            )


def _check_functions(member: Member) -> None:
    """Raise StudyError unless every function can be called with its arguments; `_check_steps` must have passed before."""
    for name, (arguments, form) in CALLS.items():
        what, value = f"member {member.name!r}: {name}", getattr(member, name)
        if value is None and name != "model":
            continue
        if name in BUILT:
            check_factory(what, value, BUILT[name])
        elif name != "schedule":
            check_instance(what, value)
        moves = name == "step" and member.optimizers is not None
        form = "a function: (model, batch, optimizers) -> loss" if moves else form
        check_takes(what, value, arguments + moves, form)


def _check_metrics(member: Member) -> None:
    """Raise StudyError unless the metrics are valid and their names can be column names."""
    if not isinstance(member.metrics, Mapping):
        raise StudyError(
            f"member {member.name!r}: metrics is {describe_value(member.metrics)}; it must be a dict, for example {{'accuracy': accuracy}}."
        )
    if "loss" in member.metrics and member.validate is None:
        raise StudyError(
            f"member {member.name!r}: a metric is named 'loss', but the column val_loss holds the member's own loss. Rename the metric."
        )
    for name, metric in member.metrics.items():
        check_metric(f"member {member.name!r}", name, metric)


def check_outside(member: Member) -> None:
    """Raise StudyError if a factory would read another value now than when its member was created."""
    for part, outside in member._outside.items():
        now = Outside.of(getattr(member, part)).variables if outside.variables else {}
        for name, held in outside.variables.items():
            if held.is_replaced(now.get(name, held)):
                otherwise = (
                    "a copy of the settings (copy.deepcopy)" if "." in name else f"a default argument {name}={name}"
                )
                raise StudyError(
                    f"member {member.name!r}: its {part} reads the variable {name} when it is called. {name} was {held.text} when the member was "
                    f"created and is {now[name].text} now. Bind it: functools.partial(SGD, lr=lr), or {otherwise}."
                )


def sharing_warnings(members: Sequence[Member]) -> list[str]:
    """Return warnings for members that share one settings object which was modified between their creation: all of them read its latest state."""
    seen: dict[int, tuple[Member, Mapping[str, Any]]] = {}
    warnings = []
    for member in members:
        for part, outside in member._outside.items():
            for name, (settings, held) in outside.settings.items():
                # By identity, which stays unique as long as the members' functions hold the objects.
                first, before = seen.setdefault(settings, (member, held))
                warnings += [
                    f"members {first.name!r} and {member.name!r} share one settings object ({name} of {part}). {key} was "
                    f"{value!r} when the first was created and {held[key]!r} for the second; both read its current value. If they should "
                    "differ, bind a copy (copy.deepcopy) to each."
                    for key, value in before.items()
                    if repr(held.get(key, value)) != repr(value)
                ]
    return warnings
