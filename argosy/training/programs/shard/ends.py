"""Torch's side of a group, once its ranks have met: gloo for tensors of the host, NCCL for those of CUDA devices.

Contract. A sum is begun without waiting for another rank, and polled for completion. NCCL's sums are kernels that occupy their
device until the other ranks run theirs, and kernels of several groups must not block each other: so the sums of a device, of all
groups, run one after another, in the order in which they are begun, on a stream apart from that of the steps. No deadlock is
possible: all devices take the begins that they share in one order (`argosy.training.trainer.merged`). Of all sums begun and not
complete, take the least in that order: on each of its ranks none is before it, so it waits only for a rank that has not begun it,
and as shown there, that rank does not wait. With NCCL, only the driver can tell that a rank is lost: its peers' kernels stay on
their devices until the end is closed.
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
    """A sum that is under way."""

    def is_completed(self) -> bool:
        """Return whether the sum is complete, or has failed."""

    def wait(self) -> None:
        """Raise RuntimeError where the sum has failed; called when it is completed."""


class End(Protocol):
    """One rank's connection."""

    def add_up(self, values: torch.Tensor) -> Work:
        """Start to sum a tensor over all ranks, in place. Raises RuntimeError where a rank is known to be lost."""

    def close(self) -> None:
        """Leave the group; may wait for sums under way."""


def sums_on(device: torch.device) -> torch.device:
    """Return where ranks on such devices add up: on the device where NCCL is available, else on the host."""
    return device if device.type == "cuda" and dist.is_nccl_available() else HOST


def meet(store: Any, rank: int, size: int, on: torch.device) -> End:
    """Connect a rank with its peers at the store; raises RuntimeError where no group can be formed."""
    return Gloo(store, rank, size) if on.type == "cpu" else Nccl(store, rank, size, on)


class Gloo:
    """The `End` over gloo. Its destructor waits for a sum that is under way, without the interpreter's lock."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._store = store  # torch does not keep it alive
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, FORMING)

    def add_up(self, values: torch.Tensor) -> Work:
        """Start gloo's allreduce."""
        work: Work = self._group.allreduce([values], _without_limit())
        return work

    def close(self) -> None:
        """Drop the process group."""
        self._group = None


class Nccl:
    """The `End` over NCCL."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        # Torch would end the process where a peer is lost or nothing moves: which ranks are lost, the driver decides.
        for watch in ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT"):
            os.environ.setdefault(f"TORCH_NCCL_{watch}", "0")
        torch.cuda.set_device(device)  # for this thread
        self._store = store  # torch does not keep it alive
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = NEVER
        self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        # Here, and not at the first sum, which would then wait for every rank's first sum.
        self._group.eager_connect_single_device(device)
        self._stream = _stream_of_sums(device)

    def add_up(self, values: torch.Tensor) -> Work:
        """Start NCCL's allreduce."""
        self._stream.wait_stream(torch.cuda.current_stream(values.device))
        with torch.cuda.stream(self._stream):
            self._group.allreduce([values], _without_limit()).wait()  # the stream waits, not the host
        values.record_stream(self._stream)
        return _Passing(self._stream.record_event())

    def close(self) -> None:
        """Abort waiting kernels."""
        self._group.abort()


@dataclass(frozen=True, slots=True)
class _Passing:
    """The `Work` of a sum that is complete when the device has passed an event."""

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
    """Set no timeout: a peer may rightly be busy for long."""
    options = dist.AllreduceOptions()
    options.timeout = NEVER
    return options
