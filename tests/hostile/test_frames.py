"""Tests that changed frames, proofs and notices are neither run nor kept nor trusted, and that each refusal is one sentence.

Each test tries 300 examples, or ten thousand with ``--hypothesis-profile hostile``.
"""

import contextlib
import os
import pickle
import resource
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from listeners import Trap

from argosy.errors import ArgosyError, WorkerError
from argosy.running.hosts.notices import Notice, format_notice, parse_notice
from argosy.stream import listener as entrance
from argosy.stream.framing import HEADER_BYTES, LENGTH, Authenticated, Plain
from argosy.stream.listener import Listener
from argosy.stream.wire import Peer

EXAMPLES = max(300, settings().max_examples)
SECONDS, BYTES = 5.0, 500 * 2**20
KEY, OTHER = b"k" * 32, b"o" * 32
SPRUNG = Path(f"/tmp/argosy-sprung-{os.getpid()}")
VALUES = ["first", {"second": [1, 2.5, None]}, b"third" * 50, "fourth"]
TRAP = pickle.dumps(Trap(SPRUNG), protocol=5)
NOTICE = Notice(job="4711.0", hosts=("10.0.0.1", "127.0.0.1"), port=40000, certificate="b5bb9d80")


@contextmanager
def bounded() -> Iterator[None]:
    """Assert that the code inside runs no code that was sent, and needs little time and memory."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - began < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < BYTES
    assert not SPRUNG.exists()


def is_one_sentence(error: ArgosyError) -> bool:
    """Return whether a message is one printable sentence, without text that a stranger has sent."""
    text = str(error)
    return text.endswith(".") and text.isprintable() and len(text) < 600


Change = tuple[str, int, int, bytes]
NUMBERS = st.integers(0, 2**16)
PIECES = st.one_of(
    st.binary(max_size=64),
    st.just(LENGTH.pack(len(TRAP)) + TRAP),
    st.just(LENGTH.pack(2**29)),
    st.just(LENGTH.pack(2**63)),
    st.just(Authenticated(sends=OTHER, receives=KEY).pack(TRAP)),
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "replace", "delete", "repeat", "swap", "cut"]), NUMBERS, NUMBERS, PIECES
    ),
    min_size=1,
    max_size=4,
)


def changed(stream: bytes, changes: list[Change]) -> bytes:
    """Return the bytes as a process between two ends might change them."""
    for kind, one, other, piece in changes:
        low, high = sorted((one % (len(stream) + 1), other % (len(stream) + 1)))
        middle = stream[low:high]
        match kind:
            case "flip":
                middle = bytes(byte ^ (1 << other % 8) for byte in middle[:1]) + middle[1:]
            case "insert":
                middle = piece + middle
            case "replace":
                middle = piece[: len(middle)].ljust(len(middle), b"x")
            case "delete":
                middle = b""
            case "repeat":
                middle += middle
            case "swap":
                middle = middle[len(middle) // 2 :] + middle[: len(middle) // 2]
        stream = stream[:low] + middle + (b"" if kind == "cut" else stream[high:])
    return stream


def heard(stream: bytes, framing: Any) -> tuple[list[Any], WorkerError | None]:
    """Return the values that a peer receives from these bytes, and its refusal, if any."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    peer, values = Peer(theirs, framing), []
    try:
        ours.sendall(stream)
        ours.close()
        while True:
            values += peer.receive()
    except EOFError:
        return values, None
    except WorkerError as error:
        return values, error
    finally:
        peer.close()


@settings(max_examples=EXAMPLES)
@given(changes=CHANGES)
def test_only_frames_before_the_first_change_are_received(changes: list[Change]) -> None:
    sender = Authenticated(sends=KEY, receives=OTHER)
    frames = [sender.pack(pickle.dumps(value, protocol=5)) for value in VALUES]
    stream = changed(b"".join(frames), changes)
    with bounded():
        values, error = heard(stream, Authenticated(sends=OTHER, receives=KEY))
    whole = 0
    while whole < len(frames) and stream.startswith(b"".join(frames[: whole + 1])):
        whole += 1
    assert values == VALUES[: len(values)]
    if error is None:
        assert len(values) == whole
        # The stream ended within a frame, as when a node is lost.
        rest = len(stream) - len(b"".join(frames[:whole]))
        assert rest < (len(frames[whole]) if whole < len(frames) else HEADER_BYTES)
    else:
        assert is_one_sentence(error)


@settings(max_examples=EXAMPLES)
@given(length=st.integers(0, 2**64 - 1), word=st.binary(max_size=200))
def test_a_wrong_length_from_a_trusted_end_costs_neither_memory_nor_time(length: int, word: bytes) -> None:
    """A wrong length on a trusted connection costs neither memory nor time.

    On one machine and inside TLS, only the run's own processes can write, so wrong bytes are an error of theirs.
    """
    with bounded():
        values, error = heard(LENGTH.pack(length) + b"\0" + word, Plain())
    assert values == []
    assert error is None or is_one_sentence(error)


GREETING = bytes(entrance.NONCE) + b"\x06rank 1"


@settings(max_examples=EXAMPLES)
@given(changes=CHANGES, proves=st.booleans())
def test_no_changed_proof_opens_a_listener(changes: list[Change], proves: bool) -> None:
    listener = Listener(KEY, lambda refusal: None)
    with contextlib.closing(listener), socket.create_connection(("127.0.0.1", listener.port)) as ours:
        listener.accept()
        ((theirs, caller),) = listener._callers.items()
        caller.nonce = bytes(entrance.NONCE)
        proof = entrance._make_proof(KEY if proves else OTHER, b"caller", bytes(entrance.NONCE), GREETING)
        stream = changed(GREETING + proof, changes)
        with bounded():
            ours.sendall(stream)
            ours.shutdown(socket.SHUT_WR)
            select.select([theirs], [], [])
            entered = listener.accept() + listener.accept()
        # Bytes after the proof are for the peer.
        assert bool(entered) == (proves and stream.startswith(GREETING + proof))
        for _, peer in entered:
            peer.close()


@settings(max_examples=EXAMPLES)
@given(changes=CHANGES, knows=st.booleans())
def test_a_changed_answer_is_no_listener_of_the_run(changes: list[Change], knows: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(entrance.dial, listener.getsockname(), KEY, "rank 1", seconds=2.0)
        with listener.accept()[0] as caller, bounded():
            greeting = caller.recv(len(GREETING))
            nonce = bytes(entrance.NONCE)
            answer = nonce + entrance._make_proof(KEY if knows else OTHER, b"called", nonce, greeting)
            with contextlib.suppress(OSError):  # the caller hangs up as soon as it has read a wrong proof
                caller.sendall(changed(answer, changes))
                caller.shutdown(socket.SHUT_WR)
            try:
                calling.result().close()
            except WorkerError as error:
                assert is_one_sentence(error)
                assert not (knows and changed(answer, changes) == answer)
            else:
                assert knows and changed(answer, changes).startswith(answer)


@settings(max_examples=EXAMPLES)
@given(changes=CHANGES, key=st.sampled_from([None, b"the run's key"]))
def test_no_changed_notice_is_trusted(changes: list[Change], key: bytes | None) -> None:
    text = format_notice(NOTICE, key)
    other = changed(text.encode(), changes).decode(errors="replace")
    with bounded():
        try:
            found = parse_notice(other, key)
        except WorkerError as error:
            assert is_one_sentence(error)
        else:
            assert other == text or key is None
            assert 0 < found.port < 2**16 and all(host.count(".") == 3 for host in found.hosts)


NESTED = "[" * 10**5
ODD = [NESTED, '{"a":' * 10**5, "1e999", "NaN", "", "\0", "{}", '{"hosts": 1}', "9" * 5000, '"' + "x" * 10**7]
FIELDS = [{"port": port} for port in (-1, 0, 2**16, 1e999, True, "80", None, 10**400)]
FIELDS += [{"hosts": hosts} for hosts in ([], "10.0.0.1", [1], ["a" * 300], ["::1"], ["10.0.0.1\n"], None)]
FIELDS += [{"key": "xyz"}, {"key": 1}, {"job": None}, {"certificate": []}]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_an_odd_notice_is_refused_in_one_sentence(text: str) -> None:
    for key in (None, b"the run's key"):
        with bounded(), pytest.raises(WorkerError) as raised:
            parse_notice(text, key)
        assert is_one_sentence(raised.value)


@pytest.mark.parametrize("odd", FIELDS, ids=str)
def test_a_notice_with_an_odd_field_is_refused_in_one_sentence(odd: dict[str, Any]) -> None:
    import json
    from dataclasses import asdict

    text = json.dumps({**asdict(NOTICE), **odd})
    if odd.get("hosts") == []:
        assert parse_notice(text, None).hosts == ()
        return
    with bounded(), pytest.raises(WorkerError) as raised:
        parse_notice(text, None)
    assert is_one_sentence(raised.value)
