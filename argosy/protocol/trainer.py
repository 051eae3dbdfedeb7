"""What the driver says to trainers, what they answer apart from journaled events, and what launchers tell of any worker: values only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy.cluster import Node
from argosy.protocol.events import Checkpoint, Event
from argosy.protocol.packs import Packed

__all__ = [
    "Attach",
    "Assign",
    "Broke",
    "Came",
    "Enlist",
    "Exit",
    "Failed",
    "Journaled",
    "Unassign",
    "Lost",
    "Measure",
    "Measured",
    "OutOfMemory",
    "Pause",
    "Paused",
    "Progress",
    "SectionReport",
    "Save",
    "Seat",
    "StartMember",
    "SumsTimed",
    "TimeSums",
]


@dataclass(frozen=True, kw_only=True)
class Attach:
    """To a trainer: read blocks from this feeder."""

    address: str


@dataclass(frozen=True, kw_only=True)
class Enlist:
    """To a trainer: what members are, once for each."""

    definitions: bytes
    """Pickled: a tuple of Member."""
    sources: Mapping[str, str]
    """Of what is pickled by value, for tracebacks: texts by file."""
    path: tuple[str, ...]
    """Where modules are found that they name."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """To a trainer: measure these members on the next training block; answered by Measured for each.

    With an assignment's number on the first block of that assignment, which is kept until the next `Assign`.
    """

    assignment: int | None
    members: tuple[str, ...]
    accumulate: Mapping[str, int]
    """Micro-batches of members that need more than their own number."""
    thorough: bool = False
    """As FLEET measures (48 batches, of which the last 20 count), instead of 5 steps or 30 ms."""
    groups: int = 1
    """Groups of 2 … so many devices are measured too, by the steps of one of their shards, where the member may be split."""


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
    """Whether it has BatchNorm that a batch of one sample is too small for."""
    whole: str
    """Why it may not be split over devices; empty where it may, or where that was not asked."""
    notes: tuple[str, ...]
    """What is unusual about it, in the words of `argosy.training.choice.measure`."""


@dataclass(frozen=True, kw_only=True)
class TimeSums:
    """To a trainer: form a group with the others and find out how long its sums take; answered by SumsTimed."""

    rendezvous: str
    rank: int
    size: int


@dataclass(frozen=True, kw_only=True)
class SumsTimed:
    """From a trainer: seconds of a sum of next to nothing, and of one of 4 MiB; infinite where no group came to be."""

    short_seconds: float
    long_seconds: float


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A device's place among those that carry one member."""

    rank: int
    """The first one evaluates, saves and reports."""
    shares: tuple[float, ...]
    """Part of every batch of each rank."""
    number: int
    """Of the member, in the study."""
    rendezvous: str
    """Where the ranks find each other: of this boarding alone."""


@dataclass(frozen=True, kw_only=True)
class StartMember:
    """Where one member begins."""

    member: str
    epoch: int
    """Its own epoch that it goes on in, or begins."""
    stream_epoch: int
    """Of that epoch."""
    checkpoint: Checkpoint | None
    accumulate: int
    """Micro-batches per step: the member's own number, or more where its device has too little memory."""
    notes: tuple[str, ...]
    seat: Seat | None = None
    """None for a member that this device alone carries."""
    changes: Mapping[str, tuple[Any, Any]] | None = None
    """Of a clone whose file is its source's: by name, the hyper-parameter there and here. None where the file is its own."""
    packed: Packed | None = None
    """Which programs stepped it and its like, where that was chosen."""


@dataclass(frozen=True, kw_only=True)
class Assign:
    """To a trainer: from the first block of this assignment on, without those that leave and with those that start."""

    assignment: int
    """Number of the assignment: grows. A block of an earlier assignment is dropped, one of a later assignment waits for its `Assign`."""
    leave: tuple[str, ...] = ()
    """Saved and let go at once; answered in a Report by Saved and MemberRested for each. Ranks but the first only let go."""
    start: tuple[StartMember, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Unassign:
    """To a trainer: save these members after the step at hand and let them go; answered like those of Board."""

    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SectionReport:
    """From a trainer: what is to be journaled, in one message for the whole assignment."""

    events: tuple[Event, ...]
    section: int | None = None
    """The section of the stream whose end this is."""


@dataclass(frozen=True, kw_only=True)
class Journaled:
    """To a trainer, in answer to Saved: these files are journaled, older ones of the members may go."""

    files: Mapping[str, str]
    """By member."""


@dataclass(frozen=True, kw_only=True)
class Save:
    """To a trainer: write files at the end of the next section, however long the last ones took."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """To a trainer: save every member after the step at hand and let it go; answered by a Report, then Paused."""


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
    batch_norm: bool
    """Whether it has BatchNorm, of one that ran out of it while it was measured."""


@dataclass(frozen=True, kw_only=True)
class Broke:
    """From a trainer: nothing comes any more of a member's group, and the member stands still until the driver says what
    becomes of it."""

    member: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """From a trainer, a few times a second, also while it waits for data: where its members are."""

    blocks: int
    """Blocks taken since the trainer's start."""
    samples: Mapping[str, int]
    """Training samples of each member aboard since it came aboard."""
    losses: Mapping[str, float]
    """Mean training loss of the epoch at hand, of members that have stepped in it."""
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
    node_gone: bool = False
    """Whether nothing can be started any more on its node."""


@dataclass(frozen=True, kw_only=True)
class Came:
    """From a launcher: a node that can be used from here on."""

    node: Node
