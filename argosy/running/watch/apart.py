"""Runs a view in a separate thread, so that the run never waits for it, whatever it does.

The driver's thread collects messages, and hands them over at a tick, once the view's thread has taken the previous
batch. So a slow view gets only the newest of repeated messages, and memory grows only as the journal does. Messages
do not change after they are handed over; the view's thread folds its own state from journaled events. A
view that raises is not called again, except to end. The run does not wait for a view that does not return.
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
from argosy.protocol.events import Event
from argosy.protocol.feeder import FeederProgress
from argosy.protocol.trainer import Progress
from argosy.results.fold import RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import View
from argosy.study import Study

__all__ = ["ThreadedView"]

TICK_SECONDS = 0.1
"""Least seconds between two ticks of a view."""
FAREWELL_SECONDS = 0.25
"""Longest time that the end of a run waits for its view."""

Call = Callable[[View], None]


class ThreadedView:
    """A view that calls another view in its own thread; the other one need not be thread-safe."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._log = Path()
        self._over = False
        """Whether the view is no longer called; written only by its thread."""
        self._kept: list[Call] = []
        self._newest: dict[tuple[str, type], Any] = {}
        """The newest of each worker's repeated messages."""
        self._handed: SimpleQueue[Sequence[Call] | None] = SimpleQueue()
        self._ticked = 0.0
        self._epochs: Callable[[], float] | None = None
        self._to_come = 0.0
        # A notebook uses the context to find the cell that shows the output.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=partial(context.run, self._watch), name="argosy-view", daemon=True)

    # ---- in the driver's thread

    def begin(self, job: Job, state: RunState) -> None:
        """Start the view's thread, with its own copy of the state."""
        self._log = job.directory / "workers" / "view.log"
        self._state = state.deep_copy()
        self._kept.append(lambda view: view.begin(job, self._state))
        self._thread.start()
        self._hand_over()

    def study(self, study: Study) -> None:
        """Keep the call for the next tick."""
        self._kept.append(lambda view: view.study(study))

    def expect(self, epochs: Callable[[], float]) -> None:
        """Implement `View.expect`: the driver's thread calls `epochs`, and the view gets the last result."""
        self._epochs, self._to_come = epochs, epochs()
        self._kept.append(lambda view: view.expect(lambda: self._to_come))

    def handle(self, worker: str, message: Any) -> None:
        """Keep the message for the next tick; of repeated messages only the newest."""
        if self._over:
            return
        if isinstance(message, Progress | FeederProgress):
            self._newest[worker, type(message)] = message
        else:
            self._kept.append(partial(self._tell, worker, message))

    def tick(self, phase: Phase) -> None:
        """Hand over the kept messages, if enough time has passed and the view has taken the previous batch."""
        now = time.monotonic()
        if self._over or now - self._ticked < TICK_SECONDS or not self._handed.empty():
            return
        self._ticked = now
        if self._epochs is not None:
            self._to_come = self._epochs()
        self._hand_over(lambda view: view.tick(phase))

    def end(self) -> None:
        """Hand over the rest, and wait up to `FAREWELL_SECONDS` for the view's thread."""
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
        except (Exception, SystemExit):  # from the user's code, or from rich, which raises SystemExit on a broken pipe
            self._over = True
            with contextlib.suppress(OSError):
                make_folder(self._log.parent)
                with replacing(self._log) as log:
                    log.write(traceback.format_exc().encode(errors="backslashreplace"))
            with contextlib.suppress(Exception, SystemExit):  # it may still hold the terminal
                self._view.end()

    def _tell(self, worker: str, message: Any, view: View) -> None:
        if isinstance(message, Event):
            self._state.apply(message)
        view.handle(worker, message)
