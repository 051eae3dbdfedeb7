"""Plain counters of what flowed, how long stages were busy, and how long they waited."""

from dataclasses import dataclass

__all__ = ["StreamGauge", "TrainerGauge"]


@dataclass(kw_only=True, slots=True)
class StreamGauge:
    """What one feeder did."""

    prepared: int = 0
    """Samples prepared, holes among them."""
    speculative: int = 0
    """Samples prepared that no member used."""
    busy_seconds: float = 0.0
    """Time with at least one task under way."""
    blocked_seconds: float = 0.0
    """Time with every slot full and in the trainers' hands: training is the bottleneck."""


@dataclass(kw_only=True, slots=True)
class TrainerGauge:
    """What one trainer did."""

    busy_seconds: float = 0.0
    """Time in members' steps, validation and checkpoints."""
    waiting_seconds: float = 0.0
    """Time without a block: preparation is the bottleneck."""
    samples: int = 0
    """Training samples stepped on, summed over members."""
