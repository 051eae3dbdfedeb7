"""Predicted and actual times of each section of a leg, journaled when all assignments have finished it.

A prediction is made when the section begins, for the flotilla and the known rates at that time. The times of the policy and of changes of
assignments are recorded separately, as in FLEET's Table 4.
"""

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from argosy.profiles import Profile
from argosy.protocol.events import Passed, Profiled, SectionEnded
from argosy.running.control.legs import LiveLeg
from argosy.running.control.run import Run
from argosy.stream.schedule import samples_before

__all__ = ["Predictions"]


@dataclass(slots=True)
class _Expected:
    """State of a leg since all its assignments have finished a section."""

    section: int
    """The next section."""
    position: int
    """Position of its beginning in samples of the stream, counted over epochs."""
    began: float
    seconds_per_sample: float = 0.0
    """Predicted work of the busiest device per sample of the stream."""
    priced: tuple[int, int] = (-1, 0)
    """Revision of the profiles and number of members for which it was predicted."""
    starting: set[str] = field(default_factory=set)
    """Members that were assigned since then and are not ready yet."""
    changed: float = 0.0
    """Time at which they were assigned."""
    changing_seconds: float = 0.0


class Predictions:
    """Predicted and actual times of the legs of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._of_legs: dict[int, _Expected] = {}
        """By leg number."""
        self._stepping: dict[tuple[str, int], float] = {}
        """Seconds of members' own work, by device and section of the stream, until the section is finished."""
        self._planning_seconds = 0.0
        self._profiled: set[str] = set()
        """Members whose profiles are in the journal."""

    def note_profiles(self, profiles: Iterable[Profile]) -> list[Profiled]:
        """Note that the policy is asked about members; return events for those that are new to it."""
        new = [profile for profile in profiles if profile.member not in self._profiled]
        if not new:
            return []
        positions, names = self.run.positions, [profile.member for profile in new]
        self._profiled.update(names)
        epochs = {name: left for name in names if (left := positions.epochs_left(name)) is not None}
        sure = tuple(filter(positions.is_sure_to_reach_limit, names))
        return [Profiled(profiles=tuple(profile.to_json() for profile in new), epochs=epochs, sure=sure)]

    @contextlib.contextmanager
    def time_planning(self) -> Iterator[None]:
        """Measure the time of the policy inside the context."""
        began = time.monotonic()
        yield
        self._planning_seconds += time.monotonic() - began

    def begin(self, leg: LiveLeg) -> None:
        """Note that a leg begins with all its members."""
        length, per_epoch = self.run.lengths["train"], self.run.per_epoch
        position = leg.begins.section // per_epoch * length + leg.begins.position
        self._of_legs[leg.number] = _Expected(section=leg.begins.section, position=position, began=time.monotonic())
        self.change(leg, leg.members)

    def change(self, leg: LiveLeg, starting: Collection[str]) -> None:
        """Note that a leg's assignments change, and which members start."""
        expected = self._of_legs[leg.number]
        expected.priced = (-1, 0)
        self._predict(expected, leg)
        if starting:
            expected.starting, expected.changed = set(starting), time.monotonic()

    def end(self, leg: LiveLeg) -> None:
        """Note that a leg has ended."""
        self._of_legs.pop(leg.number, None)

    def note_started(self, member: str) -> None:
        """Note that an assigned member is ready."""
        for expected in self._of_legs.values():
            if member in expected.starting:
                expected.starting.discard(member)
                # The change is over with the last of them.
                expected.changing_seconds += (time.monotonic() - expected.changed) * (not expected.starting)

    def note_stepped(self, ended: SectionEnded) -> None:
        """Note a member's section; all devices of a split member have stepped as long as the one that reports it."""
        split = self.run.state.member(ended.member).split
        for device in (ended.device,) if split is None else split.devices:
            key = device, ended.stream_epoch * self.run.per_epoch + ended.section
            self._stepping[key] = self._stepping.get(key, 0.0) + ended.seconds

    def note_section_end(self, leg: LiveLeg) -> list[Passed]:
        """Note that an assignment has finished a section; return events for the sections that all assignments have finished."""
        expected, run = self._of_legs[leg.number], self.run
        through = min((leg.assignments[device].section for device in leg.devices), default=expected.section)
        if through <= expected.section:
            return []
        now, per_epoch, length = time.monotonic(), run.per_epoch, run.lengths["train"]
        position = samples_before(through, length, per_epoch)
        epoch, section = divmod(through - 1, per_epoch)
        # A batch across the end of a section was finished before this leg began.
        samples = max(position - expected.position, 0)
        passed = Passed(
            leg=leg.number,
            epoch=epoch,
            section=section,
            samples=samples,
            seconds=round(now - expected.began, 4),
            predicted_seconds=round(samples * expected.seconds_per_sample, 4),
            stepping=self._take_stepping(leg, through),
            planning_seconds=round(self._planning_seconds, 4),
            changing_seconds=round(expected.changing_seconds, 4),
        )
        self._planning_seconds = expected.changing_seconds = 0.0
        expected.section, expected.position, expected.began = through, position, now
        self._predict(expected, leg)
        return [passed]

    def _take_stepping(self, leg: LiveLeg, through: int) -> dict[str, float]:
        stepping = dict.fromkeys(leg.devices, 0.0)
        for device, section in [key for key in self._stepping if key[0] in leg.assignments and key[1] < through]:
            stepping[device] = round(stepping.get(device, 0.0) + self._stepping.pop((device, section)), 4)
        return stepping

    def _predict(self, expected: _Expected, leg: LiveLeg) -> None:
        """Predict the seconds per sample of the stream for the flotilla's busiest device, at the known rates."""
        members, revision = leg.members, self.run.cost_table.revision
        if expected.priced == (revision, len(members)):
            return
        expected.priced, expected.seconds_per_sample = (revision, len(members)), 0.0
        if members:
            profiles = self.run.cost_table.profiles(members, self.run.study)
            flotilla = leg.flotilla.keeping(members).priced({profile.member: profile for profile in profiles})
            expected.seconds_per_sample = 1.0 / flotilla.samples_per_second
