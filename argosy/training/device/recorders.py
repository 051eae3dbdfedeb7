"""Work of a device that is recorded once and done again as a whole, without the host's words for each part: CUDA graphs.

Contract. What is recorded reads and writes the memory that it found, whatever lies there by then, and takes no more; what the
host did meanwhile is not done again. A recorder has a stream beside that at hand, on which it records, and on which what is to be
recorded is done some times before: libraries take their work space by stream. Recordings share no memory, so those of
several recorders may be under way at once.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch

from argosy.training.device.cuda import CudaRecorder
from argosy.training.device.devices import Backend

__all__ = ["RECORDERS", "Recorder", "Recording", "Uncaptured", "recorder_of", "records"]

Made = TypeVar("Made")


class Uncaptured(RuntimeError):  # noqa: N818
    """Why a step cannot be recorded; it is not made."""


class Recording(Protocol):
    """Of one recorder."""

    @property
    def memory_bytes(self) -> int:
        """Of the device's, which it keeps for itself as long as it is open."""

    def replay(self) -> None:
        """Do it again, behind all that was asked for on the stream at hand."""

    def close(self) -> None:
        """Let go of its memory, at the latest with others' that were recorded on its stream; nothing of it is under way."""


class Recorder(Protocol):
    """Of one program."""

    draws_apart: bool
    """Whether a replay draws random numbers by memory of its own; else by some that all of a generator share."""

    def own(self) -> AbstractContextManager[None]:
        """Inside, work is asked for on its own stream."""

    def fork(self) -> None:
        """Let its own stream's work begin after all that was asked for on the stream at hand."""

    def join(self) -> None:
        """Let the work of the stream at hand begin after all that was asked for on its own."""

    def strict(self) -> AbstractContextManager[None]:
        """Inside, work raises that waits for the device, which a recording cannot: there it could not be ended cleanly."""

    def record(self, work: Callable[[], Made]) -> tuple[Recording, Made]:
        """What the work asks of the device, which is not done, and what it returns, whose tensors a replay fills.

        Raises what the work raises, or what the device has against it.
        """

    def close(self) -> None:
        """Leave its stream to others; its recordings are closed."""


RECORDERS: dict[str, Callable[[torch.device], Any]] = {"cuda": CudaRecorder}
"""By the kind of a device."""


def records(backend: Backend) -> bool:
    """Whether there are recorders for a device."""
    return _kind(backend) in RECORDERS


def recorder_of(backend: Backend) -> Recorder:
    """A recorder for a device that has them."""
    made: Recorder = RECORDERS[_kind(backend)](backend.device)
    return made


def _kind(backend: Backend) -> str:
    return backend.name.partition(":")[0]
