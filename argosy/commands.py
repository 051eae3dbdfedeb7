"""What the driver says to feeders and trainers, and what they answer apart from journaled events: values only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy.events import Checkpoint

__all__ = [
    "Attach",
    "Continue",
    "Exit",
    "Failed",
    "Feed",
    "Flowing",
    "Journaled",
    "Leg",
    "Lost",
    "Measure",
    "Measured",
    "Open",
    "Opened",
    "OutOfMemory",
    "Parted",
    "Pause",
    "Paused",
    "Probe",
    "Probed",
    "Progress",
    "StartMember",
    "Stop",
    "Team",
    "Train",
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
    fingerprint: str
    block_size: int
    seconds_per_sample: float
    """Of one core that prepares a sample, seen on a few; 0 where blocks are gathered from arrays."""


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A stretch of the stream that one flotilla reads: from a position in an epoch to the end of another."""

    number: int
    """Grows. Blocks carry it: trainers drop those of an earlier leg, and keep one of a later leg until they are told of it."""
    epoch: int
    position: int
    """Elements of the epoch's order that are left out at the start."""
    until: int | None
    """The first epoch that is not wanted; None where nobody knows."""

    @classmethod
    def empty(cls) -> "Leg":
        """No stream at all."""
        return cls(number=-1, epoch=0, position=0, until=0)


@dataclass(frozen=True, kw_only=True)
class Team:
    """The feeders that share a leg, one a node, as one of them sees it."""

    sharing: str | None
    """Name of the pipeline; None to measure those that there are."""
    preparing: int
    """Nodes that prepare, the first of the team; between 1 and ``nodes``."""
    rank: int
    nodes: int
    meeting: tuple[str, int]
    """Host and port where the couriers of the team find each other."""
    key: str
    """Of the team's names there; of this leg alone."""


@dataclass(frozen=True, kw_only=True)
class Feed:
    """To a feeder: send this leg to these readers, once all of them are connected."""

    leg: Leg
    readers: tuple[str, ...]
    team: Team | None = None
    """None for a feeder that prepares every block itself."""


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


@dataclass(frozen=True, kw_only=True)
class Attach:
    """To a trainer: read blocks from this feeder."""

    address: str


@dataclass(frozen=True, kw_only=True)
class Measure:
    """To a trainer: measure these members on the first block of this leg; answered by Measured for each."""

    leg: int
    members: tuple[str, ...]
    accumulate: Mapping[str, int]
    """Micro-batches of members that need more than their own number."""
    thorough: bool = False
    """As FLEET measures (48 batches, of which the last 20 count), instead of 5 steps or 30 ms."""
    groups: int = 1
    """Data-parallel groups of 2 … so many devices are measured too, by the steps of one of their shards."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """From a trainer: what one member costs and what it is."""

    member: str
    samples_per_second: float
    shard_seconds: tuple[float, ...]
    """Seconds of a step on one of m even shares of the batch, m = 2, 3, …"""
    memory_bytes: int
    activation_bytes: int
    """The part of it that lives only during a step."""
    state_bytes: int
    gradient_bytes: int
    """What an all-reduce would carry."""
    parameter_shapes: str
    """Digest of the names and shapes of its parameters: part of a study's identity on disk."""
    batch_norm: bool
    notes: tuple[str, ...]
    """What is unusual about it: `PRIVATE`, `NUMPY_RANDOM`."""


@dataclass(frozen=True, kw_only=True)
class StartMember:
    """Where one member begins."""

    member: str
    stream_epoch: int
    checkpoint: Checkpoint | None
    best: str | None
    """File of its best epoch so far, which is kept."""
    accumulate: int
    """Micro-batches per step: the member's own number, or more where its device has too little memory."""
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Train:
    """To a trainer: step these members, in this order, on the blocks of this leg."""

    leg: int
    members: tuple[StartMember, ...]


@dataclass(frozen=True, kw_only=True)
class Journaled:
    """To a trainer, in answer to Saved: the checkpoint is journaled, older ones may go."""

    member: str
    file: str


@dataclass(frozen=True, kw_only=True)
class Continue:
    """To a trainer, in answer to EpochEnded: the checkpoint is journaled, the member goes on."""

    member: str
    best: bool
    """Whether this epoch is the member's best."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """To a trainer, in answer to EpochEnded: the checkpoint is journaled, the member is done."""

    member: str
    best: bool


@dataclass(frozen=True, kw_only=True)
class Pause:
    """To a trainer: save every member where it is and let it go; answered by Saved for each, then Paused."""


@dataclass(frozen=True, kw_only=True)
class Paused:
    """From a trainer: it carries no member any more."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """To any worker: answer with Used and end."""


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """From a trainer: the device could not hold the member, which is dropped without being saved."""

    member: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """From a trainer, a few times a second, also while it waits for data: where its members are."""

    blocks: int
    """Blocks taken since the trainer's start."""
    samples: Mapping[str, int]
    """Training samples of each member since the trainer's start."""
    losses: Mapping[str, float]
    """Mean training loss of the epoch at hand."""
    gauge: Mapping[str, float]
    """Of the trainer, as `argosy.stream.gauges.TrainerGauge` has it."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """From any worker: it cannot go on. The error ends the run."""

    error: Exception
    traceback: str


@dataclass(frozen=True, kw_only=True)
class Lost:
    """From a launcher: a worker ended without a word."""

    detail: str


Message = Any
"""One of the values above, or a journaled event."""
