"""Killed and resumed == uninterrupted, whatever was killed when; and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import evidence
import psutil
import pytest
import studies
import torch

import argosy
from argosy.running.audit import audit

SCRIPT = """
import argosy, studies, sys
study = studies.study(400, fleet=[*studies.members(), studies.member("slow", augment=studies.dawdle)], epochs=3)
argosy.train(study, directory=sys.argv[1], devices="cpu:2", block_size=32, checkpoint_seconds=0.05, numerics="exact")
"""


def start(directory: Path) -> subprocess.Popen[bytes]:
    """The run in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(directory)], env=environment)


def wait_for(directory: Path, kind: str, count: int, run: subprocess.Popen[bytes]) -> None:
    """Until the journal has so many events of a kind."""
    path, deadline = directory / "journal.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().count(f'"event": "{kind}"') >= count:
            return
        assert run.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    raise AssertionError(f"no {count} events {kind} within 60 s")


def gone(processes: list[psutil.Process], seconds: float = 10.0) -> list[psutil.Process]:
    """Those of the processes that are still there after so long."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    directory = tmp_path_factory.mktemp("uninterrupted")
    assert start(directory).wait(100) == 0
    return evidence.results(directory)


@pytest.mark.parametrize(("kind", "count"), [("Saved", 3), ("EpochEnded", 1), ("EpochEnded", 6), ("Saved", 12)])
def test_a_killed_driver_leaves_nothing_and_the_same_command_goes_on(
    tmp_path: Path, uninterrupted: dict[str, object], kind: str, count: int
) -> None:
    run = start(tmp_path)
    wait_for(tmp_path, kind, count, run)
    family = psutil.Process(run.pid).children(recursive=True)
    assert len(family) >= 4  # fork server, feeder, two trainers
    run.send_signal(signal.SIGKILL)
    run.wait()
    # The same command, at once: it waits for the processes of the killed driver.
    again = start(tmp_path)
    assert again.wait(100) == 0
    assert gone(family) == []
    assert evidence.results(tmp_path) == uninterrupted
    assert audit(tmp_path) == []
    resumed_from_the_newest_checkpoint(tmp_path)


def resumed_from_the_newest_checkpoint(directory: Path) -> None:
    """Nobody repeats more than one interval: every start takes up the newest checkpoint journaled before it."""
    newest: dict[str, tuple[int, int]] = {}
    for line in (json.loads(text) for text in (directory / "journal.jsonl").read_text().splitlines()):
        if line["event"] in ("EpochEnded", "Saved"):
            newest[line["member"]] = (line["checkpoint"]["epoch"], line["checkpoint"]["position"])
        elif line["event"] == "MemberStarted":
            assert (line["epoch"], line["position"]) == newest.get(line["member"], (0, 0))


def test_sigterm_saves_every_member_and_the_same_command_goes_on(
    tmp_path: Path, uninterrupted: dict[str, object]
) -> None:
    run = start(tmp_path)
    wait_for(tmp_path, "EpochEnded", 2, run)
    family = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(signal.SIGTERM)
    assert run.wait(30) == 0
    assert gone(family) == []
    paused = [line["member"] for line in evidence.event_lines(tmp_path, "MemberEnded") if line["status"] == "paused"]
    assert paused
    assert start(tmp_path).wait(100) == 0
    assert evidence.results(tmp_path) == uninterrupted


def test_a_second_driver_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    run = start(tmp_path)
    wait_for(tmp_path, "MemberStarted", 1, run)
    with pytest.raises(argosy.ArgosyError, match=f"in use by process {run.pid} on "):
        argosy.train(studies.study(), directory=tmp_path, launcher="inline")
    assert run.wait(100) == 0


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


def test_a_tampered_checkpoint_is_never_unpickled(tmp_path: Path) -> None:
    argosy.train(studies.study(epochs=1), directory=tmp_path, launcher="inline")
    path, trap = tmp_path / "members" / "odd" / "last.pt", tmp_path / "trap"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(trap),)

    torch.save({"model": Trap()}, path.resolve())
    from argosy.errors import CheckpointError
    from argosy.training import checkpoint

    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path, "0" * 64)
    with pytest.raises(CheckpointError, match="refused"):
        checkpoint.load(path)
    assert not trap.exists()
