"""Events of a run, as values. A journaled one becomes one line (`argosy.running.directory.lines`)."""

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
"""How the reason begins of a run that its time limit has paused."""
REFUSED = "refused: "
"""Prefix of the answer to a command for which nothing was done."""


def _check_lengths(lengths: Mapping[str, int]) -> None:
    if "train" not in lengths:
        raise ValueError("lengths lacks train")


class Event(Message):
    """Base of everything that is journaled."""


class RunStarted(Event):
    """A driver took the run directory."""

    host: str
    pid: int
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    lengths: Annotated[Mapping[str, int], _check_lengths]
    """Samples of each split."""
    validations_per_epoch: Positive = 1
    devices: tuple[Mapping[str, Any], ...] = ()
    """Each as `argosy.cluster.Device` has it."""
    preparation_samples_per_second: float | None = None
    """Rate at which all of them prepare together; None where it is not known, or where their cores train as well."""
    opening_seconds: float = 0.0
    """Time that a feeder took to open the data, as each further one does."""


class Profiled(Event):
    """Costs of members that a plan places for the first time; later plans use what was observed since."""

    profiles: tuple[Mapping[str, Any], ...]
    """Each as `argosy.profiles.Profile` has it."""
    epochs: Mapping[str, int]
    """Epochs until their limits, of members that have one."""
    sure: tuple[str, ...]
    """Members that certainly train until their limits."""


class PlanMade(Event):
    """A plan was made, and its flotillas start."""

    plan: Mapping[str, Any]


class PolicyAnswered(Event):
    """The policy was asked where members train, or whether they stay; a run that takes over choices of this one gets the same answer."""

    question: str
    """Digest of all that the policy was asked, but for measured times."""
    keeps: bool = False
    """Whether all stay where they are."""
    flotillas: tuple[tuple[tuple[Name, tuple[str, ...], tuple[float, ...]], ...], ...] = ()
    """What is started, where that was asked: (member, devices, shares of each of them; none are even ones)."""


class SearchBegan(Event):
    """A driver searches under these terms from here on."""

    terms: Mapping[str, Any]


class Proposed(Event):
    """A trial of a search: what its member is built from."""

    trial: int
    """Number of the trial, from 0."""
    member: Name
    """Name of the member, and of the trial."""
    parameters: Mapping[str, Any]
    members: tuple[Name, ...] = ()
    """Members that train for it where they are several, as folds; `member` is then the one that they repeat."""
    sections: int | None = None
    """Sections that the member trains, where the trial begins anew with each of its budgets: one event for each."""
    in_step: bool = False
    """Whether the member's epochs are those of the stream, whenever it joins; for trials that begin anew they are in any case."""
    own_epochs: float | None = None
    """Epochs after which the member's own rule ends it at the latest; None where it has none, or knows no bound."""


class Constrained(Event):
    """What the constraints of a search say of a trial at its best section so far."""

    member: Name
    """Name of the trial, as in `Proposed`."""
    values: tuple[float, ...]
    """One for each constraint; above 0 where the trial breaks it."""


class SharingChosen(Event):
    """The pipeline by which the nodes share the stream from here on."""

    sharing: str
    preparing: int
    """Nodes that prepare."""
    loader_workers: int
    """Loader workers that are enough on each of them."""
    reason: str
    """What was measured, or where it was set."""


class Assigned(Event):
    """Stream epochs that members train on, journaled before any process acts on it.

    From its own epoch on, a member's epochs are this stream epoch and those that follow, until it is assigned others.
    """

    members: Mapping[Name, tuple[int, int]]
    """(own epoch, stream epoch) of each."""


class Divided(Event):
    """A member's steps are divided into so many micro-batches from here on: its device has too little memory for fewer."""

    member: Name
    accumulate: int


class Split(Event):
    """These devices carry a member together from here on; with one device it is whole again."""

    member: Name
    devices: tuple[str, ...]
    """In the order of their ranks."""
    shares: tuple[float, ...]
    """Part of every batch that each of them takes."""


class MemberStarted(Event):
    """A trainer holds the member and steps it from this position."""

    member: Name
    device: str
    epoch: int
    section: int
    """Finished sections of that epoch."""
    stream_epoch: int
    position: int
    threads: int
    mkldnn: bool
    notes: tuple[str, ...] = ()
    """What is unusual about it: private copies, NumPy's random state."""
    parameters: int = 0
    """Numbers that its network's parameters consist of."""


class Checkpoint(Event):
    """A file below the member's folder, proved by its sum."""

    file: Name
    sha256: str
    epoch: int
    """Epochs finished before it was written."""
    section: int
    """Finished sections of the epoch after these."""
    position: int
    """Elements of the member's sequence of that epoch that it has finished."""
    carried: int = 0
    """Elements after these that the file itself holds, of a batch that is not full yet."""
    again: int = 0
    """Elements before `position` that the stream has to bring again, of a window that is not finished."""
    best: Name | None = None
    """File with the weights of the best section so far; None where no section has ended."""
    best_sha256: str | None = None

    @property
    def reaches(self) -> int:
        """Elements of the sequence that the stream need not bring to a member that goes on from this file."""
        return self.position + self.carried - self.again


class Cloned(Event):
    """A member begins as a copy of another one, but for some hyper-parameters."""

    member: Name
    source: Name
    changes: Mapping[str, tuple[Any, Any]]
    """By name, as ``optimizer.lr``: the source's value and the clone's."""
    checkpoint: Checkpoint | None
    """The source's checkpoint that it begins with; None where it begins from nothing."""


class SectionEnded(Event):
    """A member finished a section of an epoch, validation included."""

    member: Name
    device: str
    epoch: int
    section: int
    """Number within the epoch, from 0."""
    stream_epoch: int
    position: int
    """Elements of its sequence of the epoch that it has stepped on."""
    metrics: Mapping[str, float]
    """Training means over the epoch so far, validation means of this section."""
    epochs: float
    """Finished epochs with this section, as 0.25."""
    seconds: float
    """Time in the member's own steps and validation of this section."""
    samples: int
    """Samples of this section that were stepped on."""
    digest: tuple[int, int, int]
    """Count, Σ mix64(index), Σ mix64(position·C ⊕ index) of what it stepped on in the epoch so far."""
    val_digest: tuple[int, int, int] | None
    best: bool
    """Whether its objective is the best so far."""
    steps: int = 0
    """Optimizer steps since the member's beginning."""


class EnsembleChosen(Event):
    """All members that train are through so many sections, and the study's ensemble was chosen anew."""

    section: int
    """Sections that each member has ended, of its own; members that ended before count with those that they have."""
    weights: Mapping[Name, float]
    """Of all that could be chosen, by its best section so far; 0 for those that were not. They sum to one."""
    useful: tuple[Name, ...]
    """Members that are in it, in one that is chosen from a random half of them, or on their way to it, as `EnsemblePlateau` says."""
    loss: float | None
    """On the samples that it was chosen on: mean negative log-likelihood, or mean squared error; None where no member could be chosen."""
    held_out: float | None
    """The same on the samples that it was not chosen on; None where there are none."""


class Saved(Event):
    """A member was saved."""

    member: Name
    checkpoint: Checkpoint
    seconds: float = 0.0
    """Its part of the time to write files together."""
    leg: int = 0
    """Number of the leg in which it was assigned; 0 where that leg is over."""


class MemberRested(Event):
    """A member left its device, and is on disk only until it comes back; or it goes on elsewhere."""

    member: Name
    reason: str


class MemberEnded(Event):
    """A member leaves the run. Status: done, stopped, failed, diverged, or paused (the same command resumes the run)."""

    member: Name
    status: str
    reason: str


class Retried(Event):
    """Members that had failed wait again: the user has fixed what made them fail."""

    members: tuple[Name, ...]


class BeganAnew(Event):
    """Members begin from nothing, as if they had never trained."""

    members: Mapping[str, str]
    """By name, where in the run's directory the files of their earlier beginning are kept."""


class Fed(Event):
    """A feeder sent the last block of one split's section."""

    leg: int
    split: str
    epoch: int
    section: int
    samples: int
    """Samples prepared for this section since the leg began, holes among them."""


class Passed(Event):
    """All assignments of a leg are through a section: what was predicted when it began, and what came of it."""

    leg: int
    epoch: int
    section: int
    """Section of the stream's epoch; the last one, where several were passed at once."""
    samples: int
    """Samples of the stream that it had on this leg."""
    seconds: float
    """Time since all were through the section before."""
    predicted_seconds: float
    stepping: Mapping[str, float]
    """By device: time in its members' own steps and validation. The rest it waited, saved, or changed its assignment."""
    planning_seconds: float
    """Time that the policy took, since the last section of any leg."""
    changing_seconds: float
    """Time until newly assigned members were ready, the files that they moved in included."""


class Discarded(Event):
    """A feeder threw away what it had prepared ahead: the stream went on elsewhere, or ended."""

    split: str
    epoch: int
    section: int
    samples: int


class DataOpened(Event):
    """A driver's first feeder opened the data."""

    keeping: Mapping[str, str]
    """By split, what is kept of its prepared samples, or why nothing is, in words; none for arrays."""
    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By split, the lengths of the shards of a stream that is not kept, on which the order of its samples depends."""


class ShardsRead(Event):
    """How far the shards of a stream that is not kept were read, where the block begins in which members were saved."""

    epoch: int
    """Epoch of the stream."""
    start: int
    """Element of the epoch's order at which the block begins."""
    marks: tuple[tuple[int, int, int, int, str], ...]
    """Each the fields of `argosy.protocol.feeder.ShardMark`."""


class Skipped(Event):
    """A sample raised and left a hole in one epoch; reported before any trainer gets its block."""

    split: str
    epoch: int
    index: int
    error: str


class WorkerLost(Event):
    """A worker ended without a last message, or made no progress; its members go on from their newest checkpoints."""

    worker: str
    """Name of the worker, after its node's where there are several nodes."""
    detail: str
    suspects: tuple[Name, ...] = ()
    """Members of which one may have made its device unusable; their next trainer is careful with them."""


class NodeCame(Event):
    """A node joined after the driver began, and can be used."""

    node: str
    devices: tuple[Mapping[str, Any], ...]
    """Each as `argosy.cluster.Device` has it."""


class Recovered(Event):
    """The way in which the members of a lost trainer go on, where others shared its stream."""

    worker: str
    members: tuple[Name, ...]
    way: str
    """apart: on a stream of their own; meet: so until the others wait for them; back: all go back to their newest files."""
    costs: Mapping[str, float]
    """Seconds that all members would lose by each way, by the planner's figures."""


class Answered(Event):
    """A command file was read, once."""

    file: str
    command: Mapping[str, Any]
    answer: str

    @property
    def refused(self) -> bool:
        """Whether nothing was done."""
        return self.answer.startswith(REFUSED)


class Used(Event):
    """A worker's gauges and CPU seconds at its end."""

    worker: str
    cpu_seconds: float
    gauge: Annotated[Mapping[str, Any], check_gauge]


class RunEnded(Event):
    """The driver left. Status: done, or paused."""

    status: str
    reason: str
    seconds: float
    cpu_seconds: float = 0.0
    """User and system time of the driver and of all its descendants."""
    joules: Mapping[str, float] = field(default_factory=dict)
    """Energy of the whole machine meanwhile, by the meter that counts it; empty where there is none."""
