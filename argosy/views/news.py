"""State that views receive but the journal does not store: current losses, rates, queues and times of changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.plans import Flotilla, Plan
from argosy.protocol.events import (
    MemberEnded,
    MemberRested,
    MemberStarted,
    PlanMade,
    RunStarted,
    SectionEnded,
    WorkerLost,
)
from argosy.protocol.feeder import FeederProgress
from argosy.protocol.trainer import Progress

__all__ = ["News"]

RATE_SECONDS = 1.0
"""Minimum number of seconds over which a rate is measured."""


@dataclass(slots=True)
class News:
    """The news of one run; callers pass the time of each message."""

    gauges: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By worker; includes workers that have ended, which the fold has too."""
    losses: dict[str, float] = field(default_factory=dict)
    """Last known losses, from any device: between two epochs there are none."""
    rates: dict[str, float] = field(default_factory=dict)
    """Samples/s of assigned members."""
    trains_since: float | None = None
    """When the first member began to train."""
    changed: dict[str, float] = field(default_factory=dict)
    """When a member began, left or ended."""
    lost: list[tuple[float, str, str]] = field(default_factory=list)
    """When a worker was lost, which, and how."""
    flotillas: list[Flotilla] = field(default_factory=list)
    """Flotillas that are training, as they started."""
    _samples: dict[str, int] = field(default_factory=dict)
    """Samples of each member since it was assigned."""
    _behind: dict[str, int] = field(default_factory=dict)
    """Those of them in finished sections, less what it had of the current one when it was assigned."""
    _length: int = 0
    """Samples of an epoch; next, its sections."""
    _sections: int = 1
    _seen: dict[str, tuple[float, int]] = field(default_factory=dict)

    def handle(self, worker: str, message: Any, now: float) -> None:
        """Take a worker's message or a journaled event."""
        if isinstance(message, Progress):
            self.gauges[worker] = message.gauge
            self.losses |= message.losses
            self._samples |= message.samples
            self._take_rates(message, now)
        elif isinstance(message, FeederProgress):
            self.gauges[worker] = message.gauge
        elif isinstance(message, WorkerLost):
            self.lost.append((now, message.worker, message.detail))
        elif isinstance(message, SectionEnded):
            self._behind[message.member] = self._behind.get(message.member, 0) + message.samples
        elif isinstance(message, MemberStarted | MemberRested | MemberEnded):
            self._forget(message.member)
            self.changed[message.member] = now
            if isinstance(message, MemberStarted):
                self.trains_since = now if self.trains_since is None else self.trains_since
                self._behind[message.member] = -(message.position - self._section_start(message.section))
        elif isinstance(message, PlanMade):
            self._start(Plan.from_json(message.plan))
        elif isinstance(message, RunStarted):
            self._length, self._sections = message.lengths["train"], message.validations_per_epoch

    def _start(self, plan: Plan) -> None:
        """Add flotillas that start; they replace those on the same devices."""
        taken = {device for flotilla in plan.flotillas for device in flotilla.devices}
        remaining = [flotilla for flotilla in self.flotillas if taken.isdisjoint(flotilla.devices)]
        self.flotillas = [*remaining, *plan.flotillas]

    def samples_begun(self, member: str) -> int:
        """Return the samples of the current section that the member has trained on here, up to its last report."""
        return max(self._samples.get(member, 0) - self._behind.get(member, 0), 0)

    def rate(self, member: str, now: float) -> float:
        """Return the samples/s of an assigned member; until two reports have shown it, those since it was assigned, and 0 at first."""
        seconds = now - self.changed.get(member, now)
        return self.rates.get(member, self._samples.get(member, 0) / seconds if seconds > RATE_SECONDS else 0.0)

    def _section_start(self, section: int) -> int:
        """Return the first sample of a section: exact for a member that sees every sample once, else approximate."""
        return section * self._length // self._sections

    def _forget(self, member: str) -> None:
        for known in (self._samples, self._behind, self._seen, self.rates):
            known.pop(member, None)

    def _take_rates(self, message: Progress, now: float) -> None:
        for member, samples in message.samples.items():
            since, before = self._seen.setdefault(member, (now, samples))
            if now - since > RATE_SECONDS:
                self.rates[member] = (samples - before) / (now - since)
                self._seen[member] = (now, samples)
