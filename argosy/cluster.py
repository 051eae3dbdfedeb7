"""Nodes and devices to train on, as plain values that planners, simulators and real runs share."""

import re
from dataclasses import dataclass, replace

from argosy.errors import PlanError

__all__ = ["Cluster", "Device", "Node"]

_UNIT_BYTES = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}
_SHORTHAND = re.compile(r"(\d+)x(\d+)x(\d+(?:\.\d+)?)(MB|MiB|GB|GiB)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One GPU, or one CPU slot: a core that trains with one thread."""

    name: str
    """Unique in the cluster: ``cpu:0``, ``cuda:1``; with several nodes ``node1/cuda:1``."""
    node: str
    kind: str
    """``cpu`` or the name of the GPU; profiles are comparable between devices of one kind."""
    memory_bytes: int

    def __post_init__(self) -> None:
        if self.memory_bytes <= 0:
            raise PlanError(f"device {self.name!r} has {self.memory_bytes} bytes of memory; it must be greater than 0.")

    @property
    def torch_name(self) -> str:
        """The name inside its node, as torch spells it."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One host: the devices that share its memory."""

    name: str
    devices: tuple[Device, ...]
    cores: int
    """Cores that this run may use (affinity and cgroup quota)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Every node of a run, in a fixed order."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if not names:
            raise PlanError(
                "the cluster has no device. Choose at least one, for example --devices cpu:1 or --devices cuda:0."
            )
        if len(set(names)) != len(names):
            raise PlanError(f"the cluster's devices are named {', '.join(sorted(names))}. Give each a unique name.")

    @classmethod
    def parse(cls, text: str, *, kind: str = "gpu", cores: int = 16) -> "Cluster":
        """Return a hypothetical cluster from its description: nodes x devices per node x memory per device.

        >>> len(Cluster.parse("2x4x80GB").devices)
        8
        """
        match = _SHORTHAND.fullmatch(text.strip())
        if not match or not int(match[1]) or not int(match[2]):
            raise PlanError(
                f"cannot read the cluster {text!r}. Write nodes x devices per node x memory per device, for example 2x4x80GB."
            )
        memory = int(float(match[3]) * _UNIT_BYTES[match[4]])
        return cls.uniform(nodes=int(match[1]), node_devices=int(match[2]), memory_bytes=memory, kind=kind, cores=cores)

    @classmethod
    def uniform(cls, *, nodes: int, node_devices: int, memory_bytes: int, kind: str, cores: int) -> "Cluster":
        """Return equal nodes with equal devices, named ``node0/cuda:0`` and so on."""

        def node(name: str) -> Node:
            devices = tuple(
                Device(name=f"{name}/cuda:{slot}", node=name, kind=kind, memory_bytes=memory_bytes)
                for slot in range(node_devices)
            )
            return Node(name=name, devices=devices, cores=cores)

        return cls(nodes=tuple(node(f"node{number}") for number in range(nodes)))

    def times(self, factor: int) -> "Cluster":
        """Return a cluster with `factor` times every node; the copies of ``node0`` are ``node0+1``, ``node0+2``, …"""

        def copied(node: Node, copy: int) -> Node:
            name = f"{node.name}+{copy}" if copy else node.name
            devices = (replace(d, name=f"{name}/{d.torch_name}" if copy else d.name, node=name) for d in node.devices)
            return replace(node, name=name, devices=tuple(devices))

        return Cluster(nodes=tuple(copied(node, copy) for copy in range(factor) for node in self.nodes))

    def without(self, node: str) -> "Cluster":
        """Return the cluster without a node."""
        return Cluster(nodes=tuple(other for other in self.nodes if other.name != node))

    def beside(self, node: Node) -> "Cluster":
        """Return the cluster with another node."""
        return Cluster(nodes=(*self.nodes, node))

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices, node by node."""
        return tuple(device for node in self.nodes for device in node.devices)

    def device(self, name: str) -> Device:
        """Return the device with this name; raises PlanError if there is none."""
        for device in self.devices:
            if device.name == name:
                return device
        raise PlanError(
            f"unknown device {name!r} in this cluster; choose one of {', '.join(d.name for d in self.devices)}."
        )
