"""Hangs in a whole run, each where only a person's own code is; and a run that is slow everywhere."""

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
    """Wait for a lock that this thread holds, the first time."""
    if not flag.exists():
        flag.touch()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


class Hanging(studies.Vectors):
    """Sample 17 hangs once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(60)
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            hang_once(self.folder / "sample")
        return super().__getitem__(index)


def open_data(folder: Path) -> Hanging:
    """Data that take for ever to open, once."""
    hang_once(folder / "data")
    return Hanging(folder)


def network(folder: Path) -> studies.Mlp:
    """A network that takes for ever to build, once."""
    hang_once(folder / "network")
    return studies.Mlp()


def augment(folder: Path, batch: Any) -> Any:
    """Hangs once while it is measured, and once when it trains."""
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
    # A sample and a network may hang at the same time.
    assert sorted(detail.partition(" while ")[2] for detail in details) == [
        "building member 'hangs'",
        "measuring member 'hangs'",
        "opening the data (train)",
        "preparing sample 17 of train",
        "training member 'hangs'",
    ]


class Endless(studies.Mlp):
    """Computes for ever when it is to be saved while a flag is there: it makes progress, as far as a clock can tell."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.flag = flag

    def state_dict(self, *arguments: Any, **rest: Any) -> Any:
        """Of weights that somebody waits for."""
        while self.flag.exists():
            sum(range(10**6))
        return super().state_dict(*arguments, **rest)


class Interrupts(Silent):
    """A person who ends the run as soon as a member is assigned: nothing of it has been saved yet, so that leaving has to."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`."""
        if isinstance(message, MemberStarted) and not self.flag.exists():
            self.flag.touch()
            signal.raise_signal(signal.SIGTERM)


def test_who_does_not_let_its_members_go_is_ended(tmp_path: Path) -> None:
    flag, run = tmp_path / "flag", tmp_path / "run"
    # A section of twenty seconds: it cannot end, and be saved, before the driver has heard.
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
    """A sample takes 0.3 s."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.3)
        return super().__getitem__(index)


def slowly(batch: Any) -> Any:
    """A step takes half a second."""
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
