"""When a member has trained enough: rules over its history, pure, combined with ``|`` and ``&``."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from argosy.described import described
from argosy.errors import StudyError
from argosy.errors.checks import check_choice, check_number, check_whole, shown
from argosy.errors.spelling import known_keywords, meant, near

__all__ = [
    "EnsemblePlateau",
    "History",
    "MaxEpochs",
    "MaxSamples",
    "MaxSeconds",
    "MaxSteps",
    "Plateau",
    "Stop",
    "Target",
    "better",
    "check_rule",
    "mode_of",
]

History = Sequence[Mapping[str, float]]
"""One row per finished section: its metrics, ``seconds`` of its training, and the member's totals up to its end: ``epochs``
(0.25, 0.5, …), optimizer ``steps`` and training ``samples``."""
SLACK = 1e-9
"""Tolerance of a number of epochs: five thirds, and one and two thirds, are not the same floating-point number."""
Mode = Literal["min", "max"]
LOWER_IS_BETTER = {
    *("loss", "losses", "error", "errors", "err", "mse", "rmse", "mae", "mape", "nll", "logloss"),
    *("perplexity", "ppl", "wer", "cer", "brier"),
}
"""Words of the names of metrics, in lower case."""
HIGHER_IS_BETTER = {
    *("accuracy", "acc", "precision", "recall", "sensitivity", "specificity", "f1", "auc", "auroc", "auprc"),
    *("dice", "iou", "miou", "kappa", "mcc", "r2", "psnr", "ssim", "bleu"),
}
LARGEST_HOLDOUT = 0.9
"""Largest share of the validation samples that an ensemble may not be chosen on."""
TURNED_ROUND = {"neg", "negative", "inverse"}
"""Words as in sklearn's neg_mean_squared_error, which does not tell the direction either."""


class Stop(ABC):
    """A stopping rule: a function of the member's own history and of nothing else, asked at the end of each section."""

    @abstractmethod
    def reason(self, history: History) -> str | None:
        """Return why the member stops after its last section, or None to go on, as every rule says before the first one."""

    @property
    def max_epochs(self) -> float | None:
        """An upper bound of the epochs; None where the rule knows none."""
        return None

    def certain(self, history: History, sections: int) -> int:
        """Return how many sections, of so many an epoch, come for sure before the rule can stop the member: at least 1.

        No process has to wait for an answer before these are over.
        """
        return 1

    @property
    def watches(self) -> frozenset[str]:
        """Columns of the history that the rule reads and that a member may not report."""
        return frozenset()

    def __or__(self, other: "Stop") -> "Stop":
        return Either(self, other)

    def __and__(self, other: "Stop") -> "Stop":
        return Both(self, other)


@known_keywords("argosy.MaxEpochs")
@dataclass(frozen=True, slots=True)
class MaxEpochs(Stop):
    """Stop after so many epochs; 0.25 is the first quarter of one, where it ends a section."""

    epochs: float
    """Passes over the member's training samples."""

    def __post_init__(self) -> None:
        check_number("MaxEpochs: epochs", self.epochs, above=0)

    def reason(self, history: History) -> str | None:
        """Return a reason when so many epochs are over."""
        return f"{self.epochs:g} epochs" if _epochs(history) >= self.epochs - SLACK else None

    @property
    def max_epochs(self) -> float | None:
        """The number of epochs itself."""
        return self.epochs

    def certain(self, history: History, sections: int) -> int:
        """Return all sections that are left."""
        return max(sections_in(self.epochs - _epochs(history), sections), 1)


@known_keywords("argosy.MaxSteps")
@dataclass(frozen=True, slots=True)
class MaxSteps(Stop):
    """Stop at the end of the first section with which the optimizer has made so many steps."""

    steps: int
    """Steps of the optimizer."""

    def __post_init__(self) -> None:
        check_whole("MaxSteps: steps", self.steps, least=1)

    def reason(self, history: History) -> str | None:
        """Return a reason when so many steps are made."""
        return f"{self.steps} steps" if _so_far(history, "steps") >= self.steps else None


@known_keywords("argosy.MaxSamples")
@dataclass(frozen=True, slots=True)
class MaxSamples(Stop):
    """Stop at the end of the first section with which the member has trained on so many samples, repeated ones included."""

    samples: int
    """Training samples, each time that one is seen."""

    def __post_init__(self) -> None:
        check_whole("MaxSamples: samples", self.samples, least=1)

    def reason(self, history: History) -> str | None:
        """Return a reason when so many samples are trained on."""
        return f"{self.samples} samples" if _so_far(history, "samples") >= self.samples else None


@known_keywords("argosy.MaxSeconds")
@dataclass(frozen=True, slots=True)
class MaxSeconds(Stop):
    """Stop at the end of the first section with which so many seconds of the member's own training are over.

    The one rule under which a member depends on its neighbours and its machine: beside others its steps take longer, and it
    stops earlier. Budgets that give the same member everywhere are `MaxEpochs`, `MaxSteps` and `MaxSamples`.
    """

    seconds: float
    """Seconds on the member's own device, validation included."""

    def __post_init__(self) -> None:
        check_number("MaxSeconds: seconds", self.seconds, above=0)

    def reason(self, history: History) -> str | None:
        """Return a reason when so many seconds of training are over."""
        return f"{self.seconds:g} s" if sum(row["seconds"] for row in history) >= self.seconds else None


@known_keywords("argosy.Plateau")
@dataclass(frozen=True, slots=True)
class Plateau(Stop):
    """Stop when the metric has not improved by more than `min_delta` for `patience` sections (epochs, by default).

    Any number improves on one that is not a number, and NaN improves on nothing.
    """

    metric: str
    """Column of the history, as ``val_loss``."""
    patience: int
    """Sections without a better value: epochs, where an epoch is one section."""
    min_delta: float = 0.0
    """Least difference that counts as better, in the unit of the metric."""
    mode: Mode | None = None
    """``min`` or ``max``; needed where the metric's name does not tell (see `mode_of`)."""

    def __post_init__(self) -> None:
        check_whole("Plateau: patience", self.patience, least=1)
        check_number("Plateau: min_delta", self.min_delta, least=0)
        mode_of(self.metric, self.mode, owner=f"Plateau({self.metric!r})")

    def reason(self, history: History) -> str | None:
        """Return a reason when the metric has not improved for `patience` sections."""
        since = self._since(history)
        return f"no better {self.metric} for {since} sections" if since >= self.patience else None

    @property
    def watches(self) -> frozenset[str]:
        """The metric's column."""
        return frozenset({self.metric})

    def certain(self, history: History, sections: int) -> int:
        """Return what is left of the patience."""
        return max(self.patience - self._since(history), 1)

    def _since(self, history: History) -> int:
        """Return the rows since the metric improved."""
        mode = mode_of(self.metric, self.mode)
        best, since = None, 0
        for value in _values(history, self.metric):
            if best is None or better(value, best, mode, self.min_delta):
                best, since = value, 0
            else:
                since += 1
        return since


@known_keywords("argosy.Target")
@dataclass(frozen=True, slots=True)
class Target(Stop):
    """Stop when the metric reaches the value; NaN reaches none."""

    metric: str
    """Column of the history, as ``val_accuracy``."""
    value: float
    """What it has to reach: from above or from below, by its mode."""
    mode: Mode | None = None
    """``min`` or ``max``, as in `Plateau`."""

    def __post_init__(self) -> None:
        check_number("Target: value", self.value)
        mode_of(self.metric, self.mode, owner=f"Target({self.metric!r})")

    def reason(self, history: History) -> str | None:
        """Return a reason when the metric has reached the value."""
        found = (_values(history, self.metric) or [math.nan])[-1]
        if math.isnan(found) or better(self.value, found, mode_of(self.metric, self.mode)):
            return None
        return f"{self.metric} {found:.4g} reached {self.value:g}"

    @property
    def watches(self) -> frozenset[str]:
        """The metric's column."""
        return frozenset({self.metric})


@known_keywords("argosy.EnsemblePlateau")
@described
@dataclass(frozen=True, kw_only=True, slots=True)
class EnsemblePlateau:
    """Let the ensemble of all members end them: it is chosen anew after each section, from each member's best one so far (greedy selection
    with replacement, Caruana et al. 2004). A member ends when for `patience` sections it was of no use: neither chosen, nor chosen from any of
    several random halves of the members, nor on its way to the mean loss of those chosen, which its own reaches in one and a half times as
    many sections again as it has trained if it falls by the same power of their number as in the last `patience`. All end when the ensemble
    has not become better for twice as long. Given as `Study.ensemble`."""

    patience: int = 6
    """Sections: epochs, where an epoch is one section."""
    holdout: float = 0.25
    """Share of the validation samples that the ensemble is not chosen on: its loss on these tells whether it became better. No test
    set: each member's best section is chosen by all of them. With 0 the ensemble is judged by the samples that it was chosen on."""
    min_delta: float = 0.0
    """Least difference of the ensemble's loss that counts as better."""
    snapshot_bytes: int = 4 * 2**20
    """Bytes of weights of its last sections that each member keeps in its checkpoints, and in the host's memory while it trains, beside the best:
    as many as these hold, at most 32, can be in the ensemble that the report makes, several of one member as well. Of a network that is
    larger, or has a state of more than tensors, only the best section is there; with 0 of all."""

    def __post_init__(self) -> None:
        check_whole("EnsemblePlateau: patience", self.patience, least=1)
        check_number("EnsemblePlateau: holdout", self.holdout, least=0)
        if self.holdout > LARGEST_HOLDOUT:
            raise StudyError(
                f"EnsemblePlateau: holdout is {self.holdout}; it must be at most {LARGEST_HOLDOUT}, or too few samples are left to "
                "choose on."
            )
        check_number("EnsemblePlateau: min_delta", self.min_delta, least=0)
        check_whole("EnsemblePlateau: snapshot_bytes", self.snapshot_bytes, least=0)


@dataclass(frozen=True, slots=True)
class Combined(Stop):
    """Two rules, of which `Either` and `Both` make one."""

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
    """Stop when one of two rules says so."""

    def reason(self, history: History) -> str | None:
        """Return the first rule's reason, or else the second's."""
        return self.first.reason(history) or self.second.reason(history)

    @property
    def max_epochs(self) -> float | None:
        """The lower of the known bounds."""
        return min((b for b in (self.first.max_epochs, self.second.max_epochs) if b is not None), default=None)

    def certain(self, history: History, sections: int) -> int:
        """Return the sections before the first rule can stop it."""
        return min(self.first.certain(history, sections), self.second.certain(history, sections))


@dataclass(frozen=True, slots=True)
class Both(Combined):
    """Stop when both rules say so."""

    def reason(self, history: History) -> str | None:
        """Return both reasons when both rules have one."""
        reasons = self.first.reason(history), self.second.reason(history)
        return " and ".join(r for r in reasons if r) if all(reasons) else None

    @property
    def max_epochs(self) -> float | None:
        """The higher bound, where both are known."""
        bounds = self.first.max_epochs, self.second.max_epochs
        return None if None in bounds else max(b for b in bounds if b is not None)

    def certain(self, history: History, sections: int) -> int:
        """Return the sections before both rules can stop it."""
        return max(self.first.certain(history, sections), self.second.certain(history, sections))


def better(value: float, than: float, mode: Mode, by: float = 0.0) -> bool:
    """Return whether a metric's value improves on another by more than `by`; any number improves on NaN."""
    if math.isnan(than):
        return not math.isnan(value)
    return value < than - by if mode == "min" else value > than + by


def sections_in(epochs: float, sections: int) -> int:
    """Return how many sections are over when so many epochs are, where each has `sections`."""
    return math.ceil((epochs - SLACK) * sections)


def check_rule(what: str, rule: Any) -> None:
    """Raise StudyError for anything but a stopping rule."""
    if isinstance(rule, EnsemblePlateau):
        raise StudyError(
            f"{what} is an EnsemblePlateau, which ends members by what the others are; give it as Study(ensemble=...)."
        )
    if not isinstance(rule, Stop):
        raise StudyError(f"{what} is {shown(rule)}; it must be a stopping rule, such as MaxEpochs(10).")


def mode_of(metric: str, mode: Mode | None = None, *, owner: str = "") -> Mode:
    """Return the direction in which a metric improves: as given, or told by the words of its name.

    Raises StudyError where neither tells: a metric that is followed in the wrong direction looks right.
    """
    if mode is not None:
        check_choice(f"{owner}: mode", mode, ("min", "max"))
        return mode
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    lower, higher = bool(words & LOWER_IS_BETTER), bool(words & HIGHER_IS_BETTER)
    if lower == higher or words & TURNED_ROUND:
        tell = LOWER_IS_BETTER | HIGHER_IS_BETTER
        mended = meant(metric, [metric.lower().replace(word, one) for word in words - tell for one in near(word, tell)])
        raise StudyError(
            f"{owner}: the name {metric!r} does not tell whether lower or higher is better; say mode='min' or mode='max'"
            f"{mended and f', or mend the name{mended}'}."
        )
    return "min" if lower else "max"


def _epochs(history: History) -> float:
    """Return the finished epochs; rows that do not say it count one each."""
    return history[-1].get("epochs", len(history)) if history else 0.0


def _so_far(history: History, what: str) -> float:
    """Return the steps or samples so far; 0 in rows that do not say it."""
    return history[-1].get(what, 0) if history else 0


def _values(history: History, metric: str) -> list[float]:
    """Return a metric's values, without rows from before the member had it; raises StudyError for one that no row has.

    What begins with ``val_`` may be missing in all rows so far: a study with members that will not report it is refused.
    """
    found = [row[metric] for row in history if metric in row]
    if history and not found and not metric.startswith("val_"):
        raise StudyError(
            f"a stopping rule watches {metric!r}, which this member does not report; choose one of "
            f"{', '.join(sorted(history[-1]))}, or add it to the member's metrics."
        )
    return found
