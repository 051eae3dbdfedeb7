"""Tests sharing between two real hosts: two network namespaces joined by a link of 200 Mbit/s.

The driver runs on the first host. When the feeder of its second node opens the data, their factory moves the feeder to the
second host, so that the two feeders can communicate only over the link.
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
    """Samples of 196 kB each that cost almost nothing to prepare."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 128, 128), index / 128), index % 10


class Riddles(studies.Vectors):
    """Samples of 56 bytes each that take 4 ms of CPU time to prepare."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        until = time.thread_time() + 0.004
        while time.thread_time() < until:
            pass
        return super().__getitem__(index)


class Coarse(nn.Module):
    """A linear network on the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.mean((2, 3)))


class Moving:
    """A data factory that moves the second node's feeder to another host before it opens the data."""

    def __init__(self, kind: str, host: str | None) -> None:
        self.kind, self.host = kind, host

    def __call__(self) -> Dataset[Any]:
        log = Path("/proc/self/fd/1").readlink().name
        if self.host is not None and log.startswith("node1-"):
            enter(self.host)
        return Pictures() if self.kind == "pictures" else Riddles(160)


def enter(host: str) -> None:
    """Move this process and its future children to a host's network namespace; open connections are kept."""
    descriptor = os.open(f"/var/run/netns/{host}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns to {host}")
    os.close(descriptor)


def study(kind: str, host: str | None = None) -> argosy.Study:
    """Return a study of two members on data of this kind; without `host`, no feeder moves."""
    model = {"model": Coarse} if kind == "pictures" else {}
    fleet = [studies.member("even", batch_size=16, **model), studies.member("odd", batch_size=10, **model)]
    return studies.study(data=argosy.Data(train=Moving(kind, host)), fleet=fleet)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """The names of two network namespaces joined by a slow link."""
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
    """Train on two hosts; return the journaled choice of sharing and the number of bytes that the second host received."""
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
    # At least the blocks that measured the link went over it.
    assert received > 2**20
    if kind == "pictures":
        assert chosen["sharing"] == "local"
        carried = re.search(r"carries (\d+) MB/s of samples of 196,616 bytes", chosen["reason"])
        assert carried is not None
        # At most both directions of the link at once.
        assert 0.2 * LINK_BYTES_PER_SECOND < float(carried[1]) * 1e6 < 2 * LINK_BYTES_PER_SECOND
    else:
        assert chosen["sharing"] in PIPELINES
        assert argosy.load(tmp_path / "two").preparations < 2
