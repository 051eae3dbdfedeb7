"""Recorders of device work (CUDA graphs): work is captured once and replayed as a whole, without a launch per kernel.

Contract. A replay reads and writes the memory addresses of the recording, whatever they hold at that time, and allocates nothing. It does
not repeat the host's part of the work. A recorder captures on its own stream. The work must have run there a few times before, because
libraries allocate their work space per stream. Recordings share no memory, so those of several recorders may run at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

import torch

from argosy.training.device.cuda import CudaRecorder
from argosy.training.device.devices import Backend

__all__ = [
    "RECORDERS",
    "InBranches",
    "Recorder",
    "Recording",
    "Uncaptured",
    "forked",
    "run_in_turn",
    "make_recorder",
    "has_recorder",
]

Made = TypeVar("Made")


InBranches = Callable[[Sequence[Callable[[], object]]], None]
"""Runs functions that are independent of each other."""


def run_in_turn(works: Sequence[Callable[[], object]]) -> None:
    """Call the functions one after another."""
    for work in works:
        work()


class Uncaptured(RuntimeError):  # noqa: N818
    """Raised if a step cannot be captured; the step was not made."""


class Recording(Protocol):
    """Captured work of one recorder."""

    @property
    def memory_bytes(self) -> int:
        """Device memory that the recording holds while it is open."""

    def replay(self) -> None:
        """Repeat the work, after all work issued on the current stream."""

    def close(self) -> None:
        """Free the memory, at the latest when all recordings of the stream are closed. No replay of the recording may be running."""


class Recorder(Protocol):
    """Captures the steps of one program."""

    draws_apart: bool
    """Whether each recording keeps the random state of its replays in its own memory, not in memory shared by the generator."""

    def own(self) -> AbstractContextManager[None]:
        """Issue work on the recorder's stream inside this context."""

    def fork(self) -> None:
        """Let later work on the recorder's stream begin after all work issued on the current stream."""

    def join(self) -> None:
        """Let later work on the current stream begin after all work issued on the recorder's stream."""

    def in_branches(self, works: Sequence[Callable[[], object]]) -> None:
        """Run independent functions; in concurrent branches if the recorder's stream is current. Memory that they allocate must not be kept."""

    def strict(self) -> AbstractContextManager[None]:
        """Raise an error inside for work that waits for the device. A capture cannot contain such work, and could not be ended cleanly."""

    def record(self, work: Callable[[], Made]) -> tuple[Recording, Made]:
        """Capture the work without running it. Returns the recording, and the work's result, whose tensors each replay fills.

        Raises the errors of the work or of the device.
        """

    def close(self) -> None:
        """Release the stream. All recordings must already be closed."""


RECORDERS: dict[str, Callable[[torch.device], Any]] = {"cuda": CudaRecorder}
"""Recorder classes by kind of device."""


def has_recorder(backend: Backend) -> bool:
    """Return whether a device has a recorder."""
    return _kind(backend) in RECORDERS


def make_recorder(backend: Backend) -> Recorder:
    """Return a recorder for a device that `has_recorder`."""
    recorder: Recorder = RECORDERS[_kind(backend)](backend.device)
    return recorder


@contextmanager
def forked(recorder: Recorder) -> Iterator[None]:
    """Issue work on the recorder's stream inside, after all work issued before; later work on the current stream begins after it."""
    recorder.fork()
    try:
        with recorder.own():
            yield
    finally:
        recorder.join()


def _kind(backend: Backend) -> str:
    return backend.name.partition(":")[0]
