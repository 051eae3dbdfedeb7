"""Simulation of a finished run, with its members' actual rates and epochs, which should reproduce the run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.cluster import Device
from argosy.planning import MOVING_BY_FILES, POLICIES
from argosy.planning.outcomes import Charges, Simulation, Workload
from argosy.planning.simulate import simulate
from argosy.profiles import Profile
from argosy.protocol.events import Event, MemberEnded, MemberStarted, PlanMade, Profiled
from argosy.results.fold import MemberState, RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class Hindsight:
    """A finished run as input of the simulator; members that were added count from the beginning."""

    policy: str
    """Policy that made the first plan."""
    workload: Workload
    devices: tuple[Device, ...]
    charges: Charges
    seconds: float
    """Time from the first start of a member to the last end of one, counting only time in which a driver worked on the run."""

    @classmethod
    def of(cls, moments: Iterable[tuple[float, Event]]) -> "Hindsight":
        """Build it from pairs (seconds that drivers had worked, event) in order."""
        moments = list(moments)
        state = RunState.of(event for _, event in moments)
        plans = [event for _, event in moments if isinstance(event, PlanMade)]
        profiled = [event for _, event in moments if isinstance(event, Profiled)]
        ends = [at for at, event in moments if isinstance(event, MemberEnded)]
        assert state.started
        return cls(
            policy=plans[0].plan["policy"],
            workload=_workload(state, state.started.lengths["train"], profiled),
            devices=tuple(Device(**device) for device in state.started.devices),
            charges=Charges(
                moving=MOVING_BY_FILES,
                checkpoint_seconds=_saving_seconds(state),
                opening_seconds=state.started.opening_seconds,
                preparation_samples_per_second=state.started.preparation_samples_per_second,
                preparation_known=state.started.preparation_samples_per_second is not None,
            ),
            seconds=max(ends) - min(at for at, event in moments if isinstance(event, MemberStarted)),
        )

    def simulate(self) -> Simulation:
        """Simulate the run under its own policy."""
        return simulate(POLICIES[self.policy], self.workload, self.devices, charges=self.charges)


def _workload(state: RunState, length: int, profiled: Sequence[Profiled]) -> Workload:
    """Return the workload of all members that trained, in the order in which the policy got them."""
    profiles: dict[str, Mapping[str, Any]] = {}
    limits: dict[str, int] = {}
    for event in profiled:
        profiles.update({profile["member"]: profile for profile in event.profiles})
        limits = {**event.epochs, **limits}  # the first event counts; later drivers report only the epochs left
    trained = [Profile.from_json(profiles[name]) for name in profiles if state.member(name).sections]
    sure = {name for event in profiled for name in event.sure}
    return Workload(
        profiles=tuple(_profile_as_run(profile, state.member(profile.member), length) for profile in trained),
        epochs={profile.member: math.ceil(state.member(profile.member).epochs) for profile in trained},
        samples_per_epoch=length,
        epochs_known=all(profile.member in sure for profile in trained),
        limits=limits,
    )


def _profile_as_run(profile: Profile, member: MemberState, length: int) -> Profile:
    """Return the profile with the member's actual rate in samples of the stream, validation included; for a split member, the profile itself."""
    seconds = sum(section.seconds for section in member.sections)
    if member.split is not None or not seconds:
        return profile
    return profile.observed(member.epochs * length / seconds, weight=1.0)


def _saving_seconds(state: RunState) -> float:
    """Return the time that a device spent on saving files, per epoch of the stream."""
    sections = {(s.device, s.stream_epoch, s.section) for member in state.members.values() for s in member.sections}
    per_epoch = state.started.validations_per_epoch if state.started else 1
    return sum(state.saving.values()) * per_epoch / max(len(sections), 1)
