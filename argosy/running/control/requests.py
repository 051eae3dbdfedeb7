"""What people want of a run: commands in its folder, signals, a time limit."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from argosy.errors import ArgosyError
from argosy.errors.spelling import meant
from argosy.protocol.events import REFUSED, Answered
from argosy.protocol.trainer import Unassign
from argosy.running.control.clones import Clones
from argosy.running.directory.inbox import Inbox

if TYPE_CHECKING:
    from argosy.running.control.driver import Driver

__all__ = ["Requests"]


class Requests:
    """Of one run. A command is answered when what it asked for is done."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self.inbox = Inbox(driver.directory / "commands", (answered.file for answered in driver.state.answered))
        self.pausing: str | None = None
        """Why the run is being saved to end."""
        self.clones = Clones(driver)
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
        # Before the data is open the directory may be another study's, and a run that ends has nothing to show.
        for file, command in self.inbox.new() if self.driver.begun else ():
            try:
                answer = self._command(file, command)
            except ArgosyError as error:
                answer = f"{REFUSED}{error}"
            if answer is not None:
                self.answer(file, command, answer)
        if self.pausing is None:
            self.clones.look()
            self.driver.additions.look()
        for member in list(self._stopping):
            status = self.driver.state.member(member).status
            if status not in ("waiting", "training", "resting", "paused"):
                for file, command in self._stopping.pop(member):
                    said = f"{member} is saved and stops" if status == "stopped" else f"{member} had ended: {status}"
                    self.answer(file, command, said)

    def answer(self, file: str, command: Mapping[str, Any], answer: str) -> None:
        """A command is done with."""
        self.driver.record(Answered(file=file, command=command, answer=answer))

    def _out_of_time(self) -> str | None:
        limit = self.driver.settings.time_limit
        over = limit is not None and time.monotonic() - self.driver.began > limit
        return f"time limit of {limit:g} s" if over else None

    def _command(self, file: str, command: dict[str, Any]) -> str | None:
        """The answer; None where it is given when the thing is done."""
        match command:
            case {"command": "stop", "member": str(name)}:
                return self._stop(name, file, command)
            case {"command": "add"}:
                self.driver.additions.ask(file, command)
                return None
            case {"command": "clone"}:
                self.clones.ask(file, command)
                return None
        return (
            f"{REFUSED}nobody understands {command.get('command')!r}; commands are stop, with a member, add and clone."
        )

    def _stop(self, name: str, file: str, command: dict[str, Any]) -> str | None:
        driver = self.driver
        if name in driver.additions.names:
            return f"{REFUSED}{name} is being added; stop it when that is answered."
        aboard = driver.scheduler.afloat() | driver.faults.afloat
        newcomers = driver.scheduler.leg_starts.newcomers - driver.additions.names
        idle = {*driver.member_table.waiting, *driver.member_table.resting, *newcomers}
        if name not in aboard | idle:
            there = ", ".join(sorted(aboard | idle)) or "none"
            return f"{REFUSED}no member {name!r}{meant(name, aboard | idle)} is training; those are {there}."
        self._stopping.setdefault(name, []).append((file, command))
        leg = driver.scheduler.leg_of(name)
        if name in idle and name not in aboard:
            driver.end(name, "stopped", "by command")
        elif leg is not None and leg not in driver.faults.regrouped_legs:
            for device in leg.devices_of(name):
                driver.pool.send(device, Unassign(members=(name,)))
        return None
