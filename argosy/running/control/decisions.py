"""Decisions at barriers and for free devices, as queries of a run that change nothing."""

from collections.abc import Mapping, Sequence

from argosy.planning import MOVING_BY_FILES, SKIPPING, Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile
from argosy.results.fold import FINAL_STATUSES
from argosy.running.control.legs import Gate, LiveLeg
from argosy.running.control.members import State
from argosy.running.control.run import DriverPart
from argosy.running.control.verdicts import Fate, Verdict
from argosy.stream.schedule import section_start

__all__ = ["Decisions"]


class Decisions(DriverPart):
    """Queries of one run."""

    # ---- how far a leg goes

    @property
    def has_waiting_members(self) -> bool:
        """Whether a member waits without an assignment, or leaves one without having another."""
        if self.members.any_unplaced:
            return True
        leaving = self.members.leaving.items()
        return any(its.verdict is None and self.legs.of(name) is None for name, its in leaving)

    @property
    def has_returning_members(self) -> bool:
        """Whether a member that leaves its device will need another one once it is saved, because its rest may be over by then."""
        leaving = self.members.leaving.items()
        return any(its.verdict is None or self._is_called(name, its.verdict) for name, its in leaving)

    def _is_called(self, name: str, verdict: Verdict) -> bool:
        return verdict.fate is Fate.REST and self.positions.verdict(name).fate is Fate.GO_ON

    def next_turn(self, leg: LiveLeg) -> int | None:
        """Return the section at which waiting members may have their turn: the next end of an epoch, or the barrier where members rejoin."""
        met = self.leg_to_rejoin(leg)
        if met is not None:
            return met.until
        if self.will_be_rejoined(leg):
            return leg.until + 1
        return (leg.until // self.run.per_epoch + 1) * self.run.per_epoch if self.has_waiting_members else None

    def credit_limit(self, leg: LiveLeg) -> int:
        """Return how far a leg's credit may go."""
        return leg.credit_limit(turns=self.next_turn(leg))

    def horizon(self, leg: LiveLeg) -> int | None:
        """Return the first section that a leg's feeders need not prepare; None if all may be needed."""
        makes_room = (self.has_waiting_members and leg.makes_room) or self.leg_to_rejoin(leg) is not None
        return leg.until if makes_room else leg.horizon

    def must_finish_epoch(self, leg: LiveLeg) -> bool:
        """Return whether a leg is in the middle of an epoch under a policy that levels members at the ends of epochs.

        A member that left it here would train the rest of its epoch while more advanced members of a new flotilla waited.
        """
        return leg.until % self.run.per_epoch > 0 and self.planner.policy_name in SKIPPING

    # ---- recovering members, which rejoin their leg

    def leg_to_rejoin(self, leg: LiveLeg) -> LiveLeg | None:
        """Return the leg that members of this one will rejoin at a barrier."""
        rejoined = (other for other in self.legs.live if any(map(leg.devices_of, self.members.rejoining(other.number))))
        return next(rejoined, None)

    def will_be_rejoined(self, leg: LiveLeg) -> bool:
        """Return whether members will rejoin this leg, at this barrier or the next."""
        return bool(self.members.rejoining(leg.number))

    def has_members_on_way(self, leg: LiveLeg) -> bool:
        """Return whether members are still on the way to the barrier of a leg."""
        return not all(self._has_arrived(name, leg) for name in self.members.rejoining(leg.number))

    def can_all_rejoin(self, leg: LiveLeg) -> bool:
        """Return whether all members that will rejoin a leg can do so at its barrier; if not, all of them do at a later one.

        A member may need a batch that was begun before this barrier.
        """
        return all(self.can_join(name, leg) for name in self.members.rejoining(leg.number))

    def waiting_for_barrier(self) -> set[str]:
        """Return waiting members that continue at or after a barrier that lies ahead, or once its place is known."""
        return {
            name
            for leg in self.legs.live
            for name in self.members.rejoining(leg.number)
            if leg.holding_feeders or self._has_arrived(name, leg)
        }

    def _has_arrived(self, name: str, leg: LiveLeg) -> bool:
        """Return whether a member waits and needs nothing before the barrier, except a batch that was begun there."""
        return self.members.is_waiting(name) and self.positions.stream_section(name) >= leg.until

    # ---- members that leave or return

    def leaving_verdict(self, name: str) -> Verdict | None:
        """Return the verdict on a member that ends or rests, whose last section, if it has any, is saved; None if it continues."""
        member = self.state.member(name)
        if member.sections and not member.saved_at_its_end:
            return None
        verdict = self.positions.verdict(name)
        return verdict if verdict.fate is not Fate.GO_ON else None

    def undecided(self) -> list[str]:
        """Return members whose last section an earlier driver may have saved without journaling what follows."""
        # A finished member may wait because a search has to compare more trials than before.
        names, member = self.members.in_states(State.WAITING, State.ENDED), self.state.member
        return [name for name in names if self.members.is_waiting(name) or member(name).status not in FINAL_STATUSES]

    def called(self) -> list[str]:
        """Return the resting members that a judge calls."""
        run, resting = self.run, self.members.resting
        return sorted(resting & {name for one in run.judges for name in one.called(resting, run.state, run.study)})

    # ---- questions to the policy

    def members_to_start(self) -> list[str]:
        """Return the members that may start on free devices, without those that can join a leg at its coming barrier."""
        later = self.positions.unsettled if any(leg.gate is Gate.HOLDING for leg in self.legs.live) else set[str]()
        later = later | self.waiting_for_barrier()
        return [name for name in self.members.unassigned if name not in later]

    def can_join(self, name: str, leg: LiveLeg) -> bool:
        """Return whether everything that a waiting member needs of the stream comes after a barrier."""
        if self.positions.stream_section(name) != leg.until or self.members.leaving_of(name) is not None:
            return False
        length, begun = self.run.lengths["train"], leg.until > leg.begins.section
        position = section_start(leg.until, length, self.run.per_epoch) if begun else leg.begins.position
        return self.positions.stream_position(name, length) >= position

    def profiles(self, names: Sequence[str]) -> list[Profile]:
        """Return the profiles of those of these members whose costs are known."""
        return self.cost_table.profiles(names, self.run.study)

    def next_flotilla(
        self, leg: LiveLeg, live: Sequence[str], profiles: Sequence[Profile]
    ) -> tuple[Flotilla | None, bool]:
        """Return the flotilla with which a leg continues after its barrier, from its `live` members and the waiting ones in `profiles`.

        None if its members make room. Also returns whether it is the flotilla that the policy started, even if members have left it since.
        """
        staying = set(live)
        profiles_of_live = [profile for profile in profiles if profile.member in staying]
        waiting = [profile for profile in profiles if profile.member not in staying]
        peers = [profile.member for profile in waiting if self.can_join(profile.member, leg)]
        places = dict.fromkeys(live, leg.until // self.run.per_epoch)
        started = leg.flotilla.priced({profile.member: profile for profile in profiles})
        situation = self.situation(waiting, places, asked=leg)
        waits = not peers and self.must_finish_epoch(leg)
        keeps = bool(live) and (waits or self.planner.policy.keeps(situation, started, tuple(profiles_of_live)))
        if keeps:
            return started, True
        staying.update(peers)
        if not staying:
            return None, False
        anew = self.planner.launch(self.situation(profiles, places, without=leg)).flotillas
        candidates, now = [flotilla for flotilla in anew if staying.issuperset(flotilla.members)], set(leg.members)
        # The leg continues with the one that has most of its members.
        flotilla = max(candidates, key=lambda flotilla: len(now.intersection(flotilla.members)), default=None)
        nodes = {feeder.node for feeder in self.pool.alive(leg.feeders)}
        if flotilla is not None and all(self.pool.node_of[device] in nodes for device in flotilla.devices):
            return flotilla, False
        return None, False

    def situation(
        self,
        waiting: Sequence[Profile],
        places: Mapping[str, int],
        *,
        asked: LiveLeg | None = None,
        without: LiveLeg | None = None,
    ) -> Situation:
        """Return what the policy may know, when it is asked about one leg or about continuing without it; `places` are epochs of the stream.

        The devices of the leg `without` count as free, and its members have their homes there.
        """
        per_epoch, legs = self.run.per_epoch, self.legs.live
        names = [profile.member for profile in waiting]
        done = {name: places.get(name, self.positions.stream_section(name) // per_epoch) for name in names}
        ends = {name: self.positions.epochs_left(name) for name in (*names, *self.legs.members)}
        # Only of training members is it known how long they certainly continue, and only they are weighed by it.
        free = {} if asked is None else {name: until - asked.until for name, until in asked.free_until.items()}
        beside = [leg for leg in legs if leg.members and leg is not asked and leg is not without]
        busy = {device for leg in legs if leg is not without for device in (*leg.devices, *leg.starting)}
        devices = self.planner.cluster.devices
        return Situation(
            waiting=tuple(waiting),
            free=tuple(device for device in devices if device.name not in busy),
            devices=devices,
            running=tuple(leg.flotilla.keeping(leg.members) for leg in beside),
            epochs_done=done,
            epochs_left={name: left for name, left in ends.items() if left is not None},
            epochs_certain={name: sections // per_epoch for name, sections in free.items()},
            samples_per_epoch=self.run.lengths["train"],
            homes={name: tuple(leg.devices_of(name)) for leg in legs for name in leg.members},
            preparation_samples_per_second=self.planner.preparation_rate,
            moving=MOVING_BY_FILES,
        )
