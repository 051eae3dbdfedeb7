"""Torch's end of a group, when its ranks are there: gloo for tensors of the host, NCCL for those of CUDA devices.

Contract. A sum is begun without waiting for another rank, and asked whether it is made. NCCL's sums are kernels that keep their
place on a device until the other ranks have theirs, and of several groups they must not wait for each other's place: so the sums
of a device, of whatever groups, are made one after another, in the order in which they are begun, on a stream beside that of the
steps. Nobody waits for ever: all devices take the begins that they share in one order (`argosy.training.trainer.merged`). Of all sums
that are begun and not made, take the least in that order: on each of its ranks nothing is before it, so it waits only for a rank
that has not begun it, and as is shown there, that one does not wait. With NCCL, a rank that is lost is heard of from the driver
alone: its peers' kernels stay where they are until the end is closed.
"""

import datetime
import functools
import os
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from argosy.stream.rendezvous import FORMING

__all__ = ["HOST", "End", "Work", "meet", "sums_on"]

NEVER = datetime.timedelta(days=365)
HOST = torch.device("cpu")


class Work(Protocol):
    """A sum on its way."""

    def is_completed(self) -> bool:
        """Whether it is made, or never will be."""

    def wait(self) -> None:
        """Raise RuntimeError where it never will be; asked when it is completed."""


class End(Protocol):
    """Of one rank."""

    def add_up(self, values: torch.Tensor) -> Work:
        """Start to sum a tensor over all ranks, in its place. Raises RuntimeError where a rank is seen to be gone."""

    def close(self) -> None:
        """Let go of the peers; may wait for what is under way."""


def sums_on(device: torch.device) -> torch.device:
    """Where ranks on such devices add up: there, where NCCL is to be had, else in memory of the host."""
    return device if device.type == "cuda" and dist.is_nccl_available() else HOST


def meet(store: Any, rank: int, size: int, on: torch.device) -> End:
    """The end of a rank whose peers are at the store; raises RuntimeError where no group comes of it."""
    return Gloo(store, rank, size) if on.type == "cpu" else Nccl(store, rank, size, on)


class Gloo:
    """See `End`. Its destructor waits for a sum that is under way, without the interpreter's lock."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._store = store  # torch alone would not keep it
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, FORMING)

    def add_up(self, values: torch.Tensor) -> Work:
        """See `End.add_up`."""
        work: Work = self._group.allreduce([values], _without_limit())
        return work

    def close(self) -> None:
        """See `End.close`."""
        self._group = None


class Nccl:
    """See `End`."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        # Torch would end the process where a peer is seen to be gone: who is lost, the driver decides.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        torch.cuda.set_device(device)  # of this thread
        self._store = store  # torch alone would not keep it
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = NEVER
        self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        # Here, and not at the first sum, which would wait for the first of every rank.
        self._group.eager_connect_single_device(device)
        self._stream = _stream_of_sums(device)

    def add_up(self, values: torch.Tensor) -> Work:
        """See `End.add_up`."""
        self._stream.wait_stream(torch.cuda.current_stream(values.device))
        with torch.cuda.stream(self._stream):
            self._group.allreduce([values], _without_limit()).wait()  # the stream does, not the host
        values.record_stream(self._stream)
        return _Passing(self._stream.record_event())

    def close(self) -> None:
        """See `End.close`."""
        self._group.abort()


@dataclass(frozen=True, slots=True)
class _Passing:
    """See `Work`: a sum that is made when the device has passed an event."""

    event: Any

    def is_completed(self) -> bool:
        """See `Work.is_completed`."""
        return bool(self.event.query())

    def wait(self) -> None:
        """See `Work.wait`."""


@functools.cache
def _stream_of_sums(device: torch.device) -> Any:
    return torch.get_device_module(device).Stream(device)


def _without_limit() -> Any:
    """A peer may rightly be busy for long."""
    options = dist.AllreduceOptions()
    options.timeout = NEVER
    return options
