"""Tests the store through which processes on several nodes meet, against a process that reaches its port without its key."""

import datetime
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from argosy.errors import WorkerError
from argosy.stream.listener import dial
from argosy.stream.rendezvous import NetworkRendezvous, open_store
from argosy.training.programs.shard.ends import HOST
from argosy.training.programs.shard.parallel import Group


@pytest.fixture
def refused() -> list[str]:
    """Collects the reasons why the store hangs up on callers."""
    return []


@pytest.fixture
def network(refused: list[str]) -> Iterator[NetworkRendezvous]:
    """The driver's rendezvous."""
    found = NetworkRendezvous("127.0.0.1", refused.append)
    yield found
    found.close()


def port_of(network: NetworkRendezvous) -> int:
    """Return the store's port, which a stranger can find too."""
    return int(network.rendezvous().split("/")[2].rpartition(":")[2])


def test_a_stranger_can_neither_list_nor_read_nor_change_what_is_in_the_store(
    network: NetworkRendezvous, refused: list[str]
) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    ours = open_store(network.rendezvous(), 2)
    ours.set("here/0", b"an address")
    port = port_of(network)
    with pytest.raises(RuntimeError):
        TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=2)).list_keys()
    with pytest.raises(WorkerError, match="authentication failed"):
        dial(("127.0.0.1", port), bytes(32), "rendezvous", seconds=10)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(bytes(33 + 32))
        assert len(stranger.recv(64)) == 64
        assert stranger.recv(1) == b""
    assert ours.get("here/0") == b"an address"
    assert len(refused) == 3
    ours.close()


def test_a_caller_that_knows_one_rendezvous_reaches_no_other(network: NetworkRendezvous) -> None:
    one, same, other = (open_store(where, 2) for where in [network.rendezvous()] * 2 + [network.rendezvous()])
    one.set("here/0", "x")
    assert same.check(["here/0"]) and not other.check(["here/0"])
    assert (same.add("sum", 2), one.add("sum", 3), other.add("sum", 1)) == (2, 5, 1)
    assert same.delete_key("here/0") and not one.check(["here/0"])
    for store in (one, same, other):
        store.close()


def test_a_process_that_waits_is_answered_when_all_is_there_and_gives_up_in_time(network: NetworkRendezvous) -> None:
    where = network.rendezvous()
    one, other = open_store(where, 2), open_store(where, 2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(one.get, "late"), pool.submit(other.wait, ["late"], datetime.timedelta(days=365))
        open_store(where, 2).set("late", b"at last")
        assert waiting[0].result(10) == b"at last"
        waiting[1].result(10)
    with pytest.raises(RuntimeError, match=r"has not answered wait within 0:00:00\.2"):
        one.wait(["never"], datetime.timedelta(seconds=0.2))
    with pytest.raises(RuntimeError):  # the next answer would belong to the question that timed out
        one.get("late")
    other.close()


@pytest.mark.parametrize("store", ["network", "file"])
def test_ranks_meet_and_add_up(store: str, network: NetworkRendezvous, tmp_path: Any) -> None:
    in_folder = str(tmp_path / "caf\udce9")  # the name of a folder may be no UTF-8
    where = network.rendezvous() if store == "network" else in_folder
    groups = [Group.form(where, rank, 3, on=HOST) for rank in range(3)]
    while not all(group.formed for group in groups):
        assert not any(group.broken for group in groups), [group.broken for group in groups]
    values = [torch.full((5,), float(rank)) for rank in range(3)]
    sums = [group.add_up(value) for group, value in zip(groups, values, strict=True)]
    while not all(one.done for one in sums):
        assert not any(group.broken for group in groups)
    assert all(value.tolist() == [3.0] * 5 for value in values)
    for group in groups:
        group.leave()
