"""A view in a thread of its own: whatever it does, and however long that takes, the run does not wait for it.

The driver's thread keeps what happens, and hands all of it over at a tick, when the view's thread has taken what it was handed
before: so of what workers say again and again a slow view hears the newest alone, and memory does not grow but with the journal.
What is handed over are values that nobody changes; the fold that the view sees is made in its thread, from journaled events. A
view that raises is asked for nothing more, and one that does not come back is left behind at the end.
"""

import contextlib
import contextvars
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from argosy.disk.files import make_folder, replacing
from argosy.plans import Plan
from argosy.protocol.events import Event
from argosy.protocol.feeder import Flowing
from argosy.protocol.trainer import Progress
from argosy.results.fold import RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import View
from argosy.study import Study

__all__ = ["Apart"]

TICK_SECONDS = 0.1
"""Least time between two ticks that a view hears."""
FAREWELL_SECONDS = 0.25
"""The longest that the end of a run waits for its view."""

Call = Callable[[View], None]


class Apart:
    """Another view, which knows nothing of it."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._log = Path()
        self._over = False
        """Whether the view is asked for nothing more; written by its thread alone."""
        self._kept: list[Call] = []
        self._newest: dict[tuple[str, type], Any] = {}
        """What a worker says again and again."""
        self._handed: SimpleQueue[Sequence[Call] | None] = SimpleQueue()
        self._ticked = 0.0
        self._epochs: Callable[[], float] | None = None
        self._to_come = 0.0
        # What a notebook shows goes to the cell whose context this is.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=partial(context.run, self._watch), name="argosy-view", daemon=True)

    # ---- in the driver's thread

    def begin(self, job: Job, state: RunState) -> None:
        """See `View.begin`."""
        self._log = job.directory / "workers" / "view.log"
        self._state = state.copied()
        self._kept.append(lambda view: view.begin(job, self._state))
        self._thread.start()
        self._hand_over()

    def study(self, study: Study) -> None:
        """See `View.study`."""
        self._kept.append(lambda view: view.study(study))

    def expect(self, epochs: Callable[[], float]) -> None:
        """See `View.expect`. The driver's thread asks, and the view is told."""
        self._epochs, self._to_come = epochs, epochs()
        self._kept.append(lambda view: view.expect(lambda: self._to_come))

    def plan(self, plan: Plan) -> None:
        """See `View.plan`."""
        self._kept.append(lambda view: view.plan(plan))

    def hear(self, worker: str, message: Any) -> None:
        """See `View.hear`."""
        if self._over:
            return
        if isinstance(message, Progress | Flowing):
            self._newest[worker, type(message)] = message
        else:
            self._kept.append(partial(self._tell, worker, message))

    def tick(self, phase: Phase) -> None:
        """See `View.tick`."""
        now = time.monotonic()
        if self._over or now - self._ticked < TICK_SECONDS or not self._handed.empty():
            return
        self._ticked = now
        if self._epochs is not None:
            self._to_come = self._epochs()
        self._hand_over(lambda view: view.tick(phase))

    def end(self) -> None:
        """See `View.end`."""
        if not self._thread.ident:
            return  # the run did not begin
        self._hand_over(lambda view: view.end())
        self._handed.put(None)
        self._thread.join(FAREWELL_SECONDS)

    def _hand_over(self, *last: Call) -> None:
        newest = [partial(self._tell, worker, message) for (worker, _), message in self._newest.items()]
        self._handed.put([*self._kept, *newest, *last])
        self._kept, self._newest = [], {}

    # ---- in the view's thread

    def _watch(self) -> None:
        try:
            while (calls := self._handed.get()) is not None:
                for call in calls:
                    call(self._view)
        except (Exception, SystemExit):  # people's code, and rich, which ends the process where nobody reads
            self._over = True
            with contextlib.suppress(OSError):
                make_folder(self._log.parent)
                with replacing(self._log) as log:
                    log.write(traceback.format_exc().encode(errors="backslashreplace"))
            with contextlib.suppress(Exception, SystemExit):  # it may hold the terminal still
                self._view.end()

    def _tell(self, worker: str, message: Any, view: View) -> None:
        if isinstance(message, Event):
            self._state.apply(message)
        view.hear(worker, message)
