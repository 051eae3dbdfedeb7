"""Tests how agents find the driver through a store that anybody can write to, and which keys are too easy to guess."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from argosy.errors import PlanError, WorkerError
from argosy.running.hosts import notices
from argosy.running.hosts.notices import Notice, StoreBoard, connect_to_driver, read_key
from argosy.stream.listener import Listener

USERS = {"ARGOSY_KEY": "sixteen or more letters"}


@pytest.fixture
def key() -> bytes:
    """Return the run's key, which the user has given to all nodes."""
    found = read_key(USERS)
    assert found is not None
    return found


@pytest.fixture
def store() -> Any:
    """Return a store like torchrun's, but without libuv, which closes descriptors by number in every process forked later."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False)


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """A listening socket of a process without the key."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        yield listener


def beside(stranger: socket.socket) -> socket.socket:
    """Return a socket that listens at another address and the stranger's port; another process may have that port for all addresses."""
    for _ in range(10):
        try:
            return socket.create_server(("127.0.0.2", stranger.getsockname()[1]))
        except OSError:
            address = ("127.0.0.1", 0)
            with socket.create_server(address) as other:
                os.dup2(other.fileno(), stranger.fileno())
    raise AssertionError("no port is free at two addresses")


def called(stranger: socket.socket) -> bool:
    """Return whether anything has connected to the stranger."""
    try:
        stranger.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def attack(kind: str, text: str, port: int) -> str:
    """Return the notice as an attacker might rewrite it in the store, so that it names another port for the driver."""
    first, _, mac = text.partition("\n")
    notice = {**json.loads(first), "hosts": ["127.0.0.1"], "port": port}
    match kind:
        case "host and port":
            return f"{json.dumps(notice)}\n{mac}"
        case "with a key of its own":
            notice["key"] = bytes(32).hex()
            return notices.format_notice(Notice(**{**notice, "hosts": ("127.0.0.1",)}), bytes(32))
        case "without a mac":
            return json.dumps(notice)
        case "an earlier line of its own":
            return f"{json.dumps(notice)}\n{text}"
    raise AssertionError(kind)


def put(store: Any, name: str, value: str | bytes) -> None:
    """Set a value and wait until every reader finds it."""
    store.set(name, value)
    store.get(name)


ATTACKS = ["host and port", "with a key of its own", "without a mac", "an earlier line of its own"]


@pytest.mark.parametrize("kind", ATTACKS)
def test_no_address_of_a_changed_notice_is_called(
    kind: str, store: Any, stranger: socket.socket, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = replace(jobs.place(1), launcher="torchrun", store=("127.0.0.1", store.port))
    board = StoreBoard(place, key, keeps=False)
    board.leave(Notice(job=place.job, hosts=("127.0.0.1",), port=1))
    assert board.read() is not None  # the store does not confirm a set; its next answer comes only after it
    (name,) = [name for name in store.list_keys() if "argosy" in name] if hasattr(store, "list_keys") else []
    name = name.removeprefix("/")
    put(store, name, attack(kind, store.get(name).decode(), stranger.getsockname()[1]))
    with pytest.raises(WorkerError, match=r"within 0\.3 s: the notice of the job's driver was not written with"):
        connect_to_driver(place, board, key, seconds=0.3)
    assert not called(stranger)


def test_a_notice_that_is_taken_away_or_unreadable_holds_up_no_agent(store: Any, key: bytes) -> None:
    place = replace(jobs.place(1), launcher="torchrun", store=("127.0.0.1", store.port))
    board = StoreBoard(place, key, keeps=False)
    for value in (b"", b"\xff" * 100, b"[" * 10**6, bytes(7 * 2**20)):
        put(store, f"argosy/{place.job}", value)
        began = time.monotonic()
        with pytest.raises(WorkerError, match="was not written with this process's ARGOSY_KEY"):
            board.read()
        assert time.monotonic() - began < 5
    store.delete_key(f"argosy/{place.job}")
    assert board.read() is None


def test_a_stranger_at_an_address_that_the_driver_lists_learns_nothing_of_the_key(
    key: bytes, stranger: socket.socket
) -> None:
    """An agent that calls a stranger sends it nothing made with the key.

    The driver lists its loopback address, which on the agent's node is the agent's own; another user may listen there.
    """
    notice = Notice(job="", hosts=("127.0.0.1",), port=stranger.getsockname()[1])
    stranger.settimeout(10)
    with pytest.raises(WorkerError, match=r"timed out|failed"):
        notices.dial_any_address(notice, key, "rank 1", None)
    with stranger.accept()[0] as call:
        assert call.recv(1000)[32:] == b"\x06rank 1"  # after the nonce only a name: nothing that was made with the key


def test_an_agent_behind_a_firewall_names_the_address_that_does_not_answer(
    tmp_path: Path, stranger: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last address of a driver is its loopback, at which an agent on another node finds nothing."""
    monkeypatch.setattr(notices, "CALL_SECONDS", 0.1)
    board, port = notices.FileBoard(tmp_path), stranger.getsockname()[1]
    board.leave(Notice(job="test", hosts=("127.0.0.1", "127.0.0.3"), port=port, key="00"))
    said = rf"the call to 127\.0\.0\.1 port {port} failed: timed out.* If not, open its host's firewall to this node"
    with pytest.raises(WorkerError, match=said):
        connect_to_driver(jobs.place(1), board, None, seconds=0)


def test_a_store_whose_port_is_in_use_says_so(stranger: socket.socket) -> None:
    place = replace(jobs.place(0), launcher="torchrun", store=stranger.getsockname())
    with pytest.raises(WorkerError, match=r"does not open torchrun's store at .* Address already in use"):
        notices.StoreBoard(place, b"key", keeps=True)


def test_an_agent_finds_its_driver_past_a_stranger(
    key: bytes, stranger: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver listens at its second address, and the stranger at the first; both use one port."""
    with beside(stranger) as there:
        port = stranger.getsockname()[1]
        monkeypatch.setattr(socket, "create_server", lambda address, **rest: there)
        listener = Listener(key, list[str]().append)
        over = threading.Event()
        serving = {"target": listener.serve, "args": (over, lambda peer: True)}
        thread = threading.Thread(**serving)  # type: ignore[arg-type]
        thread.start()
        try:
            notice = Notice(job="", hosts=("127.0.0.1", "127.0.0.2"), port=port)
            notices.dial_any_address(notice, key, "rank 1", None).close()
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("text", ["", "secret", "x" * 64, "abcabcabcabcabcabcabc", "passwordpassword", "0" * 15 + "1"])
def test_a_key_that_is_soon_guessed_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="Anyone who guesses it can run code on every node"):
        read_key({"ARGOSY_KEY": text})


def test_a_guess_at_a_users_key_is_dear() -> None:
    read_key(USERS)
    began = time.process_time()
    for number in range(3):
        read_key({"ARGOSY_KEY": f"{USERS['ARGOSY_KEY']} {number}"})
    assert (time.process_time() - began) / 3 > 0.02
    assert read_key(USERS) == read_key(dict(USERS)) != read_key({"ARGOSY_KEY": USERS["ARGOSY_KEY"] + "."})
