"""When a member has trained enough: rules over its history, pure, combined with ``|`` and ``&``."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from argosy.errors import StudyError

__all__ = ["History", "MaxEpochs", "MaxSeconds", "Plateau", "Stop", "Target", "better"]

History = Sequence[Mapping[str, float]]
"""One row per finished section: its metrics, ``seconds`` of training, and ``epochs`` finished (0.25, 0.5, …)."""
SLACK = 1e-9
"""Of a number of epochs: five thirds, and one and two thirds, are not the same floating-point number."""
Mode = Literal["min", "max"]


class Stop(ABC):
    """A stopping rule: a function of the member's own history and of nothing else."""

    @abstractmethod
    def reason(self, history: History) -> str | None:
        """Why the member stops after its last section, or None to go on."""

    @property
    @abstractmethod
    def max_epochs(self) -> float | None:
        """An upper bound of the epochs, where the rule knows one."""

    def certain(self, history: History, sections: int) -> int:
        """Sections, of so many an epoch, that are sure to come before the rule can stop the member: at least 1.

        Nobody has to wait for an answer before these are over.
        """
        return 1

    def __or__(self, other: "Stop") -> "Stop":
        return Either(self, other)

    def __and__(self, other: "Stop") -> "Stop":
        return Both(self, other)


@dataclass(frozen=True, slots=True)
class MaxEpochs(Stop):
    """Stop after so many epochs; 0.25 is the first quarter of one, where it ends a section."""

    epochs: float

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise StudyError(f"MaxEpochs({self.epochs}): epochs must be 0 or more.")

    def reason(self, history: History) -> str | None:
        """See `Stop.reason`."""
        return f"{self.epochs:g} epochs" if _epochs(history) >= self.epochs - SLACK else None

    @property
    def max_epochs(self) -> float | None:
        """The number itself."""
        return self.epochs

    def certain(self, history: History, sections: int) -> int:
        """All that are left."""
        return max(sections_in(self.epochs - _epochs(history), sections), 1)


@dataclass(frozen=True, slots=True)
class MaxSeconds(Stop):
    """Stop at the first epoch's end after so many seconds of the member's own training."""

    seconds: float

    def reason(self, history: History) -> str | None:
        """See `Stop.reason`."""
        return f"{self.seconds:g} s" if sum(row["seconds"] for row in history) >= self.seconds else None

    @property
    def max_epochs(self) -> float | None:
        """Unknown."""
        return None


@dataclass(frozen=True, slots=True)
class Plateau(Stop):
    """Stop when the metric has not improved by more than `min_delta` for `patience` sections (epochs, by default)."""

    metric: str
    patience: int
    min_delta: float = 0.0
    mode: Mode | None = None
    """``min`` or ``max``; by default ``min`` for names that end in loss or error."""

    def reason(self, history: History) -> str | None:
        """See `Stop.reason`."""
        since = self._since(history)
        return f"no better {self.metric} for {since} epochs" if since >= self.patience else None

    @property
    def max_epochs(self) -> float | None:
        """Unknown."""
        return None

    def certain(self, history: History, sections: int) -> int:
        """What is left of the patience."""
        return max(self.patience - self._since(history), 1)

    def _since(self, history: History) -> int:
        """Rows since the metric improved."""
        mode = self.mode or mode_of(self.metric)
        best, since = None, 0
        for row in history:
            value = _value(row, self.metric)
            if best is None or better(value, best, mode, self.min_delta):
                best, since = value, 0
            else:
                since += 1
        return since


@dataclass(frozen=True, slots=True)
class Target(Stop):
    """Stop when the metric reaches the value."""

    metric: str
    value: float
    mode: Mode | None = None
    """``min`` or ``max``; by default ``min`` for names that end in loss or error."""

    def reason(self, history: History) -> str | None:
        """See `Stop.reason`."""
        if not history:
            return None
        found = _value(history[-1], self.metric)
        worse = better(self.value, found, self.mode or mode_of(self.metric))
        return None if worse else f"{self.metric} {found:.4g} reached {self.value:g}"

    @property
    def max_epochs(self) -> float | None:
        """Unknown."""
        return None


@dataclass(frozen=True, slots=True)
class Either(Stop):
    """Stop when one of two rules says so."""

    first: Stop
    second: Stop

    def reason(self, history: History) -> str | None:
        """See `Stop.reason`."""
        return self.first.reason(history) or self.second.reason(history)

    @property
    def max_epochs(self) -> float | None:
        """The lower of the known bounds."""
        return min((b for b in (self.first.max_epochs, self.second.max_epochs) if b is not None), default=None)

    def certain(self, history: History, sections: int) -> int:
        """Until the first of them can."""
        return min(self.first.certain(history, sections), self.second.certain(history, sections))


@dataclass(frozen=True, slots=True)
class Both(Stop):
    """Stop when both rules say so."""

    first: Stop
    second: Stop

    def reason(self, history: History) -> str | None:
        """See `Stop.reason`."""
        reasons = self.first.reason(history), self.second.reason(history)
        return " and ".join(r for r in reasons if r) if all(reasons) else None

    @property
    def max_epochs(self) -> float | None:
        """The higher bound, where both are known."""
        bounds = self.first.max_epochs, self.second.max_epochs
        return None if None in bounds else max(b for b in bounds if b is not None)

    def certain(self, history: History, sections: int) -> int:
        """Until both of them can."""
        return max(self.first.certain(history, sections), self.second.certain(history, sections))


def better(value: float, than: float, mode: Mode, by: float = 0.0) -> bool:
    """Whether a metric's value improves on another by more than `by`; any number improves on one that is not a number."""
    if math.isnan(than):
        return not math.isnan(value)
    return value < than - by if mode == "min" else value > than + by


def sections_in(epochs: float, sections: int) -> int:
    """So many sections are over when so many epochs are, where each has `sections`."""
    return math.ceil((epochs - SLACK) * sections)


def mode_of(metric: str) -> Mode:
    """The direction in which a metric improves, by its name."""
    return "min" if metric.endswith(("loss", "error")) else "max"


def _epochs(history: History) -> float:
    """Epochs that are behind; rows that do not say it count one each."""
    return history[-1].get("epochs", len(history)) if history else 0.0


def _value(row: Mapping[str, float], metric: str) -> float:
    if metric not in row:
        raise StudyError(f"a stopping rule watches {metric!r}; this member reports {', '.join(sorted(row))}.")
    return row[metric]
