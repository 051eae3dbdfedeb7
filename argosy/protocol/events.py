"""What happens, as values. Journaled ones become one line each (`argosy.running.directory.lines`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from argosy.disk.json_values import Name, Positive
from argosy.protocol.gauges import check_gauge

__all__ = [
    "REFUSED",
    "Answered",
    "Assigned",
    "BeganAnew",
    "Checkpoint",
    "Cloned",
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
    "Profiled",
    "Proposed",
    "Recovered",
    "Retried",
    "RunEnded",
    "RunStarted",
    "Saved",
    "SearchBegan",
    "SectionEnded",
    "SharingChosen",
    "Skipped",
    "Split",
    "Used",
    "WorkerLost",
]

REFUSED = "refused: "
"""How an answer begins that nothing was done for."""


def _check_lengths(lengths: Mapping[str, int]) -> None:
    if "train" not in lengths:
        raise ValueError("lengths lacks train")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of everything that is journaled."""


@dataclass(frozen=True, kw_only=True)
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
    """Each as `argosy.cluster.Device` has it; none in journals of versions that did not write it."""
    preparation_samples_per_second: float | None = None
    """That all of them prepare together; None where nobody knows, or where their cores train as well."""
    opening_seconds: float = 0.0
    """That a feeder took to open the data, as each further one does."""


@dataclass(frozen=True, kw_only=True)
class Profiled(Event):
    """What members cost that plans meet for the first time; later ones go by what was seen since."""

    profiles: tuple[Mapping[str, Any], ...]
    """Each as `argosy.profiles.Profile` has it."""
    epochs: Mapping[str, int]
    """Until their limits, of members that have one."""
    sure: tuple[str, ...]
    """Those that surely train until there."""


@dataclass(frozen=True, kw_only=True)
class PlanMade(Event):
    """Flotillas start."""

    plan: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SearchBegan(Event):
    """A driver searches under these terms from here on."""

    terms: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Proposed(Event):
    """A trial of a search: what its member is built from."""

    trial: int
    """From 0."""
    member: Name
    """The trial's name as well."""
    parameters: Mapping[str, Any]
    members: tuple[Name, ...] = ()
    """Those that train for it where these are several, as folds; `member` is what they repeat then."""
    sections: int | None = None
    """For which the member trains, where the trial begins anew with each of its budgets: then it comes once for each."""
    in_step: bool = False
    """Whether the member's epochs are those of the stream, whenever it comes; those that begin anew are so in any case."""


@dataclass(frozen=True, kw_only=True)
class SharingChosen(Event):
    """How the nodes share the stream from here on."""

    sharing: str
    preparing: int
    """Nodes that prepare."""
    loader_workers: int
    """That are enough on each of them."""
    reason: str
    """What was measured, or who told."""


@dataclass(frozen=True, kw_only=True)
class Assigned(Event):
    """Which stream epochs members train on, journaled before anybody acts on it.

    From its own epoch on, a member's epochs are this stream epoch and those that follow, until it is assigned others.
    """

    members: Mapping[Name, tuple[int, int]]
    """(own epoch, stream epoch) of each."""


@dataclass(frozen=True, kw_only=True)
class Divided(Event):
    """A member's steps are divided into so many micro-batches from here on: its device has too little memory for fewer."""

    member: Name
    accumulate: int


@dataclass(frozen=True, kw_only=True)
class Split(Event):
    """These devices carry a member together from here on; with one device it is whole again."""

    member: Name
    devices: tuple[str, ...]
    """In the order of their ranks."""
    shares: tuple[float, ...]
    """Part of every batch that each of them takes."""


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Event):
    """A file below the member's folder, proved by its sum."""

    file: Name
    sha256: str
    epoch: int
    """Epochs finished before it was written."""
    section: int
    """Finished sections of the epoch after these."""
    position: int
    """Elements of the member's sequence of that epoch that are behind it."""
    carried: int = 0
    """Elements after these that the file holds itself, as a batch that is not full yet."""
    best: Name | None = None
    """File with the weights of the best section so far; None where no section has ended."""
    best_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cloned(Event):
    """A member is to be what another one is, but for some hyper-parameters."""

    member: Name
    source: Name
    changes: Mapping[str, tuple[Any, Any]]
    """By name, as ``optimizer.lr``: there and here."""
    checkpoint: Checkpoint | None
    """Of the other one, that it begins with; None where it begins from nothing."""


@dataclass(frozen=True, kw_only=True)
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
    """Of this section, those that were stepped on."""
    digest: tuple[int, int, int]
    """Count, Σ mix64(index), Σ mix64(position·C ⊕ index) of what it stepped on in the epoch so far."""
    val_digest: tuple[int, int, int] | None
    best: bool
    """Whether its objective is the best so far."""
    steps: int = 0
    """Of its optimizer since its beginning; 0 in journals of versions that did not write it."""


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """A member was saved."""

    member: Name
    checkpoint: Checkpoint
    seconds: float = 0.0
    """Its part of the time that files took which were written together; 0 in journals of versions that did not write it."""
    leg: int = 0
    """In which it was aboard, by the driver's number; 0 where that is over."""


@dataclass(frozen=True, kw_only=True)
class MemberRested(Event):
    """A member left its device, and is on disk only until it comes back; or it goes on elsewhere."""

    member: Name
    reason: str


@dataclass(frozen=True, kw_only=True)
class MemberEnded(Event):
    """A member leaves the run. Status: done, stopped, failed, diverged, or paused (the same command goes on)."""

    member: Name
    status: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Retried(Event):
    """Members that had failed wait again: a person has mended what they failed of."""

    members: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True)
class BeganAnew(Event):
    """Members begin from nothing, as if they had never trained."""

    members: Mapping[str, str]
    """By name, where in the run's directory the files of their earlier beginning are kept."""


@dataclass(frozen=True, kw_only=True)
class Fed(Event):
    """A feeder sent the last block of one split's section."""

    leg: int
    split: str
    epoch: int
    section: int
    samples: int
    """Prepared for this section since the leg began, holes among them."""


@dataclass(frozen=True, kw_only=True)
class Passed(Event):
    """All assignments of a leg are through a section: what was predicted of it when it began, and what came."""

    leg: int
    epoch: int
    section: int
    """Of the stream; the last one, where several were passed at once."""
    samples: int
    """Of the stream, that it had on this leg."""
    seconds: float
    """Since all were through the one before."""
    predicted_seconds: float
    stepping: Mapping[str, float]
    """By device: time in its members' own steps and validation. The rest it waited, saved, or changed its assignment."""
    planning_seconds: float
    """Of the policy, since the last section of any leg."""
    changing_seconds: float
    """Until members that came aboard were ready, files that they travelled in included."""


@dataclass(frozen=True, kw_only=True)
class Discarded(Event):
    """A feeder threw away what it had prepared ahead: the stream went on elsewhere, or ended."""

    split: str
    epoch: int
    section: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class Skipped(Event):
    """A sample raised and left a hole in one epoch; reported before any trainer gets its block."""

    split: str
    epoch: int
    index: int
    error: str


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Event):
    """A worker ended without a word, or made no progress; its members go on from their newest checkpoints."""

    worker: str
    """With its node's name before it, where there are several nodes."""
    detail: str


@dataclass(frozen=True, kw_only=True)
class NodeCame(Event):
    """A node can be used that was not there when the driver began."""

    node: str
    devices: tuple[Mapping[str, Any], ...]
    """Each as `argosy.cluster.Device` has it."""


@dataclass(frozen=True, kw_only=True)
class Recovered(Event):
    """How the members of a lost trainer go on, where others shared its stream."""

    worker: str
    members: tuple[Name, ...]
    way: str
    """apart: on a stream of their own; meet: so until the others wait for them; back: all go back to their newest files."""
    costs: Mapping[str, float]
    """Seconds that everybody would lose by each way, by the planner's figures."""


@dataclass(frozen=True, kw_only=True)
class Answered(Event):
    """A command file was read, once."""

    file: str
    command: Mapping[str, Any]
    answer: str

    @property
    def refused(self) -> bool:
        """Whether nothing was done."""
        return self.answer.startswith(REFUSED)


@dataclass(frozen=True, kw_only=True)
class Used(Event):
    """A worker's gauges and CPU seconds at its end."""

    worker: str
    cpu_seconds: float
    gauge: Annotated[Mapping[str, Any], check_gauge]


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """The driver left. Status: done, or paused."""

    status: str
    reason: str
    seconds: float
    cpu_seconds: float = 0.0
    """User and system time of the driver and of all processes that it started, and they."""
    joules: Mapping[str, float] = field(default_factory=dict)
    """Of the whole machine meanwhile, by what counts them; empty where nothing does."""
