"""Messages between the driver and trainers, apart from journaled events, and from launchers about any worker: values only."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from argosy.cluster import Node
from argosy.protocol.events import Checkpoint, Event
from argosy.protocol.message import Message
from argosy.protocol.packs import Chosen, Packed

__all__ = [
    "Attach",
    "Assign",
    "Broke",
    "Came",
    "DevicePoisoned",
    "Enlist",
    "Exit",
    "Failed",
    "GroupRank",
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
    "StartMember",
    "SumsTimed",
    "TimeSums",
]


class Attach(Message):
    """Message to a trainer: read blocks from this feeder. The launcher sends both an end of a connection."""

    feeder: str


class Enlist(Message):
    """Message to a trainer: definitions of members, once for each."""

    definitions: bytes
    """Pickled: a tuple of Member."""
    sources: Mapping[str, str]
    """Source text by file of what is pickled by value, for tracebacks."""
    path: tuple[str, ...]
    """Where the modules that they name are found."""
    imported: Mapping[str, Sequence[str]]
    """Digests of what they reach in the user's modules, which each process imports for itself."""


class Measure(Message):
    """Message to a trainer: measure these members on the next training block; answered by Measured for each.

    With the number of an assignment, they are measured on its first block, which is kept until the next `Assign`.
    """

    assignment: int | None
    members: tuple[str, ...]
    accumulate: Mapping[str, int]
    """Micro-batches of members that need more than their own number."""
    thorough: bool = False
    """Whether to measure as FLEET does (48 batches, of which the last 20 count), instead of 5 steps or 30 ms."""
    groups: int = 1
    """Largest group measured: groups of 2 … so many devices, by the steps of one shard, where the member may be split."""


class Measured(Message):
    """Message from a trainer: what one member costs and what it is."""

    member: str
    samples_per_second: float
    shard_seconds: tuple[float, ...]
    """Seconds of a step on one of m even shares of the batch, m = 2, 3, …"""
    memory_bytes: int
    activation_bytes: int
    """The part of the memory that lives only during a step."""
    state_bytes: int
    gradient_bytes: int
    """Bytes that an all-reduce would carry."""
    parameter_shapes: str
    """Digest of the names and shapes of its parameters: part of a study's identity on disk."""
    batch_norm: bool
    """Whether it has BatchNorm that a batch of one sample is too small for."""
    whole: str
    """Why it may not be split over devices; empty where it may, or where that was not asked."""
    notes: tuple[str, ...]
    """What is unusual about it, in the words of `argosy.training.choice.measure`."""


class TimeSums(Message):
    """Message to a trainer: form a group with the others and measure how long its sums take; answered by SumsTimed."""

    rendezvous: str
    rank: int
    size: int


class SumsTimed(Message):
    """Message from a trainer: seconds of a sum of next to nothing, and of one of 4 MiB; infinite where no group was formed."""

    short_seconds: float
    long_seconds: float


class GroupRank(Message):
    """A device's place among those that carry one member."""

    rank: int
    """Rank of the device; the first one evaluates, saves and reports."""
    shares: tuple[float, ...]
    """Each rank's part of every batch."""
    number: int
    """Number of the member in the study."""
    rendezvous: str
    """Where the ranks meet, for this start alone."""


class StartMember(Message):
    """The state in which one member starts."""

    member: str
    epoch: int
    """Its own epoch that it goes on in, or begins."""
    stream_epoch: int
    """Stream epoch that it trains on in that epoch."""
    checkpoint: Checkpoint | None
    accumulate: int
    """Micro-batches per step: the member's own number, or more where its device has too little memory."""
    notes: tuple[str, ...]
    group_rank: GroupRank | None = None
    """None for a member that this device alone carries."""
    changes: Mapping[str, tuple[Any, Any]] | None = None
    """For a clone that starts from its source's file: by name, the hyper-parameter there and here. None where the file is its own."""
    packed: Packed | None = None
    """Programs that stepped it and members like it, where that was chosen."""
    chosen: tuple[Chosen, ...] = ()
    """What earlier runs chose for it and members like it: taken instead of measured."""
    careful: tuple[int, int] | None = None
    """For a member that may have made a device unusable: the last (epoch, section) that it had ended then. Until it has ended a
    later one, its trainer waits for the device after each piece of members' code, and makes no program of several or captured."""


class Assign(Message):
    """Message to a trainer: from the first block of this assignment on, step without members that leave and with those that start."""

    assignment: int
    """Number of the assignment: grows. A block of an earlier assignment is dropped, one of a later assignment waits for its `Assign`."""
    leave: tuple[str, ...] = ()
    """Members to save and unassign at once; answered in a `SectionReport` by Saved and MemberRested for each. Ranks but the
    first only unassign them."""
    start: tuple[StartMember, ...] = ()


class Unassign(Message):
    """Message to a trainer: save and unassign these members after the current step; answered as for `Assign.leave`."""

    members: tuple[str, ...]


class SectionReport(Message):
    """Message from a trainer: what is to be journaled, in one message for the whole assignment."""

    events: tuple[Event, ...]
    section: int | None = None
    """The section of the stream that ends with this."""
    answers: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)
    """By member whose section is its best so far, what it answers to the validation samples, as `argosy.training.member.answers` has it;
    only where the study has an ensemble."""


class Journaled(Message):
    """Message to a trainer, in answer to Saved: these files are journaled, older ones of the members may be deleted."""

    files: Mapping[str, str]
    """File by member."""


class Save(Message):
    """Message to a trainer: write files at the end of the next section, however long the last ones took."""


class Pause(Message):
    """Message to a trainer: save and unassign every member after the current step; answered by a `SectionReport`, then Paused."""


class Paused(Message):
    """Message from a trainer: no member is assigned to it any more."""


class Exit(Message):
    """Message to any worker: answer with Used and end."""


class OutOfMemory(Message):
    """Message from a trainer: the device could not hold the member, which is dropped without being saved."""

    member: str
    detail: str
    batch_norm: bool
    """Whether it has BatchNorm; known of one that ran out of memory while it was measured."""
    freed: bool
    """Whether samples that stayed on the device were freed for it meanwhile, so that it may fit as it is."""


class Broke(Message):
    """Message from a trainer: a member's group broke, and the member stands still until the driver decides about it."""

    member: str
    detail: str


class Progress(Message):
    """Message from a trainer, a few times a second, also while it waits for data: where its members are."""

    blocks: int
    """Blocks taken since the trainer's start."""
    samples: Mapping[str, int]
    """Training samples of each assigned member since it was assigned."""
    losses: Mapping[str, float]
    """Mean training loss of the current epoch, of members that have stepped in it."""
    gauge: Mapping[str, float]
    """Gauge of the trainer, as `argosy.stream.gauges.TrainerGauge` has it."""


class DevicePoisoned(Message):
    """Last message from a trainer whose process can no longer use its device, as after a failed assertion of a kernel."""

    detail: str
    members: tuple[str, ...]
    """Members of which one is certainly the cause; empty where the trainer cannot tell."""


class Failed(Message):
    """Message from any worker: it cannot go on. The error ends the run."""

    error: Exception


class Lost(Message):
    """Message from a launcher: a worker ended without a last message."""

    detail: str
    node_gone: bool = False
    """Whether nothing can be started any more on its node."""


class Came(Message):
    """Message from a launcher: a node that can be used from here on."""

    node: Node
