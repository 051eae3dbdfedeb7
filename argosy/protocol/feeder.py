"""Messages from the driver to feeders, and their answers other than journaled events."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from argosy.protocol.message import Message

__all__ = [
    "Credit",
    "Feed",
    "FeederProgress",
    "Held",
    "Hold",
    "Leg",
    "Lend",
    "ShardMark",
    "Open",
    "Opened",
    "Parted",
    "Probe",
    "Probed",
    "Team",
    "UseLoaders",
]


class Open(Message):
    """Message to a feeder: open the data; answered by Opened."""

    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By split: the lengths of its shards, if a feeder of an earlier driver has reported them."""


class Opened(Message):
    """Message from a feeder: the data is open."""

    lengths: Mapping[str, int]
    fingerprints: Mapping[str, str]
    """Fingerprint of each split."""
    block_size: int
    seconds_per_sample: float
    """Time that one core takes to prepare a sample, measured on a few; 0 if blocks are gathered from arrays."""
    opening_seconds: float
    """Time from the command until now."""
    keeping: Mapping[str, str]
    """By split: which of its prepared samples are kept, or why none are, in words."""
    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By split: the shard lengths of a stream that is not kept."""
    doubts: tuple[str, ...] = ()
    """Reasons why validation results may not be meaningful, as sentences."""


class Lend(Message):
    """Message from the launcher to a feeder, with the feeder's end of a connection: lend the ring to this trainer."""

    reader: str


class ShardMark(NamedTuple):
    """A point from which a shard can be read on, if its stream has the methods `state_dict` and `load_state_dict`."""

    shard: int
    row: int
    rows: int
    """Number of samples, from this row on, that verify the mark."""
    checksum: int
    """CRC-32 of the leaves of these samples."""
    state: str
    """The result of the stream's `state_dict` before it yielded this row, as JSON."""


class Leg(Message):
    """Start of the stretch of the stream that one flotilla reads.

    Sections are numbered through the whole stream: with k sections per epoch, section n is number n mod k of epoch n div k.
    """

    number: int
    """Number of the leg; later legs have higher numbers."""
    section: int
    """The first section."""
    position: int
    """Element of the epoch's order at which the leg begins: the section's first one, or a later one at which members continue."""
    marks: tuple[ShardMark, ...] = ()
    """Points from which shards can be read on, none of them after `position`."""

    @classmethod
    def empty(cls) -> "Leg":
        """Return a leg without a stream."""
        return cls(number=-1, section=0, position=0)


class Team(Message):
    """The feeders that share a leg, one per node, as described to one of them."""

    sharing: str | None
    """Name of the pipeline; None to measure all pipelines."""
    preparing: int
    """Number of nodes that prepare samples, the first ones of the team; between 1 and ``nodes``."""
    rank: int
    nodes: int
    key: str
    """Key of the team, used for this leg only."""
    rendezvous: str
    """Where the exchange processes of the team find each other."""


class Feed(Message):
    """Message to a feeder: prepare this leg instead of the previous one; announce its blocks only within `Credit`."""

    leg: Leg
    team: Team | None = None
    """None for a feeder that prepares every block itself."""


class Credit(Message):
    """Message to a feeder: announce a leg's blocks up to a section, to these readers, once all of them are connected."""

    leg: int
    until: int
    """The first section that may not be announced."""
    horizon: int | None
    """The first section that no member will train on; blocks are prepared ahead up to it. None if it is unknown."""
    assignments: Mapping[str, int]
    """By reader: the number of its assignment from the next announced block on."""


class Hold(Message):
    """Message to a feeder: announce nothing beyond the current section; answered by Held."""

    leg: int
    multiple: int
    """The number of the first held section must be a multiple of this: k to hold at the end of an epoch."""


class Held(Message):
    """Message from a feeder: the first section that it does not announce; no reader has seen a block of it."""

    leg: int
    until: int


class Probe(Message):
    """Message to a feeder: measure the cost of preparing and exchanging blocks; answered by Probed or Parted."""

    team: Team


class Probed(Message):
    """Message from a feeder: the cost of sharing between the nodes of its team."""

    cpu_seconds_per_sample: float
    """CPU time per sample, over the samples that it has prepared so far."""
    sample_bytes: int
    exchanges: tuple[tuple[str, int, float, float], ...]
    """(pipeline, preparing nodes, bytes of the stream per second, CPU seconds of this node per byte)."""


class UseLoaders(Message):
    """Message to a feeder: use only this many loader workers, which are enough."""

    count: int


class Parted(Message):
    """Message from a feeder: the exchange with the other nodes broke."""

    team: str
    """Key of the feeder's team."""
    detail: str


class FeederProgress(Message):
    """Message from a feeder, about once a second: its gauge."""

    gauge: Mapping[str, Any]
