"""What a simulation is given and what comes out of it, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.errors import PlanError
from argosy.errors.checks import check_number
from argosy.planning.policy import Moving
from argosy.profiles import Profile

__all__ = ["Charges", "Segment", "Simulation", "Workload"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Members to train, and for how long."""

    profiles: tuple[Profile, ...]
    epochs: Mapping[str, int]
    """Epochs until each member converges; zero: nothing to train."""
    samples_per_epoch: int
    epochs_known: bool = True
    """Whether the policy may see ``epochs``, or only notices when a member has converged."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Epochs after which members end at the latest, which the policy may see where it does not see ``epochs``."""

    def __post_init__(self) -> None:
        missing = [profile.member for profile in self.profiles if profile.member not in self.epochs]
        if missing:
            raise PlanError(
                f"the workload has no epochs for {', '.join(map(repr, missing))}. Set the epochs of each member."
            )
        if self.samples_per_epoch < 1:
            raise PlanError(f"the workload has {self.samples_per_epoch} samples per epoch; it must have at least 1.")

    @property
    def visible_epochs(self) -> Mapping[str, int]:
        """Epochs until each member ends, as far as the policy may know them."""
        return self.epochs if self.epochs_known else self.limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Charges:
    """Costs in time besides training."""

    moving: Moving = field(default_factory=Moving)
    flotilla_seconds: float = 0.0
    """Time for every flotilla that is started: FLEET stops, saves and loads at each."""
    checkpoint_seconds: float = 0.0
    """Time for every epoch of every member."""
    slowdown: float = 1.0
    """Time of a real sample over that of a profiled one."""
    preparation_samples_per_second: float | None = None
    """What the cluster can prepare in all; None: as much as is asked for."""
    preparation_known: bool = True
    """Whether policies see that rate; where they do not, those that have the choice share one stream."""
    training_share: float = 0.0
    """Part of the preparing cores that a busy device takes: more than 0 where devices are CPUs."""
    opening_seconds: float = 0.0
    """Time for every stream beyond the most that there ever were at once: another feeder opens the data."""
    one_pace: bool = True
    """Whether members of a flotilla wait for one another in the stream; else each trains at its own rate, as if buffers were endless."""

    def __post_init__(self) -> None:
        check_number("Charges: flotilla_seconds", self.flotilla_seconds, least=0)
        check_number("Charges: slowdown", self.slowdown, above=0)
        if self.preparation_samples_per_second is not None:
            check_number("Charges: preparation_samples_per_second", self.preparation_samples_per_second, above=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """What one device did for a while."""

    device: str
    start_seconds: float
    end_seconds: float
    flotilla: int
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """Outcome of a simulated run."""

    policy: str
    devices: int
    makespan_seconds: float
    bound_seconds: float
    """No policy can be faster: all work spread evenly, or the longest member at its best rate."""
    flotillas: int
    moves: int
    """Times that a member's state went to a device that did not hold it."""
    moved_bytes: int
    moving_seconds: float
    """Time that flotillas spent waiting for states and re-balancing."""
    wait_seconds: Mapping[str, float]
    """By device: time in which it did not train."""
    finished_seconds: Mapping[str, float]
    """By member: time at which it converged."""
    timeline: tuple[Segment, ...]
    planner_seconds: float

    @property
    def idle_share(self) -> float:
        """Part of all device time in which nothing was trained."""
        if not self.makespan_seconds:
            return 0.0
        return sum(self.wait_seconds.values()) / (self.devices * self.makespan_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the figures, without the timeline."""
        return {
            "policy": self.policy,
            "devices": self.devices,
            "makespan_seconds": self.makespan_seconds,
            "bound_seconds": self.bound_seconds,
            "flotillas": self.flotillas,
            "moves": self.moves,
            "idle_share": self.idle_share,
            "planner_seconds": self.planner_seconds,
        }
