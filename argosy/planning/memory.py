"""The refusal that all policies share: a member larger than every device."""

from collections.abc import Sequence

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.profiles import Profile

__all__ = ["GIB", "require_fit"]

GIB = 2**30


def require_fit(profiles: Sequence[Profile], devices: Sequence[Device]) -> None:
    """Raise PlanError for the first member that no device can hold."""
    largest = max((device.memory_bytes for device in devices), default=0)
    for profile in profiles:
        if profile.memory_bytes > largest:
            raise PlanError(
                f"member {profile.member!r} needs {profile.memory_bytes / GIB:.1f} GiB; the largest device has "
                f"{largest / GIB:.1f} GiB. Lower its batch_size or use a larger device."
            )
