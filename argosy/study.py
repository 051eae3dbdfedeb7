"""What is asked: data, members, stopping rules, objective, seed. Values only; nothing here trains or imports torch."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from argosy.averages import SWA, Average, check_average
from argosy.bindings import bound
from argosy.described import described
from argosy.errors import StudyError
from argosy.errors.checks import (
    check_arrays,
    check_built,
    check_callable,
    check_choice,
    check_classes,
    check_dataset,
    check_factory,
    check_indices,
    check_metric,
    check_name,
    check_number,
    check_same_classes,
    check_takes,
    check_whole,
    shown,
)
from argosy.errors.spelling import known_keywords, meant
from argosy.ragged import check_ragged
from argosy.readings import Outside
from argosy.stopping import EnsemblePlateau, MaxEpochs, Mode, Stop, check_rule, mode_of

__all__ = ["FACTORIES", "Data", "Member", "Repetition", "Study", "Terms", "accuracy", "doubts_of"]

OTHER_COLUMNS = frozenset({"lr", "seconds", "epochs", "steps", "samples"})
"""Columns of a row of history, beside a member's losses and metrics."""
LARGEST_SEED = 2**63
FORMS = {
    "loss": "a function: (output, target) -> losses, as nn.CrossEntropyLoss() or a function of yours",
    "schedule": "a factory: optimizer -> scheduler, as functools.partial(StepLR, step_size=10)",
    "augment": "a function: batch -> batch",
    "step": "a function: (model, batch) -> loss",
    "validate": "a function: (model, batch) -> loss",
}
CALLS = {
    "model": (0, "a factory without arguments, as functools.partial(Class, width=64)"),
    "optimizer": (1, "a factory: parameters -> optimizer, as functools.partial(SGD, lr=0.1)"),
    "optimizers": (1, "a factory: network -> optimizers by name"),
    "schedule": (1, FORMS["schedule"]),
    "augment": (1, FORMS["augment"]),
    "loss": (2, FORMS["loss"]),
    "step": (2, FORMS["step"]),
    "validate": (2, FORMS["validate"]),
}
"""By field, the number of arguments that it is called with, and what it must be; a step that moves the weights has one more."""
FACTORIES = ("model", "optimizer", "optimizers", "loss", "schedule", "augment", "step", "validate")
"""Fields of which the bound values are hyper-parameters."""
MOVES_ITSELF: Mapping[str, Any] = {"clip_grad_norm": None, "accumulate": 1, "precision": "float32"}
"""What a step that moves the weights does itself, and the values that leave it out."""
IGNORED = -100
"""The class number that torch's cross-entropy leaves out, as that of padded tokens."""
Metric = Any
"""One of three kinds; its value depends on no batch size:

* (output, target) -> one value per sample ``[B]``: averaged over the samples;
* (outputs, targets) -> a number: of the whole set, once, with everything gathered on the host; it shows on a first batch;
* an object with ``update(outputs, targets)`` and ``compute()``, as torchmetrics has them, or what makes one when it is called
  without arguments (a class, a partial): each validation has one of its own, on the member's device.
"""


def accuracy(output: Any, target: Any) -> Any:
    """Return whether each answer is right, as 1 or 0: output ``[B, classes]``, target ``[B]`` of class numbers -> ``[B]``. With dimensions behind
    the classes, ``[B, classes, …]`` and ``[B, …]``, the share of right ones in each sample, without class numbers that are `IGNORED`.

    An output with a NaN is wrong. Raises StudyError for other shapes, as those of one logit."""
    check_classes(output, target)
    largest, said = output.max(dim=1)  # NaN where any is, and NaN alone is unlike itself
    right = ((said == target) & (largest == largest)).float()
    if right.dim() == 1:
        return right
    return right.flatten(1).sum(1) / (target != IGNORED).flatten(1).sum(1).clamp(min=1)


@known_keywords("argosy.Data")
@described
@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The one dataset of a study. Samples are pytrees of tensors, each of one dtype and, but for what is `ragged`, of one shape."""

    train: Any = None
    """A Dataset, or a function without arguments that returns one (built where it is read), as ``partial(Pictures, "train")``. What has no
    samples by index, as an IterableDataset, is read once into a file before training begins; without `keep`, in each epoch."""
    val: Any = None
    """The same for validation. With one Dataset for both, as folds need it, samples are prepared once for both."""
    arrays: Sequence[Any] | None = None
    """Instead of `train`: tensors or arrays of equal length; one sample is one row of each, as of ``(x, y)``."""
    val_arrays: Sequence[Any] | None = None
    """Instead of `val`, as `arrays`."""
    then: Callable[[Any], Any] | None = None
    """Random work on a training sample, sample -> sample, behind what is kept: `train` decodes, `then` augments. It gets the sample's
    leaves as tensors, and draws from `random`, NumPy or torch, which are seeded for it."""
    keep: bool = True
    """Whether samples for which nothing was drawn are prepared once for all: in later epochs, validation and other runs they are read
    from a file (``argosy cache``)."""
    ragged: Any = None
    """What of a sample is of unlike length: a tree like a sample, with an `argosy.Ragged` in place of each such tensor and None elsewhere,
    as ``(Ragged(512), None)``. Batches are made of samples of like length then, and are as long as their longest."""
    on_device: Callable[[Any], Any] | None = None
    """Deterministic work per sample, batch -> batch, done once per block and device for all members. What is `ragged` comes as a pair of
    values, padded to its greatest length, and lengths ``[batch]``."""
    on_error: Literal["raise", "skip"] = "raise"
    """What a sample that raises does to the run: end it, or leave a hole that the report counts."""

    def __post_init__(self) -> None:
        if (self.train is None) == (self.arrays is None):
            raise StudyError("Data needs training samples once: give either train= or arrays=.")
        if self.val is not None and self.val_arrays is not None:
            raise StudyError("Data has validation samples twice: give either val= or val_arrays=.")
        for name in ("train", "val"):
            check_dataset(f"Data.{name}", getattr(self, name))
        check_same_classes(self.train, self.val)
        for name in ("arrays", "val_arrays"):
            check_arrays(f"Data.{name}", getattr(self, name))
        if self.on_device is not None:
            check_callable("Data.on_device", self.on_device, "a function: batch -> batch")
            check_built("Data.on_device", self.on_device)
            check_takes("Data.on_device", self.on_device, 1, "a function: batch -> batch")
        if self.then is not None:
            check_callable("Data.then", self.then, "a function: sample -> sample")
            check_takes("Data.then", self.then, 1, "a function: sample -> sample")
            if self.train is None:
                raise StudyError(
                    "Data.then works on samples of a Dataset, and Data has arrays=; let members augment= them."
                )
        if self.ragged is not None:
            check_ragged(self.ragged)
            if self.train is None or self.val_arrays is not None:
                raise StudyError(
                    "Data.ragged is for samples of a Dataset, and Data has arrays, of which all rows have one shape. Give train= and val=."
                )
        if not isinstance(self.keep, bool):
            raise StudyError(f"Data.keep is {shown(self.keep)}; it must be True or False.")
        check_choice("Data.on_error", self.on_error, ("raise", "skip"))

    @property
    def has_val(self) -> bool:
        """Whether there is validation data."""
        return self.val is not None or self.val_arrays is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """The place of a member among those that repeat one network: the report compares networks over their repetitions."""

    of: str
    """Name of what is repeated."""
    under: str
    """What differs, as ``seed=3``; repetitions of two networks under the same, with the same validation samples, are compared as a pair."""
    overlap: float = 0.0
    """Where members share training samples by design, as those of folds do: validation samples for each training sample."""

    @property
    def fold(self) -> int | None:
        """Number of the fold that it is validated on, as in its name; None if it is of no fold."""
        found = re.search(r"(?:^|-)fold=(\d+)", self.under)
        return None if found is None else int(found[1])

    @property
    def draw(self) -> str:
        """What is drawn once for it and its like, whose mean is one value of an interval: the seeds of a fold share its samples."""
        return re.sub(r"(?:^|-)seed=\d+", "", self.under) if self.overlap else self.under


@known_keywords("argosy.Member")
@described
@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One network to train, with all that belongs to it alone."""

    name: str = field(kw_only=False)
    """Unique in the study; letters, digits and ``. _ = + -``."""
    model: Callable[[], Any]
    """Builds the network, as ``partial(Mlp, hidden=64)``; called under the member's own seed."""
    optimizer: Callable[[Any], Any] | None = None
    """Parameters -> optimizer, as ``partial(SGD, lr=0.1)``; or a list of several, each of some of them, as Muon and AdamW."""
    batch_size: int
    """Samples of a step, on all of its devices together."""
    batch_tokens: int | None = None
    """With `Data.ragged`, the most that a batch may hold of what is of unlike length, padding included; `batch_size` is its most samples
    then."""
    loss: Callable[[Any, Any], Any] | None = None
    """(output, target) -> per-sample losses ``[B]`` or their mean, as ``nn.MSELoss()``; by default cross-entropy."""
    schedule: Callable[[Any], Any] | None = None
    """Optimizer -> learning-rate scheduler of torch, as ``partial(CosineAnnealingLR, T_max=10)``; with `optimizers`, these -> schedulers by
    name."""
    schedule_per: Literal["epoch", "step"] = "epoch"
    """When the schedule moves on: after each epoch, or after each step. ``ReduceLROnPlateau`` follows the objective at epochs' ends."""
    stop: Stop | None = None
    """Stopping rule, instead of the study's, as ``MaxEpochs(20)``."""
    augment: Callable[[Any], Any] | None = None
    """Batch -> batch, in training only, on the member's device under its own random state. Each member has a copy of an object that is called, here
    and as its loss or step; tensors, arrays and networks that a partial binds are shared, and so are weights: a moving average of weights belongs into the network."""
    subset: Sequence[int] | None = None
    """Indices of the training samples that the member sees; an index given twice is seen twice (bootstrap)."""
    val_subset: Sequence[int] | None = None
    """The same for validation (cross-validation folds)."""
    drop_last: bool = False
    """Whether to leave out the last batch when it is short."""
    eval_batch_size: int | None = None
    """Samples of a batch of validation; by default `batch_size`."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Metrics by name, as ``{"accuracy": argosy.accuracy}``, reported as ``val_<name>``; ``loss`` is there already. A metric is a function
    (outputs, targets) -> one value per sample, or one number for the whole set; or an object with ``update`` and ``compute``."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of forward and backward, where `torch.autocast` allows it for a layer; weights stay as they are. With float16 the
    member has a loss scale, as `torch.amp.GradScaler` keeps one."""
    clip_grad_norm: float | None = None
    """Most that the norm of all gradients together may be in a step, as 1.0; by default they are not clipped."""
    accumulate: int = 1
    """Micro-batches per step; the batch that the optimizer sees stays `batch_size`."""
    average: Average | None = None
    """An average of its weights, `argosy.EMA`, `argosy.SWA` or `argosy.LastK`, validated beside the raw ones. What the objective
    chooses of the two is the member's result of a section: its ``val_*`` metrics, beside ``raw_val_*`` and ``average_val_*`` of each, and its
    best weights. Training goes by the raw weights alone. Buffers, as the statistics of BatchNorm, are those of the raw weights;
    of `SWA` and `LastK` these statistics are computed anew on the batches of the next epoch, after which such an average is validated."""
    seed: int | None = None
    """Seed from 0, instead of the one that follows from the study's seed and the member's name."""
    step: Callable[..., Any] | None = None
    """Own training step: (model, batch) -> loss, instead of ``loss(model(x), y)`` on batches ``(x, y)``. It may return
    (loss, outputs, targets): `metrics` then get these outputs and targets."""
    validate: Callable[[Any, Any], Any] | None = None
    """Instead of `step` in validation, of the same form."""
    optimizers: Callable[[Any], Mapping[str, Any]] | None = None
    """Instead of `optimizer`, for a step that moves the weights itself, as that of a GAN: network -> optimizers by name. The
    step is (model, batch, optimizers) -> loss then, the loss is what is reported, and gradients do not outlive a step."""
    repetition: Repetition | None = None
    """Set by `argosy.replicate`, `argosy.kfold` and `argosy.bootstrap`, for the report; it changes nothing in the member's result."""
    _outside: Mapping[str, Outside] = field(init=False, repr=False, compare=False)
    """By factory: what it will read of what may have changed by then, as that was when the member was made."""

    def __post_init__(self) -> None:
        check_name(self.name)
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
        """Scalars bound in the member's partials, as ``optimizer.lr`` or ``model.hidden``, and its batch size."""
        found: dict[str, Any] = {"batch_size": self.batch_size}
        if self.batch_tokens is not None:
            found["batch_tokens"] = self.batch_tokens
        for name in FACTORIES:
            factory = getattr(self, name)
            if isinstance(factory, functools.partial):
                values = bound(factory).items()
                found.update({f"{name}.{k}": v for k, v in values if isinstance(v, bool | int | float | str)})
        return found

    def reported(self, *, has_val: bool) -> set[str]:
        """Return the names of the metrics in a row of its history."""
        validated = [f"val_{name}" for name in ("loss", *self.metrics)] if has_val else []
        if self.average is not None:
            validated += ["averaged", *(f"{weights}_{name}" for weights in ("raw", "average") for name in validated)]
        return {"train_loss", *validated}


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What holds for every member of a study: all that a trainer knows beside the members that it carries."""

    seed: int
    objective: str
    mode: Mode
    validations_per_epoch: int
    has_val: bool
    on_device: Callable[[Any], Any] | None
    answers: bool
    """Whether members say with each better section what they answer to the validation samples."""
    snapshot_bytes: int
    """Bytes of the weights of its last sections that a member keeps."""
    stop: Stop
    """Rule of members without one of their own."""


@known_keywords("argosy.Study")
@described
@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """What is asked of a run."""

    data: Data
    """What all members train on."""
    members: Sequence[Member]
    """The networks, each of another name."""
    stop: Stop = field(default_factory=lambda: MaxEpochs(10))
    """When a member has trained enough, as ``MaxEpochs(50) | Plateau("val_loss", patience=5)``; a member's own rule comes first."""
    objective: str = ""
    """The metric that ranks members; by default ``val_loss``, without validation data ``train_loss``."""
    mode: Mode | None = None
    """Whether the objective is minimised or maximised; needed where its name does not tell (``argosy.stopping.mode_of``)."""
    seed: int = 0
    """What the order of samples, what is drawn in preparation, and members without a seed of their own follow from."""
    ensemble: EnsemblePlateau | None = None
    """Lets the ensemble of the members decide which of them train on, and when all end. Their own rules end them as well."""
    validations_per_epoch: int = 1
    """Sections of an epoch: after each of them the members are validated, and rules see a row of history, in which ``train_loss``
    is the mean since the epoch began. Weights do not depend on it."""
    _by_name: Mapping[str, Member] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.data, Data):
            raise StudyError(f"Study.data is {shown(self.data)}; it must be an argosy.Data, as Data(train=dataset).")
        object.__setattr__(self, "members", _members(self.members))
        object.__setattr__(self, "objective", self.objective or ("val_loss" if self.data.has_val else "train_loss"))
        object.__setattr__(self, "_by_name", {member.name: member for member in self.members})
        twice = sorted(name for name, count in Counter(member.name for member in self.members).items() if count > 1)
        if twice:
            raise StudyError(
                f"Study.members has names that are found twice: {', '.join(twice)}; give each member its own."
            )
        if both := [name for name in _repeated(self.members) if name in self._by_name]:
            raise StudyError(
                f"Study.members has a member {both[0]!r} beside members that repeat {both[0]!r}, and a report could not tell which of the two "
                "is meant. Give one of them another name."
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
            raise StudyError(f"Study.objective is {shown(self.objective)}; it must be the name of a metric.")
        if self.objective.startswith("val_") and not self.data.has_val:
            raise StudyError(
                f"the objective {self.objective!r} needs validation data, and Data has none: "
                "give val= (or val_arrays=), or choose objective='train_loss'."
            )

    def _check_member(self, member: Member) -> None:
        """Raise StudyError where a member and the study do not agree."""
        _check_outer_scalars(member)
        self._check_tokens(member)
        reported = member.reported(has_val=self.data.has_val)
        if self.objective not in reported:
            raise StudyError(
                f"member {member.name!r} does not report the objective {self.objective!r}{meant(self.objective, _of_its_split(self.objective, reported))}; "
                f"it reports {', '.join(sorted(reported))}. Add it to the member's metrics."
            )
        if unknown := sorted(self.stop_of(member).watches - reported - OTHER_COLUMNS):
            raise StudyError(
                f"member {member.name!r}: its stopping rule watches {unknown[0]!r}"
                f"{meant(unknown[0], _of_its_split(unknown[0], reported | OTHER_COLUMNS))}, and it reports "
                f"{', '.join(sorted(reported | OTHER_COLUMNS))}. Name one of these, or add it to the member's metrics"
                f"{'' if self.data.has_val else '; what begins with val_ needs validation data'}."
            )
        if member.val_subset is not None and not self.data.has_val:
            raise StudyError(
                f"member {member.name!r} has a val_subset, and Data has no validation data: give val= (or val_arrays=), "
                "or leave it out."
            )
        if member.average is not None and not self.objective.startswith("val_"):
            raise StudyError(
                f"member {member.name!r} has an average, and the objective {self.objective!r} cannot choose between averaged and raw "
                "weights: give an objective of validation, as val_loss, and val= (or val_arrays=), or leave out average."
            )
        most = self.stop_of(member).max_epochs
        if isinstance(member.average, SWA) and most is not None and most < member.average.from_epoch:
            raise StudyError(
                f"member {member.name!r}: average={member.average} begins at the end of epoch {member.average.from_epoch}, and its stopping rule "
                f"ends it after {most:g}, so there would be no average. Let it begin earlier, or give more epochs."
            )
        if member.optimizers is not None and member.validate is None and self.data.has_val:
            raise StudyError(
                f"member {member.name!r} moves the weights in its step, which validation must not: give it "
                "validate=, (model, batch) -> loss."
            )

    def _check_ensemble(self, rule: Any) -> None:
        if not isinstance(rule, EnsemblePlateau):
            raise StudyError(
                f"Study.ensemble is {shown(rule)}; it must be an argosy.EnsemblePlateau, as EnsemblePlateau(patience=5)."
            )
        if not self.data.has_val:
            raise StudyError(
                "Study.ensemble chooses by validation samples, and Data has none: give val= (or val_arrays=), or leave it out."
            )
        if self.data.ragged is not None:
            raise StudyError(
                "Study.ensemble compares members sample by sample, and batches of Data.ragged, cut by length, put them into an order of "
                "each member's own. Leave one of the two out."
            )
        first = self.members[0]
        for member in self.members:
            if _listed(member.val_subset) != _listed(first.val_subset):
                raise StudyError(
                    f"members {first.name!r} and {member.name!r} are validated on samples of their own, and Study.ensemble needs the same "
                    "for all: give them one val_subset, or none."
                )
            if member.step is not None:
                raise StudyError(
                    f"member {member.name!r} has a step of its own, and Study.ensemble needs networks whose outputs and targets a loss "
                    "compares, as (output, target) -> loss. Give it loss= instead, or leave out ensemble."
                )

    def _check_tokens(self, member: Member) -> None:
        if member.batch_tokens is None:
            return
        if self.data.ragged is None:
            raise StudyError(
                f"member {member.name!r} has batch_tokens, and all samples are of one length: leave it out, or declare in Data.ragged what is "
                "of unlike length."
            )
        if member.batch_tokens < (longest := check_ragged(self.data.ragged)):
            raise StudyError(
                f"member {member.name!r}: batch_tokens is {member.batch_tokens}, and Data.ragged allows a sample of {longest}, which would fit "
                "in no batch. Give at least as many."
            )

    def member(self, name: str) -> Member:
        """Return the member of that name; raises StudyError if there is none."""
        if name not in self._by_name:
            raise StudyError(
                f"the study has no member {name!r}{meant(name, self.names)}; choose one of {', '.join(self.names)}."
            )
        return self._by_name[name]

    @property
    def names(self) -> Collection[str]:
        """Names of the members, in their order."""
        return self._by_name.keys()

    @property
    def terms(self) -> Terms:
        """What holds for every member."""
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


def _check_outer_scalars(member: Member) -> None:
    """Raise StudyError where a factory would read another value than that of when its member was made."""
    for part, outside in member._outside.items():
        now = Outside.of(getattr(member, part)).scalars if outside.scalars else {}
        for name, value in outside.scalars.items():
            if repr(now.get(name, value)) != repr(value):
                otherwise = (
                    "with a copy of the settings, as copy.deepcopy makes one"
                    if "." in name
                    else f"as a default, {name}={name}"
                )
                raise StudyError(
                    f"member {member.name!r}: its {part} reads {name} when it is called, and that is {now[name]!r} by now; it was {value!r} when "
                    f"the member was made. Give it with the function, as functools.partial(SGD, lr=lr), or {otherwise}."
                )


def doubts_of(members: Sequence[Member]) -> list[str]:
    """Say where members are given one object of settings, as a whole, that was set between them: all of them read what it is by now."""
    seen: dict[int, tuple[Member, Mapping[str, Any]]] = {}
    found = []
    for member in members:
        for part, outside in member._outside.items():
            for name, (settings, held) in outside.settings.items():
                first, before = seen.setdefault(id(settings), (member, held))
                found += [
                    f"members {first.name!r} and {member.name!r} are given one object of settings ({name} of {part}), in which {key} was "
                    f"{value!r} when the first was made and {held[key]!r} for the second: both have what it is by now. Where they are to "
                    "differ in it, bind a copy to each, as copy.deepcopy makes one."
                    for key, value in before.items()
                    if repr(held.get(key, value)) != repr(value)
                ]
    return found


def _listed(indices: Sequence[int] | None) -> list[int] | None:
    return None if indices is None else [*indices]


def _repeated(members: Sequence[Member]) -> dict[str, None]:
    """Return the names of what members repeat, in their order."""
    return dict.fromkeys(member.repetition.of for member in members if member.repetition is not None)


def _of_its_split(metric: str, known: Collection[str]) -> list[str]:
    """Return the known metrics that may have been meant: for one of validation, none of training."""
    return [name for name in known if name.startswith("val_") or not metric.startswith("val_")]


def _members(members: Any) -> tuple[Member, ...]:
    if isinstance(members, Member | Mapping | str) or not hasattr(members, "__iter__"):
        raise StudyError(f"Study.members is {shown(members)}; it must be a list of members.")
    found = tuple(members)
    for number, member in enumerate(found):
        if not isinstance(member, Member):
            raise StudyError(f"Study.members[{number}] is {shown(member)}; it must be an argosy.Member.")
    if not found:
        raise StudyError("Study.members is empty; give the study at least one member.")
    return found


def _check_numbers(member: Member) -> None:
    whole = {"batch_size": 1, "batch_tokens": 1, "accumulate": 1, "eval_batch_size": 1, "seed": 0}
    for name, least in whole.items():
        if name in ("batch_size", "accumulate") or getattr(member, name) is not None:
            check_whole(f"member {member.name!r}: {name}", getattr(member, name), least=least)
    if member.seed is not None and member.seed >= LARGEST_SEED:
        raise StudyError(f"member {member.name!r}: seed is {member.seed}; it must be below 2**63.")
    if member.clip_grad_norm is not None:
        check_number(f"member {member.name!r}: clip_grad_norm", member.clip_grad_norm, above=0)
    if not isinstance(member.drop_last, bool):
        raise StudyError(f"member {member.name!r}: drop_last is {shown(member.drop_last)}; it can be True or False.")
    check_choice(f"member {member.name!r}: precision", member.precision, ("float32", "bfloat16", "float16"))
    check_choice(f"member {member.name!r}: schedule_per", member.schedule_per, ("epoch", "step"))


def _check_functions(member: Member) -> None:
    check_factory(f"member {member.name!r}: model", member.model, "the network")
    built = {
        "optimizer": "the optimizer of the parameters that it is given",
        "optimizers": "the optimizers of the network that it is given",
    }
    for name, what in built.items():
        if getattr(member, name) is not None:
            check_factory(f"member {member.name!r}: {name}", getattr(member, name), what)
    for name, form in FORMS.items():
        value = getattr(member, name)
        if value is not None:
            check_callable(f"member {member.name!r}: {name}", value, form)
            if name != "schedule":
                check_built(f"member {member.name!r}: {name}", value)


def _check_steps(member: Member) -> None:
    """Raise StudyError unless one field computes the loss, and one moves the weights."""
    if (member.optimizer is None) == (member.optimizers is None):
        given = "neither optimizer= nor" if member.optimizer is None else "both optimizer= and"
        raise StudyError(
            f"member {member.name!r} has {given} optimizers=; give it one of them, the latter with a step that moves the "
            "weights itself."
        )
    if member.step is not None and member.loss is not None:
        raise StudyError(f"member {member.name!r}: `step` computes the loss itself; leave out loss.")
    if member.step is None and (member.validate is not None or member.optimizers is not None):
        given = "validate" if member.validate is not None else "optimizers"
        raise StudyError(f"member {member.name!r} has {given}= and no step of its own; give it step=, or leave it out.")
    if member.optimizers is None:
        return
    for name, without in MOVES_ITSELF.items():
        if getattr(member, name) != without:
            raise StudyError(
                f"member {member.name!r}: {name} is {shown(getattr(member, name))}, and its step moves the weights itself; "
                "leave it out, and do that in the step."
            )


def _check_calls(member: Member) -> None:
    """Raise StudyError unless all functions take what they are called with, which `_check_steps`, called before, decides."""
    for name, (arguments, form) in CALLS.items():
        value = getattr(member, name)
        if value is not None:
            moves = name == "step" and member.optimizers is not None
            form = "a function: (model, batch, optimizers) -> loss" if moves else form
            check_takes(f"member {member.name!r}: {name}", value, arguments + moves, form)


def _check_metrics(member: Member) -> None:
    """Raise StudyError unless these are metrics by names that columns of tables can have."""
    if not isinstance(member.metrics, Mapping):
        raise StudyError(
            f"member {member.name!r}: metrics is {shown(member.metrics)}; it must be a dict, as {{'accuracy': accuracy}}."
        )
    for name, metric in member.metrics.items():
        check_metric(f"member {member.name!r}", name, metric)
