"""Calls trackers during a run. Contract: each tracker has a queue and a thread, which alone calls it.

The driver puts calls into queues and never waits for a tracker during the run. A tracker that has raised, or has a full
queue, gets no more calls. At the end of a run all trackers together have a moment to handle what is left, a small share
of the run, and less if one does not return from a call. If there was nothing to train, each has as long as it returns
from its calls. A thread that is still busy then is left behind: it makes no further call, and does not keep the process
alive. A file says how far a tracker has been told about each member, and a driver that continues or repeats the run
starts with what is missing.
"""

import contextlib
import glob
import math
import queue
import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from argosy.disk.files import make_folder, open_append, read_lines, replacing
from argosy.errors.wording import escape_unprintable
from argosy.protocol.events import MemberEnded, MemberStarted, Proposed, SectionEnded
from argosy.results.fold import FINAL_STATUSES, MemberState, RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import View
from argosy.study import Study
from argosy.tracking import Tracker

__all__ = ["TrackerFeed", "Tracked"]

QUEUE_SIZE = 10_000
"""Most calls that wait for a tracker, besides those left by an earlier driver."""
PATIENCE = 0.02
"""Share of the run's time that trackers have at its end, and each of them for one call."""
LEAST_PATIENCE, LEAST_CALL_PATIENCE = 1.0, 0.25
"""Seconds that they have in any case, and for one call."""
IDLE_CALL_PATIENCE = 60.0
"""Seconds for one call if the driver had nothing to train: there is nothing else to wait for."""
Call = tuple[str, tuple[Any, ...]]
"""A method of `Tracker`, and its arguments."""


class TrackerFeed:
    """One tracker and its pending calls."""

    def __init__(self, name: str, tracker: Tracker, folder: Path) -> None:
        self.name = name
        self._tracker = tracker
        self._log = folder / f"tracker-{name}.log"
        """Log of the exception that it has raised."""
        self._told = folder / f"tracker-{name}.told"
        """One line per section with the member and its finished epochs, and one with 0.0 when it has ended. If the whole run has
        started over, the first line says when."""
        self._run_anew = ""
        self._anew: dict[str, str] = {}
        """Suffixes of all members' names after the run has started over (`_run_anew`), and of members that have; trackers keep what
        they have from before under the old names."""
        self._delay: float = getattr(tracker, "delay_seconds", 0.0)
        self._unwritten: deque[tuple[float, str, float]] = deque()
        """Sections that it has got and may lose if the process is killed: when, the member, and its epochs."""
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._full = False
        self._left = False
        """Whether this object has stopped waiting for it."""
        self._error = ""
        self._came_back = 0.0
        """When its last call returned; written only by its thread."""

    def start(self, job: Job, state: RunState) -> None:
        """Start the thread, beginning with what the tracker has missed of the run so far."""
        self._calls.put(("open", (job.directory, escape_unprintable(job.directory.name, lines=False))))
        make_folder(self._told.parent)
        self._run_anew = self._run_begun_anew(job.directory)
        self._anew = {
            member.name: f"~{member.aside.rpartition('-')[2]}" for member in state.members.values() if member.aside
        }
        logged, searched = self._logged_before(), _searched(state.proposed.values())
        for member in state.members.values():
            known_as = self._tracker_name_of(member.name)
            missed = [row for row in member.own_sections if row.epochs > logged.get(known_as, 0.0)]
            if missed or (member.status in FINAL_STATUSES and known_as not in logged):
                for method, (name, *arguments) in _missed_calls(member, missed, job.study, searched):
                    self._calls.put((method, (self._tracker_name_of(name), *arguments)))
        self._thread.start()

    def tell(self, method: str, member: str, *arguments: Any) -> None:
        """Queue a call, unless the queue has ever been full."""
        self._full = self._full or self._calls.qsize() >= QUEUE_SIZE
        if not self._full:
            self._calls.put((method, (self._tracker_name_of(member), *arguments)))

    def _tracker_name_of(self, member: str) -> str:
        """Return the name by which the tracker knows a member; with a suffix if the member has started over."""
        return f"{member}{self._run_anew}{self._anew.get(member, '')}"

    def _run_begun_anew(self, directory: Path) -> str:
        """Return the suffix of all members' names if the whole run has started over, as with ``fresh=True``."""
        if not self._told.exists():
            earlier = any(directory.parent.glob(f"{glob.escape(directory.name)}.old-*"))
            if not earlier:
                return ""
            with open_append(self._told) as file:
                file.write(f"~{time.strftime('%Y-%m-%dT%H.%M.%S')}\n".encode())
        first = next(iter(read_lines(self._told)), b"").decode(errors="replace")
        return first if first.startswith("~") else ""

    def end(self, deadline: float, call_seconds: float) -> str:
        """Wait until `deadline`, and `call_seconds` for one call at most.

        Returns why it has missed something, if it has.
        """
        self._calls.put(None)
        started = time.monotonic()
        while (remaining := min(deadline, max(started, self._came_back) + call_seconds) - time.monotonic()) > 0:
            self._thread.join(remaining)
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
                # Copies, because other trackers get the same figures, and this one may change its own.
                getattr(self._tracker, method)(*map(copy, arguments))
                self._came_back = time.monotonic()
                if method == "log":
                    self._unwritten.append((self._came_back, arguments[0], arguments[2]["epochs"]))
                self._note_written(ended=arguments[0] if method == "end" else None)
                if method == "end" and arguments[1] in FINAL_STATUSES:
                    self._note(arguments[0], 0.0)
            except (Exception, SystemExit) as error:  # boundary: libraries, and the user's code
                self._error = f"{type(error).__name__}: {error}".splitlines()[0]
                with contextlib.suppress(OSError), replacing(self._log) as log:
                    log.write(traceback.format_exc().encode(errors="backslashreplace"))

    def _note_written(self, ended: str | None) -> None:
        """Note the sections of a member that has ended, and of others those that it has had for long enough."""
        while self._unwritten and self._unwritten[0][0] + self._delay <= self._came_back:
            self._note(*self._unwritten.popleft()[1:])
        for _, member, epochs in () if ended is None else self._unwritten:
            if member == ended:
                self._note(member, epochs)

    def _note(self, member: str, epochs: float) -> None:
        with open_append(self._told) as file:
            file.write(f"{member} {epochs!r}\n".encode())

    def _logged_before(self) -> dict[str, float]:
        text = (
            "\n".join(line.decode(errors="replace") for line in read_lines(self._told)) if self._told.exists() else ""
        )
        logged: dict[str, float] = {}
        for member, epochs in re.findall(r"(?m)^(\S+) (\d+\.\d+)$", text):
            logged[member] = max(float(epochs), logged.get(member, 0.0))
        return logged


class Tracked:
    """A view that wraps another one and reports the members' results to trackers."""

    def __init__(self, view: View, trackers: Mapping[str, Tracker], folder: Path) -> None:
        self._view = view
        self._feeds = [TrackerFeed(name, tracker, folder) for name, tracker in trackers.items()]
        self._asked: Study | None = None
        self._searched: dict[str, Mapping[str, Any]] = {}
        """Parameters of trials that a search has proposed, by member."""
        self._logged: set[tuple[str, float, str]] = set()
        """Sections that are in the journal: a member that continues from an earlier checkpoint repeats some of them."""
        self._begun: set[str] = set()
        """Members that trackers know and that have not ended."""
        self._trains = False
        """Whether any member has begun."""
        self._since = time.monotonic()

    def begin(self, job: Job, state: RunState) -> None:
        """Start the trackers and the view."""
        self._asked, self._since = job.study, time.monotonic()
        self._searched = _searched(state.proposed.values())
        self._logged = {_result(row) for member in state.members.values() for row in member.own_sections}
        for feed in self._feeds:
            feed.start(job, state)
        self._view.begin(job, state)

    def study(self, study: Study) -> None:
        """Implement `View.study`."""
        self._asked = study
        self._view.study(study)

    def expect(self, epochs: Callable[[], float]) -> None:
        """Implement `View.expect`."""
        self._view.expect(epochs)

    def handle(self, worker: str, message: Any) -> None:
        """Tell trackers of members' starts, sections and ends; pass the message on to the view."""
        if isinstance(message, MemberStarted) and message.member not in self._begun:
            assert self._asked is not None
            self._begun.add(message.member)
            self._trains = True
            self._tell("begin", message.member, _parameters(self._asked, message.member, self._searched))
        elif isinstance(message, Proposed):
            self._searched |= _searched([message])
        elif isinstance(message, SectionEnded):
            if _result(message) not in self._logged:
                self._tell("log", *_log_arguments(message))
            self._logged.add(_result(message))
        elif isinstance(message, MemberEnded) and message.member in self._begun:
            self._begun.discard(message.member)
            self._tell("end", message.member, message.status)
        self._view.handle(worker, message)

    def tick(self, phase: Phase) -> None:
        """Implement `View.tick`."""
        self._view.tick(phase)

    def end(self) -> None:
        """End the view, then the trackers; warns of those that have missed something."""
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
                print(
                    f"{escape_unprintable(missed)}; run the same command again to send it what it has missed.",
                    file=sys.stderr,
                )

    def _tell(self, method: str, *arguments: Any) -> None:
        for feed in self._feeds:
            feed.tell(method, *arguments)


def _result(ended: SectionEnded) -> tuple[str, float, str]:
    """Return what is the same if a section is repeated."""
    return ended.member, ended.epochs, repr(ended.metrics)


def _log_arguments(ended: SectionEnded) -> tuple[str, int, dict[str, float]]:
    """Return the arguments of `Tracker.log` for a section."""
    metrics = {escape_unprintable(name, lines=False): value for name, value in ended.metrics.items()}
    return ended.member, ended.steps, {**metrics, "epochs": ended.epochs, "seconds": ended.seconds}


def _searched(proposed: Iterable[Proposed]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of a search's trials by member."""
    return {name: one.parameters for one in proposed for name in (one.member, *one.members)}


def _parameters(study: Study, member: str, searched: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a member's hyper-parameters and those of its trial for trackers, which display names, numbers and texts."""
    own = study.member(member).hyperparameters if member in study.names else {}
    return {
        escape_unprintable(name, lines=False): value
        if isinstance(value, int | float)
        else escape_unprintable(str(value))
        for name, value in {**searched.get(member, {}), **own}.items()
    }


def _missed_calls(
    member: MemberState, missed: Sequence[SectionEnded], study: Study, searched: Mapping[str, Mapping[str, Any]]
) -> Iterator[Call]:
    """Yield the calls that a tracker has missed for a member."""
    yield "begin", (member.name, _parameters(study, member.name, searched))
    for ended in missed:
        yield "log", _log_arguments(ended)
    yield "end", (member.name, member.status if member.status in FINAL_STATUSES else "paused")
