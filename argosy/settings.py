"""How a study is run: every keyword of `argosy.train` but the study itself, and every flag of ``argosy run``."""

from dataclasses import dataclass
from typing import Literal

from argosy.errors import StudyError

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Nothing in here changes a member's result."""

    devices: str | None = None
    """``cpu:2`` for two CPU slots, ``cuda:0,1`` for two GPUs; by default all there are."""
    policy: str = "balanced"
    sharing: Literal["auto", "local", "none"] = "auto"
    packing: Literal["auto", "interleaved"] = "auto"
    numerics: Literal["equivalent", "exact"] = "equivalent"
    time_limit: float | None = None
    """Seconds after which every member is saved and the run ends; the same command goes on."""
    loader_workers: int | None = None
    """Processes that prepare samples on each node; by default as many as cores."""
    block_size: int | None = None
    """Samples per block; by default about 4 MiB, from 64 to 4096 samples."""
    checkpoint_seconds: float = 300.0
    """Longest training time within an epoch between two checkpoints of a member."""
    hang_seconds: float = 120.0
    """Time without any progress after which a worker counts as lost."""
    threads: int = 1
    """CPU threads of each CPU device; they belong to a member's result."""

    def __post_init__(self) -> None:
        _one_of("sharing", self.sharing, ("auto", "local", "none"))
        _one_of("packing", self.packing, ("auto", "interleaved"))
        _one_of("numerics", self.numerics, ("equivalent", "exact"))
        if self.sharing == "none" and self.policy != "solo":
            raise StudyError("sharing 'none' gives every member a pipeline of its own; that is policy 'solo'.")
        for name, least in (("loader_workers", 0), ("block_size", 1), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise StudyError(f"{name} is {value}; it must be at least {least}.")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise StudyError(f"{name} is {value!r}; choose one of {', '.join(choices)}.")
