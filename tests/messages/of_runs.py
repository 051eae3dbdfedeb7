"""What is wrong with a run's directory, its files, its processes."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import studies

import argosy
from argosy.commands import Opened
from argosy.events import RunEnded
from argosy.running import worker
from argosy.running.audit import audit
from argosy.running.driver import Driver
from argosy.running.inbox import leave
from argosy.running.journal import Journal, Lock, read_journal, refusals_of_the_disk
from argosy.running.tolerance import LOSSES, Tolerance
from argosy.stream.pulse import Pulse
from argosy.stream.wire import Peer
from messages.of_studies import misspelt, study

__all__ = ["CASES"]

RUN = Path("runs/x")


def run(epochs: int = 1, **rest: Any) -> argosy.Report:
    """A small run, in this process."""
    asked = study(stop=argosy.MaxEpochs(epochs), **rest)
    return argosy.train(asked, directory=RUN, launcher="inline", devices="cpu:1")


def journaled(*lines: str) -> Path:
    """A run's directory with this journal."""
    RUN.mkdir(parents=True)
    (RUN / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return RUN


def opened_elsewhere() -> None:
    """The second node has other data."""
    there = Opened(address="", lengths={"train": 21}, fingerprint="", block_size=64, seconds_per_sample=0.0)
    here = Opened(address="", lengths={"train": 20}, fingerprint="", block_size=64, seconds_per_sample=0.0)
    Driver._check_same_data(SimpleNamespace(data=there), SimpleNamespace(node="node1"), here)


def ended() -> None:
    """Something is said to a run that is over."""
    run()
    leave(RUN, {"command": "stop", "member": "mlp"})


def in_use() -> None:
    """Another process has the run."""
    RUN.mkdir(parents=True)
    with Lock(RUN / "run.lock"):
        (RUN / "run.lock").write_text("4711 elsewhere 0")
        with Lock(RUN / "run.lock"):
            pass


def full(*_: Any) -> None:
    """A disk without room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def journal_on_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """No event can be written."""
    RUN.mkdir(parents=True)
    patch.setattr(os, "fdatasync", full)
    with Journal(RUN / "journal.jsonl") as journal:
        journal.append(RunEnded(status="done", reason="", seconds=1.0))
        journal.commit()


def files_on_a_full_disk() -> None:
    """Another file of the run cannot be written."""
    with refusals_of_the_disk(RUN):
        full()


def equal_failures() -> None:
    """Three members fail for one reason."""
    fleet = [studies.member(name, model=misspelt) for name in "abc"]
    run(members=fleet)


def losses() -> None:
    """A process that dies again and again."""
    tolerance = Tolerance(RUN / "workers")
    for _ in range(LOSSES + 1):
        tolerance.worker_lost("cpu:0", "killed by signal 9")


def unreadable(patch: pytest.MonkeyPatch) -> None:
    """A worker that cannot read what it was given."""
    driver, _there = Peer.pair()
    patch.setattr(worker, "dial", lambda *_: driver)
    patch.setattr(worker, "name_process", lambda _: None)
    blob, (_pulse, pulse) = os.memfd_create("blob"), Pulse.create()
    os.pwrite(blob, b"abc", 0)
    arguments = {"name": "cpu:0", "key": "00", "role": "trainer", "address": "", "ticket": "cpu:0"}
    worker.work(arguments, [blob, pulse])


CASES = {
    "a report without its study": lambda: (run(), argosy.load(RUN).best().load()),
    "a member that has saved nothing": lambda: run(epochs=0).member("mlp").load(),
    "a run that ended before its data was open": lambda: argosy.load(journaled()),
    "an audit of such a run": lambda: audit(journaled()),
    "a member that the run does not have": lambda: run().member("vit"),
    "the best of a run that trained nothing": lambda: run(epochs=0).best(),
    "another study in the same directory": lambda: (run(), run(epochs=2, seed=4)),
    "a word to a run that has ended": ended,
    "a directory without a run": lambda: argosy.load(RUN),
    "a journal that was changed by hand": lambda: read_journal(journaled("done!")),
    "a run of an earlier version": lambda: read_journal(journaled('{"event": "EpochEnded"}')),
    "a directory that is in use": in_use,
    "a full disk under the journal": journal_on_a_full_disk,
    "a full disk under the run": files_on_a_full_disk,
    "nodes with different data": opened_elsewhere,
    "three members that fail alike": equal_failures,
    "a process that is lost again and again": losses,
    "a worker that breaks": unreadable,
}
