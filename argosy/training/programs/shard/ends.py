"""Connections of a group through torch, once its ranks have met: gloo for tensors on the host, NCCL for those on CUDA devices.

Contract. A sum starts without waiting for another rank, and is polled for completion. NCCL's sums are kernels that occupy their
device until the other ranks run theirs, and kernels of different groups must not block each other. So all sums of a device, of all
groups, run one after another in the order in which they are begun, on a stream separate from that of the steps.

No deadlock is possible, because all devices take the begins that they share in one order (`argosy.training.trainer.merged`). Of all
sums begun and not complete, take the first in that order. On each of its ranks no other sum is before it, so it waits only for a
rank that has not begun it, and as `merged` shows, that rank does not wait. With NCCL, only the driver can tell that a rank is lost:
the kernels of its peers stay on their devices until the end is closed.
"""

import datetime
import functools
import os
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from argosy.stream.rendezvous import FORMING

__all__ = ["HOST", "GroupConnection", "Work", "connect_peers", "sum_device"]

NEVER = datetime.timedelta(days=365)
HOST = torch.device("cpu")


class Work(Protocol):
    """A sum in progress."""

    def is_completed(self) -> bool:
        """Return whether the sum is complete or has failed."""

    def wait(self) -> None:
        """Raise RuntimeError if the sum has failed; called after it has completed."""


def sum_device(device: torch.device) -> torch.device:
    """Return the device on which ranks of this device sum: the device itself if it has NCCL, else the host."""
    return device if device.type == "cuda" and dist.is_nccl_available() else HOST


class Gloo:
    """A rank's connection to its group over gloo. Its destructor waits for a sum in progress, without holding the interpreter lock."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._store = store  # torch does not keep it alive
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, FORMING)

    def add_up(self, values: torch.Tensor) -> Work:
        """Start to sum a tensor over all ranks, in place. Raises RuntimeError if a rank is known to be lost."""
        work: Work = self._group.allreduce([values], _without_limit())
        return work

    def close(self) -> None:
        """Leave the group; may wait for sums in progress."""
        self._group = None


class Nccl:
    """A rank's connection to its group over NCCL."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        # Torch would end the process when a peer is lost or nothing moves, but the driver decides which ranks are lost.
        for watch in ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT"):
            os.environ.setdefault(f"TORCH_NCCL_{watch}", "0")
        torch.cuda.set_device(device)  # for this thread
        self._store = store  # torch does not keep it alive
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = NEVER
        self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        # Connect now: otherwise the first sum would connect, and so wait for every rank's first sum.
        self._group.eager_connect_single_device(device)
        self._stream = _stream_of_sums(device)

    def add_up(self, values: torch.Tensor) -> Work:
        """Start to sum a tensor over all ranks, in place, as `Gloo.add_up` does."""
        self._stream.wait_stream(torch.cuda.current_stream(values.device))
        with torch.cuda.stream(self._stream):
            self._group.allreduce([values], _without_limit()).wait()  # the stream waits, not the host
        values.record_stream(self._stream)
        return _EventWork(self._stream.record_event())

    def close(self) -> None:
        """Abort kernels that wait."""
        self._group.abort()


GroupConnection = Gloo | Nccl
"""One rank's connection to its group."""


def connect_peers(store: Any, rank: int, size: int, on: torch.device) -> GroupConnection:
    """Connect a rank with its peers at the store; raises RuntimeError if no group can be formed."""
    return Gloo(store, rank, size) if on.type == "cpu" else Nccl(store, rank, size, on)


@dataclass(frozen=True, slots=True)
class _EventWork:
    """The `Work` of a sum that is complete once the device has passed an event."""

    event: Any

    def is_completed(self) -> bool:
        """Return whether the device has passed the event."""
        return bool(self.event.query())

    def wait(self) -> None:
        """Do nothing."""


@functools.cache
def _stream_of_sums(device: torch.device) -> Any:
    return torch.get_device_module(device).Stream(device)


def _without_limit() -> Any:
    """Return options without a timeout: a peer may legitimately be busy for a long time."""
    options = dist.AllreduceOptions()
    options.timeout = NEVER
    return options
