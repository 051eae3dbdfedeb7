"""Tests that a run killed at any point and resumed gives the results of an uninterrupted run, and that no process is left behind."""

import os
import signal
import time
from pathlib import Path

import evidence
import living
import pytest
import studies
import torch
from family import Run, faultless, repeats_at_most_one_interval, unsure

import argosy
from argosy.errors import CheckpointError
from argosy.running.control.driver import INTERRUPTED_AGAIN
from argosy.running.directory import inbox
from argosy.running.directory.audit import audit
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import Silent
from argosy.training.member import checkpoint


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return faultless(tmp_path_factory.mktemp("uninterrupted"))


@pytest.mark.parametrize(("kind", "count"), [("Saved", 3), ("SectionEnded", 1), ("SectionEnded", 6), ("Saved", 12)])
def test_a_killed_driver_leaves_nothing_and_the_same_command_goes_on(
    tmp_path: Path, uninterrupted: dict[str, object], kind: str, count: int
) -> None:
    run = Run.halted(tmp_path, kind, count)
    assert len(run.processes()) >= 6  # fork server, feeder, two loader workers, two trainers
    run.process.kill()
    run.process.wait()
    run.go_on()
    # The same command, started at once, waits for the processes of the killed driver.
    assert Run(tmp_path).end() == 0
    assert run.left() == []
    assert evidence.results(tmp_path) == uninterrupted
    assert audit(tmp_path) == []
    assert repeats_at_most_one_interval(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_every_member_and_the_same_command_goes_on(
    tmp_path: Path, uninterrupted: dict[str, object], number: signal.Signals
) -> None:
    run = Run.halted(tmp_path, "SectionEnded", 2, unsure(1))
    run.process.send_signal(number)
    run.go_on()
    assert run.end() == 0
    assert run.left() == []
    assert [line for line in run.lines() if line["event"] == "MemberEnded" and line["status"] == "paused"]
    assert Run(tmp_path).end() == 0
    assert evidence.results(tmp_path) == uninterrupted


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal; the driver removes its handlers when it acts on the first signal."""
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    run = Run.halted(tmp_path, "MemberStarted", 5, unsure(1))
    for process in run.role("trainer"):
        process.suspend()  # no trainer can save, so the driver waits after the first signal
    run.go_on()
    run.process.send_signal(signal.SIGINT)
    while catches(run.process.pid, signal.SIGTERM):
        time.sleep(0.01)  # the kernel merges two signals that arrive before the driver runs
    time.sleep(0.5)
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    assert run.end(20) != 0
    assert run.left() == []
    assert run.errors.endswith(f"KeyboardInterrupt: {INTERRUPTED_AGAIN}\n")
    assert argosy.load(tmp_path).reason == INTERRUPTED_AGAIN


def test_members_that_are_saved_before_the_end_are_not_said_to_be_saved_after_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "POLL_SECONDS", 0.0)
    shown: list[Phase] = []

    class Stopping(Silent):
        def tick(self, phase: Phase) -> None:
            if phase is Phase.TRAINING and phase not in shown:
                inbox.write_command(tmp_path, {"command": "stop"})
            shown.append(phase)

    study = studies.study(90, fleet=[studies.member(augment=studies.dawdle)], epochs=90)
    living.run(study, tmp_path, view=Stopping())
    assert Phase.ENDING in shown and Phase.REGROUPING not in shown


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path, uninterrupted: dict[str, object]) -> None:
    run = Run.halted(tmp_path, "SectionEnded", 2, sigint="SIG_IGN")
    run.process.send_signal(signal.SIGINT)
    run.go_on()
    assert run.end() == 0
    assert evidence.results(tmp_path) == uninterrupted
    assert not [line for line in run.lines() if line["event"] == "MemberEnded" and line["status"] == "paused"]


def test_a_second_driver_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    run = Run.halted(tmp_path, "MemberStarted", 1)
    with pytest.raises(argosy.ArgosyError, match=f"in use by process {run.process.pid} on "):
        argosy.train(studies.study(), directory=tmp_path, launcher="inline")
    run.process.kill()
    run.process.wait()
    assert run.left() == []


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    study = studies.study(epochs=3)
    argosy.train(study, directory=tmp_path / "whole", launcher="inline")
    argosy.train(studies.study(epochs=2), directory=tmp_path / "cut", launcher="inline")
    last = (tmp_path / "cut" / "members" / "odd" / "last.pt").resolve()
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    argosy.train(study, directory=tmp_path / "cut", launcher="inline")
    assert evidence.results(tmp_path / "cut") == evidence.results(tmp_path / "whole")
    (started,) = [e for e in evidence.event_lines(tmp_path / "cut", "MemberStarted")[4:] if e["member"] == "odd"]
    assert started["epoch"] == 1
    assert "damaged" in (tmp_path / "cut" / "members" / "odd" / "log.txt").read_text()


def test_a_missing_newest_checkpoint_is_an_error_and_no_member_begins_anew(tmp_path: Path) -> None:
    argosy.train(studies.study(epochs=2), directory=tmp_path, launcher="inline")
    last = (tmp_path / "members" / "odd" / "last.pt").resolve()
    content = last.read_bytes()
    last.unlink()
    journal = (tmp_path / "journal.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=f"checkpoint {last} is in the journal but does not exist"):
        argosy.train(studies.study(epochs=3), directory=tmp_path, launcher="inline")
    assert (tmp_path / "journal.jsonl").read_bytes().count(b"SectionEnded") == journal.count(b"SectionEnded")
    last.write_bytes(content)
    assert argosy.train(studies.study(epochs=3), directory=tmp_path, launcher="inline").status == "done"


def test_a_tampered_checkpoint_is_never_unpickled(tmp_path: Path) -> None:
    argosy.train(studies.study(epochs=1), directory=tmp_path, launcher="inline")
    path, trap = tmp_path / "members" / "odd" / "last.pt", tmp_path / "trap"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(trap),)

    torch.save({"model": Trap()}, path.resolve())
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path, "0" * 64)
    with pytest.raises(CheckpointError, match="refused"):
        checkpoint.load(path)
    assert not trap.exists()


def test_a_journal_cut_in_the_middle_of_a_line_goes_on(tmp_path: Path) -> None:
    argosy.train(studies.study(epochs=3), directory=tmp_path / "whole", launcher="inline")
    argosy.train(studies.study(epochs=2), directory=tmp_path / "cut", launcher="inline")
    journal = tmp_path / "cut" / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")
    last_epoch = max(number for number, line in enumerate(lines) if b'"SectionEnded"' in line)
    journal.write_bytes(b"\n".join(lines[:last_epoch]) + b"\n" + lines[last_epoch][:100])
    argosy.train(studies.study(epochs=3), directory=tmp_path / "cut", launcher="inline")
    assert evidence.results(tmp_path / "cut") == evidence.results(tmp_path / "whole")
    assert audit(tmp_path / "cut") == []


def test_links_follow_the_journal_where_a_trainer_died_before_it_moved_them(tmp_path: Path) -> None:
    argosy.train(studies.study(), directory=tmp_path, launcher="inline")
    expected = evidence.results(tmp_path)
    for path in (tmp_path / "members").glob("*/*.pt"):
        if path.is_symlink():
            path.unlink()
    argosy.train(studies.study(), directory=tmp_path, launcher="inline")
    assert evidence.results(tmp_path) == expected
    assert (tmp_path / "members" / "odd" / "best.pt").exists()
