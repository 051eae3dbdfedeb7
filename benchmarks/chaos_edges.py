"""Faults at the edges of a run: its surroundings change or disappear, or it is sent nonsense.

A run must survive each of them, or end with one sentence and continue with the same command.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import studies
import texts
from family import Run

import argosy

__all__ = ["DATA", "campaign_run", "study", "unkind"]

SCRIPT = """
import sys
from argosy.cli.app import main

sys.argv[1:] = ["run", "{study}", "--dir", sys.argv[1], *"{settings}".split(), "--block-size", "32",
                "--checkpoint-seconds", "0.05", "--numerics", "exact", "--hang-seconds", "60"]
main()
"""
ONE_NODE = "--devices cpu:2 --loader-workers 2"
TWO_NODES = "--devices cpu:1 --loader-workers 1 --nodes 2 --sharing all-shared"
STUDY = """
import chaos_edges, studies

study = chaos_edges.study("{data}", {length}, {epochs}, augment=studies.dawdle)
"""
BROKEN = {
    "syntax": "study = (",
    "nothing": "",
    "raises": "raise RuntimeError('of the file')",
    "another": "study = 7",
    "nobody-new": "import studies\nstudy = studies.study(400, fleet=studies.members())",
}
"""Files for `argosy add`; none of them has a member that could join."""
DATA = ("drawn", "kept", "streamed", "ragged", "sharded")
"""Kinds of data, used in turn: drawn anew in each epoch; cached with noise added afterwards; streamed once; texts of unequal length; shards read
in each epoch.
"""
HOUR = 3600
MOST_SECONDS = 3.0
"""The latest moment for a fault, counted from the one before."""
MOST_RUNS = 8
"""How often the same command may be needed."""
ROLES = {
    ONE_NODE: ("trainer", "feeder", "loader", "server", "driver"),
    TWO_NODES: ("trainer", "feeder", "loader", "server", "driver", "exchange"),
}
"""Roles of the processes of a run, by its settings."""


def study(kind: str, length: int, epochs: int, *, augment: Any = None) -> argosy.Study:
    """Return a study of four unlike members, and one with this augmentation."""
    if kind == "ragged":
        fleet = [*texts.fleet(), texts.member("slow", augment=augment)]
        return texts.study(*fleet, length=length, stop=argosy.MaxEpochs(epochs))
    fleet = [*studies.members(), studies.member("slow", augment=augment)]
    return studies.study(length, data=studies.data(kind, length), fleet=fleet, epochs=epochs)


class Surroundings:
    """Everything that a run depends on besides its directory, placed where the faults can reach it."""

    def __init__(self, folder: Path, settings: str, *, data: str, length: int, epochs: int) -> None:
        self.directory, self.settings = folder / "run", settings
        self.study, self.home, self.clock = folder / "study.py", folder / "home", folder / "clock"
        self.home.mkdir(parents=True)
        self.study.write_text(STUDY.format(data=data, length=length, epochs=epochs))
        self.runs: list[Run] = []
        self.asked: list[subprocess.Popen[bytes]] = []
        """Commands that other people gave."""
        self.reader: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command, with another program reading its output."""
        self.end()
        self.reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        script = SCRIPT.replace("{study}", str(self.study))
        self.runs.append(Run(self.directory, script, settings=self.settings, start=self._command))

    def _command(self, text: str, directory: str, *, err: int) -> subprocess.Popen[bytes]:
        assert self.reader is not None
        words = [sys.executable, "-c", text, directory]
        return subprocess.Popen(words, env=self._environment(), stdout=self.reader.stdin, stderr=err)

    def tell(self, *words: str) -> None:
        """Send a command to the current run without waiting for the answer."""
        program, nowhere = [sys.executable, "-m", "argosy"], subprocess.DEVNULL
        self.asked.append(subprocess.Popen([*program, *words], env=self._environment(), stdout=nowhere, stderr=nowhere))

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": ":".join([str(Path(__file__).with_name("chaos_clock")), *sys.path]),
            "ARGOSY_CHAOS_CLOCK": str(self.clock),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": "",
            "ARGOSY_CACHE": "",
        }

    @property
    def run(self) -> Run:
        """The current run."""
        return self.runs[-1]

    def victim(self, dice: random.Random) -> tuple[str, Sequence[psutil.Process]]:
        """Return a role and one process of it as soon as there is one, or no process if the run ended before."""
        role = dice.choice(ROLES[self.settings])
        while self.run.process.poll() is None:
            if found := self.run.role(role):
                return role, found[:1]
            time.sleep(0.02)
        return role, ()

    def end(self) -> None:
        """End the program that reads the last command's output."""
        if self.reader is not None:
            with contextlib.suppress(OSError):
                self.reader.communicate()
            self.reader = None


def close_stdout(around: Surroundings, dice: random.Random) -> str:
    """Close the run's output, as ``| head`` does."""
    assert around.reader is not None
    around.reader.kill()
    return "stdout closed"


def take_home(around: Surroundings, dice: random.Random) -> str:
    """Replace the home directory by a file, so that nothing can be created in it."""
    if around.home.is_dir():
        shutil.rmtree(around.home)
        around.home.touch()
    return "HOME gone"


def set_clock(around: Surroundings, dice: random.Random) -> str:
    """Set the clock for all processes of this run and of the runs that follow."""
    around.clock.write_text(str(dice.choice((-HOUR, HOUR))))
    return "clock set"


def exhaust(around: Surroundings, dice: random.Random) -> str:
    """Let a process, and those that it starts meanwhile, open no more files."""
    role, victims = around.victim(dice)
    for victim in victims:
        with contextlib.suppress(psutil.Error):
            before = victim.rlimit(psutil.RLIMIT_NOFILE)
            victim.rlimit(psutil.RLIMIT_NOFILE, (victim.num_fds() // dice.randint(1, 2), before[1]))
            time.sleep(dice.uniform(0.1, 2.0))
            victim.rlimit(psutil.RLIMIT_NOFILE, before)
    return f"{role}: descriptors"


def add_nonsense(around: Surroundings, dice: random.Random) -> str:
    """Add a study file without a member that could join."""
    kind = dice.choice(list(BROKEN))
    path = around.study.with_name(f"{kind}.py")
    path.write_text(BROKEN[kind])
    around.tell("add", str(around.directory), str(path))
    return f"add {kind}"


def stop_for_a_while(around: Surroundings, dice: random.Random) -> str:
    """Stop a process for some seconds, or for a minute."""
    seconds = 60.0 if dice.random() < 0.1 else dice.uniform(0.2, 8.0)
    role, victims = around.victim(dice)
    for victim in victims:
        around.run.signal(victim, signal.SIGSTOP)
        time.sleep(seconds)
        around.run.signal(victim, signal.SIGCONT)
    return f"{role}: stopped for {'a minute' if seconds == 60.0 else 'seconds'}"


def stop_for_ever(around: Surroundings, dice: random.Random) -> str:
    """Stop a process for ever; if it is the driver, kill it then, as a person would."""
    role, victims = around.victim(dice)
    for victim in victims:
        around.run.signal(victim, signal.SIGSTOP)
        if role == "driver":
            time.sleep(2.0)
            around.run.process.kill()
    return f"{role}: stopped for ever"


FAULTS: tuple[Callable[[Surroundings, random.Random], str], ...] = (
    close_stdout,
    take_home,
    set_clock,
    exhaust,
    add_nonsense,
    stop_for_a_while,
    stop_for_ever,
)


def befall(around: Surroundings, dice: random.Random) -> str | None:
    """Cause one fault at a random moment of a run; return None if the run ended before."""
    moment, fault = time.monotonic() + dice.uniform(0.0, MOST_SECONDS), dice.choice(FAULTS)
    while time.monotonic() < moment and around.run.process.poll() is None:
        around.run.processes()
        time.sleep(0.02)
    return fault(around, dice) if around.run.process.poll() is None else None


def campaign_run(folder: Path, seed: int, *, length: int, epochs: int) -> tuple[list[str], Surroundings]:
    """Run a study with up to four faults, repeat the command until it is done, and return the faults and the surroundings."""
    dice, faults = random.Random(seed), []
    settings = dice.choice((ONE_NODE, ONE_NODE, ONE_NODE, TWO_NODES))
    around = Surroundings(folder, settings, data=DATA[seed % len(DATA)], length=length, epochs=epochs)
    around.start()
    for _ in range(dice.randint(1, 4)):
        fault = befall(around, dice)
        if fault is not None:
            faults.append(fault)
        if fault == "driver: stopped for ever" or around.run.process.poll():
            around.run.process.wait()
            around.start()
    while around.run.end(200) != 0:
        if len(around.runs) > MOST_RUNS:
            raise AssertionError(f"seed {seed}, {faults}: {around.run.errors[-3000:]}")
        around.start()
    around.end()
    return faults, around


def unkind(around: Surroundings, faults: Sequence[str]) -> list[str]:
    """Return what went wrong meanwhile: ends of a run that should have continued, and errors that are no sentence for people."""
    found, errors = [], around.run.errors
    ends = len(around.runs) - 1 - faults.count("driver: stopped for ever")
    exhausted = any(fault.endswith("descriptors") for fault in faults)
    if ends and not exhausted:
        found.append(f"the run ended {ends} times of itself: {errors[-500:]}")
    answers = [asked.wait(60) for asked in around.asked]
    if set(answers) - {2}:
        found.append(f"nonsense was answered with exit codes {answers}")
    for trace in errors.split("Traceback (most recent call last)")[1:]:
        # An interpreter that cannot open its own modules fails before Argosy can print a sentence.
        if not (exhausted and "frozen importlib" in trace):
            found.append(f"a traceback: {trace[-2000:]}")
    return found
