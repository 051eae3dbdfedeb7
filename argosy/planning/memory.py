"""The memory check that all policies share."""

from collections.abc import Sequence

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.errors.wording import sized
from argosy.profiles import Profile

__all__ = ["require_fit"]


def require_fit(profiles: Sequence[Profile], devices: Sequence[Device]) -> None:
    """Raise PlanError for the first member that fits into no device."""
    largest = max((device.memory_bytes for device in devices), default=0)
    for profile in profiles:
        if profile.memory_bytes > largest:
            raise PlanError(
                f"member {profile.member!r} needs {sized(profile.memory_bytes)}; the largest device has "
                f"{sized(largest)}. Reduce its batch_size, or use a larger device."
            )
