"""Gauges: how full the queues between the stages of a stream are over time, and what each stage did.

A node has three stages with a queue before each: preparation (slots with samples to prepare), exchange with other nodes
(prepared blocks that have not reached all of them) and training (blocks that trainers have not begun). `argosy.results.diagnosis`
evaluates them.
"""

from dataclasses import dataclass, field

__all__ = ["QueueGauge", "Queues", "StreamGauge", "TrainerGauge"]

MAX_POINTS = 120
"""Most points of a queue's history. When it is full, adjacent points are merged."""


@dataclass(kw_only=True, slots=True)
class QueueGauge:
    """Fill of one queue, from 0 (empty) to 1 (full)."""

    mean: float = 0.0
    """Mean fill over the whole time."""
    history: list[float] = field(default_factory=list)
    """Mean fill of each successive ``step_seconds``."""
    step_seconds: float = 0.5
    _seconds: float = 0.0
    _step: float = 0.0
    _filled: float = 0.0

    def note(self, fill: float, seconds: float) -> None:
        """Record that the queue was this full for so long."""
        self._seconds += seconds
        self.mean += (fill - self.mean) * seconds / self._seconds if self._seconds else 0.0
        self._step += seconds
        self._filled += fill * seconds
        if self._step >= self.step_seconds:
            self.history.append(round(self._filled / self._step, 3))
            self._step = self._filled = 0.0
            if len(self.history) == MAX_POINTS:
                pairs = zip(self.history[::2], self.history[1::2], strict=True)
                self.history = [round((a + b) / 2, 3) for a, b in pairs]
                self.step_seconds *= 2

    def to_json(self) -> dict[str, object]:
        """Return the gauge as a plain JSON value."""
        return {"mean": round(self.mean, 4), "step_seconds": self.step_seconds, "history": list(self.history)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Queues:
    """State of a feeder's queues at one moment. Fills range from 0 (empty) to 1 (full)."""

    preparing: bool
    """Whether a block is being prepared on this node."""
    filling: bool
    """Whether a block is on its way into the ring, from this node or another."""
    to_prepare: float
    to_exchange: float
    to_train: float


@dataclass(kw_only=True, slots=True)
class StreamGauge:
    """Totals of one feeder's work."""

    cores: int = 1
    """Cores that it may use."""
    loaders: int = 0
    prepared: int = 0
    """Number of samples prepared, including holes."""
    kept: int = 0
    """Number of samples read from kept rows instead of being prepared."""
    delivered: int = 0
    """Number of samples delivered to the trainers of the node, prepared on this node or another."""
    exchanged_bytes: int = 0
    """Bytes sent to other nodes or received from them."""
    seconds: float = 0.0
    """Time with a leg to feed, since a trainer finished its first block. The queues' gauges cover the same time."""
    busy_seconds: float = 0.0
    """Time with at least one own block being prepared, since the first samples."""
    filling_seconds: float = 0.0
    """Time with at least one block on its way into the ring, prepared on this node or another."""
    preparation_cpu_seconds: float = 0.0
    """CPU time of tasks, in loader workers or in the feeder itself."""
    to_prepare: QueueGauge = field(default_factory=QueueGauge)
    to_exchange: QueueGauge = field(default_factory=QueueGauge)
    to_train: QueueGauge = field(default_factory=QueueGauge)

    def note(self, queues: Queues, seconds: float, *, flowing: bool) -> None:
        """Account for time in this state. Time before the first samples belongs to no stage and is left out."""
        if not (self.prepared or self.kept or self.delivered):
            return
        self.busy_seconds += seconds * queues.preparing
        self.filling_seconds += seconds * queues.filling
        if flowing:
            self.seconds += seconds
            self.to_prepare.note(queues.to_prepare, seconds)
            self.to_exchange.note(queues.to_exchange, seconds)
            self.to_train.note(queues.to_train, seconds)

    def to_json(self) -> dict[str, object]:
        """Return the gauge as a plain JSON value."""
        plain: dict[str, object] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            plain[name] = value.to_json() if isinstance(value, QueueGauge) else value
        return plain


@dataclass(kw_only=True, slots=True)
class TrainerGauge:
    """Totals of one trainer's work."""

    busy_seconds: float = 0.0
    """Time in members' steps and validation."""
    waiting_seconds: float = 0.0
    """Time without a block: preparation or exchange is the bottleneck."""
    rows: int = 0
    """Number of stream samples received for training or validation, each counted once however many members saw it."""

    def to_json(self) -> dict[str, float]:
        """Return the gauge as a plain JSON value."""
        return {name: getattr(self, name) for name in self.__slots__}
