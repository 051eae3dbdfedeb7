"""The description of a study: data, members, stopping rules, objective, seed. Plain values; nothing here trains or imports torch."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from argosy.averages import SWA, Average, check_average
from argosy.bindings import bound_arguments
from argosy.described import document_fields
from argosy.errors import StudyError
from argosy.errors.checks import (
    check_arrays,
    check_callable,
    check_choice,
    check_classes,
    check_dataset,
    check_factory,
    check_indices,
    check_instance,
    check_metric,
    check_name,
    check_number,
    check_same_classes,
    check_takes,
    check_whole,
    describe_value,
)
from argosy.errors.spelling import did_you_mean, format_names, known_keywords
from argosy.ragged import check_ragged
from argosy.readings import Outside
from argosy.stopping import EnsemblePlateau, MaxEpochs, Mode, Stop, check_rule, mode_of

__all__ = ["FACTORIES", "Data", "Member", "Repetition", "Study", "Terms", "accuracy", "sharing_warnings"]

OTHER_COLUMNS = frozenset({"lr", "seconds", "epochs", "steps", "samples"})
"""Columns of a history row other than a member's losses and metrics."""
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


def accuracy(output: Any, target: Any) -> Any:
    """Return 1 for each correct prediction and 0 for each wrong one: output ``[B, classes]``, target ``[B]`` of class indices -> ``[B]``.

    With further dimensions, ``[B, classes, …]`` and ``[B, …]``, return the share of correct predictions in each sample; targets that are
    -100 do not count. An output that contains NaN is wrong. Raises StudyError for other shapes, for example a single logit."""
    check_classes(output, target)
    largest, predicted = output.max(dim=1)  # NaN where any is, and NaN alone is unlike itself
    right = ((predicted == target) & (largest == largest)).float()
    if right.dim() == 1:
        return right
    return right.flatten(1).sum(1) / (target != IGNORED).flatten(1).sum(1).clamp(min=1)


@known_keywords("argosy.Data")
@document_fields
@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The dataset that all members of a study share. A sample is a pytree of tensors; each tensor has the same dtype in every sample and,
    unless it is declared `ragged`, the same shape."""

    train: Any = None
    """A Dataset, or a function without arguments that returns one, such as ``partial(Pictures, "train")``; the function is called in the
    process that reads the samples. Data without random access, such as an IterableDataset, are read once into a file before training begins,
    or in every epoch with ``keep=False``."""
    val: Any = None
    """The validation data, given like `train`. If both are the same Dataset, as cross-validation needs it, its samples are prepared once."""
    arrays: Sequence[Any] | None = None
    """Tensors or arrays of equal length, such as ``(x, y)``, instead of `train`; a sample is one row of each."""
    val_arrays: Sequence[Any] | None = None
    """Validation data like `arrays`, instead of `val`."""
    then: Callable[[Any], Any] | None = None
    """Random transform of a training sample, sample -> sample, applied after the kept part: `train` decodes, `then` augments. It gets
    the sample's leaves as tensors and may draw from `random`, NumPy or torch, which are seeded for each sample."""
    keep: bool = True
    """Whether samples whose preparation draws no random numbers are prepared only once. Later epochs, validation and other runs read them
    from a file (``argosy cache`` lists it)."""
    ragged: Any = None
    """Which tensors vary in length: a tree shaped like a sample, with an `argosy.Ragged` in place of each such tensor and None elsewhere,
    such as ``(Ragged(512), None)``. Samples of similar length are then batched together and padded to the longest of the batch."""
    on_device: Callable[[Any], Any] | None = None
    """Deterministic per-sample transform, batch -> batch, applied on the device once per block for all its members. A `ragged` tensor
    is passed as a pair of values, padded to `max_length`, and lengths ``[batch]``."""
    on_error: Literal["raise", "skip"] = "raise"
    """What happens if preparing a sample raises: the run ends, or the sample is left out and the report counts it."""

    def __post_init__(self) -> None:
        if (self.train is None) == (self.arrays is None):
            raise StudyError("Data needs training samples exactly once. Pass either train= or arrays=.")
        if self.val is not None and self.val_arrays is not None:
            raise StudyError("Data has validation samples twice. Pass either val= or val_arrays=.")
        for name in ("train", "val"):
            check_dataset(f"Data.{name}", getattr(self, name))
        check_same_classes(self.train, self.val)
        for name in ("arrays", "val_arrays"):
            check_arrays(f"Data.{name}", getattr(self, name))
        if self.on_device is not None:
            check_callable("Data.on_device", self.on_device, "a function: batch -> batch")
            check_instance("Data.on_device", self.on_device)
            check_takes("Data.on_device", self.on_device, 1, "a function: batch -> batch")
        if self.then is not None:
            check_callable("Data.then", self.then, "a function: sample -> sample")
            check_takes("Data.then", self.then, 1, "a function: sample -> sample")
            if self.train is None:
                raise StudyError(
                    "Data.then transforms samples of a Dataset, but Data has arrays=. Use augment= of the members."
                )
        if self.ragged is not None:
            check_ragged(self.ragged)
            if self.train is None or self.val_arrays is not None:
                raise StudyError(
                    "Data.ragged is for samples of a Dataset, but Data has arrays, whose rows all have one shape. Pass train= and val=."
                )
        if not isinstance(self.keep, bool):
            raise StudyError(f"Data.keep is {describe_value(self.keep)}; it must be True or False.")
        check_choice("Data.on_error", self.on_error, ("raise", "skip"))

    @property
    def has_val(self) -> bool:
        """Whether there are validation data."""
        return self.val is not None or self.val_arrays is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """Which repetition of a network a member is; the report compares networks over their repetitions."""

    of: str
    """Name of the network that is repeated."""
    under: str
    """What distinguishes the repetition, such as ``seed=3``. Repetitions of two networks with the same value and the same validation
    samples are compared as a pair."""
    overlap: float = 0.0
    """Number of validation samples per training sample, if the repetitions share training samples by design, as folds do; else 0."""

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
    average of weights therefore belongs into the network."""
    subset: Sequence[int] | None = None
    """Indices of the training samples that the member sees; an index that is given twice is seen twice per epoch (bootstrap)."""
    val_subset: Sequence[int] | None = None
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
    """Number of micro-batches per step; together they are one batch of `batch_size` samples."""
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

    def __post_init__(self) -> None:
        check_name(self.name)
        # Noted now, because variables of the script may change before the member is used.
        object.__setattr__(self, "_outside", {name: Outside.of(getattr(self, name)) for name in FACTORIES})
        _check_numbers(self)
        _check_functions(self)
        _check_steps(self)
        _check_calls(self)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Settings that all members of a study share: together with its members, all that a trainer knows of a study."""

    seed: int
    objective: str
    mode: Mode
    validations_per_epoch: int
    has_val: bool
    on_device: Callable[[Any], Any] | None
    answers: bool
    """Whether members report their outputs on the validation samples after each section that is better than those before."""
    snapshot_bytes: int
    """How many bytes of weights of recent sections a member keeps."""
    stop: Stop
    """Stopping rule of members without one of their own."""


@known_keywords("argosy.Study")
@document_fields
@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """Everything that a run is asked to train: the data, the members, and when they stop."""

    data: Data
    """The data that all members train on."""
    members: Sequence[Member]
    """The networks; their names are unique."""
    stop: Stop = field(default_factory=lambda: MaxEpochs(10))
    """When a member stops, such as ``MaxEpochs(50) | Plateau("val_loss", patience=5)``; a member's own rule replaces it."""
    objective: str = ""
    """The metric that ranks members; by default ``val_loss``, or ``train_loss`` without validation data."""
    mode: Mode | None = None
    """Whether the objective is minimised or maximised; required if its name does not show it (``argosy.stopping.mode_of``)."""
    seed: int = 0
    """Seed of the order of samples, of random numbers during preparation, and of members without a seed of their own."""
    ensemble: EnsemblePlateau | None = None
    """Lets the ensemble of the members decide which of them keep training and when all stop. Their own stopping rules still apply."""
    validations_per_epoch: int = 1
    """Number of sections per epoch. After each section the members are validated and stopping rules see a new history row, whose
    ``train_loss`` is the mean since the epoch began. Weights do not depend on it."""
    _by_name: Mapping[str, Member] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.data, Data):
            raise StudyError(
                f"Study.data is {describe_value(self.data)}; it must be an argosy.Data, for example Data(train=dataset)."
            )
        object.__setattr__(self, "members", _members(self.members))
        object.__setattr__(self, "objective", self.objective or ("val_loss" if self.data.has_val else "train_loss"))
        object.__setattr__(self, "_by_name", {member.name: member for member in self.members})
        twice = sorted(name for name, count in Counter(member.name for member in self.members).items() if count > 1)
        if twice:
            raise StudyError(f"Study.members has duplicate names: {', '.join(twice)}. Give each member a unique name.")
        if both := [name for name in _repeated_networks(self.members) if name in self._by_name]:
            raise StudyError(
                f"Study.members has a member {both[0]!r} and members that repeat {both[0]!r}, so a report could not tell the two "
                "apart. Rename one of them."
            )
        check_whole("Study.seed", self.seed, least=0)
        check_whole("Study.validations_per_epoch", self.validations_per_epoch, least=1)
        check_rule("Study.stop", self.stop)
        self._check_objective()
        for member in self.members:
            self._check_member(member)
        if self.ensemble is not None:
            self._check_ensemble(self.ensemble)
        object.__setattr__(self, "mode", mode_of(self.objective, self.mode, owner="Study"))

    def _check_objective(self) -> None:
        if not isinstance(self.objective, str):
            raise StudyError(f"Study.objective is {describe_value(self.objective)}; it must be the name of a metric.")
        if self.objective.startswith("val_") and not self.data.has_val:
            raise StudyError(
                f"the objective {self.objective!r} needs validation data, but Data has none. "
                "Pass val= (or val_arrays=), or choose objective='train_loss'."
            )

    def _check_member(self, member: Member) -> None:
        """Raise StudyError if the member contradicts the study."""
        _check_outside(member)
        self._check_tokens(member)
        reported = member.reported(has_val=self.data.has_val)
        if self.objective not in reported:
            raise StudyError(
                f"member {member.name!r} does not report the objective {self.objective!r}{did_you_mean(self.objective, _same_split_names(self.objective, reported))}; "
                f"it reports {', '.join(sorted(reported))}. Add it to the member's metrics."
            )
        if unknown := sorted(self.stop_of(member).watches - reported - OTHER_COLUMNS):
            raise StudyError(
                f"member {member.name!r}: its stopping rule watches {unknown[0]!r}"
                f"{did_you_mean(unknown[0], _same_split_names(unknown[0], reported | OTHER_COLUMNS))}, but it reports "
                f"{', '.join(sorted(reported | OTHER_COLUMNS))}. Choose one of these, or add it to the member's metrics"
                f"{'' if self.data.has_val else '; names with val_ need validation data'}."
            )
        if member.val_subset is not None and not self.data.has_val:
            raise StudyError(
                f"member {member.name!r} has a val_subset, but Data has no validation data. Pass val= (or val_arrays=), "
                "or remove val_subset."
            )
        if member.average is not None and not self.objective.startswith("val_"):
            raise StudyError(
                f"member {member.name!r} has an average, but the objective {self.objective!r} cannot choose between averaged and raw "
                "weights. Set a validation objective, such as val_loss, and val= (or val_arrays=), or remove average."
            )
        most = self.stop_of(member).max_epochs
        if isinstance(member.average, SWA) and most is not None and most < member.average.from_epoch:
            raise StudyError(
                f"member {member.name!r}: average={member.average} starts at the end of epoch {member.average.from_epoch}, but its stopping rule "
                f"ends it after {most:g} epochs, so nothing would be averaged. Start the average earlier, or train longer."
            )
        if member.optimizers is not None and member.validate is None and self.data.has_val:
            raise StudyError(
                f"member {member.name!r} updates the weights in its step, which validation must not do. Set "
                "validate=, (model, batch) -> loss."
            )

    def _check_ensemble(self, rule: Any) -> None:
        if not isinstance(rule, EnsemblePlateau):
            raise StudyError(
                f"Study.ensemble is {describe_value(rule)}; it must be an argosy.EnsemblePlateau, for example EnsemblePlateau(patience=5)."
            )
        if not self.data.has_val:
            raise StudyError(
                "Study.ensemble needs validation samples, but Data has none. Pass val= (or val_arrays=), or remove ensemble."
            )
        if self.data.ragged is not None:
            raise StudyError(
                "Study.ensemble compares members sample by sample, but Data.ragged batches samples by length, in a different "
                "order for each member. Remove one of the two."
            )
        first = self.members[0]
        for member in self.members:
            if _as_index_list(member.val_subset) != _as_index_list(first.val_subset):
                raise StudyError(
                    f"members {first.name!r} and {member.name!r} are validated on different samples, but Study.ensemble needs the same "
                    "for all. Give all members the same val_subset, or none."
                )
            if member.step is not None:
                raise StudyError(
                    f"member {member.name!r} has its own step, but Study.ensemble needs a loss that compares the network's outputs with "
                    "targets, (output, target) -> loss. Set loss= instead of step=, or remove ensemble."
                )

    def _check_tokens(self, member: Member) -> None:
        if member.batch_tokens is None:
            return
        if self.data.ragged is None:
            raise StudyError(
                f"member {member.name!r} has batch_tokens, but all samples have the same length. Remove batch_tokens, or declare tensors of varying "
                "length in Data.ragged."
            )
        if member.batch_tokens < (longest := check_ragged(self.data.ragged)):
            raise StudyError(
                f"member {member.name!r}: batch_tokens is {member.batch_tokens}, but Data.ragged allows a sample of {longest}, which would not fit "
                "in any batch. Increase batch_tokens."
            )

    def member(self, name: str) -> Member:
        """Return the member with this name; raises StudyError if there is none."""
        if name not in self._by_name:
            raise StudyError(
                f"the study has no member {name!r}{did_you_mean(name, self.names)}; choose one of {format_names(self.names)}."
            )
        return self._by_name[name]

    @property
    def names(self) -> Collection[str]:
        """Names of the members, in order."""
        return self._by_name.keys()

    @property
    def terms(self) -> Terms:
        """The settings that all members share."""
        assert self.mode is not None
        return Terms(
            seed=self.seed,
            objective=self.objective,
            mode=self.mode,
            validations_per_epoch=self.validations_per_epoch,
            has_val=self.data.has_val,
            on_device=self.data.on_device,
            answers=self.ensemble is not None,
            snapshot_bytes=0 if self.ensemble is None else self.ensemble.snapshot_bytes,
            stop=self.stop,
        )

    def stop_of(self, member: Member) -> Stop:
        """Return the member's own rule, or the study's."""
        return self.stop if member.stop is None else member.stop


def _check_outside(member: Member) -> None:
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


def _as_index_list(indices: Sequence[int] | None) -> list[int] | None:
    return None if indices is None else [*indices]


def _repeated_networks(members: Sequence[Member]) -> dict[str, None]:
    """Return the names of the networks that members repeat, in order."""
    return dict.fromkeys(member.repetition.of for member in members if member.repetition is not None)


def _same_split_names(metric: str, known: Collection[str]) -> list[str]:
    """Return the known metrics that a misspelled name may mean: a validation metric is not corrected to a training metric."""
    return [name for name in known if name.startswith("val_") or not metric.startswith("val_")]


def _members(members: Any) -> tuple[Member, ...]:
    if isinstance(members, Member | Mapping | str) or not hasattr(members, "__iter__"):
        raise StudyError(f"Study.members is {describe_value(members)}; it must be a list of members.")
    listed = tuple(members)
    for number, member in enumerate(listed):
        if not isinstance(member, Member):
            raise StudyError(f"Study.members[{number}] is {describe_value(member)}; it must be an argosy.Member.")
    if not listed:
        raise StudyError("Study.members is empty. Add at least one member.")
    return listed


def _check_numbers(member: Member) -> None:
    whole = {"batch_size": 1, "batch_tokens": 1, "accumulate": 1, "eval_batch_size": 1, "seed": 0}
    for name, least in whole.items():
        if name in ("batch_size", "accumulate") or getattr(member, name) is not None:
            check_whole(f"member {member.name!r}: {name}", getattr(member, name), least=least)
    if member.seed is not None and member.seed >= LARGEST_SEED:
        raise StudyError(f"member {member.name!r}: seed is {member.seed}; it must be less than 2**63.")
    if member.clip_grad_norm is not None:
        check_number(f"member {member.name!r}: clip_grad_norm", member.clip_grad_norm, above=0)
    if not isinstance(member.drop_last, bool):
        raise StudyError(
            f"member {member.name!r}: drop_last is {describe_value(member.drop_last)}; it must be True or False."
        )
    check_choice(f"member {member.name!r}: precision", member.precision, ("float32", "bfloat16", "float16"))
    check_choice(f"member {member.name!r}: schedule_per", member.schedule_per, ("epoch", "step"))


def _check_functions(member: Member) -> None:
    for name, (_, form) in CALLS.items():
        what, value = f"member {member.name!r}: {name}", getattr(member, name)
        if value is None and name != "model":
            continue
        if name in BUILT:
            check_factory(what, value, BUILT[name])
            continue
        check_callable(what, value, form)
        if name != "schedule":
            check_instance(what, value)


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


def _check_calls(member: Member) -> None:
    """Raise StudyError unless every function accepts the arguments it is called with; `_check_steps` must have passed before."""
    for name, (arguments, form) in CALLS.items():
        value = getattr(member, name)
        if value is not None:
            moves = name == "step" and member.optimizers is not None
            form = "a function: (model, batch, optimizers) -> loss" if moves else form
            check_takes(f"member {member.name!r}: {name}", value, arguments + moves, form)


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
