"""Find the devices of this machine that the settings ask for. For CPU slots this does not import torch."""

from dataclasses import replace

import psutil

from argosy.cluster import Cluster, Device, Node
from argosy.errors import PlanError
from argosy.running.launch.limits import usable_cores
from argosy.settings import Settings

__all__ = ["parse_devices", "discover", "make_node"]


def discover(settings: Settings) -> Cluster:
    """Return this machine as a cluster: one node, ``local``, or several that share its cores, ``node0``, ``node1``, …

    Each node gets the CPU slots asked for (``cpu``, ``cpu:2``), or an equal part of the accelerators (``cuda``,
    ``cuda:0,1``).
    """
    cores, count = usable_cores(), settings.nodes
    kind, numbers = parse_devices(settings, default=_default_kind() if settings.devices is None else "cpu")
    if kind == "cpu":
        share = numbers[0] if numbers else max(cores // settings.threads // count, 1)
        devices = [_cpu_slots(share, nodes=count) for _ in range(count)]
    else:
        devices = _deal_devices(_accelerators(kind, numbers), count)
    if count == 1:
        return Cluster(nodes=(Node(name="local", devices=devices[0], cores=cores),))
    return Cluster(nodes=tuple(make_node(f"node{number}", mine, cores // count) for number, mine in enumerate(devices)))


def parse_devices(settings: Settings, *, default: str = "cpu") -> tuple[str, tuple[int, ...]]:
    """Return the requested kind of devices and the numbers after it: a count for ``cpu``, indices for others, or nothing."""
    kind, _, which = (default if settings.devices is None else settings.devices).partition(":")
    if which and not all(number.isdecimal() for number in which.split(",")):
        raise PlanError(f"--devices {kind}:{which} cannot be read; write cpu, cpu:2, cuda or cuda:0,1.")
    return kind, tuple(map(int, which.split(","))) if which else ()


def make_node(name: str, devices: tuple[Device, ...], cores: int) -> Node:
    """Return one of several nodes, with the node's name in the names of its devices."""
    named = tuple(replace(device, name=f"{name}/{device.name}", node=name) for device in devices)
    return Node(name=name, devices=named, cores=max(cores, 1))


def _deal_devices(devices: tuple[Device, ...], nodes: int) -> list[tuple[Device, ...]]:
    share, rest = divmod(len(devices), nodes)
    if rest:
        raise PlanError(
            f"{len(devices)} devices cannot be distributed evenly over {nodes} nodes; choose another number with "
            "--devices."
        )
    return [devices[number * share : (number + 1) * share] for number in range(nodes)]


def _cpu_slots(count: int, *, nodes: int) -> tuple[Device, ...]:
    if count < 1:
        raise PlanError(
            f"--devices cpu:{count} has no device to train on; choose at least one slot, for example cpu:1."
        )
    share = psutil.virtual_memory().total // (count * nodes)
    return tuple(Device(name=f"cpu:{i}", node="local", kind="cpu", memory_bytes=share) for i in range(count))


def _default_kind() -> str:
    from argosy.training.device.devices import default_kind  # which imports torch

    return default_kind()


def _accelerators(kind: str, wanted: tuple[int, ...]) -> tuple[Device, ...]:
    from argosy.training.device.devices import backend_class  # which imports torch

    hardware = backend_class(kind).hardware(kind)
    numbers = wanted or tuple(range(len(hardware)))
    missing = [number for number in numbers if number >= len(hardware)]
    if missing or not numbers:
        raise PlanError(
            f"--devices {kind}:{','.join(map(str, missing)) or '0'} is not available: this machine shows "
            f"{len(hardware)} such devices to this process. Choose others."
        )
    return tuple(
        Device(name=f"{kind}:{i}", node="local", kind=hardware[i].name, memory_bytes=hardware[i].memory_bytes)
        for i in numbers
    )
