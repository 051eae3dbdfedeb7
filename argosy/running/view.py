"""The seam between a run and whoever watches it."""

from typing import Any, Protocol

from argosy.fold import RunState
from argosy.plans import Plan
from argosy.running.launcher import Job

__all__ = ["Silent", "View"]


class View(Protocol):
    """Watches a run; called in the driver's loop, so it must be quick."""

    def begin(self, job: Job, state: RunState) -> None:
        """A run begins; the state is kept up to date by the driver."""

    def plan(self, plan: Plan) -> None:
        """Flotillas start."""

    def hear(self, worker: str, message: Any) -> None:
        """A worker said something."""

    def tick(self) -> None:
        """A few times a second."""

    def end(self) -> None:
        """The run has ended, well or not."""


class Silent:
    """Shows nothing."""

    def begin(self, job: Job, state: RunState) -> None:
        """See `View.begin`."""

    def plan(self, plan: Plan) -> None:
        """See `View.plan`."""

    def hear(self, worker: str, message: Any) -> None:
        """See `View.hear`."""

    def tick(self) -> None:
        """See `View.tick`."""

    def end(self) -> None:
        """See `View.end`."""
