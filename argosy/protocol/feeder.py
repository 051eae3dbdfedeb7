"""Messages from the driver to feeders, and their answers apart from journaled events: values only."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from argosy.protocol.message import Message

__all__ = [
    "Credit",
    "Feed",
    "Flowing",
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
    """By split, the lengths of its shards, where an earlier driver's feeder has told them."""


class Opened(Message):
    """Message from a feeder: the data is there."""

    lengths: Mapping[str, int]
    fingerprints: Mapping[str, str]
    """Fingerprint of each split."""
    block_size: int
    seconds_per_sample: float
    """Time that one core takes to prepare a sample, measured on a few; 0 where blocks are gathered from arrays."""
    opening_seconds: float
    """Time from the command until now."""
    keeping: Mapping[str, str]
    """By split, what is kept of its samples, or why nothing is, in words."""
    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By split, the lengths of the shards of a stream that is not kept."""
    doubts: tuple[str, ...] = ()
    """Why what members reach on validation samples may say little, in sentences."""


class Lend(Message):
    """Message to a feeder from the launcher, with its end of a connection: lend the ring to this trainer."""

    reader: str


class ShardMark(NamedTuple):
    """Where reading of a shard can go on, where its stream has the two methods `state_dict` and `load_state_dict`."""

    shard: int
    row: int
    rows: int
    """Number of samples, from this row on, that prove it."""
    checksum: int
    """CRC-32 of their leaves."""
    state: str
    """What the stream's `state_dict` said before it gave this row, as JSON."""


class Leg(Message):
    """Start of the stretch of the stream that one flotilla reads.

    Sections are numbered through the whole stream: with k of them an epoch, section n is number n mod k of epoch n div k.
    """

    number: int
    """Number of the leg; grows."""
    section: int
    """The first section."""
    position: int
    """Element of its epoch's order at which the section begins here: its own first one, or another where members go on."""
    marks: tuple[ShardMark, ...] = ()
    """Where reading of shards can go on, not behind the position."""

    @classmethod
    def empty(cls) -> "Leg":
        """Return a leg of no stream at all."""
        return cls(number=-1, section=0, position=0)


class Team(Message):
    """The feeders that share a leg, one a node, as one of them sees it."""

    sharing: str | None
    """Name of the pipeline; None to measure those that there are."""
    preparing: int
    """Nodes that prepare, the first of the team; between 1 and ``nodes``."""
    rank: int
    nodes: int
    key: str
    """Key of the team, for this leg alone."""
    rendezvous: str
    """Where the exchanges of the team find each other."""


class Feed(Message):
    """Message to a feeder: prepare this leg instead of the one before; it is announced only within `Credit`."""

    leg: Leg
    team: Team | None = None
    """None for a feeder that prepares every block itself."""


class Credit(Message):
    """Message to a feeder: announce a leg's blocks up to a section, to these readers, once all of them are connected."""

    leg: int
    until: int
    """The first section that may not be announced."""
    horizon: int | None
    """The first section that no member will want, up to which blocks are prepared ahead; None where that is not known."""
    assignments: Mapping[str, int]
    """By reader, the number of its assignment from the next announced block on."""


class Hold(Message):
    """Message to a feeder: announce nothing beyond the current section; answered by Held."""

    leg: int
    multiple: int
    """The number of the first section that is held must be a multiple of this: k for the ends of epochs."""


class Held(Message):
    """Message from a feeder: the first section that it does not announce, and that no reader has seen a block of."""

    leg: int
    until: int


class Probe(Message):
    """Message to a feeder: measure what it costs to prepare and to exchange blocks; answered by Probed, or Parted."""

    team: Team


class Probed(Message):
    """Message from a feeder: what sharing costs between the nodes of its team."""

    cpu_seconds_per_sample: float
    """CPU time of preparation, over the samples that it has prepared so far."""
    sample_bytes: int
    exchanges: tuple[tuple[str, int, float, float], ...]
    """(pipeline, preparing nodes, bytes of the stream per second, CPU seconds of this node per byte)."""


class UseLoaders(Message):
    """Message to a feeder: so many loader workers are enough."""

    count: int


class Parted(Message):
    """Message from a feeder: the exchange with the other nodes broke."""

    team: str
    """Key of the team that it was in."""
    detail: str


class Flowing(Message):
    """Message from a feeder, about once a second: its gauge."""

    gauge: Mapping[str, Any]
