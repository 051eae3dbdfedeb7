"""The inputs and results of a simulation, as values."""

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
    """Epochs until each member converges; 0 if it has nothing to train."""
    samples_per_epoch: int
    epochs_known: bool = True
    """Whether the policy may see ``epochs``; otherwise it only notices when a member has converged."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Epochs after which members end at the latest; the policy sees these if it does not see ``epochs``."""

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
        """Epochs until each member ends, as far as the policy may know."""
        return self.epochs if self.epochs_known else self.limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Charges:
    """Costs in time besides training."""

    moving: Moving = field(default_factory=Moving)
    flotilla_seconds: float = 0.0
    """Time to start a flotilla; FLEET stops, saves and loads for each one."""
    checkpoint_seconds: float = 0.0
    """Time to save a member after each of its epochs."""
    slowdown: float = 1.0
    """Actual time per sample divided by the profiled time."""
    preparation_samples_per_second: float | None = None
    """Rate at which the cluster can prepare samples; None if unlimited."""
    preparation_known: bool = True
    """Whether policies see that rate; if not, policies that have the choice share one stream."""
    training_share: float = 0.0
    """Fraction of the preparing cores that a busy device takes; above 0 if devices are CPUs."""
    opening_seconds: float = 0.0
    """Time to open the data in another feeder, whenever there are more simultaneous streams than ever before."""
    one_pace: bool = True
    """Whether members of a flotilla wait for one another in the stream; otherwise each trains at its own rate, as if buffers were unlimited."""

    def __post_init__(self) -> None:
        check_number("Charges: flotilla_seconds", self.flotilla_seconds, least=0)
        check_number("Charges: slowdown", self.slowdown, above=0)
        if self.preparation_samples_per_second is not None:
            check_number("Charges: preparation_samples_per_second", self.preparation_samples_per_second, above=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A period in which the members on one device stayed the same."""

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
    """Lower bound for every policy: all work spread evenly, or the longest member at its best rate."""
    flotillas: int
    moves: int
    """Number of times that a member's state was moved to devices that did not hold it."""
    wait_seconds: Mapping[str, float]
    """Time without training, by device."""
    finished_seconds: Mapping[str, float]
    """Time of convergence, by member."""
    timeline: tuple[Segment, ...]
    planner_seconds: float

    @property
    def idle_share(self) -> float:
        """Fraction of all device time without training."""
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
