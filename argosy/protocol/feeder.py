"""What the driver says to feeders, and what they answer apart from journaled events: values only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Credit",
    "Feed",
    "Flowing",
    "Held",
    "Hold",
    "Leg",
    "Open",
    "Opened",
    "Parted",
    "Probe",
    "Probed",
    "Team",
    "UseLoaders",
]


@dataclass(frozen=True, kw_only=True)
class Open:
    """To a feeder: open the data; answered by Opened."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """From a feeder: the data is there."""

    address: str
    """Where trainers get blocks."""
    lengths: Mapping[str, int]
    fingerprints: Mapping[str, str]
    """Of each split."""
    block_size: int
    seconds_per_sample: float
    """Of one core that prepares a sample, seen on a few; 0 where blocks are gathered from arrays."""
    opening_seconds: float
    """That it took until now, from when it was told to."""


@dataclass(frozen=True, kw_only=True)
class Leg:
    """Where a stretch of the stream begins that one flotilla reads.

    Sections of the stream are numbered through: with k of them an epoch, section n is number n mod k of epoch n div k.
    """

    number: int
    """Grows."""
    section: int
    """The first."""
    position: int
    """Element of its epoch's order at which the section begins here: its own first one, or another where members go on."""

    @classmethod
    def empty(cls) -> "Leg":
        """No stream at all."""
        return cls(number=-1, section=0, position=0)


@dataclass(frozen=True, kw_only=True)
class Team:
    """The feeders that share a leg, one a node, as one of them sees it."""

    sharing: str | None
    """Name of the pipeline; None to measure those that there are."""
    preparing: int
    """Nodes that prepare, the first of the team; between 1 and ``nodes``."""
    rank: int
    nodes: int
    key: str
    """Of this leg alone."""
    rendezvous: str
    """Where the exchanges of the team find each other."""


@dataclass(frozen=True, kw_only=True)
class Feed:
    """To a feeder: prepare this leg instead of what was before; within `Credit` alone it is announced."""

    leg: Leg
    team: Team | None = None
    """None for a feeder that prepares every block itself."""


@dataclass(frozen=True, kw_only=True)
class Credit:
    """To a feeder: announce a leg's blocks up to a section, to these readers, once all of them are connected."""

    leg: int
    until: int
    """The first section that may not be announced."""
    horizon: int | None
    """The first section that nobody will want; None where that is not known. So far blocks are prepared ahead."""
    assignments: Mapping[str, int]
    """Readers, by name, and the number of the assignment that each of them has from the first block on that is announced now."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """To a feeder: announce nothing beyond the section that is begun; answered by Held."""

    leg: int
    multiple: int
    """Only a section whose number is a multiple of this may be the first that is held: k for the ends of epochs."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """From a feeder: the first section that it does not announce, and that no reader has seen a block of."""

    leg: int
    until: int


@dataclass(frozen=True, kw_only=True)
class Probe:
    """To a feeder: measure what it costs to prepare and to exchange blocks; answered by Probed, or Parted."""

    team: Team


@dataclass(frozen=True, kw_only=True)
class Probed:
    """From a feeder: what sharing costs between the nodes of its team."""

    cpu_seconds_per_sample: float
    """Of preparation, over the samples that it has prepared so far."""
    sample_bytes: int
    exchanges: tuple[tuple[str, int, float, float], ...]
    """(pipeline, preparing nodes, bytes of the stream per second, CPU seconds of this node per byte)."""


@dataclass(frozen=True, kw_only=True)
class UseLoaders:
    """To a feeder: so many loader workers are enough."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Parted:
    """From a feeder: the exchange with the other nodes broke."""

    team: str
    """Key of the team that it was in."""
    detail: str


@dataclass(frozen=True, kw_only=True)
class Flowing:
    """From a feeder, about once a second: its gauge."""

    gauge: Mapping[str, Any]
