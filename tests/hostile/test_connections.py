"""Tests against processes without the run's key: between two nodes, at an address that a node calls by mistake, and in great numbers."""

import contextlib
import pickle
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from listeners import Relay, Trap, call, enter

from argosy.errors import WorkerError
from argosy.stream import listener as entrance
from argosy.stream.listener import Listener, dial
from argosy.stream.tls import Certificate
from argosy.stream.wire import Peer


@pytest.fixture
def relayed(network_listener: Listener, sealed: Certificate | None) -> Iterator[tuple[Peer, Peer, Relay]]:
    """Yield the two ends of a connection and the relay between them."""
    with socket.create_server(("127.0.0.1", 0)) as between:
        relay = Relay(between, network_listener.port)
        ((_, peer),), (caller,) = enter(network_listener, lambda: call(between.getsockname()[1], certificate=sealed))
        yield caller, peer, relay
        caller.close()
        peer.close()
        relay.close()


def refuses(peer: Peer, sealed: Certificate | None) -> bool:
    """Return whether a peer receives nothing but a refusal: one sentence in plain text, an end of file inside TLS."""
    try:
        heard = peer.wait(10)
    except WorkerError as error:
        return sealed is None and "does not come from the other node" in str(error)
    except EOFError:
        return sealed is not None
    raise AssertionError(f"heard {heard}")


def test_a_relay_of_the_proofs_runs_no_code_on_either_side(
    relayed: tuple[Peer, Peer, Relay], sealed: Certificate | None, tmp_path: Path
) -> None:
    caller, peer, relay = relayed
    relay.stop()
    trap = pickle.dumps(Trap(tmp_path / "sprung"), protocol=5)
    word = len(trap).to_bytes(8, "little") + trap
    for end in (relay.caller, relay.called):
        end.sendall(word + bytes(100))
    assert refuses(caller, sealed) and refuses(peer, sealed)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "order", [[0, 0], [1], [1, 0], [0, 2, 1]], ids=["repeated", "left out", "reordered", "two exchanged"]
)
def test_a_relay_can_neither_repeat_nor_leave_out_nor_reorder_what_is_said(
    relayed: tuple[Peer, Peer, Relay], sealed: Certificate | None, order: list[int]
) -> None:
    caller, peer, relay = relayed
    relay.stop()
    kept = relay.keep(3, caller)
    for number in order:
        relay.called.sendall(kept[number])
    heard: list[str] = []
    if order[0] == 0:
        while not heard:
            try:
                heard = peer.wait(10)
            except (WorkerError, EOFError):
                break  # the first word arrived together with the next, refused one
    assert heard in ([], ["word 0"])
    assert refuses(peer, sealed)


@pytest.mark.parametrize("where", ["to the same end", "to the end that said it", "into another connection"])
def test_a_relay_cannot_say_again_what_was_said_elsewhere(
    relayed: tuple[Peer, Peer, Relay], sealed: Certificate | None, network_listener: Listener, where: str
) -> None:
    caller, peer, relay = relayed
    relay.stop()
    (kept,) = relay.keep(1, caller)
    if where == "to the end that said it":
        relay.caller.sendall(kept)
        assert refuses(caller, sealed)
    elif where == "to the same end":
        relay.called.sendall(kept + kept)
        with contextlib.suppress(WorkerError, EOFError):
            assert peer.wait(10) == ["word 0"]
        assert refuses(peer, sealed)
    else:
        with socket.create_server(("127.0.0.1", 0)) as between:
            other = Relay(between, network_listener.port)
            ((_, its),), (_caller,) = enter(
                network_listener, lambda: call(between.getsockname()[1], certificate=sealed)
            )
            other.stop()
            other.called.sendall(kept)
            assert refuses(its, sealed)
            _caller.close()
            its.close()
            other.close()


def test_no_memory_is_kept_for_a_length_that_the_other_end_has_not_said(
    relayed: tuple[Peer, Peer, Relay], sealed: Certificate | None
) -> None:
    _, peer, relay = relayed
    relay.stop()
    relay.called.sendall((2**29).to_bytes(8, "little") + bytes(100))
    assert refuses(peer, sealed)


def test_the_name_is_part_of_the_proof(network_listener: Listener, refused: list[str]) -> None:
    if network_listener._seal is not None:
        pytest.skip("inside TLS a relay sees no name")
    with socket.create_server(("127.0.0.1", 0)) as between:

        def rename() -> None:
            here, there = between.accept()[0], socket.create_connection(("127.0.0.1", network_listener.port))
            there.sendall(here.recv(entrance.NONCE + 1 + 6).replace(b"rank 1", b"rank 2"))
            here.sendall(there.recv(entrance.NONCE + entrance.PROOF))
            here.close()
            there.close()

        thread = threading.Thread(target=rename)
        thread.start()
        entered, (error,) = enter(network_listener, lambda: call(between.getsockname()[1]))
        thread.join()
    assert entered == []
    assert "authentication failed" in str(error)


@pytest.mark.parametrize("says", ["nothing", "drips", "noise", "its nonce again"])
def test_a_call_to_a_wrong_address_shows_nothing_of_the_key_and_ends_in_time(says: str) -> None:
    """A caller reveals only a nonce and a name to a stranger's port, and gives up in time.

    The driver's list may name a port at which another user listens on the caller's own host.
    """
    got = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def listen() -> None:
            connection = stranger.accept()[0]
            with connection, contextlib.suppress(OSError):
                got.extend(connection.recv(2**16))
                answer = {"noise": bytes(64), "its nonce again": bytes(got[:32]) * 2}.get(says, b"")
                connection.sendall(answer)
                while says in ("nothing", "drips"):
                    time.sleep(0.05)
                    if says == "drips":
                        connection.sendall(b"x")
                    elif not connection.recv(1):
                        return
                got.extend(connection.recv(2**16))

        thread = threading.Thread(target=listen)
        thread.start()
        began = time.monotonic()
        with pytest.raises(WorkerError, match=r"authentication failed|timed out"):
            dial(stranger.getsockname(), bytes(32), "rank 1", seconds=0.5)
        assert time.monotonic() - began < 2
        thread.join()
    assert bytes(got[32:]) == b"\x06rank 1"


MOST_SECONDS = 20.0
"""The longest time until a worker is admitted beside strangers; usually it takes less than a second."""
SOURCES = pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"], ids=["of another host", "of the caller's host"])


def strangers_of(source: str, port: int) -> Iterator[socket.socket]:
    """Yield callers that send nothing; the last 600 of them stay connected."""
    calls: deque[socket.socket] = deque()
    try:
        while True:
            calls.append(socket.create_connection(("127.0.0.1", port), source_address=(source, 0)))
            yield calls[-1]
            if len(calls) == 600:
                calls.popleft().close()
    finally:
        for stranger in calls:
            stranger.close()


@SOURCES
def test_strangers_that_come_while_a_worker_proves_the_key_do_not_push_it_out(refused: list[str], source: str) -> None:
    listener = Listener(bytes(32), refused.append)
    with socket.create_server(("127.0.0.1", 0)) as between, ThreadPoolExecutor() as pool:
        one = pool.submit(call, between.getsockname()[1])
        here, there = between.accept()[0], socket.create_connection(("127.0.0.1", listener.port))
        with here, there:
            there.sendall(here.recv(2**16))
            while not select.select([there], [], [], 0)[0]:
                assert listener.accept() == []
            with contextlib.closing(strangers_of(source, listener.port)) as strangers:
                for _ in range(2 * entrance.MAX_UNPROVED):
                    next(strangers)
                    assert listener.accept() == []
                here.sendall(there.recv(2**16))
                there.sendall(here.recv(2**16))
                deadline, entered = time.monotonic() + 10, []
                while not entered and time.monotonic() < deadline:
                    entered = [name for name, _ in listener.accept()]
        one.result().close()
    assert entered == ["rank 1"]
    listener.close()


@SOURCES
def test_thousands_of_strangers_keep_no_worker_out(refused: list[str], source: str) -> None:
    listener, entered = Listener(bytes(32), refused.append), []
    # A time limit instead of a number of strangers: they come as fast as this machine makes them, and it may be busy.
    until = time.monotonic() + MOST_SECONDS

    def call_again() -> Peer:
        while time.monotonic() < until:
            try:
                return dial(("127.0.0.1", listener.port), bytes(32), "rank 1", seconds=5)
            except WorkerError:
                time.sleep(0.05)  # as an agent does
        raise TimeoutError

    with ThreadPoolExecutor() as pool, contextlib.closing(strangers_of(source, listener.port)) as strangers:
        for _ in range(2 * entrance.MAX_UNPROVED):
            next(strangers)
            listener.accept()
        one = pool.submit(call_again)
        while not entered:
            next(strangers)
            entered += [name for name, _ in listener.accept()]
            assert time.monotonic() < until
        one.result().close()
        assert entered == ["rank 1"]
    listener.close()
