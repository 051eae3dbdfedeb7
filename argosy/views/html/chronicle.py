"""The course of a run: the fold of a journal with its times, as figures need it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from argosy.plans import Plan
from argosy.protocol.events import (
    Answered,
    Event,
    MemberEnded,
    MemberRested,
    MemberStarted,
    PlanMade,
    Recovered,
    RunStarted,
    Split,
    WorkerLost,
)
from argosy.results.fold import RunState

__all__ = ["Chronicle", "Mark", "Span"]

WAYS = {
    "meet": "wait for the others, then all continue together",
    "apart": "continue apart from the others",
    "back": "all go back",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A member's time on a device."""

    member: str
    device: str
    flotilla: int
    """Number of its flotilla, counted over the run; 0 before any plan."""
    begin_seconds: float
    end_seconds: float
    came_from: str
    """Device that it moved from; empty if it did not move."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """An event that is marked in a figure."""

    seconds: float
    kind: str
    """fault, recovery or command."""
    device: str
    """Empty if it concerns no device."""
    text: str


@dataclass(slots=True)
class Chronicle:
    """The chronicle of one run."""

    state: RunState = field(default_factory=RunState)
    seconds: float = 0.0
    """Seconds up to the last event of the journal."""
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    flotillas: int = 0
    _open: dict[tuple[str, str], Span] = field(default_factory=dict)
    """By member and device."""
    _last: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Devices to which a member was last assigned."""
    _flotilla: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, timeline: Iterable[tuple[float, Event]]) -> "Chronicle":
        """Build from (seconds, event), first to last; spans that are open end with the last event."""
        chronicle = cls()
        for seconds, event in timeline:
            chronicle._take(seconds, event)
        chronicle._leave(list(chronicle._open.values()), chronicle.seconds)
        return chronicle

    def _take(self, seconds: float, event: Event) -> None:
        before, self.seconds = self.seconds, seconds
        self.state.apply(event)
        if isinstance(event, RunStarted):
            # A driver that was killed has not journaled that members left.
            self._leave(list(self._open.values()), before)
        elif isinstance(event, PlanMade):
            for flotilla in Plan.from_json(event.plan).flotillas:
                self.flotillas += 1
                self._flotilla.update(dict.fromkeys(flotilla.members, self.flotillas))
        elif isinstance(event, MemberStarted):
            self._begin(seconds, event)
        elif isinstance(event, MemberRested | MemberEnded):
            self._leave(self._of_member(event.member), seconds)
        elif isinstance(event, WorkerLost):
            self._lose(seconds, event)
        elif isinstance(event, Recovered):
            way = WAYS.get(event.way, event.way)
            text = f"{len(event.members)} members of {event.worker}: {way}"
            self._mark(seconds, "recovery", event.worker, text)
        elif isinstance(event, Answered):
            text = f"{event.command.get('command', 'command')}: {event.answer}"
            self._mark(seconds, "command", "", text)

    def _begin(self, seconds: float, event: MemberStarted) -> None:
        self._leave(self._of_member(event.member), seconds)
        split: Split | None = self.state.member(event.member).split
        devices = split.devices if split is not None and event.device in split.devices else (event.device,)
        last = self._last.get(event.member, devices)
        self._last[event.member] = devices
        for device in devices:
            self._open[event.member, device] = Span(
                member=event.member,
                device=device,
                flotilla=self._flotilla.get(event.member, 0),
                begin_seconds=seconds,
                end_seconds=seconds,
                came_from="" if device in last else ", ".join(last),
            )

    def _lose(self, seconds: float, event: WorkerLost) -> None:
        gone = [span for (_, at), span in self._open.items() if at == event.worker or at.startswith(f"{event.worker}/")]
        self._leave(gone, seconds)
        device = gone[0].device if gone else ""
        self._mark(seconds, "fault", device, f"{event.worker} is lost: {event.detail}")

    def _of_member(self, member: str) -> list[Span]:
        devices = self._last.get(member, ())
        return [self._open[member, device] for device in devices if (member, device) in self._open]

    def _leave(self, spans: Iterable[Span], seconds: float) -> None:
        for span in spans:
            del self._open[span.member, span.device]
            self.spans.append(replace(span, end_seconds=seconds))

    def _mark(self, seconds: float, kind: str, device: str, text: str) -> None:
        self.marks.append(Mark(seconds=seconds, kind=kind, device=device, text=text))
