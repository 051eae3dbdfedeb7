"""What the policy is asked at a barrier and when devices are free, with all that the run knows; the answers are `Launching`'s."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from argosy.planning import SKIPPING, Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile
from argosy.running.control.legs import LiveLeg
from argosy.stream.schedule import section_start

if TYPE_CHECKING:
    from argosy.running.control.scheduler import LegScheduler

__all__ = ["Asking"]


class Asking:
    """Of one run."""

    def __init__(self, scheduler: "LegScheduler") -> None:
        self.scheduler = scheduler

    def ask(self, leg: LiveLeg, live: list[str]) -> Flotilla | None:
        """The flotilla that goes on with a leg at its barrier, if any."""
        scheduler = self.scheduler
        per_epoch, place = scheduler.driver.study.validations_per_epoch, leg.until
        if place % per_epoch == 0 and scheduler.driver.packs is None:
            scheduler.member_table.join(scheduler.member_table.waiting, place // per_epoch)
        waiting_here = scheduler.recovering.others(scheduler.member_table.waiting)
        peers = [name for name in waiting_here if self.can_join(name, leg)]
        profiles = scheduler.driver.measuring.profiles([*live, *waiting_here], scheduler.driver.study)
        here = set(live)
        aboard = [profile for profile in profiles if profile.member in here]
        waiting = [profile for profile in profiles if profile.member not in here]
        places = dict.fromkeys(live, place // per_epoch)
        started = scheduler.flotillas[leg.number].priced({profile.member: profile for profile in profiles})
        scheduler.predictions.profiled(profiles)
        situation = self.situation(waiting, places, asked=leg)
        with scheduler.predictions.planning():
            waits = not peers and self.too_soon(leg)
            keeps = bool(live) and (waits or scheduler.launching.policy.keeps(situation, started, tuple(aboard)))
        leg.makes_room = not keeps
        if keeps:
            # Policies are asked about the flotilla that they started, whoever has left it since.
            scheduler.flotillas[leg.number] = started
            return started.keeping(live)
        anew = self.situation(profiles, places, without=leg)
        with scheduler.predictions.planning():
            goes_on = scheduler.launching.goes_on(leg, aboard, peers, anew)
        if goes_on is None:
            return None
        nodes = {scheduler.pool.feeders[name].node for name in leg.feeders if name in scheduler.pool.feeders}
        return goes_on if all(scheduler.pool.node_of[device] in nodes for device in goes_on.devices) else None

    def too_soon(self, leg: LiveLeg) -> bool:
        """Whether a leg stands in the middle of an epoch under a policy that levels members at the ends of epochs.

        Whoever left it here would train the rest of its epoch while members of a new flotilla that are further waited.
        """
        middle = leg.until % self.scheduler.driver.study.validations_per_epoch > 0
        return middle and self.scheduler.launching.policy_name in SKIPPING

    def can_join(self, name: str, leg: LiveLeg) -> bool:
        """Whether all that a waiting member wants of the stream is still to come at a barrier."""
        scheduler = self.scheduler
        if scheduler.member_table.place(name) != leg.until or name in scheduler.leaving:
            return False
        length, per_epoch = scheduler.driver.lengths["train"], scheduler.driver.study.validations_per_epoch
        begun = leg.until > leg.begins.section
        position = section_start(leg.until, length, per_epoch) if begun else leg.begins.position
        return scheduler.member_table.leg_for([name], scheduler.driver.lengths, number=0).position >= position

    def situation(
        self,
        waiting: list[Profile],
        places: Mapping[str, int],
        *,
        asked: LiveLeg | None = None,
        without: LiveLeg | None = None,
    ) -> Situation:
        """What the policy may know, asked about one leg, or about what to do without it."""
        scheduler = self.scheduler
        per_epoch = scheduler.driver.study.validations_per_epoch
        names = [profile.member for profile in waiting]
        done = {name: places.get(name, scheduler.member_table.place(name) // per_epoch) for name in names}
        aboard = [name for leg in scheduler.legs for name in leg.members]
        left = {
            name: left for name in (*names, *aboard) if (left := scheduler.member_table.epochs_left(name)) is not None
        }
        # Who is sure to go on is known already of those that are aboard, and only they are weighed by it.
        free = {} if asked is None else {name: until - asked.until for name, until in asked.free_until.items()}
        certain = {name: sections // per_epoch for name, sections in free.items()}
        beside = [leg for leg in scheduler.legs if leg.members and leg is not asked and leg is not without]
        return scheduler.launching.situation(
            waiting,
            scheduler.legs,
            epochs_done=done,
            epochs_left=left,
            epochs_certain=certain,
            running=[scheduler.flotillas[leg.number].keeping(leg.members) for leg in beside],
            without=without,
        )
