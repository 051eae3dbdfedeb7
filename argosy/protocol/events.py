"""Events of a run. Each journaled event becomes one line (`argosy.running.directory.journal`)."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from argosy.disk.json_values import Name, Positive
from argosy.protocol.gauges import check_gauge
from argosy.protocol.message import Message

__all__ = [
    "Answered",
    "Assigned",
    "BeganAnew",
    "Checkpoint",
    "Cloned",
    "Constrained",
    "DataOpened",
    "EnsembleChosen",
    "Discarded",
    "Divided",
    "Event",
    "Fed",
    "MemberEnded",
    "MemberRested",
    "MemberStarted",
    "NodeCame",
    "Passed",
    "PlanMade",
    "PolicyAnswered",
    "Profiled",
    "Proposed",
    "OUT_OF_TIME",
    "REFUSED",
    "Recovered",
    "Retried",
    "RunEnded",
    "RunStarted",
    "Saved",
    "SearchBegan",
    "SectionEnded",
    "ShardsRead",
    "SharingChosen",
    "Skipped",
    "Split",
    "Used",
    "WorkerLost",
]

OUT_OF_TIME = "time limit"
"""Prefix of the reason of a run that its time limit has paused."""
REFUSED = "refused: "
"""Prefix of the answer to a command for which nothing was done."""


def _check_lengths(lengths: Mapping[str, int]) -> None:
    if "train" not in lengths:
        raise ValueError("lengths lacks train")


class Event(Message):
    """Base class of everything that is journaled."""


class RunStarted(Event):
    """A driver took the run directory."""

    host: str
    pid: int
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    lengths: Annotated[Mapping[str, int], _check_lengths]
    """Number of samples in each split."""
    validations_per_epoch: Positive = 1
    devices: tuple[Mapping[str, Any], ...] = ()
    """Each with the fields of `argosy.cluster.Device`."""
    preparation_samples_per_second: float | None = None
    """Rate at which all devices together prepare samples; None if it is unknown, or if their cores train as well."""
    opening_seconds: float = 0.0
    """Time that a feeder took to open the data; expected of each further feeder."""


class Profiled(Event):
    """Costs of members that a plan places for the first time; later plans use observed rates."""

    profiles: tuple[Mapping[str, Any], ...]
    """Each with the fields of `argosy.profiles.Profile`."""
    epochs: Mapping[str, int]
    """Epochs until the limit, of members that have one."""
    sure: tuple[str, ...]
    """Members that certainly train until their limits."""


class PlanMade(Event):
    """A plan was made, and its flotillas start."""

    plan: Mapping[str, Any]


class PolicyAnswered(Event):
    """The policy was asked where members train, or whether they stay; a run that reuses this run's choices gets the same answer."""

    question: str
    """Digest of the policy's whole input except measured times."""
    keeps: bool = False
    """Whether all members stay on their devices."""
    flotillas: tuple[tuple[tuple[Name, tuple[str, ...], tuple[float, ...]], ...], ...] = ()
    """The flotillas to start, if that was asked: (member, devices, share of each device; no shares means equal ones)."""


class SearchBegan(Event):
    """A driver searches under these terms from here on."""

    terms: Mapping[str, Any]


class Proposed(Event):
    """A search proposed a trial: the parameters that its member is built from."""

    trial: int
    """Number of the trial, from 0."""
    member: Name
    """Name of the member, and of the trial."""
    parameters: Mapping[str, Any]
    members: tuple[Name, ...] = ()
    """Members of the trial if there are several, for example one per fold; `member` is then the one that they repeat."""
    sections: int | None = None
    """Sections that the member trains, if the trial begins anew with each of its budgets: then each budget has its own event."""
    in_step: bool = False
    """Whether the member's epochs are those of the stream, whenever it joins; always true for trials that begin anew."""
    own_epochs: float | None = None
    """Epochs after which the member's own rule ends it at the latest; None if it has no rule, or the rule has no bound."""


class Constrained(Event):
    """Values of a search's constraints for a trial, at its best section so far."""

    member: Name
    """Name of the trial, as in `Proposed`."""
    values: tuple[float, ...]
    """One for each constraint; above 0 if the trial violates it."""


class SharingChosen(Event):
    """The pipeline by which the nodes share the stream from here on."""

    sharing: str
    preparing: int
    """Number of nodes that prepare samples."""
    loader_workers: int
    """Number of loader workers that each of these nodes needs."""
    reason: str
    """The measurements, or where the pipeline was set."""


class Assigned(Event):
    """Stream epochs that members train on, journaled before any process acts on it.

    From its own epoch on, a member's epochs are this stream epoch and those that follow, until it is assigned others.
    """

    members: Mapping[Name, tuple[int, int]]
    """(own epoch, stream epoch) of each."""


class Divided(Event):
    """From here on a member's steps are divided into this many micro-batches: its device has too little memory for fewer."""

    member: Name
    accumulate: int


class Split(Event):
    """From here on these devices carry a member together; with one device the member is no longer split."""

    member: Name
    devices: tuple[str, ...]
    """In rank order."""
    shares: tuple[float, ...]
    """Each device's part of every batch."""


class MemberStarted(Event):
    """A trainer has the member and steps it from this position."""

    member: Name
    device: str
    epoch: int
    section: int
    """Number of finished sections of that epoch."""
    stream_epoch: int
    position: int
    threads: int
    mkldnn: bool
    notes: tuple[str, ...] = ()
    """What is unusual about the member, for example private copies of blocks or use of NumPy's random state."""
    parameters: int = 0
    """Number of elements in the network's parameters."""


class Checkpoint(Event):
    """A file in the member's folder, verified by its hash."""

    file: Name
    sha256: str
    epoch: int
    """Number of finished epochs."""
    section: int
    """Number of finished sections of the next epoch."""
    position: int
    """Number of finished elements of the member's sequence in that epoch."""
    carried: int = 0
    """Number of elements after `position` that the file contains, of an incomplete batch."""
    again: int = 0
    """Number of elements before `position` that the stream has to deliver again, of an unfinished window."""
    best: Name | None = None
    """File with the weights of the best section so far; None if no section has ended."""
    best_sha256: str | None = None

    @property
    def reaches(self) -> int:
        """Number of elements that the stream need not deliver to a member that continues from this file."""
        return self.position + self.carried - self.again


class Cloned(Event):
    """A member begins as a copy of another one with some hyper-parameters changed."""

    member: Name
    source: Name
    changes: Mapping[str, tuple[Any, Any]]
    """By name, for example ``optimizer.lr``: the value with which the checkpoint was trained, which is the source's, and the clone's."""
    checkpoint: Checkpoint | None
    """The source's checkpoint that the clone begins with; None if it begins from nothing."""


class SectionEnded(Event):
    """A member finished a section of an epoch, validation included."""

    member: Name
    device: str
    epoch: int
    section: int
    """Number within the epoch, from 0."""
    stream_epoch: int
    position: int
    """Number of elements of its sequence in this epoch that it has stepped on."""
    metrics: Mapping[str, float]
    """Training means over the epoch so far, and validation means of this section."""
    epochs: float
    """Finished epochs including this section, for example 0.25."""
    seconds: float
    """Time in the member's own steps and validation of this section."""
    samples: int
    """Number of samples of this section that the member stepped on."""
    digest: tuple[int, int, int]
    """Count, Σ mix64(index), Σ mix64(position·C ⊕ index) over the samples that it stepped on in the epoch so far."""
    val_digest: tuple[int, int, int] | None
    best: bool
    """Whether its objective is the best so far."""
    steps: int = 0
    """Optimizer steps since the member began."""


class EnsembleChosen(Event):
    """All training members have finished this many sections, and the study's ensemble was chosen again."""

    section: int
    """Number of its own sections that each member has finished; members that ended earlier count with fewer."""
    weights: Mapping[Name, float]
    """Weights of all members that could be chosen, each at its best section so far; 0 if not chosen. They sum to one."""
    useful: tuple[Name, ...]
    """Members in the ensemble, in one chosen from a random half of them, or likely to enter it: see `EnsemblePlateau`."""
    loss: float | None
    """Mean negative log-likelihood or mean squared error on the samples that it was chosen on; None if no member could be chosen."""
    held_out: float | None
    """The same loss on the samples that it was not chosen on; None if there are none."""


class Saved(Event):
    """A member was saved."""

    member: Name
    checkpoint: Checkpoint
    seconds: float = 0.0
    """The member's part of the time to write several members' files together."""
    leg: int = 0
    """Number of the leg in which the member was assigned; 0 if that leg is over."""


class MemberRested(Event):
    """A member left its device. It is only on disk until it comes back, or continues on another device."""

    member: Name
    reason: str


class MemberEnded(Event):
    """A member leaves the run. Status: done, stopped, failed, diverged, or paused (the same command resumes the run)."""

    member: Name
    status: str
    reason: str


class Retried(Event):
    """Failed members wait for devices again: the user has fixed the cause."""

    members: tuple[Name, ...]


class BeganAnew(Event):
    """Members begin from nothing, as if they had never trained."""

    members: Mapping[str, str]
    """By name: the path in the run directory where the member's earlier files are kept."""


class Fed(Event):
    """A feeder sent the last block of one split's section."""

    leg: int
    split: str
    epoch: int
    section: int
    samples: int
    """Number of samples prepared for this section since the leg began, including holes."""


class Passed(Event):
    """All assignments of a leg have finished a section: the prediction made when it began, and the actual figures."""

    leg: int
    epoch: int
    section: int
    """Section of the stream's epoch; the last one if several were finished at once."""
    samples: int
    """Number of stream samples of the section on this leg."""
    seconds: float
    """Time since all assignments had finished the previous section."""
    predicted_seconds: float
    stepping: Mapping[str, float]
    """By device: time in its members' own steps and validation. In the rest it waited, saved, or changed its assignment."""
    planning_seconds: float
    """Time that the policy took since the last section of any leg."""
    changing_seconds: float
    """Time until newly assigned members were ready, including the files that they moved in."""


class Discarded(Event):
    """A feeder discarded samples that it had prepared ahead, because the stream continued elsewhere or ended."""

    split: str
    epoch: int
    section: int
    samples: int


class DataOpened(Event):
    """A driver's first feeder opened the data."""

    keeping: Mapping[str, str]
    """By split: which of its prepared samples are kept, or why none are, in words; empty for arrays."""
    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By split: the shard lengths of a stream that is not kept; the order of its samples depends on them."""


class ShardsRead(Event):
    """How far the shards of an uncached stream had been read at the start of the block in which members were saved."""

    epoch: int
    """Epoch of the stream."""
    start: int
    """Element of the epoch's order at which the block begins."""
    marks: tuple[tuple[int, int, int, int, str], ...]
    """Each with the fields of `argosy.protocol.feeder.ShardMark`."""


class Skipped(Event):
    """A sample raised an error and left a hole in one epoch; reported before any trainer gets its block."""

    split: str
    epoch: int
    index: int
    error: str


class WorkerLost(Event):
    """A worker ended without a last message, or made no progress; its members continue from their newest checkpoints."""

    worker: str
    """Name of the worker, preceded by its node's name if there are several nodes."""
    detail: str
    suspects: tuple[Name, ...] = ()
    """Members, one of which may have made the device unusable; their next trainer is careful with them."""


class NodeCame(Event):
    """A node joined after the driver started, and can be used."""

    node: str
    devices: tuple[Mapping[str, Any], ...]
    """Each with the fields of `argosy.cluster.Device`."""


class Recovered(Event):
    """How the members of a lost trainer continue, if other members shared its stream."""

    worker: str
    members: tuple[Name, ...]
    way: str
    """apart: on their own stream; meet: on their own stream until the others wait for them; back: all go back to their newest files."""
    costs: Mapping[str, float]
    """Seconds that all members together would lose, by way, according to the planner."""


class Answered(Event):
    """A command file was answered; each is answered once."""

    file: str
    command: Mapping[str, Any]
    answer: str

    @property
    def refused(self) -> bool:
        """Whether the command was refused, so that nothing was done."""
        return self.answer.startswith(REFUSED)


class Used(Event):
    """Gauge and CPU seconds of a worker at its end."""

    worker: str
    cpu_seconds: float
    gauge: Annotated[Mapping[str, Any], check_gauge]


class RunEnded(Event):
    """The driver ended. Status: done, or paused."""

    status: str
    reason: str
    seconds: float
    cpu_seconds: float = 0.0
    """User and system time of the driver and all its descendants."""
    joules: Mapping[str, float] = field(default_factory=dict)
    """Energy that the whole machine used during the run, by meter; empty if there is no meter."""
