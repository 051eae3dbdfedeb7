"""What is asked: data, members, stopping rules, objective, seed. Values only; nothing here trains or imports torch."""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from argosy.errors import StudyError
from argosy.stopping import MaxEpochs, Mode, Stop, mode_of

__all__ = ["Data", "Member", "Study", "Terms", "accuracy", "grid"]

Metric = Any
"""One of three, and its value depends on no batch size:

* (output, target) -> one value per sample ``[B]``: averaged over the samples;
* (outputs, targets) -> a number: of the whole set, once, with everything gathered on the host; it shows on a first batch;
* an object with ``update(outputs, targets)`` and ``compute()``, as torchmetrics has them, or what makes one when it is called
  without arguments (a class, a partial): each validation has one of its own, on the member's device.
"""


def accuracy(output: Any, target: Any) -> Any:
    """Share of right answers, per sample: output ``[B, classes]``, target ``[B]`` of class numbers -> ``[B]``."""
    return (output.argmax(dim=1) == target).float()


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The one dataset of a study. Samples are pytrees of tensors, each of one fixed shape and dtype."""

    train: Any = None
    """A map-style Dataset, or a function without arguments that returns one (built where it is read)."""
    val: Any = None
    """The same for validation."""
    arrays: Sequence[Any] | None = None
    """Instead of `train`: tensors or arrays of equal length; one sample is one row of each."""
    val_arrays: Sequence[Any] | None = None
    """Instead of `val`."""
    on_device: Callable[[Any], Any] | None = None
    """Deterministic work per sample, batch -> batch, done once per block and device for all members."""
    on_error: Literal["raise", "skip"] = "raise"
    """What a sample that raises does to the run: end it, or leave a counted hole."""

    def __post_init__(self) -> None:
        if (self.train is None) == (self.arrays is None):
            raise StudyError("Data needs training samples once: give either train= or arrays=.")
        if self.val is not None and self.val_arrays is not None:
            raise StudyError("Data has validation samples twice: give either val= or val_arrays=.")
        for name in ("train", "val"):
            _check_dataset(name, getattr(self, name))
        if self.on_error not in ("raise", "skip"):
            raise StudyError(f"Data.on_error is {self.on_error!r}; it can be 'raise' or 'skip'.")

    @property
    def has_val(self) -> bool:
        """Whether there is validation data."""
        return self.val is not None or self.val_arrays is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One network to train, with all that belongs to it alone."""

    name: str = field(kw_only=False)
    """Unique in the study; letters, digits and ``. _ = + -``."""
    model: Callable[[], Any]
    """Builds the network; called under the member's own seed."""
    optimizer: Callable[[Any], Any]
    """Parameters -> optimizer, e.g. ``partial(SGD, lr=0.1)``."""
    batch_size: int
    loss: Callable[[Any, Any], Any] | None = None
    """(output, target) -> per-sample losses ``[B]`` or their mean; by default cross-entropy."""
    schedule: Callable[[Any], Any] | None = None
    """Optimizer -> learning-rate scheduler of torch."""
    schedule_per: Literal["epoch", "step"] = "epoch"
    stop: Stop | None = None
    """Instead of the study's rule."""
    augment: Callable[[Any], Any] | None = None
    """Batch -> batch, in training only, on the member's device under its own random state."""
    subset: Sequence[int] | None = None
    """Indices of the training samples that the member sees; an index given twice is seen twice (bootstrap)."""
    val_subset: Sequence[int] | None = None
    """The same for validation (cross-validation folds)."""
    drop_last: bool = False
    """Leave out the last batch when it is short."""
    eval_batch_size: int | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Reported as ``val_<name>``."""
    precision: Literal["float32", "bfloat16"] = "float32"
    clip_grad_norm: float | None = None
    accumulate: int = 1
    """Micro-batches per step; the batch that the optimizer sees stays `batch_size`."""
    seed: int | None = None
    """Instead of the seed that follows from the study's seed and the member's name."""
    step: Callable[[Any, Any], Any] | None = None
    """Own training step: (model, batch) -> loss, instead of ``loss(model(x), y)`` on batches ``(x, y)``."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w=+-][\w.=+-]*", self.name) or ".." in self.name:
            raise StudyError(
                f"member name {self.name!r} becomes a folder: use letters, digits and . _ = + - "
                "(no '/', no '..', no leading dot)."
            )
        for name in ("batch_size", "accumulate", "eval_batch_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise StudyError(f"member {self.name!r}: {name} is {value!r}; it must be a whole number from 1.")
        for name in ("model", "optimizer"):
            if not callable(getattr(self, name)):
                raise StudyError(
                    f"member {self.name!r}: {name} must be a factory (a class, a function, a functools.partial); "
                    f"found {type(getattr(self, name)).__name__}. Each member builds its own, under its own seed."
                )
        if self.step is not None and (self.loss is not None or self.metrics):
            raise StudyError(f"member {self.name!r}: `step` computes the loss itself; leave out loss and metrics.")
        if self.precision not in ("float32", "bfloat16"):
            raise StudyError(f"member {self.name!r}: precision is {self.precision!r}; use 'float32' or 'bfloat16'.")
        if self.schedule_per not in ("epoch", "step"):
            raise StudyError(f"member {self.name!r}: schedule_per is {self.schedule_per!r}; use 'epoch' or 'step'.")

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Scalars bound in the member's partials, as ``optimizer.lr`` or ``model.hidden``, and its batch size."""
        found: dict[str, Any] = {"batch_size": self.batch_size}
        for name in ("model", "optimizer", "loss", "schedule", "augment", "step"):
            factory = getattr(self, name)
            if isinstance(factory, functools.partial):
                scalars = {k: v for k, v in factory.keywords.items() if isinstance(v, bool | int | float | str)}
                found.update({f"{name}.{key}": value for key, value in scalars.items()})
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What holds for every member of a study: all that a trainer knows beside the members that it carries."""

    seed: int
    objective: str
    mode: Mode
    validations_per_epoch: int
    has_val: bool
    on_device: Callable[[Any], Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """What is asked of a run."""

    data: Data
    members: Sequence[Member]
    stop: Stop = field(default_factory=lambda: MaxEpochs(10))
    objective: str = ""
    """The metric that ranks members; by default ``val_loss``, without validation data ``train_loss``."""
    mode: Mode | None = None
    """Whether the objective is minimised or maximised; by default ``min`` for names that end in loss or error."""
    seed: int = 0
    validations_per_epoch: int = 1
    """Sections of an epoch: after each of them the members are validated, and rules see a row of history. Weights do not
    depend on it."""
    _by_name: Mapping[str, Member] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))
        object.__setattr__(self, "objective", self.objective or ("val_loss" if self.data.has_val else "train_loss"))
        object.__setattr__(self, "mode", self.mode or mode_of(self.objective))
        object.__setattr__(self, "_by_name", {member.name: member for member in self.members})
        if not self.members:
            raise StudyError("a study needs at least one member.")
        twice = sorted(name for name, count in Counter(member.name for member in self.members).items() if count > 1)
        if twice:
            raise StudyError(f"member names must be unique; found twice: {', '.join(twice)}.")
        if self.mode not in ("min", "max"):
            raise StudyError(f"Study.mode is {self.mode!r}; it can be 'min' or 'max'.")
        if not isinstance(self.validations_per_epoch, int) or self.validations_per_epoch < 1:
            raise StudyError(
                f"Study.validations_per_epoch is {self.validations_per_epoch!r}; it must be a whole number from 1."
            )
        self._check_objective()

    def _check_objective(self) -> None:
        if self.objective.startswith("val_") and not self.data.has_val:
            raise StudyError(
                f"the objective {self.objective!r} needs validation data, and Data has none: "
                "give val= (or val_arrays=), or choose objective='train_loss'."
            )
        for member in self.members:
            reported = {"train_loss", "val_loss", *(f"val_{name}" for name in member.metrics)}
            if self.objective not in reported:
                raise StudyError(
                    f"member {member.name!r} does not report the objective {self.objective!r}; "
                    f"it reports {', '.join(sorted(reported))}. Add it to the member's metrics."
                )

    def member(self, name: str) -> Member:
        """The member of that name."""
        return self._by_name[name]

    @property
    def names(self) -> Collection[str]:
        """Of the members, in their order."""
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
        )

    def stop_of(self, member: Member) -> Stop:
        """The member's own rule, or the study's."""
        return member.stop or self.stop


def grid(build: Callable[..., Member], **axes: Sequence[Any]) -> list[Member]:
    """One member per point of a grid, named after it.

    >>> from functools import partial
    >>> def mlp(lr, hidden):
    ...     return Member("mlp", model=partial(dict, hidden=hidden), optimizer=partial(dict, lr=lr), batch_size=32)
    >>> [m.name for m in grid(mlp, lr=[0.1, 0.01], hidden=[64])]
    ['mlp-lr=0.1-hidden=64', 'mlp-lr=0.01-hidden=64']
    """
    members = []
    for point in itertools.product(*axes.values()):
        values = dict(zip(axes, point, strict=True))
        member = build(**values)
        suffix = "-".join(f"{key}={value}" for key, value in values.items())
        members.append(replace(member, name=f"{member.name}-{suffix}"))
    return members


def _check_dataset(name: str, dataset: Any) -> None:
    if dataset is None or (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        return
    if hasattr(dataset, "__iter__"):
        raise StudyError(
            f"Data.{name} is an iterable-style {type(dataset).__name__}; the stream needs a map-style Dataset "
            "(__len__ and __getitem__). Wrap it: read its records into a list once, or index them on disk."
        )
    if not callable(dataset):
        raise StudyError(
            f"Data.{name} must be a map-style Dataset or a function that returns one; found {type(dataset).__name__}."
        )
