"""Discrete-event simulation of a policy on a cluster that need not exist, based on profiles."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.planning.clock import Clock, Runner
from argosy.planning.homes import moving_seconds, receiving_devices
from argosy.planning.outcomes import Charges, Segment, Simulation, Workload
from argosy.planning.policy import Policy, Situation
from argosy.plans import Flotilla

__all__ = ["lower_bound_seconds", "simulate"]


def simulate(
    policy: Policy,
    workload: Workload,
    devices: Sequence[Device],
    *,
    charges: Charges | None = None,
    name: str = "",
    clock: Callable[[], float] = lambda: 0.0,
) -> Simulation:
    """Simulate the policy until every member has converged; ``clock`` only times the planner itself."""
    run = _Run(policy, workload, tuple(devices), charges or Charges(), clock)
    run.launch()
    while run.legs or run.waiting:
        ended = run.advance()
        run.end_epochs(ended)
        run.launch()
    return run.result(name)


def lower_bound_seconds(workload: Workload, devices: int, slowdown: float = 1.0) -> float:
    """Return max(Σ work / M, longest member at its best rate), below which no policy can be in this cost model."""
    work, longest = 0.0, 0.0
    for profile in workload.profiles:
        samples = workload.epochs[profile.member] * workload.samples_per_epoch * slowdown
        groups = range(1, profile.largest_group(devices) + 1)
        work += samples * min(count / profile.rate(count) for count in groups)
        longest = max(longest, samples / profile.rate(groups[-1]))
    return max(work / devices, longest)


@dataclass(slots=True)
class _Leg:
    """A flotilla from its start until it is stopped or empty."""

    number: int
    started: Flotilla
    runners: dict[str, Runner]
    since: float
    """Start of the current segment of the timeline."""
    running: Flotilla = field(init=False)
    devices: tuple[str, ...] = field(init=False)
    """Devices that are still training."""

    def __post_init__(self) -> None:
        self.keep(self.runners)

    def keep(self, members: Iterable[str]) -> None:
        """Continue with these members only."""
        self.running = self.started.keeping(members)
        self.devices = self.running.devices

    @property
    def demand(self) -> float:
        """Samples per second that its stream demands, which is the rate of its fastest member."""
        return 1.0 / min(runner.seconds_per_sample for runner in self.runners.values())

    @property
    def busy(self) -> float:
        """Number of devices that its members keep busy, with fractions for partly idle ones."""
        return sum(
            placement.seconds_on(device) / self.runners[placement.member].seconds_per_sample
            for placement in self.running.placements
            for device in placement.devices
        )


class _Run:
    """State of one simulation; every method is one kind of event."""

    def __init__(
        self,
        policy: Policy,
        workload: Workload,
        devices: tuple[Device, ...],
        charges: Charges,
        clock: Callable[[], float],
    ) -> None:
        self.policy, self.workload, self.charges, self.planner_clock = policy, workload, charges, clock
        self.clock = Clock(samples_per_epoch=workload.samples_per_epoch)
        self.preparation = charges.preparation_samples_per_second or math.inf
        """Samples per second that can be prepared for all streams together."""
        self.profiles = {profile.member: profile for profile in workload.profiles}
        self.devices = devices
        self.legs: dict[int, _Leg] = {}
        self.unsettled = True
        """Whether streams or their members have changed, so that the demand must be computed again."""
        self.streams = 1
        """Largest number of simultaneous streams so far."""
        self.done = {profile.member: 0 for profile in workload.profiles}
        self.left = dict(workload.visible_epochs)
        self.waiting = [profile for profile in workload.profiles if workload.epochs[profile.member] > 0]
        self.homes: dict[str, tuple[str, ...]] = {}
        self.busy: dict[str, float] = defaultdict(float)
        self.finished: dict[str, float] = {}
        self.timeline: list[Segment] = []
        self.flotillas = self.moves = 0
        self.planner_seconds = 0.0

    # ---- questions to the policy

    def situation(self, asked_leg: _Leg | None = None) -> Situation:
        """Return what the policy may know now; `asked_leg` is the leg that the question is about, if any."""
        used = {name for leg in self.legs.values() for name in leg.devices}
        return Situation(
            waiting=tuple(self.waiting),
            free=tuple(device for device in self.devices if device.name not in used),
            devices=self.devices,
            running=tuple(leg.running for leg in self.legs.values() if leg is not asked_leg),
            epochs_done=self.done,
            epochs_left=self.left,
            epochs_certain=self.left if self.workload.epochs_known else {},
            samples_per_epoch=self.workload.samples_per_epoch,
            homes=self.homes,
            preparation_samples_per_second=self.preparation if self.charges.preparation_known else None,
            moving=self.charges.moving,
        )

    def launch(self) -> None:
        """Start flotillas as long as members wait, devices are free, and the policy returns any."""
        while self.waiting:
            situation = self.situation()
            if not situation.free:
                return
            before = self.planner_clock()
            flotillas = self.policy.launch(situation)
            self.planner_seconds += self.planner_clock() - before
            if not flotillas:
                return
            for flotilla in flotillas:
                self._start(flotilla)

    def end_epochs(self, ended: Iterable[Runner]) -> None:
        """End the epoch of members, which then leave or continue; the policy may stop their flotillas."""
        for number, runners in groupby(sorted(ended, key=lambda runner: runner.leg), key=lambda runner: runner.leg):
            leg = self.legs[number]
            self._end_epoch(leg, list(runners))
            if leg.runners and not self._keeps(leg):
                self._stop(leg)
                self.launch()  # before the next leg is asked, so that members of two streams at different epochs do not mix

    def _keeps(self, leg: _Leg) -> bool:
        live = tuple(self.profiles[member] for member in leg.runners)
        situation = self.situation(leg)
        before = self.planner_clock()
        keeps = self.policy.keeps(situation, leg.started, live)
        self.planner_seconds += self.planner_clock() - before
        return keeps

    # ---- changes

    def _start(self, flotilla: Flotilla) -> None:
        profiles = [self.profiles[member] for member in flotilla.members]
        delay = self.charges.flotilla_seconds
        if len(self.legs) == self.streams:  # more streams than ever before: another feeder opens the data
            self.streams += 1
            delay += self.charges.opening_seconds
        if any(member in self.homes for member in flotilla.members):
            moving = self.charges.moving
            delay += moving.rebalance_seconds + moving_seconds([flotilla], self.homes, profiles, moving)
        self.moves += sum(bool(receiving_devices(placement, self.homes)) for placement in flotilla.placements)
        members = set(flotilla.members)
        self.waiting = [profile for profile in self.waiting if profile.member not in members]
        self._evict(flotilla)
        self.homes |= {placement.member: placement.devices for placement in flotilla.placements}
        seconds = self._seconds_per_sample(flotilla)
        number, samples = self.flotillas, float(self.workload.samples_per_epoch)
        runners = {member: Runner(member, number, samples, seconds[member]) for member in flotilla.members}
        self.legs[number] = _Leg(number=number, started=flotilla, runners=runners, since=self.clock.now)
        self.flotillas, self.unsettled = self.flotillas + 1, True
        for runner in runners.values():
            self.clock.pause(runner, delay)

    def _evict(self, flotilla: Flotilla) -> None:
        """Remove waiting members from the devices of the flotilla; their state goes to the host."""
        taken = set(flotilla.devices)
        for profile in self.waiting:
            if profile.member in self.homes:
                kept = tuple(name for name in self.homes[profile.member] if name not in taken)
                self.homes[profile.member] = kept

    def _end_epoch(self, leg: _Leg, runners: Iterable[Runner]) -> None:
        """End the epoch of some members of one leg."""
        self._count(leg)
        for runner in runners:
            self.done[runner.member] += 1
            if self.left.get(runner.member, 0) > 1:
                self.left[runner.member] -= 1
            if self.done[runner.member] < self.workload.epochs[runner.member]:
                runner.samples_left = float(self.workload.samples_per_epoch)
                self.clock.pause(runner, self.charges.checkpoint_seconds)
            else:
                self.finished[runner.member] = self.clock.now
                self.clock.remove(runner)
                del leg.runners[runner.member], self.homes[runner.member]
        if len(leg.runners) == len(leg.running.placements):
            return
        self.unsettled = True
        self._end_segment(leg)
        if leg.runners:
            leg.keep(leg.runners)
            for member, seconds in self._seconds_per_sample(leg.running).items():
                self.clock.change(leg.runners[member], seconds)
        else:
            del self.legs[leg.number]

    def _stop(self, leg: _Leg) -> None:
        """Stop a leg: its members wait, and start unfinished epochs again later."""
        self._count(leg)
        self._end_segment(leg)
        del self.legs[leg.number]
        self.unsettled = True
        for runner in leg.runners.values():
            self.clock.remove(runner)
        waiting = {*leg.runners, *(profile.member for profile in self.waiting)}
        self.waiting = [profile for profile in self.workload.profiles if profile.member in waiting]

    # ---- time

    def advance(self) -> list[Runner]:
        """Advance to the next end of an epoch or a pause; return the members whose epoch ended."""
        if self.unsettled:
            # If streams demand more than can be prepared, all are slowed down by the same factor.
            self.unsettled, self.clock.prepared = False, 1.0 / max(self._cores_wanted(), 1.0)
        event = self.clock.next_event()
        if event is None:
            waiting = ", ".join(repr(profile.member) for profile in self.waiting)
            raise PlanError(
                f"nothing runs, and the policy starts nothing although members wait: {waiting}. Choose another policy."
            )
        return self.clock.advance_to(event)

    def _cores_wanted(self) -> float:
        """Return the demand for cores, of streams and of devices that are CPUs, divided by the cores that prepare."""
        wanted = sum(leg.demand for leg in self.legs.values()) / self.preparation
        if self.charges.training_share:
            wanted += self.charges.training_share * self.charges.slowdown * sum(leg.busy for leg in self.legs.values())
        return wanted

    def _seconds_per_sample(self, flotilla: Flotilla) -> dict[str, float]:
        """Return, by member, the load of the busiest device: of the whole flotilla with ``one_pace``, otherwise of the member's devices."""
        loads = flotilla.loads
        if self.charges.one_pace:
            return dict.fromkeys(flotilla.members, max(loads.values()) * self.charges.slowdown)
        return {p.member: max(loads[d] for d in p.devices) * self.charges.slowdown for p in flotilla.placements}

    # ---- results

    def _count(self, leg: _Leg) -> None:
        """Add the work of a leg's devices up to now."""
        for placement in leg.running.placements:
            runner = leg.runners[placement.member]
            samples = self.clock.settle(runner) / runner.seconds_per_sample
            for device in placement.devices:
                self.busy[device] += samples * placement.seconds_on(device) * self.charges.slowdown

    def _end_segment(self, leg: _Leg) -> None:
        now = self.clock.now
        if now > leg.since:
            self.timeline += [
                Segment(
                    device=device,
                    start_seconds=leg.since,
                    end_seconds=now,
                    flotilla=leg.number,
                    members=tuple(placement.member for placement in leg.running.pack(device)),
                )
                for device in leg.devices
            ]
        leg.since = now

    def result(self, name: str) -> Simulation:
        """Return the outcome of the whole simulation."""
        return Simulation(
            policy=name,
            devices=len(self.devices),
            makespan_seconds=self.clock.now,
            bound_seconds=lower_bound_seconds(self.workload, len(self.devices), self.charges.slowdown),
            flotillas=self.flotillas,
            moves=self.moves,
            wait_seconds={device.name: self.clock.now - self.busy[device.name] for device in self.devices},
            finished_seconds=self.finished,
            timeline=tuple(self.timeline),
            planner_seconds=self.planner_seconds,
        )
