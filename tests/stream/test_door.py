"""The door lets in whoever knows the key, under any name, from this node or another; nobody else is heard."""

import os
import pickle
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_wire import no_more_files

from argosy.errors import WorkerError
from argosy.stream import door as entrance
from argosy.stream.door import Door, dial
from argosy.stream.wire import Peer


def enter(door: Door, call: Callable[[], Any]) -> tuple[list[tuple[str, Peer]], list[Any]]:
    """Who has entered while somebody called, and what the caller got."""
    got: list[Any] = []

    def guarded() -> None:
        try:
            got.append(call())
        except WorkerError as error:
            got.append(error)

    thread, entered = threading.Thread(target=guarded), []
    thread.start()
    while thread.is_alive():
        entered += door.enter()
    thread.join()
    return entered + door.enter(), got


@pytest.mark.parametrize("name", ["", "cpu:0 1", "n" * 33, "node/üöä-" * 20, "n" * 255])
def test_a_name_of_any_length_shifts_nothing(name: str) -> None:
    door = Door(bytes(32))
    entered, (caller,) = enter(door, lambda: dial(door.address, bytes(32), name))
    assert [found for found, _ in entered] == [name]
    caller.send("first word")
    assert entered[0][1].wait(5) == ["first word"]
    door.close()


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(WorkerError, match="256 bytes; a caller's name has at most 255"):
        dial("\0nowhere", bytes(32), "n" * 256)


def test_another_key_opens_nothing() -> None:
    door = Door(bytes(32))
    entered, (error,) = enter(door, lambda: dial(door.address, b"x" * 32, "name"))
    assert entered == []
    assert isinstance(error, WorkerError)
    door.close()


def test_silent_callers_hold_up_nobody_and_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "UNPROVED", 3)
    door = Door(bytes(32))
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(5)]
    for caller in silent:
        caller.connect(door.address)
        door.enter()
    assert len(door._callers) == 3
    for caller in silent[:2]:
        assert len(caller.recv(entrance.NONCE)) == entrance.NONCE
        assert caller.recv(1) == b""
    entered, _ = enter(door, lambda: dial(door.address, bytes(32), "name"))
    assert [found for found, _ in entered] == ["name"]
    monkeypatch.setattr(entrance, "PATIENCE_SECONDS", 0.0)
    door.enter()
    assert len(door._callers) == 0
    door.close()
    for caller in silent:
        caller.close()


def test_who_proved_itself_while_nobody_looked_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(bytes(32))
    with ThreadPoolExecutor() as pool:
        call = pool.submit(dial, door.address, bytes(32), "name")
        while not door._callers:
            select.select([door], [], [])
            door.enter()
        select.select([door], [], [])
        monkeypatch.setattr(entrance, "PATIENCE_SECONDS", 0.0)
        assert [found for found, _ in door.enter()] == ["name"]
        call.result()
    door.close()


def test_a_caller_of_another_user_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        assert entrance._user_of(ours) == os.geteuid()
    monkeypatch.setattr(entrance, "_user_of", lambda caller: os.geteuid() + 1)
    door = Door(bytes(32))
    entered, (error,) = enter(door, lambda: dial(door.address, bytes(32), "name"))
    assert entered == []
    assert isinstance(error, WorkerError)
    door.close()


def test_a_call_waits_where_too_many_files_are_open() -> None:
    door = Door(bytes(32))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.connect(door.address)
        with no_more_files():
            assert door.enter() == []
            assert door.enter() == []
        door.enter()
        assert len(caller.recv(entrance.NONCE)) == entrance.NONCE
    door.close()


@pytest.fixture
def refused() -> list[str]:
    """What a door says of those that it hangs up on."""
    return []


@pytest.fixture
def network_door(refused: list[str]) -> Iterator[Door]:
    """A door for other nodes."""
    door = Door.to_network(bytes(32), refused.append)
    yield door
    door.close()


def test_callers_from_the_network_are_let_in_and_say_more_than_a_socket_holds(network_door: Door) -> None:
    address = ("127.0.0.1", network_door.port)
    entered, (caller,) = enter(network_door, lambda: dial(address, bytes(32), "rank 1"))
    ((name, peer),) = entered
    assert (name, peer.host, caller.host) == ("rank 1", "127.0.0.1", "127.0.0.1")
    caller.send(bytes(5_000_000))
    while not (heard := peer.receive()):
        caller.flush()
    assert heard == [bytes(5_000_000)]


def test_a_wrong_key_from_the_network_is_refused_and_told(network_door: Door, refused: list[str]) -> None:
    address = ("127.0.0.1", network_door.port)
    entered, (error,) = enter(network_door, lambda: dial(address, b"x" * 32, "rank 1"))
    assert entered == []
    assert isinstance(error, WorkerError)
    assert [words.partition(" port ")[0] for words in refused] == ["127.0.0.1"]
    assert refused[0].endswith("does not know the run's key")


class Trap:
    """Whoever unpickles this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_what_a_scanner_of_ports_says_is_ignored(network_door: Door, refused: list[str], tmp_path: Path) -> None:
    """Other protocols, noise, words of a run without its key, and nothing at all; others come in meanwhile."""
    trap = pickle.dumps(Trap(tmp_path / "sprung"), protocol=5)
    word = len(trap).to_bytes(8, "little") + trap
    said = [b"", b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-scan\r\n", word, bytes(63), bytes(64) + b"\x02me" + word]
    said += [random.Random(seed).randbytes(5000) for seed in range(5)]
    address, callers = ("127.0.0.1", network_door.port), []
    for words in said:
        callers.append(socket.create_connection(address))
        callers[-1].sendall(words)
        assert network_door.enter() == []
    entered, _ = enter(network_door, lambda: dial(address, bytes(32), "rank 1"))
    assert [name for name, _ in entered] == ["rank 1"]
    for caller in callers:
        caller.close()
    deadline = time.monotonic() + 10
    while network_door._callers and time.monotonic() < deadline:
        assert network_door.enter() == []
    assert len(refused) == len(said)
    assert not (tmp_path / "sprung").exists()
