"""The seam between the driver and the places where workers run: how a worker starts, gets commands, and is lost.

A launcher is one file with two classes: where to run (`Launcher`), and the workers of one run (`Workers`).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from argosy.cluster import Cluster
from argosy.planning import policy_called
from argosy.settings import Settings
from argosy.stream.heartbeat import Heartbeat
from argosy.study import Member, Study
from argosy.training.device.process_state import ProcessState

__all__ = ["Job", "Launcher", "Workers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What workers have to know about a run."""

    study: Study
    settings: Settings
    directory: Path
    lock: int
    """Descriptor of the run's lock, which workers hold as long as they live."""
    process_state: ProcessState = field(default_factory=ProcessState.here)
    """State of the process that asks for the run, which holds in all of its workers."""

    def __post_init__(self) -> None:
        policy_called(self.settings.policy)  # fail before anything is started


class Workers(Protocol):
    """The workers of one run. No method blocks on a worker."""

    side_by_side: ClassVar[bool]
    """Whether trainers step at the same time, so that they can wait for one another."""

    def start(self, name: str, role: str, node: str) -> None:
        """Start a ``feeder`` or ``trainer`` on a node; it answers as soon as it runs. A trainer has the name of its device."""

    def send(self, worker: str, command: Any) -> None:
        """Send a command to a worker; kept until the next `receive`, and until the worker is there."""

    def kill(self, worker: str) -> None:
        """End a worker that does not answer; it is then reported as `Lost`."""

    def enlist(self, worker: str, members: tuple[Member, ...]) -> None:
        """Tell a trainer what these members are; raises StudyError for one that cannot be sent to it."""

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """Send what is kept, then return (worker, message) of all messages received, after at most so many seconds.

        A worker that is gone is reported by `Lost`. What a batch of messages leads to is held back until the caller
        comes again, so it may be on disk by then.
        """

    def rendezvous(self) -> str:
        """Return an unused address where workers that exchange tensors find each other (`argosy.stream.rendezvous`)."""

    def heartbeat(self, worker: str) -> Heartbeat | None:
        """Return the heartbeat of a worker, from its first moment on; None if it is gone or cannot be read."""

    def cpu_seconds(self, worker: str) -> float:
        """Return CPU seconds of a worker and its children, to compare with earlier ones: they stand still if it hangs.

        Their reads and writes count as well, one second for 100 MB. 0.0 if unknown.
        """

    def __enter__(self) -> "Workers": ...

    def __exit__(self, *error: object) -> None:
        """Leave no process behind."""


class Launcher(Protocol):
    """A kind of place where workers can run."""

    def discover(self, settings: Settings) -> Cluster:
        """Return the nodes and devices of this place."""

    def open(self, job: Job) -> Workers:
        """Get ready to start the workers of a job."""

    def close(self) -> None:
        """Release what was prepared and not used."""
