"""Recorders of device work, which is captured once and replayed as a whole, without a launch per kernel: CUDA graphs.

Contract. A replay reads and writes the memory addresses of the recording, whatever they hold by then, and allocates nothing; the
host's part of the work is not repeated. A recorder captures on a stream of its own, on which the work is run some times before,
since libraries allocate their work space per stream. Recordings share no memory, so those of several recorders may run at once.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch

from argosy.training.device.cuda import CudaRecorder
from argosy.training.device.devices import Backend

__all__ = ["RECORDERS", "InBranches", "Recorder", "Recording", "Uncaptured", "in_turn", "recorder_of", "records"]

Made = TypeVar("Made")


InBranches = Callable[[Sequence[Callable[[], object]]], None]
"""Does work whose parts are independent."""


def in_turn(works: Sequence[Callable[[], object]]) -> None:
    """Do one after another."""
    for work in works:
        work()


class Uncaptured(RuntimeError):  # noqa: N818
    """Raised where a step cannot be captured; the step was not made."""


class Recording(Protocol):
    """Captured work of one recorder."""

    @property
    def memory_bytes(self) -> int:
        """Device memory that it holds as long as it is open."""

    def replay(self) -> None:
        """Repeat the work, after all work issued on the current stream."""

    def close(self) -> None:
        """Free its memory, at the latest when all recordings of its stream are closed; no replay of it may be running."""


class Recorder(Protocol):
    """Captures the steps of one program."""

    draws_apart: bool
    """Whether each recording keeps the random state of its replays in its own memory, not in memory shared by the generator."""

    def own(self) -> AbstractContextManager[None]:
        """Issue work on its own stream inside this context."""

    def fork(self) -> None:
        """Let later work on its own stream begin after all work issued on the current stream."""

    def join(self) -> None:
        """Let later work on the current stream begin after all work issued on its own stream."""

    def in_branches(self, works: Sequence[Callable[[], object]]) -> None:
        """Do work whose parts are independent, and keep none of the memory that they allocate; on its own stream, as branches at once."""

    def strict(self) -> AbstractContextManager[None]:
        """Raise inside for work that waits for the device. A capture cannot contain it, and could not be ended cleanly."""

    def record(self, work: Callable[[], Made]) -> tuple[Recording, Made]:
        """Capture the work without running it; returns the recording, and the work's result; a replay fills its tensors.

        Raises what the work raises, or the device's error.
        """

    def close(self) -> None:
        """Release its stream; its recordings must be closed before."""


RECORDERS: dict[str, Callable[[torch.device], Any]] = {"cuda": CudaRecorder}
"""Recorder classes by kind of device."""


def records(backend: Backend) -> bool:
    """Whether there is a recorder for a device."""
    return _kind(backend) in RECORDERS


def recorder_of(backend: Backend) -> Recorder:
    """Return a recorder for a device that `records`."""
    made: Recorder = RECORDERS[_kind(backend)](backend.device)
    return made


def _kind(backend: Backend) -> str:
    return backend.name.partition(":")[0]
