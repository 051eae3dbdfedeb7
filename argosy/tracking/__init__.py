"""Trackers: where people look at the figures of all that they train. Each member is a run there, in a group named after the study.

A file for each; its library, which may take seconds, is imported with it, before the run begins. `argosy.views.trackers` calls
them, in a thread for each.
"""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from argosy.errors import RunError
from argosy.errors.checks import shown
from argosy.errors.spelling import meant

__all__ = ["TRACKERS", "Tracker", "named"]

TRACKERS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB"}
"""Names, which are those of the file and of its library, and the class there."""


class Tracker(Protocol):
    """Somebody who is told the figures of members; what it raises ends nothing but itself."""

    def open(self, directory: Path, group: str) -> None:
        """A driver begins to work on the run in this directory."""

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """A member is about to train. What an earlier driver told of it is there: this goes on in the same run."""

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """A section of it has ended, after so many steps of its optimizer."""

    def end(self, member: str, status: str) -> None:
        """It trains no further under this driver; status as in `argosy.protocol.events.MemberEnded`, or paused."""


def named(trackers: Sequence[Tracker | str]) -> dict[str, Tracker]:
    """Trackers by name, made where only a name is given; raises RunError for what is none or lacks its library."""
    found: dict[str, Tracker] = {}
    for tracker in [trackers] if isinstance(trackers, str) else trackers:
        name = tracker if isinstance(tracker, str) else type(tracker).__name__.lower()
        if name in found:
            raise RunError(f"trackers has {name!r} twice; give each once.")
        found[name] = _made(tracker) if isinstance(tracker, str) else _checked(tracker)
    return found


def _made(name: str) -> Tracker:
    if name not in TRACKERS:
        raise RunError(
            f"there is no tracker {name!r}{meant(name, TRACKERS)}; choose from {', '.join(TRACKERS)}, or give an object of your own."
        )
    if importlib.util.find_spec(name) is None:
        raise RunError(f"tracker {name!r} needs {name}, which is not installed; pip install 'argosy[track]'.")
    tracker: Tracker = getattr(importlib.import_module(f"argosy.tracking.{name}"), TRACKERS[name])()
    return tracker


def _checked(tracker: Tracker) -> Tracker:
    lacking = [name for name in ("open", "begin", "log", "end") if not callable(getattr(tracker, name, None))]
    if lacking or isinstance(tracker, type):
        raise RunError(
            f"trackers has {shown(tracker)}; it must be one of {', '.join(map(repr, TRACKERS))}, or an object with open, begin, log "
            "and end, as argosy.tracking.Tracker has them."
        )
    return tracker
