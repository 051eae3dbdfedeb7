"""What a member costs on a kind of device: the only thing planners know about networks."""

from dataclasses import dataclass

from argosy.errors import PlanError

__all__ = ["Profile"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What one member costs to train."""

    member: str
    device_kind: str
    samples_per_second: tuple[float, ...]
    """Training rate r(m) on m = 1, 2, … devices of that kind; at least r(1)."""
    memory_bytes: int
    """Peak memory on a device that carries the whole member."""
    state_bytes: int
    """Weights and optimizer state: what moving the member carries."""

    def __post_init__(self) -> None:
        if not self.samples_per_second or min(self.samples_per_second) <= 0:
            raise PlanError(
                f"profile of {self.member!r}: rates must be positive, found {self.samples_per_second}; measure it again."
            )

    @property
    def seconds_per_sample(self) -> float:
        """Work of one sample on one device: c = 1 / r(1)."""
        return 1.0 / self.samples_per_second[0]
