"""Tests that a heartbeat shows other processes what its process is doing, even when that process is blocked or dead."""

import os
import threading

import pytest

from argosy.stream.heartbeat import MAX_LOADERS, SLOT_BYTES, TEXT, Heartbeat, Sign


def one(heartbeat: Heartbeat) -> Sign:
    """Return the sign of the worker itself."""
    return heartbeat.read()[0]


def test_what_is_done_inside_something_else_hides_it_for_that_time() -> None:
    heartbeat = Heartbeat.private()
    assert not one(heartbeat).busy
    with heartbeat.busy("opening the data", opaque=True):
        assert (one(heartbeat).doing, one(heartbeat).opaque, one(heartbeat).busy) == ("opening the data", True, True)
        with heartbeat.busy("preparing sample {number} of train"):
            heartbeat.beat(17)
            assert (one(heartbeat).doing, one(heartbeat).opaque) == ("preparing sample 17 of train", False)
        assert (one(heartbeat).doing, one(heartbeat).opaque) == ("opening the data", True)
    assert (one(heartbeat).doing, one(heartbeat).busy) == ("", False)


def test_every_change_is_a_beat() -> None:
    heartbeat = Heartbeat.private()
    before = one(heartbeat)
    with heartbeat.busy("x"):
        inside = one(heartbeat)
    with heartbeat.busy("x"):
        again = one(heartbeat)
    assert before.beat < inside.beat < again.beat
    heartbeat.beat()
    assert one(heartbeat).beat > again.beat


def test_a_text_that_is_too_long_is_cut_and_changes_no_other() -> None:
    heartbeat = Heartbeat.private()
    loader = heartbeat.slot(1)
    loader.start("loader")
    with heartbeat.busy("ü" * 300):
        assert one(heartbeat).doing == "ü" * ((SLOT_BYTES - TEXT) // 2)
        assert heartbeat.read()[1].doing == "loader"


def test_there_is_room_for_so_many_loaders_and_no_more() -> None:
    heartbeat = Heartbeat.private()
    heartbeat.slot(MAX_LOADERS).start("preparing")
    assert heartbeat.read()[MAX_LOADERS].doing == "preparing"
    with pytest.raises(ValueError, match="at most 1023 loaders"):
        heartbeat.slot(MAX_LOADERS + 1)


def test_a_blocked_child_and_its_loaders_are_seen_through_the_descriptor() -> None:
    heartbeat, descriptor = Heartbeat.create()
    heartbeat.start("starting", opaque=True)
    ready, waits = os.pipe()
    child = os.fork()
    if child == 0:
        # The child must exit even if something raises, or it would continue as a second pytest.
        try:
            mine = Heartbeat.open(descriptor)
            mine.rest()
            for number in (1, 2):
                mine.slot(number).start("preparing sample {number} of val")
            mine.slot(2)
            mine.start("hanging")
            os.write(waits, b".")
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        finally:
            os._exit(1)
    os.read(ready, 1)
    own, first, second = heartbeat.read()
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert heartbeat.read() == (own, first, second)
    assert (own.doing, own.busy, own.opaque) == ("hanging", True, False)
    assert (first.doing, first.busy) == ("preparing sample 0 of val", True)
    assert not second.busy
    for number in (descriptor, ready, waits):
        os.close(number)


def test_the_next_worker_of_a_name_has_another_beat() -> None:
    heartbeats = [Heartbeat.create() for _ in range(2)]
    for _, descriptor in heartbeats:
        os.close(descriptor)
    assert one(heartbeats[0][0]).beat != one(heartbeats[1][0]).beat
