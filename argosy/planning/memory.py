"""The memory check that all policies share."""

from collections.abc import Sequence

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.errors.wording import format_bytes
from argosy.profiles import Profile

__all__ = ["check_memory_fit"]


def check_memory_fit(profiles: Sequence[Profile], devices: Sequence[Device]) -> None:
    """Raise PlanError for the first member that fits into no device."""
    largest = max((device.memory_bytes for device in devices), default=0)
    for profile in profiles:
        if profile.memory_bytes > largest:
            raise PlanError(
                f"member {profile.member!r} needs {format_bytes(profile.memory_bytes)}; the largest device has "
                f"{format_bytes(largest)}. Reduce its batch_size, or use a larger device."
            )
