"""Two hosts for real: two network namespaces, and a link of 200 Mbit/s between them.

The driver runs on the one. The data of its second node, which a feeder opens itself, moves that feeder to the other: all
that the two feeders have left in common is the link.
"""

import contextlib
import ctypes
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import evidence
import pytest
import studies
import torch
from hosts import NotPermittedError, connected, root
from torch import nn
from torch.utils.data import Dataset

import argosy
from argosy.stream.sharing import PIPELINES

LINK_BYTES_PER_SECOND = 200e6 / 8
CLONE_NEWNET = 0x40000000
SCRIPT = """
import sys, argosy, test_two_hosts
directory, kind, host = sys.argv[1:]
argosy.train(test_two_hosts.study(kind, host), directory=directory, devices="cpu:1", nodes=2, block_size=16,
             loader_workers=1, numerics="exact")
"""


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """196 kB each, at next to no cost."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 128, 128), index / 128), index % 10


class Riddles(studies.Vectors):
    """56 bytes each, and 4 ms of a core."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        until = time.thread_time() + 0.004
        while time.thread_time() < until:
            pass
        return super().__getitem__(index)


class Coarse(nn.Module):
    """A network that looks at the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.mean((2, 3)))


class Moving:
    """A factory of data that takes the feeder of the second node to another host before it opens them."""

    def __init__(self, kind: str, host: str | None) -> None:
        self.kind, self.host = kind, host

    def __call__(self) -> Dataset[Any]:
        log = Path("/proc/self/fd/1").readlink().name
        if self.host is not None and log.startswith("node1-"):
            enter(self.host)
        return Pictures() if self.kind == "pictures" else Riddles(160)


def enter(host: str) -> None:
    """Let this process, and all that it forks, live on a host; connections that it has stay as they are."""
    descriptor = os.open(f"/var/run/netns/{host}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns to {host}")
    os.close(descriptor)


def study(kind: str, host: str | None = None) -> argosy.Study:
    """Two members over data of a kind; without a host everything stays where it is."""
    model = {"model": Coarse} if kind == "pictures" else {}
    fleet = [studies.member("even", batch_size=16, **model), studies.member("odd", batch_size=10, **model)]
    return studies.study(data=argosy.Data(train=Moving(kind, host)), fleet=fleet)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two of them, joined by a slow link."""
    limit = ("rate", "200mbit", "burst", "64kb", "latency", "50ms")
    with contextlib.ExitStack() as until_then:
        try:
            pair = until_then.enter_context(connected())
            for host in pair:
                root("ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", "veth0", "root", "tbf", *limit)
        except (NotPermittedError, subprocess.CalledProcessError) as error:
            pytest.skip(str(error))
        yield pair


def run(directory: Path, hosts: tuple[str, str], kind: str) -> tuple[dict[str, Any], int]:
    """Train on two hosts; returns how they shared, and the bytes that came to the second one."""
    here, there = hosts
    words = ["ip", "netns", "exec", here, sys.executable, "-W", "error", "-c", SCRIPT, str(directory), kind, there]
    environment = {
        **os.environ,
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "GLOO_SOCKET_IFNAME": "veth0",
    }
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    received = root("ip", "netns", "exec", there, "cat", "/sys/class/net/veth0/statistics/rx_bytes")
    (chosen,) = evidence.event_lines(directory, "SharingChosen")
    return chosen, int(received)


@pytest.mark.parametrize("kind", ["pictures", "riddles"])
def test_hosts_share_what_is_dear_to_prepare_and_nothing_that_their_link_cannot_carry(
    tmp_path: Path, hosts: tuple[str, str], kind: str
) -> None:
    argosy.train(study(kind), directory=tmp_path / "one", launcher="inline", numerics="exact")
    chosen, received = run(tmp_path / "two", hosts, kind)
    assert evidence.results(tmp_path / "two") == evidence.results(tmp_path / "one")
    assert evidence.event_lines(tmp_path / "two", "WorkerLost") == []
    # At least the blocks that the link was measured with really went over it.
    assert received > 2**20
    if kind == "pictures":
        assert chosen["sharing"] == "local"
        carried = re.search(r"carries (\d+) MB/s of samples of 196,616 bytes", chosen["reason"])
        assert carried is not None
        # Both directions of the link at once, at most.
        assert 0.2 * LINK_BYTES_PER_SECOND < float(carried[1]) * 1e6 < 2 * LINK_BYTES_PER_SECOND
    else:
        assert chosen["sharing"] in PIPELINES
        assert argosy.load(tmp_path / "two").preparations < 2
