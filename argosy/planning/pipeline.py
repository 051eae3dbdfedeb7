"""Choice of the pipeline by which the nodes of a cluster share one stream, based on measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Choice", "Exchange", "Needs", "choose_pipeline"]

NEAR_BEST = 0.95
"""Fraction of the best rate; among the pipelines that reach it, the one with the least CPU time is chosen."""
HEADROOM = 1.5
"""Factor by which there are more loader workers than the measured rates require."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """Measurements of one pipeline."""

    sharing: str
    preparing: int
    """Number of nodes that prepare."""
    bytes_per_second: float
    """Rate at which every node receives the stream."""
    cpu_seconds_per_byte: float
    """CPU time of all nodes together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """The costs of preparation, and the demand of training."""

    nodes: int
    cores: int
    """Cores of each node."""
    preparation_seconds: float
    """CPU time of one sample, on one core."""
    sample_bytes: int
    demand_samples_per_second: float
    """Pace at which the members could train if they never waited for blocks (SC'18's r_c)."""
    training_cpu_seconds: float
    """CPU time that training takes on a node per sample of the stream; 0 if devices are not CPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A pipeline, and the reason for its choice."""

    sharing: str
    preparing: int
    loader_workers: int
    """Number of loader workers on each preparing node."""
    samples_per_second: float
    """Rate at which every node can be fed, limited to what the members take."""
    reason: str


def choose_pipeline(needs: Needs, exchanges: Sequence[Exchange]) -> Choice:
    """Return the cheapest of the pipelines that are about as fast as the fastest.

    A node's cores prepare its part of the samples and, if devices are CPUs, also train. Three rates limit a pipeline: n·r_p, which
    n nodes can prepare together (SC'18 §III); the bandwidth of the exchange; and the demand of the members.
    """
    local = Exchange(sharing="local", preparing=needs.nodes, bytes_per_second=math.inf, cpu_seconds_per_byte=0.0)
    rated = [(_rate(needs, exchange), _cpu_seconds(needs, exchange), exchange) for exchange in (local, *exchanges)]
    best = max(rate for rate, _, _ in rated)
    rate, _, chosen = min((one for one in rated if one[0] >= NEAR_BEST * best), key=lambda one: (one[1], -one[0]))
    return Choice(
        sharing=chosen.sharing,
        preparing=chosen.preparing,
        loader_workers=_loader_workers(needs, chosen, rate),
        samples_per_second=rate,
        reason=_explain_choice(needs, rated, chosen),
    )


def _prepared_share(exchange: Exchange) -> float:
    """Return the fraction of the stream's samples that one preparing node prepares."""
    return 1.0 if exchange.sharing == "local" else 1.0 / exchange.preparing


def _rate(needs: Needs, exchange: Exchange) -> float:
    busy = needs.preparation_seconds * _prepared_share(exchange) + needs.training_cpu_seconds
    prepared = needs.cores / busy if busy else math.inf
    return min(needs.demand_samples_per_second, prepared, exchange.bytes_per_second / max(needs.sample_bytes, 1))


def _cpu_seconds(needs: Needs, exchange: Exchange) -> float:
    """Return the CPU time per sample of the stream on all nodes together, without training."""
    prepared = needs.nodes if exchange.sharing == "local" else 1
    return prepared * needs.preparation_seconds + exchange.cpu_seconds_per_byte * needs.sample_bytes


def _loader_workers(needs: Needs, exchange: Exchange, rate: float) -> int:
    if needs.training_cpu_seconds:
        # Trainers use the same cores, so a worker gets only a part of a core; start the maximum number.
        return needs.cores
    wanted = math.ceil(HEADROOM * rate * needs.preparation_seconds * _prepared_share(exchange))
    return min(max(wanted, 1), needs.cores)


def _explain_choice(needs: Needs, rated: Sequence[tuple[float, float, Exchange]], chosen: Exchange) -> str:
    if needs.nodes == 1:
        return "one node"
    alone = f"{1 / needs.preparation_seconds:,.0f} samples/s a core" if needs.preparation_seconds else "at no cost"
    feeds = ", ".join(
        f"{exchange.sharing} of {exchange.preparing} would feed {rate:,.0f} at {1e3 * cpu:.2f} ms of CPU each"
        for rate, cpu, exchange in rated
    )
    links = [exchange for _, _, exchange in rated if exchange is chosen and math.isfinite(exchange.bytes_per_second)]
    links = links or [exchange for _, _, exchange in rated[1:2]]
    carried = "".join(
        f", {link.sharing} carries {link.bytes_per_second / 1e6:,.0f} MB/s of samples of {needs.sample_bytes:,} bytes"
        for link in links
    )
    return (
        f"{needs.nodes} nodes of {needs.cores} core{'s' * (needs.cores > 1)} prepare {alone}, members could take "
        f"{needs.demand_samples_per_second:,.0f} samples/s{carried}; {feeds}"
    )
