"""Tests that hung processes are found and named with what they are doing, and that slow ones are left alone."""

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import studies
import torch

from argosy import Data
from argosy.running.control.hangs import OBSERVATIONS, Hangs
from argosy.running.launch.processes import tree_activity
from argosy.stream.blocks import Place
from argosy.stream.heartbeat import Heartbeat, Sign
from argosy.stream.loaders import Task, start_loader
from argosy.stream.opening import open_sources
from argosy.stream.ring import Ring

SECONDS = 1.0
PATIENCE = 20.0


def deadlock() -> None:
    """Wait forever for a lock that this thread already holds."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def burn(seconds: float) -> None:
    """Use CPU time without a heartbeat."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


class Data17(studies.Vectors):
    """A dataset that calls `at_17` before it returns sample 17."""

    def __init__(self, at_17: Callable[[], None]) -> None:
        super().__init__(120)
        self.at_17 = at_17

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            self.at_17()
        return super().__getitem__(index)


class Lists(studies.Vectors):
    """A dataset that is read by lists of samples and hangs on a list that contains sample 17."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(index))

    def __getitems__(self, indices: list[int]) -> Any:
        if 17 in indices:
            deadlock()
        return [self[index] for index in indices]


def watch(
    heartbeats: Mapping[str, tuple[Heartbeat, int]], wanted: Collection[str], at_least: float = 0.0
) -> dict[str, tuple[str, float]]:
    """Observe processes as the driver does, for `at_least` seconds and until all `wanted` ones hang or patience ends.

    Returns, by name, what each hung process was doing and for how many seconds.
    """
    hangs, found, began = Hangs(SECONDS), dict[str, tuple[str, float]](), time.monotonic()
    while (seconds := time.monotonic() - began) < PATIENCE and (seconds < at_least or not found.keys() >= {*wanted}):
        for name, (heartbeat, pid) in heartbeats.items():
            if name not in found:
                hangs.observe(time.monotonic(), name, heartbeat.read(), partial(tree_activity, pid))
        found |= {name: (doing, seconds) for name, doing, seconds in hangs.hanging()}
        time.sleep(0.05)
    return found


def alive(life: Callable[[Heartbeat], None]) -> tuple[Heartbeat, int]:
    """Fork a child that runs `life`; return its heartbeat and process id."""
    heartbeat, descriptor = Heartbeat.create()
    child = os.fork()
    if child == 0:
        # Whatever `life` raises, the child must not continue as a second pytest.
        try:
            life(Heartbeat.open(descriptor))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(descriptor)
    return heartbeat, child


def fill(source: Any, indices: list[int]) -> None:
    place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=len(indices), last=True)
    block = source.layout.block(place, np.zeros(source.layout.block_bytes(len(indices)), np.uint8))
    source.fill(block, 0, np.array(indices, dtype=np.int64))


def opening(dataset: Any) -> Callable[[Heartbeat], None]:
    """Return the life of a process that opens this dataset."""
    return lambda heartbeat: open_sources(Data(train=dataset), seed=0, heartbeat=heartbeat) and None


def preparing(dataset: Any, indices: list[int]) -> Callable[[Heartbeat], None]:
    """Return the life of a feeder that prepares these samples itself."""
    return lambda heartbeat: fill(open_sources(Data(train=dataset), seed=0, heartbeat=heartbeat)["train"], indices)


def user_code(doing: str, code: Callable[[], None]) -> Callable[[Heartbeat], None]:
    """Return the life of a process in opaque code, such as a factory or a measurement, which cannot beat."""

    def life(heartbeat: Heartbeat) -> None:
        with heartbeat.busy(doing, opaque=True):
            code()

    return life


class First(Data17):
    """A dataset that hangs on every sample, so that it already hangs on its first one, while it is opened."""

    def __getitem__(self, index: int) -> Any:
        deadlock()


def slow_samples(heartbeat: Heartbeat) -> None:
    """Open and prepare samples that each take half the time that counts as a hang."""
    preparing(Slow(120), list(range(8)))(heartbeat)


class Slow(studies.Vectors):
    def __getitem__(self, index: int) -> Any:
        time.sleep(SECONDS / 2)
        return super().__getitem__(index)


def idle(heartbeat: Heartbeat) -> None:
    """Finish some work, then have nothing to do."""
    with heartbeat.busy("something"):
        pass
    time.sleep(100)


def copying(heartbeat: Heartbeat) -> None:
    """Read a file slowly in opaque code."""
    with heartbeat.busy("opening the data", opaque=True), Path("/dev/zero").open("rb") as file:
        while True:
            file.read(2**20)
            time.sleep(0.1)


HANGING: dict[str, tuple[Callable[[Heartbeat], None], str]] = {
    "data": (opening(deadlock), "opening the data (train)"),
    "first sample": (opening(First(deadlock)), "preparing sample 0 of train"),
    "sample": (preparing(Data17(deadlock), [3, 17, 5]), "preparing sample 17 of train"),
    "paused sample": (preparing(Data17(signal.pause), [3, 17, 5]), "preparing sample 17 of train"),
    "samples": (preparing(Lists(120), [5, 17, 3]), "preparing 3 samples of train from 5 on"),
    "factory": (user_code("building member 'x'", deadlock), "building member 'x'"),
    "measurement": (user_code("measuring member 'x'", lambda: time.sleep(100)), "measuring member 'x'"),
    # CPU time is progress only in opaque code; a sample in an endless loop hangs.
    "endless sample": (preparing(Data17(lambda: burn(100)), [3, 17, 5]), "preparing sample 17 of train"),
}
SLOW: dict[str, Callable[[Heartbeat], None]] = {
    "slow samples": slow_samples,
    "idle": idle,
    "copying": copying,
    "compiling": user_code("compiling", lambda: burn(100)),
}


def test_what_hangs_is_named_with_what_it_does_and_what_only_takes_long_is_left_alone() -> None:
    lives = {name: life for name, (life, _) in HANGING.items()} | SLOW
    children = {name: alive(life) for name, life in lives.items()}
    try:
        found = watch(children, HANGING, at_least=4 * SECONDS)
    finally:
        for _, child in children.values():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert {name: doing for name, (doing, _) in found.items()} == {name: doing for name, (_, doing) in HANGING.items()}
    assert all(seconds >= SECONDS for _, seconds in found.values())


def test_a_loader_that_hangs_is_named_beside_its_feeder_and_one_that_died_is_not() -> None:
    heartbeat, descriptor = Heartbeat.create()
    os.close(descriptor)
    sources = open_sources(Data(train=Data17(deadlock)), seed=0, heartbeat=heartbeat)
    ring = Ring(slots=1, slot_bytes=sources["train"].layout.block_bytes(4))
    loaders = [start_loader(number, heartbeat, ring, sources, []) for number in (1, 2)]
    place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=4, last=True)
    loaders[1].give(Task(0, place, 0, np.array([3, 4, 17, 5], dtype=np.int64)))
    try:
        found = watch({"sample": (heartbeat, os.getpid())}, ["sample"])
        assert found["sample"][0] == "preparing sample 17 of train"
        # Only the sign of the hung loader is busy, not that of the feeder.
        assert [sign.busy for sign in heartbeat.read()] == [False, False, True]
        os.kill(loaders[1].child.pid, signal.SIGKILL)
        assert loaders[1].take() is None
    finally:
        for loader in loaders:
            loader.child.end()
    assert not any(sign.busy for sign in heartbeat.read())


def sign(beat: int = 0, *, busy: bool = True, doing: str = "x", opaque: bool = False) -> Sign:
    return Sign(busy=busy, beat=beat, doing=doing, opaque=opaque, waits=False)


def never() -> float:
    raise AssertionError("the CPU time of this worker is not needed")


def test_time_in_which_the_driver_did_not_look_does_not_count() -> None:
    """The driver may have been suspended, together with all workers."""
    hangs = Hangs(100.0)
    for now in (0.0, 1000.0, 2000.0, 3000.0):
        hangs.observe(now, "worker", [sign()], never)
        assert hangs.hanging() == []
    hangs.observe(4000.0, "worker", [sign()], never)
    assert hangs.hanging() == [("worker", "x", 100.0)]
    assert hangs.hanging() == []


def test_a_worker_with_the_name_of_one_that_is_gone_starts_anew() -> None:
    hangs = Hangs(4.0)
    for now in range(4):
        hangs.observe(now, "worker", [sign()], never)
    hangs.forget("worker")
    for now in range(4, 8):
        hangs.observe(now, "worker", [sign()], never)
        assert hangs.hanging() == []


def test_a_thread_that_only_wakes_up_now_and_then_is_no_progress() -> None:
    hangs, cpu, found = Hangs(20.0), 0.0, []
    for now in range(60):
        cpu += 0.01 * (now % 10 == 0)
        hangs.observe(float(now), "worker", [sign(opaque=True)], lambda cpu=cpu: cpu)
        found += hangs.hanging()
    assert found


def test_the_cpu_time_of_what_beats_is_not_asked_for() -> None:
    hangs = Hangs(4.0)
    for beat in range(4 * OBSERVATIONS):
        hangs.observe(float(beat), "worker", [sign(beat, opaque=True)], never)
        assert hangs.hanging() == []
