"""Tests that a run survives faults of its processes, disk and memory: after real kills and stops, its results are those without faults."""

import contextlib
import os
import resource
import signal
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import family
import psutil
import pytest
import studies
import torch
from disks import fill_up
from family import Run, repeats_at_most_one_interval, unsure
from torch import nn

import argosy
from argosy.errors import DiskError, MemberFailed
from argosy.running.directory.audit import audit
from argosy.running.launch import processes


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return family.faultless(tmp_path_factory.mktemp("faultless"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("role", ["trainer", "feeder", "loader", "server"])
def test_a_lost_process_is_replaced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faultless: dict[str, object],
    role: str,
    number: signal.Signals,
) -> None:
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 1.0)
    run = Run.halted(tmp_path, "SectionEnded", 2)
    victims = run.role(role)
    assert victims
    victims[0].send_signal(number)
    run.go_on()
    assert run.end() == 0, run.errors
    assert run.left() == []
    assert evidence.results(tmp_path) == faultless
    assert audit(tmp_path) == []
    assert repeats_at_most_one_interval(tmp_path)


def test_a_driver_that_was_stopped_goes_on(tmp_path: Path, faultless: dict[str, object]) -> None:
    run = Run.halted(tmp_path, "SectionEnded", 2)
    run.process.send_signal(signal.SIGSTOP)
    run.go_on()
    with pytest.raises(Exception, match="timed out"):
        run.process.wait(2)
    run.process.send_signal(signal.SIGCONT)
    assert run.end() == 0
    assert evidence.results(tmp_path) == faultless


def test_workers_killed_while_they_measure_are_replaced(tmp_path: Path, faultless: dict[str, object]) -> None:
    run = Run(tmp_path)
    run.wait_for("RunStarted")
    for victim in run.role("trainer"):
        run.signal(victim, signal.SIGKILL)
    run.go_on()
    assert run.end() == 0, run.errors
    assert evidence.results(tmp_path) == faultless


HANGS = """
import os, sys, time, argosy, studies
from pathlib import Path

os.environ["RUN"] = sys.argv[1]

def hang(batch):
    run = Path(os.environ["RUN"])
    flag = run / "hung"
    if not flag.exists() and (run / "members").exists():
        flag.touch()
        time.sleep(1000)
    return batch

study = studies.study({length}, fleet=[*studies.members()[:2], studies.member("hangs", augment=hang)], epochs={epochs})
argosy.train(study, directory=sys.argv[1], devices="cpu:2", hang_seconds={hang_seconds})
"""


def test_a_trainer_that_hangs_is_replaced(tmp_path: Path) -> None:
    run = Run(tmp_path, HANGS, hang_seconds=3)
    assert run.end() == 0, run.errors
    assert [line["event"] for line in run.lines() if line["event"] == "WorkerLost"]
    assert {line["status"] for line in run.lines() if line["event"] == "MemberEnded"} == {"done"}


class Hanging(studies.Vectors):
    """A dataset whose sample 17 hangs the first time it is read."""

    def __init__(self, flag: Path) -> None:
        super().__init__(120)
        self.flag = flag

    def __getitem__(self, index: int):
        if index == 17 and not self.flag.exists():
            self.flag.touch()
            signal.pause()
        return super().__getitem__(index)


def test_a_feeder_that_hangs_is_replaced(tmp_path: Path) -> None:
    study = studies.study(fleet=[studies.member()], data=argosy.Data(train=Hanging(tmp_path / "flag")))
    report = argosy.train(study, directory=tmp_path / "run", hang_seconds=3, loader_workers=0, block_size=16)
    assert report.rows[0].status == "done"
    assert [line["worker"] for line in evidence.event_lines(tmp_path / "run", "WorkerLost")] == ["feeder-0"]


class Forking(studies.Vectors):
    """A dataset whose first read forks a child that is stopped before it can arrange to die with its parent."""

    def __init__(self, length: int, pids: Path) -> None:
        super().__init__(length)
        self.pids = pids

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 0 and not self.pids.exists():
            stopped = os.fork()
            if not stopped:
                os.kill(os.getpid(), signal.SIGSTOP)
                os._exit(0)
            self.pids.write_text(str(stopped))
        return super().__getitem__(index)


@pytest.mark.parametrize("kills", [False, True], ids=["at the end", "with the fork server"])
def test_a_child_of_a_worker_that_is_stopped_before_it_is_tied_does_not_stay(tmp_path: Path, kills: bool) -> None:
    pids = tmp_path / "pids"

    def kill(batch: Any) -> Any:
        if kills and (text := pids.read_text()) and not text.endswith("\n"):
            pids.write_text(f"{text}\n")
            os.kill(os.getppid(), signal.SIGKILL)
        return batch

    data = argosy.Data(train=Forking(170, pids), val=studies.Vectors(41))
    study = studies.study(data=data, fleet=[studies.member("m", augment=kill)], epochs=2)
    report = argosy.train(study, directory=tmp_path / "run", devices="cpu:1", time_limit=100)
    assert [row.status for row in report.rows] == ["done"]
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pids.read_text())).wait(10)  # raises if the child is still alive


class Crashing(studies.Vectors):
    """A dataset whose sample 17 kills the process that reads it."""

    def __getitem__(self, index: int):
        if index == 17:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().__getitem__(index)


def test_a_sample_that_kills_every_loader_worker_is_named(tmp_path: Path) -> None:
    study = studies.study(fleet=[studies.member()], data=argosy.Data(train=Crashing(120)))
    with pytest.raises(argosy.ArgosyError, match=r"3 loader workers died while they prepared samples \[.*\b17\b"):
        argosy.train(study, directory=tmp_path, loader_workers=2, block_size=16)


class Segfaulting(nn.Module):
    """A network that kills its process in its seventh forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.count = studies.Mlp(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.count == 7:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.inner(x)


def test_a_member_that_always_kills_its_trainer_ends_the_run_with_a_message(tmp_path: Path) -> None:
    study = studies.study(fleet=[studies.member(model=Segfaulting)])
    with pytest.raises(argosy.ArgosyError, match=r"'cpu:0' was lost .*loss without a finished section"):
        argosy.train(study, directory=tmp_path, devices="cpu:1")


@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_a_full_disk_loses_nothing(tmp_path: Path, small_disk: Path, launcher: str) -> None:
    fleet = [studies.member(hidden=128)]
    argosy.train(studies.study(fleet=fleet, epochs=3), directory=tmp_path / "whole", launcher="inline")
    argosy.train(studies.study(fleet=fleet, epochs=1), directory=small_disk, launcher="inline")
    before = evidence.results(small_disk)
    filling = fill_up(small_disk)
    with pytest.raises(DiskError, match=r"[Ff]ree disk space"):
        argosy.train(studies.study(fleet=fleet, epochs=3), directory=small_disk, launcher=launcher)
    assert evidence.results(small_disk)["mlp"]["weights"] == before["mlp"]["weights"]
    filling.unlink()
    argosy.train(studies.study(fleet=fleet, epochs=3), directory=small_disk, launcher=launcher)
    assert evidence.results(small_disk) == evidence.results(tmp_path / "whole")


class Small(nn.Module):
    """A network on a simulated device that runs out of memory if a training (micro-)batch has more than `rows` rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.inner, self.rows = studies.Mlp(), rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) > self.rows:
            raise torch.OutOfMemoryError(f"{len(x)} rows on a device for {self.rows}")
        return self.inner(x)


@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_out_of_memory_takes_smaller_micro_batches(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member("large", batch_size=40, model=partial(Small, 12)), studies.member()]
    report = argosy.train(studies.study(160, fleet=fleet), directory=tmp_path, launcher=launcher, devices="cpu:2")
    assert {row.status for row in report.rows} == {"done"}
    assert audit(tmp_path) == []


def test_batch_norm_gets_no_micro_batch_of_one(tmp_path: Path) -> None:
    fleet = [
        studies.member("fifths", batch_size=10, model=partial(Small, 4)),
        studies.member("nothing", batch_size=7, model=partial(Small, 3)),
    ]
    with pytest.warns(MemberFailed, match="'nothing' failed: "):
        report = argosy.train(studies.study(140, fleet=fleet, epochs=1), directory=tmp_path, launcher="inline")
    divided = [(line["member"], line["accumulate"]) for line in evidence.event_lines(tmp_path, "Divided")]
    # Of four micro-batches of a batch of 10, the last one would hold 1 sample.
    assert sorted(divided) == [("fifths", 2), ("fifths", 5), ("nothing", 2)]
    assert (report.member("fifths").status, report.member("nothing").status) == ("done", "failed")
    assert report.member("nothing").reason.endswith("4 rows on a device for 3. Lower its batch_size.")


class Killed(BaseException):
    """An exception that stands for a kill: no code catches it."""


@dataclass
class Scene:
    """What happens to a member: the step at which its device loses memory, and the step at which its process is killed."""

    rows: int = 99
    shrinks_at: int = 0
    killed_at: int = 0
    steps: int = 0


SCENE: ContextVar[Scene] = ContextVar("SCENE")
"""The scene of the current run."""


def act(batch: Any) -> Any:
    """Play the scene: an augmentation, because those are called once a step."""
    scene = SCENE.get()
    scene.steps += 1
    if scene.steps == scene.killed_at:
        raise Killed
    if scene.steps == scene.shrinks_at:
        scene.rows = 12
    return batch


class Staged(nn.Module):
    """A network that runs out of memory if a training batch has more rows than the scene's device holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = studies.Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) > SCENE.get().rows:
            raise torch.OutOfMemoryError(f"{len(x)} rows on a device for {SCENE.get().rows}")
        return self.inner(x)


def staged(directory: Path, scene: Scene, **rest: Any) -> dict[str, Any]:
    """Train a member in a scene and return its results and the numbers of micro-batches its steps were divided into."""
    SCENE.set(scene)
    fleet = [studies.member(batch_size=40, model=Staged, augment=act, **rest)]
    argosy.train(studies.study(160, fleet=fleet, epochs=4), directory=directory, launcher="inline")
    divided = [line["accumulate"] for line in evidence.event_lines(directory, "Divided")]
    return {"divided": divided, **evidence.results_of(directory, "mlp")}


@pytest.mark.parametrize("weights", [None, 3.0 ** torch.arange(10)], ids=["a mean", "no mean"])
def test_it_is_noted_that_micro_batches_change_a_loss_that_is_no_mean(tmp_path: Path, weights: Any) -> None:
    scene, loss = Scene(shrinks_at=14), nn.CrossEntropyLoss(weight=weights)
    assert staged(tmp_path, scene, loss=loss, eval_batch_size=41)["divided"] == [2, 4]
    said = [
        str(line["notes"]).count("micro-batches do not add") for line in evidence.event_lines(tmp_path, "MemberStarted")
    ]
    assert said == ([0, 0, 0] if weights is None else [0, 1, 1])


@pytest.mark.parametrize("killed_at", [18, 20, 23])
def test_divided_steps_are_those_of_a_run_that_goes_on(tmp_path: Path, killed_at: int) -> None:
    """A resumed member divides its steps as before although its device has room again, because the journal holds the decision."""
    whole = staged(tmp_path / "whole", Scene(shrinks_at=14))
    assert whole["divided"] == [2, 4]
    with pytest.raises(Killed):
        staged(tmp_path / "parts", Scene(shrinks_at=14, killed_at=killed_at))
    assert staged(tmp_path / "parts", Scene()) == whole


class Wide(nn.Module):
    """A network that needs 8 MiB per row, in a process whose memory it limits to 256 MiB more than is used."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = studies.Mlp()
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 256 * 2**20, resource.RLIM_INFINITY))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + x.repeat(1, 2**21 // x.shape[1]).mean(1, keepdim=True))


def test_memory_that_the_system_refuses_takes_smaller_micro_batches(tmp_path: Path) -> None:
    fleet = [studies.member("wide", batch_size=40, eval_batch_size=8, model=Wide), studies.member()]
    report = argosy.train(studies.study(80, fleet=fleet), directory=tmp_path)
    assert {row.status for row in report.rows} == {"done"}
    assert audit(tmp_path) == []


def test_memory_that_the_system_refuses_with_exact_numerics_ends_the_member(tmp_path: Path) -> None:
    fleet = [studies.member("wide", batch_size=40, eval_batch_size=8, model=Wide), studies.member()]
    with pytest.warns(MemberFailed, match="'wide' failed: .* Lower its batch_size and its eval_batch_size or allow"):
        report = argosy.train(studies.study(80, fleet=fleet), directory=tmp_path, numerics="exact")
    assert (report.member("wide").status, report.member("mlp").status) == ("failed", "done")
    assert "out of memory even alone on cpu:0: " in report.member("wide").reason


def test_out_of_memory_with_exact_numerics_ends_the_member_with_advice(tmp_path: Path) -> None:
    fleet = [studies.member("large", batch_size=40, model=partial(Small, 12)), studies.member()]
    with pytest.warns(MemberFailed, match="'large' failed: "):
        report = argosy.train(studies.study(160, fleet=fleet), directory=tmp_path, launcher="inline", numerics="exact")
    assert (report.member("large").status, report.member("mlp").status) == ("failed", "done")
    assert "Lower its batch_size or allow numerics='equivalent'" in report.member("large").reason


ATTENTIVE = """
from argosy.running.directory import inbox
inbox.POLL_SECONDS = 0.0
"""
ADDED = """
import argosy, studies
study = studies.study(400, fleet=[studies.member("late", hidden=8)], epochs=2)
"""


def test_members_can_be_stopped_and_added_while_a_run_goes_on(tmp_path: Path) -> None:
    from argosy.running.directory.inbox import write_command

    directory = tmp_path / "run"
    (tmp_path / "newcomers.py").write_text(ADDED)
    run = Run.halted(directory, "SectionEnded", 2, ATTENTIVE + unsure(2), epochs=4)
    write_command(directory, {"command": "stop", "member": "odd"})
    write_command(directory, {"command": "add", "study": str(tmp_path / "newcomers.py")})
    write_command(directory, {"command": "stop", "member": "nobody"})
    run.go_on()
    assert run.end() == 0, run.errors
    # Each request is answered when it is done, in whatever order the requests came.
    answers = {
        line["command"].get("member", "late"): line["answer"] for line in run.lines() if line["event"] == "Answered"
    }
    assert (answers["odd"], answers["late"]) == ("odd has been saved and stopped", "added late")
    assert answers["nobody"].startswith("refused: no member 'nobody'")
    found = evidence.results(directory)
    assert found["odd"]["decision"][0] == "stopped"
    assert found["late"]["decision"] == ("done", "2 epochs")
    assert audit(directory) == []
    # The same command restores the member that was added.
    assert Run(directory, epochs=4).end() == 0
    assert evidence.results(directory) == found
