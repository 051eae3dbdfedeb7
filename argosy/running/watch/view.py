"""The seam between a run and whoever watches it."""

from collections.abc import Callable
from typing import Any, Protocol

from argosy.plans import Plan
from argosy.results.fold import RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.study import Study

__all__ = ["Silent", "View"]


class View(Protocol):
    """Watches a run. `argosy.running.watch.apart.Apart` keeps what it does, and how long it takes, from the run."""

    def begin(self, job: Job, state: RunState) -> None:
        """A run begins; the state is the fold of its journal, and is kept up to date."""

    def study(self, study: Study) -> None:
        """What is asked from here on: with members that were added, or without some that were not in the end."""

    def expect(self, epochs: Callable[[], float]) -> None:
        """How many epochs all members together have before them, as whoever brings them knows it; said before the run begins."""

    def plan(self, plan: Plan) -> None:
        """Flotillas start."""

    def hear(self, worker: str, message: Any) -> None:
        """A worker said something; or, from nobody, an event was journaled, which the state knows already."""

    def tick(self, phase: Phase) -> None:
        """A few times a second, with what the run is at."""

    def end(self) -> None:
        """The run has ended, well or not."""


class Silent:
    """Shows nothing."""

    def begin(self, job: Job, state: RunState) -> None:
        """See `View.begin`."""

    def study(self, study: Study) -> None:
        """See `View.study`."""

    def expect(self, epochs: Callable[[], float]) -> None:
        """See `View.expect`."""

    def plan(self, plan: Plan) -> None:
        """See `View.plan`."""

    def hear(self, worker: str, message: Any) -> None:
        """See `View.hear`."""

    def tick(self, phase: Phase) -> None:
        """See `View.tick`."""

    def end(self) -> None:
        """See `View.end`."""
