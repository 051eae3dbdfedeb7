"""The seam between a run and whoever watches it."""

import contextlib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from argosy.fold import RunState
from argosy.plans import Plan
from argosy.running.launcher import Job
from argosy.study import Study

__all__ = ["Fragile", "Silent", "View"]


class View(Protocol):
    """Watches a run; called in the driver's loop, so it must be quick."""

    def begin(self, job: Job, state: RunState) -> None:
        """A run begins; the state is kept up to date by the driver."""

    def study(self, study: Study) -> None:
        """What is asked from here on: with members that were added, or without some that were not in the end."""

    def expect(self, epochs: Callable[[], float]) -> None:
        """How many epochs all members together have before them, as whoever brings them knows it; said before the run begins."""

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

    def study(self, study: Study) -> None:
        """See `View.study`."""

    def expect(self, epochs: Callable[[], float]) -> None:
        """See `View.expect`."""

    def plan(self, plan: Plan) -> None:
        """See `View.plan`."""

    def hear(self, worker: str, message: Any) -> None:
        """See `View.hear`."""

    def tick(self) -> None:
        """See `View.tick`."""

    def end(self) -> None:
        """See `View.end`."""


class Fragile:
    """A view that may fail, as terminals, pipes and people's code do: it is asked for nothing more, and the run goes on.

    What it raised is in a file.
    """

    def __init__(self, view: View, log: Path) -> None:
        self._view: View | None = view
        self._log = log

    def begin(self, job: Job, state: RunState) -> None:
        """See `View.begin`."""
        self._ask(lambda view: view.begin(job, state))

    def study(self, study: Study) -> None:
        """See `View.study`."""
        self._ask(lambda view: view.study(study))

    def expect(self, epochs: Callable[[], float]) -> None:
        """See `View.expect`."""
        self._ask(lambda view: view.expect(epochs))

    def plan(self, plan: Plan) -> None:
        """See `View.plan`."""
        self._ask(lambda view: view.plan(plan))

    def hear(self, worker: str, message: Any) -> None:
        """See `View.hear`."""
        self._ask(lambda view: view.hear(worker, message))

    def tick(self) -> None:
        """See `View.tick`."""
        self._ask(lambda view: view.tick())

    def end(self) -> None:
        """See `View.end`."""
        self._ask(lambda view: view.end())

    def _ask(self, action: Callable[[View], None]) -> None:
        view = self._view
        if view is None:
            return
        try:
            action(view)
        except (Exception, SystemExit):  # people's code, and rich, which ends the process where nobody reads
            self._view = None
            with contextlib.suppress(OSError):
                self._log.parent.mkdir(exist_ok=True)
                self._log.write_text(traceback.format_exc())
            with contextlib.suppress(Exception, SystemExit):  # it may hold the terminal still
                view.end()
