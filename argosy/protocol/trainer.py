"""Messages between the driver and trainers other than journaled events, and messages of launchers about any worker."""

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
    """Message to a trainer: read blocks from this feeder. The launcher sends each of them one end of a connection."""

    feeder: str


class Enlist(Message):
    """Message to a trainer: definitions of members, each sent once."""

    definitions: bytes
    """A pickled tuple of Member."""
    sources: Mapping[str, str]
    """Source text, by file, of code that is pickled by value; for tracebacks."""
    path: tuple[str, ...]
    """Folders in which the modules that the definitions name are found."""
    imported: Mapping[str, Sequence[str | tuple[float, float]]]
    """Digests of the code, and sketches of the arrays, that they use from the user's modules, which each process imports for itself."""


class Measure(Message):
    """Message to a trainer: measure these members on the next training block; answered by Measured for each.

    If the number of an assignment is given, they are measured on its first block, which is kept until the next `Assign`.
    """

    assignment: int | None
    members: tuple[str, ...]
    accumulate: Mapping[str, int]
    """Micro-batches per step, of members that need more than their own number."""
    thorough: bool = False
    """Whether to measure as FLEET does (48 batches, of which the last 20 count), instead of 5 steps or 30 ms."""
    groups: int = 1
    """Largest group to measure. Groups of 2 up to this many devices are measured by the steps of one shard, if the member may be split."""


class Measured(Message):
    """Message from a trainer: costs and properties of one member."""

    member: str
    samples_per_second: float
    shard_seconds: tuple[float, ...]
    """Seconds of a step on one of m equal shares of the batch, for m = 2, 3, …"""
    memory_bytes: int
    activation_bytes: int
    """The part of `memory_bytes` that is used only during a step."""
    state_bytes: int
    gradient_bytes: int
    """Bytes that an all-reduce would carry."""
    parameter_shapes: str
    """Digest of the names and shapes of its parameters, a part of the study's identity on disk."""
    batch_norm: bool
    """Whether it has BatchNorm for which a batch of one sample is too small."""
    whole: str
    """Why it may not be split over devices; empty if it may, or if this was not asked."""
    notes: tuple[str, ...]
    """What is unusual about the member, as worded by `argosy.training.choice.measure`."""
    if_divided: str = ""
    """What else is unusual about it if its batches are divided into micro-batches after this."""


class TimeSums(Message):
    """Message to a trainer: form a group with the others and measure how long its sums take; answered by SumsTimed."""

    rendezvous: str
    rank: int
    size: int


class SumsTimed(Message):
    """Message from a trainer: seconds of a nearly empty sum and of one of 4 MiB; infinite if no group was formed."""

    short_seconds: float
    long_seconds: float


class GroupRank(Message):
    """A device's place among those that carry one member."""

    rank: int
    """Rank of the device; rank 0 evaluates, saves and reports."""
    shares: tuple[float, ...]
    """Each rank's part of every batch."""
    number: int
    """Number of the member in the study."""
    rendezvous: str
    """Where the ranks find each other, used for this start only."""


class StartMember(Message):
    """The state in which one member starts."""

    member: str
    epoch: int
    """The member's own epoch that it continues or begins."""
    stream_epoch: int
    """The stream epoch that it trains on in that epoch."""
    checkpoint: Checkpoint | None
    accumulate: int
    """Micro-batches per step: the member's own number, or more if its device has too little memory."""
    notes: tuple[str, ...]
    group_rank: GroupRank | None = None
    """None for a member that is not split."""
    changes: Mapping[str, tuple[Any, Any]] | None = None
    """For a clone that starts from its source's file: by name, the source's and the clone's value. None if the file is its own."""
    packed: Packed | None = None
    """Programs that stepped it and similar members, if they were chosen."""
    chosen: tuple[Chosen, ...] = ()
    """Choices of earlier runs for it and similar members, used instead of measuring."""
    careful: tuple[int, int] | None = None
    """For a member that may have made a device unusable: the last (epoch, section) that it had finished then. Until it has finished a
    later one, its trainer waits for the device after each piece of members' code, and uses no captured program or program of several members."""


class Assign(Message):
    """Message to a trainer: from this assignment's first block on, step without the leaving members and with the starting ones."""

    assignment: int
    """Number of the assignment, which increases. Blocks of earlier assignments are dropped; a block of a later one waits for its `Assign`."""
    leave: tuple[str, ...] = ()
    """Members to save and unassign at once; answered in a `SectionReport` by Saved and MemberRested for each. Only rank 0
    saves; other ranks just unassign."""
    start: tuple[StartMember, ...] = ()


class Unassign(Message):
    """Message to a trainer: save and unassign these members after the current step; answered as for `Assign.leave`."""

    members: tuple[str, ...]


class SectionReport(Message):
    """Message from a trainer: events to journal, in one message for the whole assignment."""

    events: tuple[Event, ...]
    section: int | None = None
    """The section of the stream that ends with this report."""
    answers: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)
    """By member whose section is its best so far: its answers, in the form of `argosy.training.member.answers`; only if the study
    has an ensemble."""


class Journaled(Message):
    """Message to a trainer, in answer to Saved: these files are journaled, so older files of the members may be deleted."""

    files: Mapping[str, str]
    """File by member."""


class Save(Message):
    """Message to a trainer: write files at the end of the next section, however long the last files took."""


class Pause(Message):
    """Message to a trainer: save and unassign every member after the current step; answered by a `SectionReport`, then Paused."""


class Paused(Message):
    """Message from a trainer: no member is assigned to it any more."""


class Exit(Message):
    """Message to any worker: answer with Used and end."""


class OutOfMemory(Message):
    """Message from a trainer: the device has too little memory for the member, which is dropped without being saved."""

    member: str
    detail: str
    batch_norm: bool
    """Whether the member has BatchNorm; known only if it ran out of memory while it was measured."""
    freed: bool
    """Whether samples or built members on the device were freed meanwhile, so that the member may fit unchanged."""


class Broke(Message):
    """Message from a trainer: a member's group broke; the member is not stepped until the driver decides about it."""

    member: str
    detail: str


class Progress(Message):
    """Message from a trainer, a few times a second, also while it waits for data: the progress of its members."""

    samples: Mapping[str, int]
    """By member: training samples since it was assigned."""
    losses: Mapping[str, float]
    """By member that has stepped in the current epoch: mean training loss of this epoch."""
    gauge: Mapping[str, float]
    """Gauge of the trainer, with the fields of `argosy.stream.gauges.TrainerGauge`."""


class DevicePoisoned(Message):
    """Last message from a trainer whose process can no longer use its device, for example after a failed assertion in a kernel."""

    detail: str
    members: tuple[str, ...]
    """Members, one of which is certainly the cause; empty if the trainer cannot tell."""


class Failed(Message):
    """Message from any worker: it cannot continue. The error ends the run."""

    error: Exception


class Lost(Message):
    """Message from a launcher: a worker ended without a last message."""

    detail: str
    node_gone: bool = False
    """Whether its node is gone, so that nothing can be started there."""


class Came(Message):
    """Message from a launcher: a node has joined and can be used."""

    node: Node
