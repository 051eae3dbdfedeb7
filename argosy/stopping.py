"""Stopping rules: pure functions of a member's history, combined with ``|`` and ``&``."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from argosy.described import document_fields
from argosy.errors import StudyError
from argosy.errors.checks import check_choice, check_number, check_whole, describe_value
from argosy.errors.spelling import did_you_mean, known_keywords

__all__ = [
    "EnsemblePlateau",
    "GrowingHistory",
    "History",
    "MaxEpochs",
    "MaxSamples",
    "MaxSeconds",
    "MaxSteps",
    "Plateau",
    "Stop",
    "Target",
    "is_better",
    "check_rule",
    "mode_of",
]

History = Sequence[Mapping[str, float]]
"""One row per finished section: its metrics, its training time in ``seconds``, and the member's totals so far: ``epochs`` (0.25, 0.5, …),
optimizer ``steps`` and training ``samples``."""
SLACK = 1e-9
"""Tolerance when numbers of epochs are compared, since 5/3 and 1 + 2/3 differ as floating-point numbers."""
Mode = Literal["min", "max"]
T = TypeVar("T")
LOWER_IS_BETTER = {
    *("loss", "losses", "error", "errors", "err", "mse", "rmse", "mae", "mape", "nll", "logloss"),
    *("perplexity", "ppl", "wer", "cer", "brier"),
}
"""Words in names of metrics that are minimised, in lower case."""
HIGHER_IS_BETTER = {
    *("accuracy", "acc", "precision", "recall", "sensitivity", "specificity", "f1", "auc", "auroc", "auprc"),
    *("dice", "iou", "miou", "kappa", "mcc", "r2", "psnr", "ssim", "bleu"),
}
LARGEST_HOLDOUT = 0.9
"""Largest allowed value of `EnsemblePlateau.holdout`."""
NEGATIONS = {"neg", "negative", "inverse"}
"""Words that may reverse the direction, as in scikit-learn's neg_mean_squared_error; such names are ambiguous."""


class GrowingHistory(list[dict[str, float]]):
    """A history that a run appends to; rules that fold it read each row once, because they are asked after every section."""

    __slots__ = ("folds",)

    def __init__(self, rows: Iterable[dict[str, float]] = ()) -> None:
        super().__init__(rows)
        self.folds: dict[Stop, tuple[int, Any]] = {}
        """By rule: how many rows it has folded, and its value then."""

    def __delitem__(self, places: Any) -> None:
        self.folds.clear()  # rows are taken back after a fault
        super().__delitem__(places)


class Stop(ABC):
    """A stopping rule: a function of the member's own history alone, evaluated at the end of each section."""

    @abstractmethod
    def reason(self, history: History) -> str | None:
        """Return why the member stops after its last section, or None if it continues. With an empty history every rule returns None."""

    @property
    def max_epochs(self) -> float | None:
        """Upper bound of the number of epochs; None if the rule has none."""
        return None

    def certain(self, history: History, sections: int) -> int:
        """Return how many more sections the member trains at least before the rule can stop it: at least 1. An epoch has `sections` sections.

        The driver does not have to evaluate the rule before these are over.
        """
        return 1

    @property
    def watches(self) -> frozenset[str]:
        """History columns that the rule reads and that some members may not report."""
        return frozenset()

    def __bool__(self) -> bool:
        """Refuse ``or`` and ``and``, which Python would answer with one of the rules alone."""
        raise StudyError(
            f"{self!r} was combined by `or`, `and` or `not`, which would leave out a rule. Use | or &, and `is None` to test for one."
        )

    def __or__(self, other: "Stop") -> "Stop":
        return Either(self, other)

    def __and__(self, other: "Stop") -> "Stop":
        return Both(self, other)


@known_keywords("argosy.MaxEpochs")
@dataclass(frozen=True, slots=True)
class MaxEpochs(Stop):
    """Stop after a number of epochs; fractions such as 0.25 take effect at the end of a section."""

    epochs: float
    """Number of passes over the member's training samples."""

    def __post_init__(self) -> None:
        check_number("MaxEpochs: epochs", self.epochs, above=0)

    def reason(self, history: History) -> str | None:
        """Return a reason once this many epochs are finished."""
        return f"{self.epochs:g} epochs" if _epochs(history) >= self.epochs - SLACK else None

    @property
    def max_epochs(self) -> float | None:
        """The number of epochs."""
        return self.epochs

    def certain(self, history: History, sections: int) -> int:
        """Return the number of remaining sections."""
        return max(sections_in(self.epochs - _epochs(history), sections), 1)


@known_keywords("argosy.MaxSteps")
@dataclass(frozen=True, slots=True)
class MaxSteps(Stop):
    """Stop at the end of the section in which the optimizer reaches a number of steps."""

    steps: int
    """Number of optimizer steps."""

    def __post_init__(self) -> None:
        check_whole("MaxSteps: steps", self.steps, least=1)

    def reason(self, history: History) -> str | None:
        """Return a reason once this many steps are done."""
        return f"{self.steps} steps" if _last_total(history, "steps") >= self.steps else None


@known_keywords("argosy.MaxSamples")
@dataclass(frozen=True, slots=True)
class MaxSamples(Stop):
    """Stop at the end of the section in which the member reaches a number of training samples, repetitions included."""

    samples: int
    """Number of training samples; a sample counts each time it is seen."""

    def __post_init__(self) -> None:
        check_whole("MaxSamples: samples", self.samples, least=1)

    def reason(self, history: History) -> str | None:
        """Return a reason once this many samples have been trained on."""
        return f"{self.samples} samples" if _last_total(history, "samples") >= self.samples else None


@known_keywords("argosy.MaxSeconds")
@dataclass(frozen=True, slots=True)
class MaxSeconds(Stop):
    """Stop at the end of the section in which the member's own training reaches a number of seconds.

    This is the only rule under which a result depends on other members and on the machine: beside others, steps take longer and the
    member stops earlier. `MaxEpochs`, `MaxSteps` and `MaxSamples` give the same result everywhere.
    """

    seconds: float
    """Seconds of the member's training and validation on its own device."""

    def __post_init__(self) -> None:
        check_number("MaxSeconds: seconds", self.seconds, above=0)

    def reason(self, history: History) -> str | None:
        """Return a reason once the training has taken this many seconds."""
        trained = _fold(self, history, 0.0, lambda seconds, row: seconds + row["seconds"])
        return f"{self.seconds:g} s" if trained >= self.seconds else None


@known_keywords("argosy.Plateau")
@dataclass(frozen=True, slots=True)
class Plateau(Stop):
    """Stop when the metric has not improved by more than `min_delta` for `patience` sections (epochs, by default).

    Any number is an improvement on NaN, and NaN is never an improvement.
    """

    metric: str
    """History column, such as ``val_loss``."""
    patience: int
    """Number of sections without an improvement; a section is an epoch by default."""
    min_delta: float = 0.0
    """An improvement must be larger than this, in units of the metric."""
    mode: Mode | None = None
    """``min`` or ``max``; required if the metric's name does not show it (see `mode_of`)."""

    def __post_init__(self) -> None:
        check_whole("Plateau: patience", self.patience, least=1)
        check_number("Plateau: min_delta", self.min_delta, least=0)
        mode_of(self.metric, self.mode, owner=f"Plateau({self.metric!r})")

    def reason(self, history: History) -> str | None:
        """Return a reason when the metric has not improved for `patience` sections."""
        since = self._since(history)
        return f"{self.metric} has not improved for {since} sections" if since >= self.patience else None

    @property
    def watches(self) -> frozenset[str]:
        """The metric's column."""
        return frozenset({self.metric})

    def certain(self, history: History, sections: int) -> int:
        """Return the remaining patience."""
        return max(self.patience - self._since(history), 1)

    def _since(self, history: History) -> int:
        """Return the number of rows since the metric last improved."""
        nothing: tuple[float | None, int] = (None, 0)
        best, since = _fold(self, history, nothing, self._judge)
        _check_found(best is not None, history, self.metric)
        return since

    def _judge(self, so_far: tuple[float | None, int], row: Mapping[str, float]) -> tuple[float | None, int]:
        """Return the best value and the number of rows since it, one row later."""
        best, since = so_far
        if self.metric not in row:
            return so_far
        value = row[self.metric]
        if best is None or is_better(value, best, mode_of(self.metric, self.mode), self.min_delta):
            return value, 0
        return best, since + 1


@known_keywords("argosy.Target")
@dataclass(frozen=True, slots=True)
class Target(Stop):
    """Stop when the metric reaches a value; NaN never reaches it."""

    metric: str
    """History column, such as ``val_accuracy``."""
    value: float
    """The value to reach, from above or from below according to the mode."""
    mode: Mode | None = None
    """``min`` or ``max``, as in `Plateau`."""

    def __post_init__(self) -> None:
        check_number("Target: value", self.value)
        mode_of(self.metric, self.mode, owner=f"Target({self.metric!r})")

    def reason(self, history: History) -> str | None:
        """Return a reason when the metric has reached the value."""
        value = next((row[self.metric] for row in reversed(history) if self.metric in row), None)
        _check_found(value is not None, history, self.metric)
        # It is not reached as long as it would be an improvement.
        if value is None or math.isnan(value) or is_better(self.value, value, mode_of(self.metric, self.mode)):
            return None
        return f"{self.metric} {value:.4g} reached {self.value:g}"

    @property
    def watches(self) -> frozenset[str]:
        """The metric's column."""
        return frozenset({self.metric})


@known_keywords("argosy.EnsemblePlateau")
@document_fields
@dataclass(frozen=True, kw_only=True, slots=True)
class EnsemblePlateau:
    """Let the ensemble of all members decide when they stop; given as `Study.ensemble`.

    After each section the ensemble is selected again from each member's best section so far (greedy selection with replacement, Caruana et
    al. 2004). A member stops when it was useless for `patience` sections: it was not selected, it was not selected from any of several random
    halves of the members, and it is not expected to catch up. A member is expected to catch up if its loss, extrapolated by the power law
    of its last `patience` sections, reaches the mean loss of the selected members within 1.5 times the sections that it has trained. All
    members stop when the ensemble has not improved for twice the patience.
    """

    patience: int = 6
    """Number of sections; a section is an epoch by default."""
    holdout: float = 0.25
    """Share of the validation samples that the ensemble is not selected on; its loss on them decides whether it has improved. They are no
    test set, because each member's best section is chosen on all validation samples. With 0 the ensemble is judged on the samples that it
    was selected on."""
    min_delta: float = 0.0
    """An improvement of the ensemble's loss must be larger than this."""
    snapshot_bytes: int = 4 * 2**20
    """How many bytes of weights of recent sections each member keeps, beside its best section, in its checkpoints and in host memory while it
    trains. The report's ensemble is selected from these snapshots, at most 32 per member, and may contain several of one member. A network that
    is larger than this, or whose state holds more than tensors, contributes its best section only; with 0 every network does."""

    def __post_init__(self) -> None:
        check_whole("EnsemblePlateau: patience", self.patience, least=1)
        check_number("EnsemblePlateau: holdout", self.holdout, least=0)
        if self.holdout > LARGEST_HOLDOUT:
            raise StudyError(
                f"EnsemblePlateau: holdout is {self.holdout}; it must be at most {LARGEST_HOLDOUT}, because too few samples would be left to "
                "select on."
            )
        check_number("EnsemblePlateau: min_delta", self.min_delta, least=0)
        check_whole("EnsemblePlateau: snapshot_bytes", self.snapshot_bytes, least=0)


@dataclass(frozen=True, slots=True)
class Combined(Stop):
    """Base of `Either` and `Both`, which combine two rules."""

    first: Stop
    second: Stop

    def __post_init__(self) -> None:
        check_rule("a part of a combined rule", self.first)
        check_rule("a part of a combined rule", self.second)

    @property
    def watches(self) -> frozenset[str]:
        """Columns that either rule reads."""
        return self.first.watches | self.second.watches


@dataclass(frozen=True, slots=True)
class Either(Combined):
    """Stop when at least one of two rules is met."""

    def reason(self, history: History) -> str | None:
        """Return the first rule's reason, else the second's."""
        return self.first.reason(history) or self.second.reason(history)

    @property
    def max_epochs(self) -> float | None:
        """The smaller of the known bounds."""
        return min((b for b in (self.first.max_epochs, self.second.max_epochs) if b is not None), default=None)

    def certain(self, history: History, sections: int) -> int:
        """Return how many sections pass before either rule can stop the member."""
        return min(self.first.certain(history, sections), self.second.certain(history, sections))


@dataclass(frozen=True, slots=True)
class Both(Combined):
    """Stop when both rules are met."""

    def reason(self, history: History) -> str | None:
        """Return both reasons once both rules have one."""
        reasons = self.first.reason(history), self.second.reason(history)
        return " and ".join(r for r in reasons if r) if all(reasons) else None

    @property
    def max_epochs(self) -> float | None:
        """The larger bound, if both are known."""
        bounds = self.first.max_epochs, self.second.max_epochs
        return None if None in bounds else max(b for b in bounds if b is not None)

    def certain(self, history: History, sections: int) -> int:
        """Return how many sections pass before both rules can be met."""
        return max(self.first.certain(history, sections), self.second.certain(history, sections))


def is_better(value: float, than: float, mode: Mode, by: float = 0.0) -> bool:
    """Return whether `value` improves on `than` by more than `by`; any number improves on NaN."""
    if math.isnan(than):
        return not math.isnan(value)
    return value < than - by if mode == "min" else value > than + by


def sections_in(epochs: float, sections: int) -> int:
    """Return how many sections a number of epochs has, with `sections` per epoch."""
    return math.ceil((epochs - SLACK) * sections)


def check_rule(what: str, rule: Any) -> None:
    """Raise StudyError unless the value is a stopping rule."""
    if isinstance(rule, EnsemblePlateau):
        raise StudyError(
            f"{what} is an EnsemblePlateau, which stops members by comparing all of them. Set it as Study(ensemble=...)."
        )
    if not isinstance(rule, Stop):
        raise StudyError(f"{what} is {describe_value(rule)}; it must be a stopping rule, such as MaxEpochs(10).")


def mode_of(metric: str, mode: Mode | None = None, *, owner: str = "") -> Mode:
    """Return the direction in which a metric improves: as given, or else inferred from the words of its name.

    Raises StudyError if the name is ambiguous, because optimising in the wrong direction would go unnoticed.
    """
    if not isinstance(metric, str):
        raise StudyError(
            f"{owner}: the metric is {describe_value(metric)}; it must be the name of a history column, such as 'val_loss'."
        )
    if mode is not None:
        check_choice(f"{owner}: mode", mode, ("min", "max"))
        return mode
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    lower, higher = bool(words & LOWER_IS_BETTER), bool(words & HIGHER_IS_BETTER)
    if lower == higher or words & NEGATIONS:  # words of both directions, of none, or reversed ones
        tell = LOWER_IS_BETTER | HIGHER_IS_BETTER
        spelled = {"loss", *(one for one in tell if len(one) > 4)}  # abbreviations resemble others: map is not mape
        fixed = did_you_mean(
            metric,
            [metric.lower().replace(word, one) for word in words - tell for one in get_close_matches(word, spelled)],
        )
        raise StudyError(
            f"{owner}: the name {metric!r} does not show whether lower or higher is better; set mode='min' or mode='max'"
            f"{fixed and f', or fix the name{fixed}'}."
        )
    return "min" if lower else "max"


def _epochs(history: History) -> float:
    """Return the number of finished epochs; without a column ``epochs`` each row counts as one."""
    return history[-1].get("epochs", len(history)) if history else 0.0


def _last_total(history: History, what: str) -> float:
    """Return the number of steps or samples so far; 0 without such a column."""
    return history[-1].get(what, 0) if history else 0


def _fold(rule: Stop, history: History, start: T, step: Callable[[T, Mapping[str, float]], T]) -> T:
    """Fold `step` over the rows; of `GrowingHistory`, only over those that the rule has not folded before."""
    folds: dict[Stop, tuple[int, T]] = history.folds if isinstance(history, GrowingHistory) else {}
    count, value = folds.get(rule, (0, start))  # equal rules share a value, because they fold alike
    for row in history[count:]:
        value = step(value, row)
    folds[rule] = len(history), value
    return value


def _check_found(is_there: bool, history: History, metric: str) -> None:
    """Raise StudyError if no row has the metric.

    A ``val_`` metric may be missing from all rows so far: studies whose members never report it were refused before.
    """
    if history and not is_there and not metric.startswith("val_"):
        raise StudyError(
            f"a stopping rule watches {metric!r}, which this member does not report. Choose one of "
            f"{', '.join(sorted(history[-1]))}, or add it to the member's metrics."
        )
