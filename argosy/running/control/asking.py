"""What the policy is asked at a barrier and when devices are free, with all that the run knows; the answers are `Launching`'s."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from argosy.planning import SKIPPING, Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile
from argosy.running.control.legs import LiveLeg
from argosy.stream.schedule import section_start

if TYPE_CHECKING:
    from argosy.running.control.voyage import Voyage

__all__ = ["Asking"]


class Asking:
    """Of one run."""

    def __init__(self, voyage: "Voyage") -> None:
        self.voyage = voyage

    def ask(self, leg: LiveLeg, live: list[str]) -> Flotilla | None:
        """The flotilla that goes on with a leg at its barrier, if any."""
        voyage = self.voyage
        per_epoch, place = voyage.driver.study.validations_per_epoch, leg.until
        if place % per_epoch == 0 and voyage.driver.packs is None:
            voyage.roster.join(voyage.roster.waiting, place // per_epoch)
        waiting_here = voyage.stragglers.others(voyage.roster.waiting)
        peers = [name for name in waiting_here if self.can_join(name, leg)]
        profiles = voyage.driver.measuring.profiles([*live, *waiting_here], voyage.driver.study)
        here = set(live)
        aboard = [profile for profile in profiles if profile.member in here]
        waiting = [profile for profile in profiles if profile.member not in here]
        places = dict.fromkeys(live, place // per_epoch)
        started = voyage.flotillas[leg.number].priced({profile.member: profile for profile in profiles})
        voyage.logbook.profiled(profiles)
        situation = self.situation(waiting, places, asked=leg)
        with voyage.logbook.planning():
            waits = not peers and self.too_soon(leg)
            keeps = bool(live) and (waits or voyage.launching.policy.keeps(situation, started, tuple(aboard)))
        leg.makes_room = not keeps
        if keeps:
            # Policies are asked about the flotilla that they started, whoever has left it since.
            voyage.flotillas[leg.number] = started
            return started.keeping(live)
        anew = self.situation(profiles, places, without=leg)
        with voyage.logbook.planning():
            goes_on = voyage.launching.goes_on(leg, aboard, peers, anew)
        if goes_on is None:
            return None
        nodes = {voyage.force.feeders[name].node for name in leg.feeders if name in voyage.force.feeders}
        return goes_on if all(voyage.force.node_of[device] in nodes for device in goes_on.devices) else None

    def too_soon(self, leg: LiveLeg) -> bool:
        """Whether a leg stands in the middle of an epoch under a policy that levels members at the ends of epochs.

        Whoever left it here would train the rest of its epoch while members of a new flotilla that are further waited.
        """
        middle = leg.until % self.voyage.driver.study.validations_per_epoch > 0
        return middle and self.voyage.launching.policy_name in SKIPPING

    def can_join(self, name: str, leg: LiveLeg) -> bool:
        """Whether all that a waiting member wants of the stream is still to come at a barrier."""
        voyage = self.voyage
        if voyage.roster.place(name) != leg.until or name in voyage.leaving:
            return False
        length, per_epoch = voyage.driver.lengths["train"], voyage.driver.study.validations_per_epoch
        begun = leg.until > leg.begins.section
        position = section_start(leg.until, length, per_epoch) if begun else leg.begins.position
        return voyage.roster.leg_for([name], voyage.driver.lengths, number=0).position >= position

    def situation(
        self,
        waiting: list[Profile],
        places: Mapping[str, int],
        *,
        asked: LiveLeg | None = None,
        without: LiveLeg | None = None,
    ) -> Situation:
        """What the policy may know, asked about one leg, or about what to do without it."""
        voyage = self.voyage
        per_epoch = voyage.driver.study.validations_per_epoch
        names = [profile.member for profile in waiting]
        done = {name: places.get(name, voyage.roster.place(name) // per_epoch) for name in names}
        aboard = [name for leg in voyage.legs for name in leg.members]
        left = {name: left for name in (*names, *aboard) if (left := voyage.roster.epochs_left(name)) is not None}
        # Who is sure to go on is known already of those that are aboard, and only they are weighed by it.
        free = {} if asked is None else {name: until - asked.until for name, until in asked.free_until.items()}
        certain = {name: sections // per_epoch for name, sections in free.items()}
        beside = [leg for leg in voyage.legs if leg.members and leg is not asked and leg is not without]
        return voyage.launching.situation(
            waiting,
            voyage.legs,
            epochs_done=done,
            epochs_left=left,
            epochs_certain=certain,
            running=[voyage.flotillas[leg.number].keeping(leg.members) for leg in beside],
            without=without,
        )
