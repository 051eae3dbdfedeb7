"""The seam between the driver and the places where workers run: how a worker starts, gets commands, and is lost.

A launcher is one file with two classes: where to run (`Launcher`), and the workers of one run (`Workers`).
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psutil

from argosy.cluster import Cluster, Device, Node
from argosy.errors import PlanError
from argosy.planning import policy_called
from argosy.running.launch.limits import usable_cores
from argosy.settings import Settings
from argosy.stream.heartbeat import Heartbeat
from argosy.study import Member, Study
from argosy.training.device.devices import default_kind, kind_of
from argosy.training.device.process_state import ProcessState

__all__ = ["Job", "Launcher", "Workers", "devices_asked", "discover", "node_of"]


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

    def start_feeder(self, name: str, node: str) -> None:
        """Start a feeder on a node; it answers as soon as it runs."""

    def start_trainer(self, name: str, node: str) -> None:
        """Start the trainer of the named device, which is a device of the node."""

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


def discover(settings: Settings) -> Cluster:
    """Return this machine as a cluster: one node, ``local``, or several that share its cores, ``node0``, ``node1``, …

    Each node gets the CPU slots asked for (``cpu``, ``cpu:2``), or an equal part of the accelerators (``cuda``,
    ``cuda:0,1``).
    """
    cores, count = usable_cores(), settings.nodes
    kind, numbers = devices_asked(settings, default=default_kind() if settings.devices is None else "cpu")
    if kind == "cpu":
        share = numbers[0] if numbers else max(cores // settings.threads // count, 1)
        devices = [_cpu_slots(share, nodes=count) for _ in range(count)]
    else:
        devices = _dealt(_accelerators(kind, numbers), count)
    if count == 1:
        return Cluster(nodes=(Node(name="local", devices=devices[0], cores=cores),))
    return Cluster(nodes=tuple(node_of(f"node{number}", mine, cores // count) for number, mine in enumerate(devices)))


def devices_asked(settings: Settings, *, default: str = "cpu") -> tuple[str, tuple[int, ...]]:
    """Return the kind of devices asked for, and the numbers after it: a count for ``cpu``, else indices; or none."""
    kind, _, which = (default if settings.devices is None else settings.devices).partition(":")
    if which and not all(number.isdecimal() for number in which.split(",")):
        raise PlanError(f"--devices {kind}:{which} cannot be read; write cpu, cpu:2, cuda or cuda:0,1.")
    return kind, tuple(map(int, which.split(","))) if which else ()


def node_of(name: str, devices: tuple[Device, ...], cores: int) -> Node:
    """Return one of several nodes, with its devices renamed after it."""
    named = tuple(replace(device, name=f"{name}/{device.name}", node=name) for device in devices)
    return Node(name=name, devices=named, cores=max(cores, 1))


def _dealt(devices: tuple[Device, ...], nodes: int) -> list[tuple[Device, ...]]:
    share, rest = divmod(len(devices), nodes)
    if rest:
        raise PlanError(
            f"{len(devices)} devices cannot be dealt to {nodes} nodes evenly; choose others with --devices."
        )
    return [devices[number * share : (number + 1) * share] for number in range(nodes)]


def _cpu_slots(count: int, *, nodes: int) -> tuple[Device, ...]:
    if count < 1:
        raise PlanError(f"--devices cpu:{count} is no device to train on; give at least one slot, as in cpu:1.")
    share = psutil.virtual_memory().total // (count * nodes)
    return tuple(Device(name=f"cpu:{i}", node="local", kind="cpu", memory_bytes=share) for i in range(count))


def _accelerators(kind: str, asked: tuple[int, ...]) -> tuple[Device, ...]:
    there = kind_of(kind).hardware(kind)
    numbers = asked or tuple(range(len(there)))
    missing = [number for number in numbers if number >= len(there)]
    if missing or not numbers:
        raise PlanError(
            f"--devices {kind}:{','.join(map(str, missing)) or '0'} cannot be had: this machine shows {len(there)} of them to "
            "this process. Choose others."
        )
    return tuple(
        Device(name=f"{kind}:{i}", node="local", kind=there[i].name, memory_bytes=there[i].memory_bytes)
        for i in numbers
    )
