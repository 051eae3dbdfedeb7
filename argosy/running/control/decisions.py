"""What is decided at a barrier and where devices are free: questions to a run, none of which changes anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from argosy.planning import FILES, SKIPPING, Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile
from argosy.running.control.legs import Gate, LiveLeg
from argosy.running.control.members import State
from argosy.running.control.run import DriverPart
from argosy.running.control.verdicts import Fate, Verdict
from argosy.stream.schedule import section_start

__all__ = ["Decisions", "GoesOn"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GoesOn:
    """The policy's answer at a barrier."""

    keeps: bool
    """Whether all stay where they are."""
    flotilla: Flotilla | None
    """That goes on with the leg; None where its members make room."""
    planned: Flotilla
    """What the policy is asked about next time."""


class Decisions(DriverPart):
    """Questions to one run."""

    # ---- how far a leg goes

    @property
    def others_wait(self) -> bool:
        """Whether a member has no place, or leaves one for no other."""
        if self.members.any_unplaced:
            return True
        leaving = self.members.leaving.items()
        return any(its.verdict is None and self.legs.of(name) is None for name, its in leaving)

    @property
    def more_come_back(self) -> bool:
        """Whether a member that leaves its device wants another one as soon as it is saved: its rest may be over by then."""
        leaving = self.members.leaving.items()
        return any(its.verdict is None or self._is_called(name, its.verdict) for name, its in leaving)

    def _is_called(self, name: str, told: Verdict) -> bool:
        return told.fate is Fate.REST and self.run.verdict(name).fate is Fate.GO_ON

    def turn(self, leg: LiveLeg) -> int | None:
        """The section at which others may have their turn: the next epoch's end, or the barrier where members meet."""
        met = self.goes_to(leg)
        if met is not None:
            return met.until
        if self.is_met(leg):
            return leg.until + 1
        return (leg.until // self.run.per_epoch + 1) * self.run.per_epoch if self.others_wait else None

    def reach(self, leg: LiveLeg) -> int:
        """How far its credit may go."""
        return leg.reach(turns=self.turn(leg))

    def horizon(self, leg: LiveLeg, until: int) -> int | None:
        """The first section that its feeders need not prepare ahead, with credit up to `until`; None where all may be wanted."""
        makes_room = (self.others_wait and leg.makes_room) or self.goes_to(leg) is not None
        horizon = until if makes_room else leg.horizon
        return None if horizon is None else max(horizon, until)

    def too_soon(self, leg: LiveLeg) -> bool:
        """Whether a leg stands in the middle of an epoch under a policy that levels members at the ends of epochs.

        A member that left it here would train the rest of its epoch while members of a new flotilla that are further waited.
        """
        return leg.until % self.run.per_epoch > 0 and self.launching.policy_name in SKIPPING

    # ---- members that were lost, and meet their leg again

    def goes_to(self, leg: LiveLeg) -> LiveLeg | None:
        """The leg that members of this one are to meet at a barrier."""
        meeting = self.members.meeting
        numbers = {meeting[name] for name in leg.members if name in meeting} if meeting else set[int]()
        return next((other for other in self.legs.live if other.number in numbers), None)

    def is_met(self, leg: LiveLeg) -> bool:
        """Whether members are to meet this leg, at this barrier or the next."""
        return leg.number in self.members.meeting.values()

    def is_awaiting(self, leg: LiveLeg) -> bool:
        """Whether members are still on the way to the barrier of a leg."""
        return any(
            number == leg.number and not self._is_there(name, leg) for name, number in self.members.meeting.items()
        )

    def all_meet(self, leg: LiveLeg) -> bool:
        """Whether all members that are to meet a leg can join it at its barrier; if not, all of them do at a later one.

        One may want a batch that was begun before this barrier.
        """
        meeting = self.members.meeting.items()
        return all(self.can_join(name, leg) for name, number in meeting if number == leg.number)

    def not_yet(self) -> set[str]:
        """Waiting members that go on from a barrier that is to come, or behind it, or when it is known where that is."""
        legs = {leg.number: leg for leg in self.legs.live}
        return {
            name
            for name, number in self.members.meeting.items()
            if number in legs and (legs[number].asked or self._is_there(name, legs[number]))
        }

    def _is_there(self, name: str, leg: LiveLeg) -> bool:
        """Whether it waits, and wants nothing of what is before the barrier, but for a batch that was begun there."""
        return self.members.waits(name) and self.positions.place(name) >= leg.until

    # ---- what becomes of members

    def leaves_run(self, name: str) -> Verdict | None:
        """The verdict on a member that ends or rests, its newest file being that of its last section; None where it goes on."""
        verdict = self.run.verdict(name)
        return verdict if verdict.fate is not Fate.GO_ON and self.run.state.member(name).saved_at_its_end else None

    def undecided(self) -> list[str]:
        """Members that an earlier driver may have left between their last file and its word on them."""
        statuses = {name: self.run.state.member(name).status for name in self.run.study.names}
        begun = {name for name, status in statuses.items() if status in ("training", "paused")} - self.members.resting
        # A clone of a member at its end has nothing before it, but what it begins with.
        begun |= {
            name for name, status in statuses.items() if status == "waiting" and self.run.state.member(name).sections
        }
        # One that was done, and waits, may do so because a search is to compare more than it was.
        revived = {name for name in self.members.having(State.WAITING) if statuses[name] == "done"}
        return [name for name in statuses if name in begun or name in revived]

    def called(self) -> list[str]:
        """Resting members that a judge calls."""
        run, resting = self.run, self.members.resting
        return sorted(resting & {name for one in run.judges for name in one.called(resting, run.state, run.study)})

    # ---- what the policy is asked

    def to_start(self) -> list[str]:
        """Members that may start on devices that are free: not those that can join a leg at its barrier, until it has come."""
        later = self.positions.unsettled if any(leg.gate is Gate.HOLDING for leg in self.legs.live) else set[str]()
        later = later | self.not_yet()
        return [name for name in self.members.unassigned if name not in later]

    def can_join(self, name: str, leg: LiveLeg) -> bool:
        """Whether all that a waiting member wants of the stream is still to come at a barrier."""
        if self.positions.place(name) != leg.until or self.members.leaves(name) is not None:
            return False
        length, begun = self.run.lengths["train"], leg.until > leg.begins.section
        position = section_start(leg.until, length, self.run.per_epoch) if begun else leg.begins.position
        return self.positions.leg_for([name], self.run.lengths, number=0).position >= position

    def profiles(self, names: Sequence[str]) -> list[Profile]:
        """Return the profiles of these members, as far as their costs are known."""
        return self.measuring.profiles(names, self.run.study)

    def goes_on(self, leg: LiveLeg, live: Sequence[str], profiles: Sequence[Profile]) -> GoesOn:
        """The flotilla that goes on with a leg at its barrier: of its `live` members, and of others that wait, in `profiles`."""
        here = set(live)
        there = [profile for profile in profiles if profile.member in here]
        waiting = [profile for profile in profiles if profile.member not in here]
        peers = [profile.member for profile in waiting if self.can_join(profile.member, leg)]
        places = dict.fromkeys(live, leg.until // self.run.per_epoch)
        started = leg.flotilla.priced({profile.member: profile for profile in profiles})
        situation = self.situation(waiting, places, asked=leg)
        waits = not peers and self.too_soon(leg)
        keeps = bool(live) and (waits or self.launching.policy.keeps(situation, started, tuple(there)))
        if keeps:
            # Policies are asked about the flotilla that they started, whatever has left it since.
            return GoesOn(keeps=True, flotilla=started.keeping(live), planned=started)
        anew = self.situation(profiles, places, without=leg)
        flotilla = self.launching.goes_on(leg, there, peers, anew)
        if flotilla is not None:
            nodes = {self.pool.feeders[name].node for name in leg.feeders if name in self.pool.feeders}
            if any(self.pool.node_of[device] not in nodes for device in flotilla.devices):
                flotilla = None
        return GoesOn(keeps=False, flotilla=flotilla, planned=leg.flotilla if flotilla is None else flotilla)

    def situation(
        self,
        waiting: Sequence[Profile],
        places: Mapping[str, int],
        *,
        asked: LiveLeg | None = None,
        without: LiveLeg | None = None,
    ) -> Situation:
        """What the policy may know, asked about one leg, or about what to do without it; `places` are epochs of the stream.

        The devices of the leg `without` count as free, and its members have their homes there.
        """
        per_epoch, legs = self.run.per_epoch, self.legs.live
        names = [profile.member for profile in waiting]
        done = {name: places.get(name, self.positions.place(name) // per_epoch) for name in names}
        ends = {name: self.positions.epochs_left(name) for name in (*names, *self.legs.members)}
        # What is certain is known only of members that train, and only they are weighed by it.
        free = {} if asked is None else {name: until - asked.until for name, until in asked.free_until.items()}
        beside = [leg for leg in legs if leg.members and leg is not asked and leg is not without]
        busy = {device for leg in legs if leg is not without for device in (*leg.devices, *leg.starting)}
        devices = self.launching.cluster.devices
        return Situation(
            waiting=tuple(waiting),
            free=tuple(device for device in devices if device.name not in busy),
            devices=devices,
            running=tuple(leg.flotilla.keeping(leg.members) for leg in beside),
            epochs_done=done,
            epochs_left={name: left for name, left in ends.items() if left is not None},
            epochs_certain={name: sections // per_epoch for name, sections in free.items()},
            samples_per_epoch=self.launching.samples_per_epoch,
            homes={name: tuple(leg.devices_of(name)) for leg in legs for name in leg.members},
            preparation_samples_per_second=self.launching.preparation_rate,
            moving=FILES,
        )
