"""Tests that a run recovers from hangs in every place that calls user code, and that slow user code is not killed."""

import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import living
import studies

import argosy
from argosy.protocol.events import MemberStarted
from argosy.running.watch.view import Silent


def hang_once(flag: Path) -> None:
    """Wait forever for a lock that this thread already holds, unless the flag file exists from an earlier call."""
    if not flag.exists():
        flag.touch()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


class Hanging(studies.Vectors):
    """A dataset whose sample 17 hangs once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(60)
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            hang_once(self.folder / "sample")
        return super().__getitem__(index)


def open_data(folder: Path) -> Hanging:
    """Return the dataset: a factory that hangs once."""
    hang_once(folder / "data")
    return Hanging(folder)


def network(folder: Path) -> studies.Mlp:
    """Return the network: a factory that hangs once."""
    hang_once(folder / "network")
    return studies.Mlp()


def augment(folder: Path, batch: Any) -> Any:
    """Return the batch: an augmentation that hangs once while its member is measured and once while it trains."""
    hang_once(folder / ("step" if (folder / "run" / "members" / "hangs").exists() else "measurement"))
    return batch


def test_every_hang_of_a_run_is_named_and_passes(tmp_path: Path) -> None:
    hangs = studies.member("hangs", model=partial(network, tmp_path), augment=partial(augment, tmp_path))
    study = studies.study(
        fleet=[hangs, studies.member()],
        epochs=1,
        data=argosy.Data(train=partial(open_data, tmp_path)),
        objective="train_loss",
    )
    run = tmp_path / "run"
    settings = {"devices": "cpu:1", "loader_workers": 1, "block_size": 16, "packing": "interleaved"}
    report = argosy.train(study, directory=run, hang_seconds=2, **settings)
    assert {row.status for row in report.rows} == {"done"}
    details = [line["detail"] for line in evidence.event_lines(run, "WorkerLost")]
    assert all(detail.startswith("no progress for 2 s while ") for detail in details)
    # Sorted, because a sample and a network may hang at the same time.
    assert sorted(detail.partition(" while ")[2] for detail in details) == [
        "building member 'hangs'",
        "measuring member 'hangs'",
        "opening the data (train)",
        "preparing sample 17 of train",
        "training member 'hangs'",
    ]


class Endless(studies.Mlp):
    """A network whose saving computes as long as a flag file exists: it uses CPU time, so it does not look hung."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.flag = flag

    def state_dict(self, *arguments: Any, **rest: Any) -> Any:
        """Return the weights once the flag file is gone."""
        while self.flag.exists():
            sum(range(10**6))
        return super().state_dict(*arguments, **rest)


class Interrupts(Silent):
    """A view that interrupts the run once a member starts: nothing of it is saved yet, so its trainer must save it before the run ends."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`."""
        if isinstance(message, MemberStarted) and not self.flag.exists():
            self.flag.touch()
            signal.raise_signal(signal.SIGTERM)


def test_a_trainer_that_does_not_release_its_members_is_killed(tmp_path: Path) -> None:
    flag, run = tmp_path / "flag", tmp_path / "run"
    # The section takes twenty seconds, so it cannot end and be saved before the driver is interrupted.
    slow = studies.member(model=partial(Endless, flag), augment=studies.dawdle)
    study = studies.study(length=20_000, fleet=[slow], epochs=1)
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        settings = {"launcher": "processes", "devices": "cpu:1", "hang_seconds": 1.5}
        report = living.run(study, run, view=Interrupts(flag), **settings)
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert report.status == "paused"
    details = [line["detail"] for line in evidence.event_lines(run, "WorkerLost")]
    assert "its members were not saved and released within 3 s" in details


class Slow(studies.Vectors):
    """A dataset whose samples take 0.3 s each."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.3)
        return super().__getitem__(index)


def slowly(batch: Any) -> Any:
    """Return the batch: an augmentation that makes a step take half a second."""
    time.sleep(0.5)
    return batch


def test_nothing_is_killed_for_being_slow(tmp_path: Path) -> None:
    fleet = [studies.member(batch_size=2, augment=slowly, metrics={}, model=partial(studies.Mlp))]
    study = studies.study(fleet=fleet, epochs=1, data=argosy.Data(train=Slow(8)), objective="train_loss")
    report = argosy.train(
        study, directory=tmp_path, devices="cpu:1", loader_workers=1, hang_seconds=1.5, block_size=4096
    )
    assert report.rows[0].status == "done"
    assert evidence.event_lines(tmp_path, "WorkerLost") == []
