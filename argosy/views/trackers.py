"""What trackers are told of a run. Contract: each has a thread of its own, which alone calls it, and a queue.

The driver puts calls into queues and waits for nobody. A tracker that has raised, or that has as many calls before it as there is
room for, is told nothing more. At the end of a run all trackers together have a moment to take what is left, a small share of the
run, and less where one does not come back from a call; where there was nothing to train, each has as long as it comes back from its
calls. A thread that is still at work then is left behind: it makes no further call, and does not keep the process. How far a tracker
was told of each member is in a file, and whoever goes on with the run, or runs its command again, begins with what is missing.
"""

import contextlib
import math
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from argosy.disk.files import appending, lines_of, make_folder, replacing
from argosy.errors.wording import visible
from argosy.plans import Plan
from argosy.protocol.events import MemberEnded, MemberStarted, SectionEnded
from argosy.results.fold import OVER, MemberState, RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import View
from argosy.study import Study
from argosy.tracking import Tracker

__all__ = ["TrackerFeed", "Tracked"]

ROOM = 10_000
"""Calls that wait for a tracker at most, beside those that an earlier driver has left."""
PATIENCE = 0.02
"""How long trackers have at the end of a run, and each of them for one call: a share of the run."""
LEAST_PATIENCE, LEAST_CALL_PATIENCE = 1.0, 0.25
"""Seconds that they have in any case, and those for one call."""
IDLE_CALL_PATIENCE = 60.0
"""Seconds for one call where the driver had nothing to train: nobody waits for anything else."""
Call = tuple[str, tuple[Any, ...]]
"""A method of `Tracker`, and its arguments."""


class TrackerFeed:
    """One tracker, and what it is still to be told."""

    def __init__(self, name: str, tracker: Tracker, folder: Path) -> None:
        self.name = name
        self._tracker = tracker
        self._log = folder / f"tracker-{name}.log"
        """What it has raised."""
        self._told = folder / f"tracker-{name}.told"
        """A line for each section: the member, and its epochs by then."""
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._full = False
        self._left = False
        """Whether nobody waits for it any more."""
        self._error = ""
        self._came_back = 0.0
        """When its last call was over; written by its thread alone."""

    def start(self, job: Job, state: RunState) -> None:
        """Begin to tell, with what it has missed of a run so far."""
        self._calls.put(("open", (job.directory, visible(job.directory.name, lines=False))))
        told = self._told_before()
        for member in state.members.values():
            missed = [row for row in member.own_sections if row.epochs > told.get(member.name, 0.0)]
            for call in _again(member, missed, job.study) if missed else ():
                self._calls.put(call)
        self._thread.start()

    def tell(self, method: str, *arguments: Any) -> None:
        """Let it be called, as soon as it has taken what came before."""
        self._full = self._full or self._calls.qsize() >= ROOM
        if not self._full:
            self._calls.put((method, arguments))

    def end(self, deadline: float, call_seconds: float) -> str:
        """Wait for it until then, and so long for one call at most; says why it has missed something, where it has."""
        self._calls.put(None)
        asked = time.monotonic()
        while (left := min(deadline, max(asked, self._came_back) + call_seconds) - time.monotonic()) > 0:
            self._thread.join(left)
            if not self._thread.is_alive():
                break
        self._left = self._thread.is_alive()
        if self._error:
            return f"tracker {self.name} failed: {self._error} (see {self._log})"
        return f"tracker {self.name} is too slow" if self._full or self._left else ""

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._error or self._left:
                continue
            method, arguments = call
            try:
                getattr(self._tracker, method)(*arguments)
                self._came_back = time.monotonic()
                if method == "log":
                    self._note(arguments[0], arguments[2]["epochs"])
            except (Exception, SystemExit) as error:  # boundary: libraries, and people's code
                self._error = f"{type(error).__name__}: {error}".splitlines()[0]
                with contextlib.suppress(OSError), replacing(self._log) as log:
                    log.write(traceback.format_exc().encode(errors="backslashreplace"))

    def _note(self, member: str, epochs: float) -> None:
        with appending(self._told) as file:
            file.write(f"{member} {epochs!r}\n".encode())

    def _told_before(self) -> dict[str, float]:
        make_folder(self._told.parent)
        text = "\n".join(line.decode(errors="replace") for line in lines_of(self._told)) if self._told.exists() else ""
        return {member: float(epochs) for member, epochs in re.findall(r"(?m)^(\S+) (\d+\.\d+)$", text)}


class Tracked:
    """A view beside which trackers are told what members reach."""

    def __init__(self, view: View, trackers: Mapping[str, Tracker], folder: Path) -> None:
        self._view = view
        self._feeds = [TrackerFeed(name, tracker, folder) for name, tracker in trackers.items()]
        self._asked: Study | None = None
        self._begun: set[str] = set()
        """Members that trackers know, and that have not ended."""
        self._trains = False
        """Whether any member has begun."""
        self._since = time.monotonic()

    def begin(self, job: Job, state: RunState) -> None:
        """See `View.begin`."""
        self._asked, self._since = job.study, time.monotonic()
        for feed in self._feeds:
            feed.start(job, state)
        self._view.begin(job, state)

    def study(self, study: Study) -> None:
        """See `View.study`."""
        self._asked = study
        self._view.study(study)

    def expect(self, epochs: Callable[[], float]) -> None:
        """See `View.expect`."""
        self._view.expect(epochs)

    def plan(self, plan: Plan) -> None:
        """See `View.plan`."""
        self._view.plan(plan)

    def hear(self, worker: str, message: Any) -> None:
        """See `View.hear`."""
        if isinstance(message, MemberStarted) and message.member not in self._begun:
            assert self._asked is not None
            self._begun.add(message.member)
            self._trains = True
            self._tell("begin", message.member, _parameters(self._asked, message.member))
        elif isinstance(message, SectionEnded):
            self._tell("log", *_figures(message))
        elif isinstance(message, MemberEnded) and message.member in self._begun:
            self._begun.discard(message.member)
            self._tell("end", message.member, message.status)
        self._view.hear(worker, message)

    def tick(self, phase: Phase) -> None:
        """See `View.tick`."""
        self._view.tick(phase)

    def end(self) -> None:
        """See `View.end`."""
        self._view.end()
        if self._asked is None:
            return  # the run has not begun
        for member in sorted(self._begun):
            self._tell("end", member, "paused")
        share = PATIENCE * (time.monotonic() - self._since)
        deadline, call_seconds = time.monotonic() + max(share, LEAST_PATIENCE), max(share, LEAST_CALL_PATIENCE)
        if not self._trains:
            deadline, call_seconds = math.inf, IDLE_CALL_PATIENCE
        for feed in self._feeds:
            if missed := feed.end(deadline, call_seconds):
                print(f"{visible(missed)}; the same command again tells it what it has missed.", file=sys.stderr)

    def _tell(self, method: str, *arguments: Any) -> None:
        for feed in self._feeds:
            feed.tell(method, *arguments)


def _figures(ended: SectionEnded) -> tuple[str, int, dict[str, float]]:
    """What a tracker is told of a section."""
    metrics = {visible(name, lines=False): value for name, value in ended.metrics.items()}
    return ended.member, ended.steps, {**metrics, "epochs": ended.epochs, "seconds": ended.seconds}


def _parameters(study: Study, member: str) -> dict[str, Any]:
    """What a tracker is told of a member: it shows names and texts to people."""
    return {
        visible(name, lines=False): visible(value) if isinstance(value, str) else value
        for name, value in study.member(member).hyperparameters.items()
    }


def _again(member: MemberState, missed: Sequence[SectionEnded], study: Study) -> Iterator[Call]:
    """What a tracker has missed of a member."""
    yield "begin", (member.name, _parameters(study, member.name) if member.name in study.names else {})
    for ended in missed:
        yield "log", _figures(ended)
    yield "end", (member.name, member.status if member.status in OVER else "paused")
