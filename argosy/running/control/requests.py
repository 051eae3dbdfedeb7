"""Requests of the user: command files, signals, the time limit."""

import time
from typing import Any

from argosy.errors import ArgosyError
from argosy.errors.spelling import did_you_mean, format_names
from argosy.protocol.events import OUT_OF_TIME, REFUSED
from argosy.running.control.additions import Additions
from argosy.running.control.carry_out import CarryOut
from argosy.running.control.clones import Clones
from argosy.running.control.faults import Faults
from argosy.running.control.members import State
from argosy.running.control.run import Run
from argosy.running.directory.inbox import Inbox

__all__ = ["Requests"]

GOES_ON = "the same command resumes the run"


class Requests:
    """Handles the requests to one run. A command is answered once its request is fulfilled."""

    def __init__(self, run: Run, carry_out: CarryOut, faults: Faults, additions: Additions) -> None:
        self.run = run
        self.carry_out = carry_out
        self.faults = faults
        self.additions = additions
        self.inbox: Inbox = Inbox(run.directory / "commands", (answered.file for answered in run.state.answered))
        self.clones: Clones = Clones(run, carry_out, additions)
        self._wanted: str | None = None
        """Set by signal handlers, which must not talk to workers because they may interrupt a round anywhere."""
        self._stopping: dict[str, list[str]] = {}
        """By member: unanswered commands to stop it."""

    def request_pause(self, reason: str) -> None:
        """Request that every member is saved at its position and the run ends; callable from any thread or signal handler."""
        self._wanted = reason

    def poll(self) -> None:
        """Act on requests since the last call."""
        run = self.run
        if (reason := self._wanted or self._out_of_time()) and run.pause_reason is None:
            run.pause_reason = reason
            self.faults.pause()
        # Before the data are open the directory may belong to another study, and a run that ends accepts no commands.
        for file, command in self.inbox.new() if run.begun else ():
            run.commands[file] = command
            try:
                answer = self._handle_command(file, command)
            except ArgosyError as error:
                answer = f"{REFUSED}{error}"
            if answer is not None:
                self.carry_out.answer(file, answer)
        if run.pause_reason is None:
            self.clones.poll()
            self.additions.poll()
        for member in list(self._stopping):
            status = run.state.member(member).status
            if status not in ("waiting", "training", "resting", "paused"):
                how = "has been saved and stopped" if status == "stopped" else f"had already ended: {status}"
                for file in self._stopping.pop(member):
                    self.carry_out.answer(file, f"{member} {how}")

    def _out_of_time(self) -> str | None:
        limit = self.run.settings.time_limit
        over = limit is not None and time.monotonic() - self.run.began > limit
        return f"{OUT_OF_TIME} of {limit:g} s" if over else None

    def _handle_command(self, file: str, command: dict[str, Any]) -> str | None:
        """Return the answer; None if it is given later, when the request is fulfilled."""
        match command:
            case {"command": "stop", "member": str(name)}:
                return self._stop(name, file)
            case {"command": "stop", **rest} if not rest:
                self.request_pause(f"by command; {GOES_ON}")
                return f"every member is saved, and the run ends; {GOES_ON}"
            case {"command": "add"}:
                self.additions.accept(file, command)
                return None
            case {"command": "clone"}:
                self.clones.accept(file, command)
                return None
        return f"{REFUSED}unknown command {command.get('command')!r}; choose stop (with or without a member), add or clone."

    def _stop(self, name: str, file: str) -> str | None:
        members = self.run.members
        if members.addition(name):
            return f"{REFUSED}{name} is still being added. Stop it once that request is answered."
        states = {known: members.state(known) for known in self.run.study.names}
        if states.get(name) is State.ENDED:
            return (
                f"{REFUSED}{name!r} has already ended: {self.run.state.member(name).status}. There is nothing to stop."
            )
        stoppable = [one for one, state in states.items() if state is not State.ENDED and not members.addition(one)]
        if name not in stoppable:
            return f"{REFUSED}no member {name!r}{did_you_mean(name, stoppable)} is training; members that can be stopped: {format_names(sorted(stoppable)) or 'none'}."
        self._stopping.setdefault(name, []).append(file)
        members.stop(name)
        if states[name] in (State.JOINING, State.WAITING, State.RECOVERING, State.RESTING):
            self.carry_out.end(name, "stopped", "by command")
        else:
            self.carry_out.stop(name)
        return None
