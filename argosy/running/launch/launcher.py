"""The interface between the driver and the places where workers run: how a worker starts, gets commands, and is lost.

A launcher is one file with two classes: where to run (`Launcher`), and the workers of one run (`Workers`).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from argosy.cluster import Cluster
from argosy.planning import policy_by_name
from argosy.settings import Settings
from argosy.stream.heartbeat import Heartbeat
from argosy.study import Member, Study
from argosy.training.device.process_state import ProcessState

__all__ = ["Job", "Launcher", "Workers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Everything that workers have to know about a run."""

    study: Study
    settings: Settings
    directory: Path
    lock: int
    """Descriptor of the run's lock, which workers hold as long as they live."""
    process_state: ProcessState = field(default_factory=ProcessState.here)
    """State of the process that starts the run; all of its workers take it over."""

    def __post_init__(self) -> None:
        policy_by_name(self.settings.policy)  # fail before anything is started


class Workers(Protocol):
    """The workers of one run. No method blocks on a worker."""

    side_by_side: ClassVar[bool]
    """Whether trainers step at the same time, so that they can wait for each other."""

    def start(self, name: str, role: str, node: str) -> None:
        """Start a ``feeder`` or ``trainer`` on a node; it answers commands as soon as it runs. A trainer has the name of its device."""

    def send(self, worker: str, command: Any) -> None:
        """Send a command to a worker; it is kept until the next `receive`, and until the worker has started."""

    def kill(self, worker: str) -> None:
        """End a worker that does not answer; it is then reported as `Lost`."""

    def enlist(self, worker: str, members: tuple[Member, ...]) -> None:
        """Send a trainer the definitions of members; raises StudyError for one that cannot be sent."""

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """Send the kept commands, then return (worker, message) of all messages received, after at most `timeout` seconds.

        A lost worker is reported by `Lost`. Commands that follow from the returned messages are sent at the next call, so
        the caller can write its journal first.
        """

    def rendezvous(self) -> str:
        """Return an unused address where workers that exchange tensors find each other (`argosy.stream.rendezvous`)."""

    def heartbeat(self, worker: str) -> Heartbeat | None:
        """Return the heartbeat of a worker, available as soon as it is started; None if the worker is gone or cannot be read."""

    def cpu_seconds(self, worker: str) -> float:
        """Return CPU seconds of a worker and its children, which do not increase while it hangs.

        Reads and writes count as well, one second for 100 MB. Returns 0.0 if unknown.
        """

    def __enter__(self) -> "Workers": ...

    def __exit__(self, *error: object) -> None:
        """End all workers: no process is left behind."""


class Launcher(Protocol):
    """A place where workers can run."""

    def discover(self, settings: Settings) -> Cluster:
        """Return the nodes and devices of this place."""

    def open(self, job: Job) -> Workers:
        """Get ready to start the workers of a job."""

    def close(self) -> None:
        """Release everything that was prepared and not used."""
