"""A run in its own process, and its processes by role, so that tests can kill real processes."""

import contextlib
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evidence
import forked
import psutil
import studies

import argosy
from argosy.running.directory.journal import Journal

SCRIPT = """
import signal, sys, argosy, studies
from functools import partial

signal.signal(signal.SIGINT, signal.{sigint})  # because a shell that runs the tests in the background ignores it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # likewise under nohup
slow = studies.member("slow", augment=partial(studies.dawdle_until, sys.argv[1] + ".go"))
study = studies.study({length}, fleet=[*studies.members(), slow], epochs={epochs})
argosy.train(study, directory=sys.argv[1], {settings}, block_size=32, checkpoint_seconds=0.05,
             numerics="exact", hang_seconds={hang_seconds})
"""
MOVING = """
import signal, sys, argosy, living, studies
from argosy.planning import POLICIES

signal.signal(signal.SIGINT, signal.{sigint})
POLICIES["restless"] = living.Dealt(lambda member, asked: asked + len(member), everywhere=False)
short = [studies.member(f"short{{n}}", stop=argosy.MaxEpochs(n / 4)) for n in range(1, 4 * {epochs}, 2)]
fleet = [*studies.members(), studies.member("slow", augment=studies.dawdle), *short]
study = studies.study({length}, fleet=fleet, epochs={epochs}, validations_per_epoch=4)
argosy.train(study, directory=sys.argv[1], {settings}, block_size=32, checkpoint_seconds=0.05,
             numerics="exact", hang_seconds={hang_seconds})
"""
"""A script in which members change devices at the end of every section in which one of them ends."""
HANG_SECONDS = 60
ONE_NODE = 'devices="cpu:2", loader_workers=2'
MOVES = f'{ONE_NODE}, policy="restless"'
TWO_NODES = 'devices="cpu:1", nodes=2, loader_workers=1, sharing="{sharing}"'

HALTING = """
import family
family.halt({kind!r}, {count}, {go!r})
"""
COMMAND = """
import sys
from argosy.cli.app import main

sys.argv[1:] = ["run", "{settings}", "--dir", sys.argv[1], "--devices", "cpu:1", "--loader-workers", "1"]
main()
"""
"""A script that calls ``argosy run`` with the study file that the settings name."""


def study_file(folder: Path, epochs: int) -> str:
    """Write a study file of one slow member and return its path."""
    path = folder / "study.py"
    path.write_text(
        "import studies\n"
        f"study = studies.study(fleet=[studies.member(augment=studies.dawdle, batch_size=4)], epochs={epochs})\n"
    )
    return str(path)


def unsure(sections: int) -> str:
    """Return `SCRIPT` with its slow member at most this many sections ahead of the driver, so that the run outlasts a halted driver."""
    return SCRIPT.replace('".go"))', f'".go"), stop=studies.Unsure({{epochs}}, sections={sections}))')


def faultless(directory: Path) -> dict[str, Any]:
    """Return the results of `SCRIPT`'s study, trained in one process without any fault."""
    study = studies.study(400, fleet=[*studies.members(), studies.member("slow")], epochs=3)
    argosy.train(study, directory=directory, launcher="inline", numerics="exact")
    return evidence.results(directory)


def halt(kind: str, count: int, go: str) -> None:
    """Let the driver of this process wait, once its journal has `count` events of a kind, until the file `go` exists."""
    commit, told = Journal.commit, json.dumps({"event": kind})[1:-1].encode()

    def committed(journal: Journal) -> None:
        commit(journal)
        while journal.path.read_bytes().count(told) >= count and not Path(go).exists():
            time.sleep(0.005)

    Journal.commit = committed  # type: ignore[method-assign]


class Run:
    """A run in its own process: its driver, and the processes that the driver starts."""

    def __init__(
        self,
        directory: Path,
        script: str = SCRIPT,
        *,
        settings: str = ONE_NODE,
        length: int = 400,
        epochs: int = 3,
        hang_seconds: float = HANG_SECONDS,
        sigint: str = "default_int_handler",
        start: Callable[..., Any] = forked.script,
    ) -> None:
        self.directory = directory
        self.go = Path(f"{directory}.go")
        """The file for which a halted driver waits; until it exists, the member "slow" of a run in this directory is slow."""
        text = script.format(settings=settings, length=length, epochs=epochs, hang_seconds=hang_seconds, sigint=sigint)
        self.log = directory.with_name(f"{directory.name}.stderr")
        with self.log.open("a") as log:
            self.process = start(text, str(directory), err=log.fileno())
        self.seen: dict[int, psutil.Process] = {}

    @classmethod
    def halted(cls, directory: Path, kind: str, count: int, script: str = SCRIPT, **how: Any) -> "Run":
        """Start a run and wait until its driver has halted after `count` events of a kind; it continues after `go_on`."""
        go = f"{directory}.go"
        Path(go).unlink(missing_ok=True)
        run = cls(directory, HALTING.format(kind=kind, count=count, go=go) + script, **how)
        run.wait_for(kind, count)
        return run

    def go_on(self) -> None:
        """Let a halted driver continue, and members of runs in this directory train at full speed from now on."""
        self.go.touch()

    def lines(self) -> list[dict]:
        """Return the journal's complete lines so far."""
        path = self.directory / "journal.jsonl"
        text = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in text.split(b"\n")[:-1]]

    def wait_for(self, kind: str, count: int = 1, seconds: float = 60) -> None:
        """Wait until the journal has `count` events of a kind."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if sum(line["event"] == kind for line in self.lines()) >= count:
                self.processes()
                return
            assert self.process.poll() is None, self.errors
            time.sleep(0.005)
        raise AssertionError(f"no {count} events {kind} within {seconds} s")

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the run except the driver, and remember them for `left`."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        self.seen.update({process.pid: process for process in found})
        return found

    def role(self, role: str, node: str = "") -> list[psutil.Process]:
        """Return the processes of one role (server, feeder, exchange, loader, trainer, driver), of one node if `node` is given."""
        if role == "driver":
            return [psutil.Process(self.process.pid)]
        found = []
        for process in self.processes():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                log = Path(f"/proc/{process.pid}/fd/1").readlink()
                named = process.name().removeprefix("argosy-")
                name = "server" if process.ppid() == self.process.pid else named
                if name == role and log.name.startswith(node):
                    found.append(process)
        return found

    def end(self, seconds: float = 120) -> int:
        """Wait for the driver and return its exit code."""
        self.processes()
        return self.process.wait(seconds)

    @property
    def errors(self) -> str:
        """The driver's standard error."""
        return self.log.read_text()

    def left(self, seconds: float = 10) -> list[psutil.Process]:
        """Return the processes that still run after so many seconds."""
        _, alive = psutil.wait_procs(list(self.seen.values()), timeout=seconds)
        return [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    def signal(self, process: psutil.Process, number: signal.Signals) -> None:
        """Send a signal to a process, if it still exists."""
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return


def repeats_at_most_one_interval(directory: Path) -> bool:
    """Return whether every start of a member resumed from the newest checkpoint journaled before it."""
    newest: dict[str, tuple[int, int]] = {}
    text = (directory / "journal.jsonl").read_text()
    for line in map(json.loads, text.splitlines()):
        if line["event"] == "Saved":
            saved = line["checkpoint"]
            newest[line["member"]] = (saved["epoch"], saved["position"] + saved["carried"])
        elif line["event"] == "MemberStarted" and (line["epoch"], line["position"]) != newest.get(
            line["member"], (0, 0)
        ):
            return False
    return True
