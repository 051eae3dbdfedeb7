"""The default policy: every member in one flotilla, packed and split so that all devices finish together."""

from collections.abc import Sequence
from dataclasses import dataclass

from argosy.cluster import Device
from argosy.planning.bins import Bin
from argosy.planning.homes import settle
from argosy.planning.memory import require_fit
from argosy.planning.packing import best_flotilla
from argosy.planning.policy import Situation
from argosy.planning.rebalancing import keeps_unless_it_pays, work_rate
from argosy.planning.units import gathered
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["Balanced"]

WORTH_ONE_STREAM = 0.75
"""Members share one stream as long as the devices then do at least this part of the work that they could."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Balanced:
    """Bisect the pace of one flotilla of all live members; re-balance when the gain pays for the move."""

    even_shares: bool = False
    """Split members in equal shares only, as ``exact`` does."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """All members that are at the same epoch and that the memory of the free devices holds."""
        require_fit(situation.waiting, situation.devices)
        largest = max((device.memory_bytes for device in situation.free), default=0)
        fitting = [profile for profile in situation.waiting if profile.memory_bytes <= largest]
        if not fitting:
            return ()
        # One stream is at one epoch: those furthest behind go first.
        epoch = min(situation.epochs_done.get(profile.member, 0) for profile in fitting)
        peers = [profile for profile in fitting if situation.epochs_done.get(profile.member, 0) == epoch]
        together = gathered(_largest_fitting(peers, situation.free, self.even_shares), peers, situation.free)
        flotilla = settle(together, situation.free, situation.homes, peers)
        if work_rate((flotilla,), peers) >= WORTH_ONE_STREAM * min(len(peers), len(situation.free)):
            return (flotilla,)
        return _one_stream_each(peers, situation) or (flotilla,)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Until another plan for the live members pays for its moves, or others wait for their turn."""
        return keeps_unless_it_pays(self.launch, situation, started, live)


def _largest_fitting(profiles: Sequence[Profile], devices: Sequence[Device], even_shares: bool) -> Flotilla:
    """The members in as few flotillas as memory allows, dealt out so that each does about the same work: the first one.

    The others wait; flotillas rotate once an epoch.
    """
    largest_first = sorted(profiles, key=lambda p: (-p.seconds_per_sample, p.member))
    for turns in range(1, len(profiles) + 1):
        flotilla = best_flotilla(largest_first[::turns], devices, even_shares=even_shares)
        if flotilla is not None:
            return flotilla
    raise AssertionError("a member that fits a device can be placed alone")


def _one_stream_each(profiles: Sequence[Profile], situation: Situation) -> tuple[Flotilla, ...]:
    """Whole members, the largest to the least loaded device (LPT, Graham 1969), every device on a stream of its own.

    Members that find no memory wait. Empty where the preparation rate is unknown or too small for so many streams.
    """
    available = situation.preparation_samples_per_second
    if available is None:
        return ()
    bins = [Bin(device=device, room=0.0) for device in situation.free]
    packs: dict[str, list[Placement]] = {device.name: [] for device in situation.free}
    for profile in sorted(profiles, key=lambda p: (-p.seconds_per_sample, p.member)):
        bin_ = max((b for b in bins if b.holds(profile)), key=lambda b: b.room, default=None)
        if bin_ is not None:
            bin_.take(profile, profile.seconds_per_sample)
            packs[bin_.device.name].append(Placement.whole(profile, bin_.device.name))
    flotillas = tuple(Flotilla(placements=tuple(pack)) for pack in packs.values() if pack)
    return flotillas if sum(flotilla.samples_per_second for flotilla in flotillas) <= available else ()
