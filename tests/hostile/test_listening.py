"""Tests that a run on one machine has no listening socket, except gloo's if nodes exchange tensors."""

import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from family import ONE_NODE, TWO_NODES, Run

LISTENS_TCP = "0A"
LISTENS_UNIX = 0x10000
"""Flag of a socket that accepts connections (the kernel's `__SO_ACCEPTCON`)."""


def listening(processes: Iterable[psutil.Process]) -> dict[str, str]:
    """Return where these processes accept connections: the address, as the kernel writes it, and the process's name."""
    places = {}
    for protocol in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == LISTENS_TCP:
                places[inode] = address.partition(":")[0]
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split()
        if int(flags, 16) & LISTENS_UNIX:
            places[inode] = "".join(path)
    found = {}
    for process in processes:
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                inode = str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]")
                if inode in places:
                    found[places[inode]] = process.name()
    return found


def test_a_listening_socket_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX) as local:
        local.bind("\0argosy-test-listening")
        local.listen()
        assert {"0100007F", "@argosy-test-listening"} <= listening([psutil.Process()]).keys()


@pytest.mark.parametrize("settings", [ONE_NODE, TWO_NODES.format(sharing="local")], ids=["one node", "two nodes"])
def test_no_process_of_a_run_on_one_machine_listens(tmp_path: Path, settings: str) -> None:
    run = Run.halted(tmp_path / "run", "SectionEnded", 2, settings=settings)
    processes = [*run.processes(), *run.role("driver")]
    assert {"argosy-feeder", "argosy-loader", "argosy-trainer"} <= {process.name() for process in processes}
    assert listening(processes) == {}
    run.go_on()
    assert run.end() == 0, run.errors


def test_where_nodes_exchange_blocks_their_exchanges_alone_listen_on_the_loopback(tmp_path: Path) -> None:
    run = Run.halted(tmp_path / "run", "SectionEnded", 2, settings=TWO_NODES.format(sharing="all-shared"))
    assert listening([*run.processes(), *run.role("driver")]) == {"0100007F": "argosy-exchange"}
    run.go_on()
    assert run.end() == 0, run.errors
