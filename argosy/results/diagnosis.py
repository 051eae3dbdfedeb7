"""Find the stage of the stream that limits the run, by applying the rule of SC'18 (§III-C) to the gauges.

The stage between a full queue and an empty queue is the bottleneck. Queues stand before preparation, exchange and
training, in this order on every node, and all nodes move at one pace; so it is the last stage with a full queue before
it. A queue with more room than there are samples never fills, and one may fill while trainers start. A stage that is
clearly faster than another is therefore never the bottleneck, however full the queues are.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

__all__ = ["Diagnosis", "diagnose"]

SUMS = "prepared", "kept", "delivered", "exchanged_bytes", "busy_seconds", "filling_seconds", "preparation_cpu_seconds"
"""Counts and times that add up over the feeders of a node."""
FULL = 0.5
"""Smallest mean fill at which a queue counts as full."""
CLEAR_RATIO = 1.2
"""A stage with this many times another's rate is faster, and not the bottleneck."""
LEAST_SECONDS = 1e-9
"""Keeps rates finite where no time was measured."""
EARLY = 0.5
"""Seconds of preparation, and of training, before which rates and queues are not meaningful."""
WAITS = 0.25
"""Loader workers that compute for less than this share of their time wait for something other than a core."""
SLOW = 0.7
"""A node that prepares less than this fraction of the others' rate is slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFlow:
    """Counts and times of one node's part of the stream."""

    node: str
    cores: int
    loaders: int
    prepared: int
    kept: int
    """Samples read from the kept ones instead of being prepared."""
    delivered: int
    """Samples passed to its trainers."""
    exchanged_bytes: int
    seconds: float
    """Seconds spent feeding legs, excluding their start."""
    busy_seconds: float
    """Seconds with a sample in preparation."""
    filling_seconds: float
    """Seconds with a block on its way into the ring, prepared here or elsewhere."""
    preparation_cpu_seconds: float
    to_prepare: float
    """Mean fill of the queue before preparation, from 0 to 1; the next two likewise."""
    to_exchange: float
    to_train: float

    @classmethod
    def of(cls, node: str, gauges: Sequence[Mapping[str, Any]]) -> "NodeFlow":
        """Add up the gauges of the node's feeders, of which there may have been several."""
        total = sum(gauge["seconds"] for gauge in gauges)

        def mean(queue: str) -> float:
            return sum(g[queue]["mean"] * g["seconds"] for g in gauges) / total if total else 0.0

        return cls(
            node=node,
            cores=gauges[-1]["cores"],
            loaders=gauges[-1]["loaders"],
            seconds=total,
            to_prepare=mean("to_prepare"),
            to_exchange=mean("to_exchange"),
            to_train=mean("to_train"),
            **{name: sum(gauge.get(name, 0) for gauge in gauges) for name in SUMS},
        )

    def queues(self, stage: str) -> tuple[float, float | None]:
        """Return the mean fill of the queues before and behind a stage."""
        if stage == "training":
            return self.to_train, None
        if stage == "exchange":
            return self.to_exchange, self.to_train
        # If nothing is exchanged, training comes next.
        return self.to_prepare, self.to_exchange if self.exchanged_bytes else self.to_train

    @property
    def preparing_rate(self) -> float:
        """r_p of SC'18: samples/s that this node prepares or reads from the kept ones, in the time in which it does so."""
        return (self.prepared + self.kept) / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def core_rate(self) -> float:
        """Samples per CPU second of preparation."""
        return (self.prepared + self.kept) / self.preparation_cpu_seconds if self.preparation_cpu_seconds else 0.0

    @property
    def computing(self) -> float:
        """CPU seconds of preparation as a share of those available: a core per loader worker, if there are as many."""
        could = self.busy_seconds * min(max(self.loaders, 1), self.cores)
        return self.preparation_cpu_seconds / could if could else 0.0

    @property
    def peak_rate(self) -> float:
        """peak(n) of SC'18: samples/s that this node receives.

        Time in which trainers leave no room for them does not count.
        """
        return self.delivered / self.filling_seconds if self.filling_seconds else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The bottleneck of a run, or of a run so far."""

    stage: str
    """preparation, exchange or training."""
    node: str
    """Node of the bottleneck."""
    preparing_rate: float
    """Samples/s of all preparing nodes together: r_p of the slowest, times their number if they take turns."""
    taking_rate: float
    """r_c of SC'18, for the slowest device: samples/s of the stream while its members train or validate on them."""
    peak_rate: float
    """peak(n) of the node with the lowest one."""
    queue_before: float
    """Mean fill of the queue before the stage, from 0 to 1."""
    queue_behind: float | None
    """Mean fill of the queue behind it; None for training."""
    verdict: str
    """The stage, its figure, and what to change."""


def diagnose(gauges: Iterable[tuple[str, Mapping[str, Any]]]) -> Diagnosis | None:
    """Return the bottleneck, from (worker, gauge) of feeders and trainers; None if it is too early to tell.

    If there are several nodes, a worker's name begins with its node's. A node may have had several feeders, in turn.
    """
    feeders: dict[str, list[Mapping[str, Any]]] = {}
    paces = []
    for worker, gauge in gauges:
        if "to_train" in gauge:  # only feeders have this queue
            feeders.setdefault(worker.rpartition("/")[0] or "this node", []).append(gauge)
        elif gauge.get("rows"):
            paces.append(gauge["rows"] / max(gauge["busy_seconds"], LEAST_SECONDS))
    flows = [flow for flow in itertools.starmap(NodeFlow.of, feeders.items()) if flow.delivered]
    preparing = [flow for flow in flows if flow.preparing_rate]
    if not preparing or not paces or max(flow.seconds for flow in flows) < EARLY:
        return None
    stage, flow = _bottleneck(flows, preparing, min(paces))
    queue_before, queue_behind = flow.queues(stage)
    diagnosis = Diagnosis(
        stage=stage,
        node=flow.node,
        preparing_rate=_joint_rate(preparing),
        taking_rate=min(paces),
        peak_rate=min(flow.peak_rate for flow in flows),
        queue_before=queue_before,
        queue_behind=queue_behind,
        verdict="",
    )
    words = {"preparation": _preparation_verdict, "exchange": _exchange_verdict, "training": _training_verdict}
    return replace(diagnosis, verdict=words[stage](diagnosis, flow, preparing))


def _bottleneck(flows: Sequence[NodeFlow], preparing: Sequence[NodeFlow], taking_rate: float) -> tuple[str, NodeFlow]:
    fullest = max(flows, key=lambda flow: flow.to_train)
    behind = max(preparing, key=lambda flow: flow.to_prepare - flow.to_exchange)
    rates = {"preparation": _joint_rate(preparing), "training": taking_rate}
    where = {"preparation": behind, "exchange": behind, "training": fullest}
    if fullest.to_train >= FULL:
        stage = "training"
    elif behind.to_exchange >= FULL:
        # A node cannot receive samples faster than other nodes prepare them.
        stage, rates["exchange"] = "exchange", min(flow.peak_rate for flow in flows)
    else:
        stage = "preparation"
    slowest = min(rates, key=rates.__getitem__)
    stage = slowest if rates[stage] > CLEAR_RATIO * rates[slowest] else stage
    return stage, where[stage]


def _joint_rate(preparing: Sequence[NodeFlow]) -> float:
    """Return the samples/s that these nodes prepare together.

    If they exchange blocks, they take turns at the pace of the slowest node; otherwise each prepares every sample."""
    share = len(preparing) if any(flow.exchanged_bytes for flow in preparing) else 1
    return share * min(flow.preparing_rate for flow in preparing)


def _training_verdict(diagnosis: Diagnosis, flow: NodeFlow, preparing: Sequence[NodeFlow]) -> str:
    verdict = f"training: members take {diagnosis.taking_rate:,.0f} samples/s each, preparation could deliver {diagnosis.preparing_rate:,.0f}: "
    if diagnosis.preparing_rate > CLEAR_RATIO * diagnosis.taking_rate:
        return f"{verdict}more or faster devices would help, more loader workers would not"
    return f"{verdict}both are about equally fast, so more devices alone would not help"


def _exchange_verdict(diagnosis: Diagnosis, flow: NodeFlow, preparing: Sequence[NodeFlow]) -> str:
    sent = flow.exchanged_bytes / flow.seconds / 1e6
    verdict = (
        f"exchange: blocks cross the network at {sent:,.1f} MB/s, {diagnosis.peak_rate:,.0f} samples/s; preparation could "
        f"deliver {diagnosis.preparing_rate:,.0f} and members take {diagnosis.taking_rate:,.0f} each: send fewer bytes (uint8, with "
        "`Data.on_device` to normalise)"
    )
    # Each node would then prepare all samples.
    alone = min(node.preparing_rate for node in preparing)
    return (
        f"{verdict}, or prepare on every node (sharing='local')"
        if alone > CLEAR_RATIO * diagnosis.peak_rate
        else verdict
    )


def _preparation_verdict(diagnosis: Diagnosis, flow: NodeFlow, preparing: Sequence[NodeFlow]) -> str:
    rates = f"{diagnosis.preparing_rate:,.0f} samples/s in all, members could take {diagnosis.taking_rate:,.0f} each: "
    others = [other.preparing_rate for other in preparing if other is not flow]
    if others and flow.preparing_rate < SLOW * median(others):
        return (
            f"preparation: {rates}{flow.node} is slow, with {flow.preparing_rate:,.0f} samples/s against "
            f"{median(others):,.0f} of the others, and all wait for it: see what else runs there, or remove the node"
        )
    if flow.loaders and flow.computing < WAITS:
        return (
            f"preparation: {rates}the {flow.loaders} loader workers per node compute for {flow.computing:.0%} of the "
            "time that they could and wait for the rest, for example for files or a network: more of them would help "
            "(--loader-workers), even more than cores"
        )
    cores = sum(flow.cores for flow in preparing)
    verdict = (
        f"preparation: {flow.core_rate:,.0f} samples/s per core on {cores} cores, "
        if flow.core_rate
        else "preparation: "
    )
    if 0 < flow.loaders < flow.cores:
        return f"{verdict}{rates}more loader workers would help (--loader-workers; {flow.loaders} per node)"
    return (
        f"{verdict}{rates}more cores or nodes would help, or a cheaper dataset: what is the same in each epoch is "
        "prepared only once if random changes are made in Data(then=...)"
    )
