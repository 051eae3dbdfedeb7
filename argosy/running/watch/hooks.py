"""Commands of the user that run at the end of a run (``on_end``) and for each member that diverges (``on_diverged``).

A separate thread runs them one after another, so the run does not wait. A command that takes too long is killed together with its
process group; if the driver is killed, the command's shell ends as well. Errors are printed at the end, and have no other effect.
"""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from argosy.disk.files import make_folder, open_append, replacing
from argosy.disk.json_values import without_infinities
from argosy.errors import RunError
from argosy.errors.wording import cause_of, escape_unprintable
from argosy.protocol.events import MemberEnded
from argosy.results.fold import RunState
from argosy.results.repetitions import Leader
from argosy.results.report import Report
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import View
from argosy.settings import Settings
from argosy.stream.death import die_with_parent
from argosy.study import Study

__all__ = ["Hooked"]

SECONDS = 60.0
"""Time limit of each command, and of all commands together that still wait when the run has ended, except ``on_end``."""


class Hooked:
    """Wraps a view and runs the commands of the settings; its ``with`` block must outlast the use of the run's directory."""

    def __init__(self, view: View, settings: Settings, directory: Path) -> None:
        self._view = view
        self._commands = {"end": settings.on_end, "diverged": settings.on_diverged}
        self._directory = directory
        self._folder = Path.cwd()
        """Working directory of the commands, kept because the study's code may change that of the process."""
        self._begun = False
        self._deadline = float("inf")
        """Time limit of the commands that still wait at the end of the run."""
        self._wrong: list[str] = []
        self._calls: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="argosy-hooks", daemon=True)

    def __enter__(self) -> "Hooked":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Wait for the commands; ``on_end`` also runs if an error ended the run."""
        if error is not None and self._begun:
            self._call("end", status="failed", reason=f"{kind.__name__ if kind else ''}: {error}")
        self._deadline = time.monotonic() + SECONDS
        if self._thread.ident:
            self._calls.put(None)
            # For the command that is running, for all that still wait, and for ``on_end``.
            self._thread.join(3 * SECONDS)
        for sentence in self._wrong:
            print(escape_unprintable(sentence), file=sys.stderr)

    def run_on_end(self, report: Report, leader: Leader | None) -> None:
        """Run ``on_end``; the run has ended, and another driver may already use its directory."""
        best = leader.to_json() if leader else None
        facts = {"objective": report.objective, "best": best, "members": report.table()}
        self._call("end", status=report.status, reason=report.reason, **facts)

    def begin(self, job: Job, state: RunState) -> None:
        """Implement `View.begin`."""
        self._begun = True
        self._view.begin(job, state)

    def study(self, study: Study) -> None:
        """Implement `View.study`."""
        self._view.study(study)

    def expect(self, epochs: Callable[[], float]) -> None:
        """Implement `View.expect`."""
        self._view.expect(epochs)

    def handle(self, worker: str, message: Any) -> None:
        """Run ``on_diverged`` if a member has diverged, and pass the message on to the view."""
        if isinstance(message, MemberEnded) and message.status == "diverged":
            self._call("diverged", status=message.status, reason=message.reason, member=message.member)
        self._view.handle(worker, message)

    def tick(self, phase: Phase) -> None:
        """Implement `View.tick`."""
        self._view.tick(phase)

    def end(self) -> None:
        """Implement `View.end`."""
        self._view.end()

    def _call(self, event: str, **facts: Any) -> None:
        if self._commands[event] is None:
            return
        if not self._thread.ident:
            self._thread.start()
        self._calls.put({"schema": 1, "event": event, "directory": str(self._directory), **facts})

    def _work(self) -> None:
        while (facts := self._calls.get()) is not None:
            event = facts["event"]
            try:
                wrong = self._run(event, facts)
            except (OSError, RunError) as error:
                wrong = f"could not be started ({error})"
            if wrong:
                self._wrong.append(f"on_{event}: the command {self._commands[event]!r} {wrong}.")

    def _run(self, event: str, facts: Mapping[str, Any]) -> str:
        """Run a command to its end, and return what went wrong, or an empty string."""
        seconds = SECONDS if event == "end" else min(SECONDS, self._deadline - time.monotonic())
        workers = self._directory / "workers"
        make_folder(workers)
        facts_file = workers / f"on-{'-'.join([event, *([facts['member']] if 'member' in facts else [])])}.json"
        with replacing(facts_file) as file:
            file.write(json.dumps(without_infinities(facts), default=str).encode())
        environment = {
            **os.environ,
            "ARGOSY_FACTS": str(facts_file),
            "ARGOSY_BEST": (facts.get("best") or {}).get("name", ""),
        }
        for name in ("event", "directory", "status", "reason", "member"):
            environment[f"ARGOSY_{name.upper()}"] = cause_of(facts.get(name, "")).replace("\0", "")
        with open_append(workers / "hooks.log") as log:
            process = subprocess.Popen(
                ["sh", "-c", str(self._commands[event])],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        try:
            code = process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took longer than {SECONDS:g} s and was killed"
        return f"ended with exit code {code} (see {workers / 'hooks.log'})" if code else ""
