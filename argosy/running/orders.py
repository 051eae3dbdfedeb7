"""What people want of a run: commands in its folder, signals, a time limit."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argosy.commands import Leave
from argosy.errors import ArgosyError
from argosy.events import Answered
from argosy.running.inbox import Inbox

if TYPE_CHECKING:
    from argosy.running.driver import Driver

__all__ = ["Orders"]


class Orders:
    """Of one run. A command is answered when what it asked for is done."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self.inbox = Inbox(driver.directory / "commands", (answered.file for answered in driver.state.answered))
        self.pausing: str | None = None
        """Why the run is being saved to end."""
        self._wanted: str | None = None
        """Set by signal handlers, which may not talk to workers: they interrupt whoever is talking."""
        self._stopping: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        """By member: commands to stop it that are not answered yet."""

    def want_pause(self, reason: str) -> None:
        """Save every member where it is, and end; from any thread or signal handler."""
        self._wanted = reason

    def was_told_to_stop(self, member: str) -> bool:
        """Whether a person wants a member to end."""
        return member in self._stopping

    def look(self) -> None:
        """Act on what people have said since the last look."""
        if (reason := self._wanted or self._out_of_time()) and self.pausing is None:
            self.pausing = reason
            self.driver.pause()
        for file, command in self.inbox.new():
            try:
                answer = self._command(file, command)
            except ArgosyError as error:
                answer = f"refused: {error}"
            if answer is not None:
                self._answer(file, command, answer)
        for member in list(self._stopping):
            status = self.driver.state.member(member).status
            if status not in ("waiting", "training", "resting", "paused"):
                for file, command in self._stopping.pop(member):
                    said = f"{member} is saved and stops" if status == "stopped" else f"{member} had ended: {status}"
                    self._answer(file, command, said)

    def _answer(self, file: str, command: dict[str, Any], answer: str) -> None:
        self.driver.record(Answered(file=file, command=command, answer=answer))

    def _out_of_time(self) -> str | None:
        limit = self.driver.settings.time_limit
        over = limit is not None and time.monotonic() - self.driver.began > limit
        return f"time limit of {limit:g} s" if over else None

    def _command(self, file: str, command: dict[str, Any]) -> str | None:
        """The answer; None where it is given when the thing is done."""
        if command["command"] == "stop":
            return self._stop(file, command)
        if command["command"] == "add":
            return self._add(Path(command["study"]))
        return f"refused: unknown command {command['command']!r}; commands are stop and add."

    def _stop(self, file: str, command: dict[str, Any]) -> str | None:
        driver, name = self.driver, command["member"]
        aboard, idle = driver.voyage.afloat() | driver.faults.afloat, {*driver.roster.waiting, *driver.roster.resting}
        idle |= driver.voyage.departures.newcomers
        if name not in aboard | idle:
            there = ", ".join(sorted(aboard | idle)) or "none"
            return f"refused: no member {name!r} is training; those are {there}."
        self._stopping.setdefault(name, []).append((file, command))
        leg = driver.voyage.leg_of(name)
        if name in idle and name not in aboard:
            driver.end(name, "stopped", "by command")
        elif leg is not None and driver.faults.regrouping.under_way is False:
            device = leg.device_of(name)
            assert device is not None
            driver.force.send(device, Leave(members=(name,)))
        return None

    def _add(self, path: Path) -> str:
        driver = self.driver
        added = driver.roster.extend(path)
        if not added:
            return "refused: the study has no member that is not here already"
        driver.add(added)
        return f"added {', '.join(added)}"
