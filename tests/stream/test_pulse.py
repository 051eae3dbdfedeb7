"""A pulse tells what its process is doing, also to others and also when that process is blocked or gone."""

import os
import threading

import pytest

from argosy.stream.pulse import MOST_LOADERS, SLOT_BYTES, TEXT, Pulse, Sign


def one(pulse: Pulse) -> Sign:
    """The sign of the worker itself."""
    return pulse.look()[0]


def test_what_is_done_inside_something_else_hides_it_for_that_time() -> None:
    pulse = Pulse.private()
    assert not one(pulse).busy
    with pulse.busy("opening the data", opaque=True):
        assert (one(pulse).doing, one(pulse).opaque, one(pulse).busy) == ("opening the data", True, True)
        with pulse.busy("preparing sample {number} of train"):
            pulse.beat(17)
            assert (one(pulse).doing, one(pulse).opaque) == ("preparing sample 17 of train", False)
        assert (one(pulse).doing, one(pulse).opaque) == ("opening the data", True)
    assert (one(pulse).doing, one(pulse).busy) == ("", False)


def test_every_change_is_a_beat() -> None:
    pulse = Pulse.private()
    before = one(pulse)
    with pulse.busy("x"):
        inside = one(pulse)
    with pulse.busy("x"):
        again = one(pulse)
    assert before.beat < inside.beat < again.beat
    pulse.beat()
    assert one(pulse).beat > again.beat


def test_a_text_that_is_too_long_is_cut_and_touches_nobody_else() -> None:
    pulse = Pulse.private()
    loader = pulse.slot(1)
    loader.start("loader")
    with pulse.busy("ü" * 300):
        assert one(pulse).doing == "ü" * ((SLOT_BYTES - TEXT) // 2)
        assert pulse.look()[1].doing == "loader"


def test_there_is_room_for_so_many_loaders_and_no_more() -> None:
    pulse = Pulse.private()
    pulse.slot(MOST_LOADERS).start("preparing")
    assert pulse.look()[MOST_LOADERS].doing == "preparing"
    with pytest.raises(ValueError, match="at most 1023 loaders"):
        pulse.slot(MOST_LOADERS + 1)


def test_a_blocked_child_and_its_loaders_are_seen_through_the_descriptor() -> None:
    pulse, descriptor = Pulse.create()
    pulse.start("starting", opaque=True)
    ready, waits = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever it raises, it must not go on as a second pytest.
        try:
            mine = Pulse.open(descriptor)
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
    own, first, second = pulse.look()
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert pulse.look() == (own, first, second)
    assert (own.doing, own.busy, own.opaque) == ("hanging", True, False)
    assert (first.doing, first.busy) == ("preparing sample 0 of val", True)
    assert not second.busy
    for number in (descriptor, ready, waits):
        os.close(number)


def test_whoever_follows_under_a_name_has_another_beat() -> None:
    pulses = [Pulse.create() for _ in range(2)]
    for _, descriptor in pulses:
        os.close(descriptor)
    assert one(pulses[0][0]).beat != one(pulses[1][0]).beat
