"""The interface between a run and its display."""

from collections.abc import Callable
from typing import Any, Protocol

from argosy.results.fold import RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.study import Study

__all__ = ["Silent", "View"]


class View(Protocol):
    """Displays a run. `argosy.running.watch.apart.ThreadedView` keeps its errors and delays from affecting the run."""

    def begin(self, job: Job, state: RunState) -> None:
        """Begin to watch; `state` is folded from the run's journal, and is kept up to date."""

    def study(self, study: Study) -> None:
        """Take the study as it is from now on: with added members, or without members left out at the end."""

    def expect(self, epochs: Callable[[], float]) -> None:
        """Take a function that returns how many epochs all members together have left; called before `begin`."""

    def handle(self, worker: str, message: Any) -> None:
        """Take a worker's message; an empty `worker` means a journaled event, which the state already includes."""

    def tick(self, phase: Phase) -> None:
        """Update the display; called a few times a second with the phase of the run."""

    def end(self) -> None:
        """Stop: the run has ended, successfully or not."""


class Silent:
    """A view that shows nothing."""

    def begin(self, job: Job, state: RunState) -> None:
        """Do nothing."""

    def study(self, study: Study) -> None:
        """Do nothing."""

    def expect(self, epochs: Callable[[], float]) -> None:
        """Do nothing."""

    def handle(self, worker: str, message: Any) -> None:
        """Do nothing."""

    def tick(self, phase: Phase) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
