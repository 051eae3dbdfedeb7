"""Trackers send metrics to experiment-tracking tools. Each member is one run there, grouped by study.

Each tracker is a module that imports its library. It is imported before the run begins, because that may take seconds.
`argosy.views.trackers` calls each tracker in a thread of its own.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from argosy.errors import RunError
from argosy.errors.checks import describe_value
from argosy.errors.spelling import did_you_mean

__all__ = ["TRACKERS", "Tracker", "make_trackers"]

TRACKERS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB", "trackio": "Trackio"}
"""Names, of the file and also of its library, and the class there."""


class Tracker(Protocol):
    """Receives the metrics of members; an exception ends only the tracker itself.

    A member that has begun anew gets another name here, such as ``mlp~1``, so its earlier records stay in a separate run. One that writes what
    it gets only later has an attribute ``delay_seconds``: if the driver is killed, the next one sends it again what it got in that time.
    """

    def open(self, directory: Path, group: str) -> None:
        """Open the tracker: a driver begins to work on the run in this directory."""

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """Begin a member that is about to train, in the same run as what an earlier driver has logged of it."""

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """Log a finished section of a member, after `step` steps of its optimizer."""

    def end(self, member: str, status: str) -> None:
        """End a member under this driver; status as in `argosy.protocol.events.MemberEnded`, or paused."""


def make_trackers(trackers: Sequence[Tracker | str]) -> dict[str, Tracker]:
    """Return trackers by name, created if only a name is given.

    Raises RunError for an unknown one or a missing library.
    """
    by_name: dict[str, Tracker] = {}
    for tracker in trackers if isinstance(trackers, Iterable) and not isinstance(trackers, str) else [trackers]:
        name = tracker if isinstance(tracker, str) else type(tracker).__name__.lower()
        if name in by_name:
            raise RunError(f"trackers has {name!r} twice. Remove one of them.")
        by_name[name] = _make_tracker(tracker) if isinstance(tracker, str) else _check_tracker(tracker)
    return by_name


def _make_tracker(name: str) -> Tracker:
    if name not in TRACKERS:
        raise RunError(
            f"unknown tracker {name!r}{did_you_mean(name, TRACKERS)}; choose one of {', '.join(TRACKERS)}, or pass an object "
            "of your own."
        )
    if importlib.util.find_spec(name) is None:
        raise RunError(
            f"tracker {name!r} needs {name}, which is not installed. Install it: pip install 'argosy[{name}]'."
        )
    tracker: Tracker = getattr(importlib.import_module(f"argosy.tracking.{name}"), TRACKERS[name])()
    return tracker


def _check_tracker(tracker: Tracker) -> Tracker:
    lacking = [name for name in ("open", "begin", "log", "end") if not callable(getattr(tracker, name, None))]
    if lacking or isinstance(tracker, type):
        raise RunError(
            f"trackers has {describe_value(tracker)}; it must be one of {', '.join(map(repr, TRACKERS))}, or an object with "
            "open, begin, log and end, like argosy.tracking.Tracker."
        )
    return tracker
