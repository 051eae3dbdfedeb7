"""Tests that calls of a Peer do not block without limit, whatever the other end does, and that values arrive whole."""

import os
import pickle
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import WorkerError
from argosy.stream import framing, wire
from argosy.stream.framing import LENGTH
from argosy.stream.wire import Peer


def word(value: Any) -> bytes:
    """Return a value in the form in which it is sent."""
    pickled = pickle.dumps(value, protocol=5)
    return LENGTH.pack(len(pickled)) + pickled


@contextmanager
def raw() -> Iterator[tuple[socket.socket, Peer]]:
    """Yield a bare socket and the peer at its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        yield ours, Peer(theirs)


def test_both_ends_say_more_than_a_socket_holds_before_either_reads() -> None:
    here, there = Peer.pair()
    values = [(number, "x" * 300) for number in range(2000)]
    for value in values:
        here.send(value)
        there.send(value)
    assert here.unsent and there.unsent
    heard_here, heard_there = [], []
    while len(heard_here) < len(values) or len(heard_there) < len(values):
        heard_here += here.receive()
        heard_there += there.receive()
        here.flush()
        there.flush()
    assert heard_here == heard_there == values
    assert not here.unsent and not there.unsent


@given(
    values=st.lists(st.one_of(st.integers(), st.text(max_size=40), st.binary(max_size=4000)), min_size=1, max_size=6),
    data=st.data(),
)
def test_values_are_whole_in_whatever_pieces_they_come(values: list[Any], data: st.DataObject) -> None:
    with raw() as (ours, peer):
        stream = b"".join(map(word, values))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
        heard = []
        for low, high in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            ours.sendall(stream[low:high])
            heard += peer.receive()
        assert heard == values
        ours.close()
        with pytest.raises(EOFError):
            peer.receive()


def test_what_came_before_the_end_is_returned_before_it_and_a_part_is_dropped() -> None:
    with raw() as (ours, peer):
        ours.sendall(word("last") + word("cut off")[:-1])
        ours.close()
        assert peer.receive() == ["last"]
        with pytest.raises(EOFError):
            peer.receive()
        with pytest.raises(EOFError):
            peer.wait()


def test_an_end_with_unread_words_is_an_end_of_file_all_the_same() -> None:
    here, there = Peer.pair()
    here.send("unread")
    there.send("heard")
    there.close()
    assert here.receive() == ["heard"]
    with pytest.raises(EOFError):
        here.receive()


def test_nothing_is_sent_to_a_peer_that_is_gone() -> None:
    here, there = Peer.pair()
    there.close()
    here.send("?")
    here.send("?", [0])
    assert not here.unsent
    here.close()
    here.send("?")
    assert not here.unsent
    with pytest.raises(EOFError):
        here.receive()


def test_a_finalizer_in_the_middle_of_a_send_sends_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Peer.pair()
    put = Peer._put

    def interrupted(self: Peer, *words: Any) -> int:
        monkeypatch.setattr(Peer, "_put", put)
        here.send("finalizer")
        return put(self, *words)

    monkeypatch.setattr(Peer, "_put", interrupted)
    here.send("sender")
    assert not here.unsent
    assert there.receive() == ["sender", "finalizer"]


def test_threads_may_send_at_once() -> None:
    here, there = Peer.pair()

    def talk(name: int) -> None:
        for number in range(500):
            here.send((name, number, "x" * 100))

    threads = [threading.Thread(target=talk, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    heard: list[Any] = []
    while len(heard) < 2000:
        heard += there.wait(0.01)
        here.flush()
    for thread in threads:
        thread.join()
    for name in range(4):
        assert [number for who, number, _ in heard if who == name] == list(range(500))


def test_descriptors_come_with_their_words_and_stay_the_senders() -> None:
    here, there = Peer.pair()
    while not here.unsent:
        here.send("x" * 10_000)
    files = []
    for text in (b"one", b"two"):
        descriptor = os.memfd_create("test")
        os.write(descriptor, text)
        here.send(text, [descriptor])
        os.close(descriptor)
    while here.unsent:
        files += [value for value in there.receive() if isinstance(value, bytes)]
        here.flush()
    files += [value for value in there.receive() if isinstance(value, bytes)]
    assert files == [b"one", b"two"]
    for text in files:
        descriptor = there.descriptors.popleft()
        assert os.pread(descriptor, 9, 0) == text
        os.close(descriptor)


def test_a_large_value_arrives_whole_and_one_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Peer.pair()
    large, heard = os.urandom(5_000_000), []
    here.send(large)
    while not heard:
        heard = there.receive()
        here.flush()
    assert heard == [large]
    monkeypatch.setattr(wire, "MAX_VALUE_BYTES", 1000)
    with pytest.raises(WorkerError, match=r"bytes of 1,0\d\d bytes.*at most 1,000"):
        here.send(bytes(1001))
    with raw() as (ours, peer):
        monkeypatch.setattr(framing, "MAX_VALUE_BYTES", 1000)
        ours.sendall(LENGTH.pack(1001))
        with pytest.raises(WorkerError, match="announced a message of 1,001 bytes"):
            peer.receive()


def test_bytes_that_are_no_pickle_are_no_end_of_file() -> None:
    with raw() as (ours, peer):
        ours.sendall(LENGTH.pack(2) + b"\x80\x05")
        with pytest.raises(WorkerError, match="2 bytes from another process cannot be read"):
            peer.receive()


def test_a_loud_peer_does_not_keep_the_others_waiting() -> None:
    here, there = Peer.pair()
    over = threading.Event()

    def shout() -> None:
        while not over.is_set():
            if here.unsent:
                here.flush()
            else:
                here.send(bytes(50_000))

    thread = threading.Thread(target=shout)
    thread.start()
    try:
        for _ in range(20):
            assert sum(map(len, there.receive())) <= wire.READS * wire.READ_BYTES + 50_000
    finally:
        over.set()
        thread.join()


def test_wait_has_an_end_and_writes_meanwhile() -> None:
    here, there = Peer.pair()
    started = time.monotonic()
    assert here.wait(0.1) == []
    assert 0.1 <= time.monotonic() - started < 5
    while not here.unsent:
        here.send("x" * 10_000)
    here.send("end")
    heard: list[str] = []

    def listen() -> None:
        while "end" not in heard:
            heard.extend(there.wait(5))
        there.send("heard")

    thread = threading.Thread(target=listen)
    thread.start()
    assert here.wait(5) == ["heard"]
    thread.join()


def test_drain_gives_up_on_one_that_does_not_read() -> None:
    here, _there = Peer.pair()
    while not here.unsent:
        here.send("x" * 10_000)
    started = time.monotonic()
    here.drain(0.1)
    assert here.unsent
    assert time.monotonic() - started < 5


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_that_finds_no_room_is_an_error_that_says_so() -> None:
    here, there = Peer.pair()
    here.send("word", [0])
    with no_more_files(), pytest.raises(OSError, match="too many files are open"):
        there.receive()
