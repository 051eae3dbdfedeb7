"""The description of a study: data, members, stopping rules, objective, seed. Plain values; nothing here trains or imports torch."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.averages import SWA
from argosy.described import document_fields, short_repr
from argosy.errors import StudyError
from argosy.errors.checks import check_whole, describe_value
from argosy.errors.spelling import did_you_mean, format_names, known_keywords
from argosy.ragged import check_ragged
from argosy.stopping import EnsemblePlateau, MaxEpochs, Mode, Stop, check_rule, mode_of
from argosy.study.data import Data
from argosy.study.member import (
    FACTORIES,
    IGNORED,
    Member,
    Repetition,
    accuracy,
    check_outside,
    ignored_class,
    is_torchs,
    own_loss,
    sharing_warnings,
)

__all__ = [
    "FACTORIES",
    "IGNORED",
    "Data",
    "Member",
    "Repetition",
    "Study",
    "Terms",
    "accuracy",
    "ignored_class",
    "is_torchs",
    "own_loss",
    "sharing_warnings",
]

OTHER_COLUMNS = frozenset({"lr", "seconds", "epochs", "steps", "samples"})
"""Columns of a history row other than a member's losses and metrics."""


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

    __repr__ = short_repr

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
        repeated = (member.repetition.of for member in self.members if member.repetition is not None)
        if both := next((name for name in repeated if name in self._by_name), ""):
            raise StudyError(
                f"Study.members has a member {both!r} and members that repeat {both!r}, so a report could not tell the two "
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
        check_outside(member)
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
            if ignored_class(member.loss) != ignored_class(first.loss):
                raise StudyError(
                    f"the losses of members {first.name!r} and {member.name!r} ignore different classes, {ignored_class(first.loss)} and "
                    f"{ignored_class(member.loss)}, but Study.ensemble compares members on the same samples. Give all losses the same ignore_index."
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


def _as_index_list(indices: Sequence[int] | None) -> list[int] | None:
    return None if indices is None else [*indices]


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
