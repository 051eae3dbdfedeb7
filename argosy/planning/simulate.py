"""A discrete-event run of a policy over profiles: what it would do on a cluster that need not exist."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.planning.homes import arrivals, moving_seconds
from argosy.planning.outcomes import Charges, Failure, Segment, Simulation, Workload
from argosy.planning.policy import Policy, Situation
from argosy.planning.waiting import cycle_seconds
from argosy.plans import Flotilla

__all__ = ["lower_bound_seconds", "simulate"]

_SAME_TIME = 1e-9
"""Events this close, relative, happen at once: rounding must not part the members of one epoch."""


def simulate(
    policy: Policy,
    workload: Workload,
    devices: Sequence[Device],
    *,
    charges: Charges | None = None,
    failures: Sequence[Failure] = (),
    name: str = "",
    clock: Callable[[], float] = lambda: 0.0,
) -> Simulation:
    """Run the policy until every member has converged; ``clock`` only times the planner itself."""
    run = _Run(policy, workload, tuple(devices), charges or Charges(), failures, clock)
    run.launch()
    while run.legs or run.waiting:
        run.advance_to(run.next_event())
        run.change_devices()
        run.end_epochs()
        run.launch()
    return run.result(name)


def lower_bound_seconds(workload: Workload, devices: int, slowdown: float = 1.0) -> float:
    """max(Σ work / M, longest member at its best rate): no policy of this cost model can be faster."""
    work, longest = 0.0, 0.0
    for profile in workload.profiles:
        samples = workload.epochs[profile.member] * workload.samples_per_epoch * slowdown
        groups = range(1, profile.largest_group(devices) + 1)
        work += samples * min(count / profile.rate(count) for count in groups)
        longest = max(longest, samples / profile.rate(groups[-1]))
    return max(work / devices, longest)


@dataclass(slots=True)
class _Runner:
    """One member of a running leg."""

    member: str
    samples_left: float
    """Of its current epoch."""
    seconds_per_sample: float
    paused_until: float
    rate: float = 0.0

    def next_event(self, now: float) -> float:
        """End of its pause or of its epoch."""
        return self.paused_until if self.paused_until > now else now + self.samples_left / self.rate


@dataclass(slots=True)
class _Leg:
    """A flotilla from its start until it is stopped or empty."""

    number: int
    started: Flotilla
    runners: dict[str, _Runner]
    since: float
    """Start of the current segment of the timeline."""
    rates_stale: bool = field(init=False)
    running: Flotilla = field(init=False)
    devices: tuple[str, ...] = field(init=False)
    """Those that still train."""

    def __post_init__(self) -> None:
        self.keep(self.runners)

    def keep(self, members: Iterable[str]) -> None:
        """Only these train on."""
        self.running = self.started.keeping(members)
        self.devices = self.running.devices
        self.rates_stale = True


class _Run:
    """State of one simulation; every method is one kind of event."""

    def __init__(
        self,
        policy: Policy,
        workload: Workload,
        devices: tuple[Device, ...],
        charges: Charges,
        failures: Sequence[Failure],
        clock: Callable[[], float],
    ) -> None:
        self.policy, self.workload, self.charges, self.clock = policy, workload, charges, clock
        self.profiles = {profile.member: profile for profile in workload.profiles}
        self.all_devices = devices
        self.lost: set[str] = set()
        self.device_changes = sorted(_changes(failures))
        self.now = 0.0
        self.legs: list[_Leg] = []
        self.done = {profile.member: 0 for profile in workload.profiles}
        self.waiting = [profile for profile in workload.profiles if workload.epochs[profile.member] > 0]
        self.homes: dict[str, tuple[str, ...]] = {}
        self.busy: dict[str, float] = defaultdict(float)
        self.finished: dict[str, float] = {}
        self.timeline: list[Segment] = []
        self.flotillas = self.moves = self.moved_bytes = 0
        self.moving_seconds = self.planner_seconds = 0.0

    # Questions to the policy.

    def situation(self) -> Situation:
        """What the policy may know at this moment."""
        devices = tuple(device for device in self.all_devices if device.name not in self.lost)
        used = {name for leg in self.legs for name in leg.devices}
        left = {member: self.workload.epochs[member] - done for member, done in self.done.items()}
        return Situation(
            waiting=tuple(self.waiting),
            free=tuple(device for device in devices if device.name not in used),
            devices=devices,
            epochs_done=self.done,
            epochs_left=left if self.workload.epochs_known else {},
            samples_per_epoch=self.workload.samples_per_epoch,
            homes=self.homes,
            preparation_samples_per_second=self.charges.preparation_samples_per_second or float("inf"),
            moving=self.charges.moving,
        )

    def launch(self) -> None:
        """Ask for flotillas while members wait and devices are free."""
        if not self.waiting:
            return
        situation = self.situation()
        if not situation.free:
            return
        before = self.clock()
        flotillas = self.policy.launch(situation)
        self.planner_seconds += self.clock() - before
        for flotilla in flotillas:
            self._start(flotilla)

    def end_epochs(self) -> None:
        """Members whose epoch is over leave or go on; the policy may stop the flotilla that they are in."""
        for leg in list(self.legs):
            ended = [r for r in leg.runners.values() if r.samples_left <= _SAME_TIME * self.workload.samples_per_epoch]
            for runner in ended:
                self._end_epoch(leg, runner)
            if ended and leg.runners and not self._keeps(leg):
                self._stop(leg)
                self.launch()  # Before the next leg is asked, so that two streams at unlike epochs do not mix.

    def _keeps(self, leg: _Leg) -> bool:
        live = tuple(self.profiles[member] for member in leg.runners)
        before = self.clock()
        keeps = self.policy.keeps(self.situation(), leg.started, live)
        self.planner_seconds += self.clock() - before
        return keeps

    # What changes.

    def _start(self, flotilla: Flotilla) -> None:
        profiles = [self.profiles[member] for member in flotilla.members]
        delay = self.charges.flotilla_seconds
        if any(member in self.homes for member in flotilla.members):
            moving = moving_seconds([flotilla], self.homes, profiles, self.charges.moving)
            moving += self.charges.moving.rebalance_seconds
            self.moving_seconds += moving
            delay += moving
        for placement in flotilla.placements:
            targets = arrivals(placement, self.homes)
            self.moves += bool(targets)
            self.moved_bytes += len(targets) * self.profiles[placement.member].state_bytes
        self._evict(flotilla)
        self.homes |= {placement.member: placement.devices for placement in flotilla.placements}
        self.waiting = [profile for profile in self.waiting if profile.member not in set(flotilla.members)]
        seconds = self._seconds_per_sample(flotilla)
        runners = {
            member: _Runner(member, float(self.workload.samples_per_epoch), seconds[member], self.now + delay)
            for member in flotilla.members
        }
        self.legs.append(_Leg(number=self.flotillas, started=flotilla, runners=runners, since=self.now))
        self.flotillas += 1

    def _evict(self, flotilla: Flotilla) -> None:
        """Members that wait lose their place on the devices that the flotilla takes; their state goes to the host."""
        taken = set(flotilla.devices)
        for profile in self.waiting:
            if profile.member in self.homes and profile.member not in flotilla.members:
                kept = tuple(name for name in self.homes[profile.member] if name not in taken)
                self.homes[profile.member] = kept

    def _end_epoch(self, leg: _Leg, runner: _Runner) -> None:
        self.done[runner.member] += 1
        runner.samples_left = float(self.workload.samples_per_epoch)
        runner.paused_until = self.now + self.charges.checkpoint_seconds
        if self.done[runner.member] < self.workload.epochs[runner.member]:
            return
        self._end_segment(leg)
        self.finished[runner.member] = self.now
        del leg.runners[runner.member], self.homes[runner.member]
        if not leg.runners:
            self.legs.remove(leg)
            return
        leg.keep(leg.runners)

    def _stop(self, leg: _Leg) -> None:
        """All members wait; the epoch that a member is in starts again."""
        self._end_segment(leg)
        self.legs.remove(leg)
        waiting = {*leg.runners, *(profile.member for profile in self.waiting)}
        self.waiting = [profile for profile in self.workload.profiles if profile.member in waiting]

    def change_devices(self) -> None:
        """Devices that are lost or come back at this moment."""
        while self.device_changes and self.device_changes[0][0] <= self.now:
            _, name, back = self.device_changes.pop(0)
            if back:
                self.lost.discard(name)
                continue
            self.lost.add(name)
            for leg in [leg for leg in self.legs if name in leg.devices]:
                self._stop(leg)
            self.homes = {m: tuple(home for home in homes if home != name) for m, homes in self.homes.items()}

    # Time.

    def next_event(self) -> float:
        """The next end of an epoch or of a pause, or the next change of devices."""
        self._set_rates()
        times = [runner.next_event(self.now) for leg in self.legs for runner in leg.runners.values()]
        times += [at for at, _, _ in self.device_changes[:1]]
        if not times:
            waiting = ", ".join(repr(profile.member) for profile in self.waiting)
            raise PlanError(
                f"nothing runs, and the policy starts nothing though {waiting} wait; choose another policy."
            )
        return min(times)

    def advance_to(self, time: float) -> None:
        """Train until then."""
        elapsed, self.now = time - self.now, time
        for leg in self.legs:
            for placement in leg.running.placements:
                runner = leg.runners[placement.member]
                if runner.paused_until >= time:
                    continue
                runner.samples_left -= elapsed * runner.rate
                for device in placement.devices:
                    seconds = placement.seconds_on(device) * self.charges.slowdown
                    self.busy[device] += elapsed * runner.rate * seconds

    def _set_rates(self) -> None:
        """Every member's rate, all lowered alike where the streams ask for more than can be prepared."""
        demand = 0.0
        for leg in self.legs:
            if leg.rates_stale:
                for member, seconds in self._seconds_per_sample(leg.running).items():
                    leg.runners[member].seconds_per_sample = seconds
                leg.rates_stale = False
            demand += 1.0 / min(runner.seconds_per_sample for runner in leg.runners.values())
        available = self.charges.preparation_samples_per_second or demand
        for leg in self.legs:
            for runner in leg.runners.values():
                runner.rate = min(1.0, available / demand) / runner.seconds_per_sample

    def _seconds_per_sample(self, flotilla: Flotilla) -> dict[str, float]:
        """Of each member: the cycle of the whole flotilla, or at its own rate the load of its busiest device."""
        if self.charges.one_pace:
            pace = cycle_seconds(flotilla, self.profiles) * self.charges.slowdown
            return dict.fromkeys(flotilla.members, pace)
        loads = flotilla.loads
        return {p.member: max(loads[d] for d in p.devices) * self.charges.slowdown for p in flotilla.placements}

    # What came of it.

    def _end_segment(self, leg: _Leg) -> None:
        if self.now > leg.since:
            self.timeline += [
                Segment(
                    device=device,
                    start_seconds=leg.since,
                    end_seconds=self.now,
                    flotilla=leg.number,
                    members=tuple(placement.member for placement in leg.running.pack(device)),
                )
                for device in leg.devices
            ]
        leg.since = self.now

    def result(self, name: str) -> Simulation:
        """The figures of the whole run."""
        return Simulation(
            policy=name,
            devices=len(self.all_devices),
            makespan_seconds=self.now,
            bound_seconds=lower_bound_seconds(self.workload, len(self.all_devices), self.charges.slowdown),
            flotillas=self.flotillas,
            moves=self.moves,
            moved_bytes=self.moved_bytes,
            moving_seconds=self.moving_seconds,
            wait_seconds={device.name: self.now - self.busy[device.name] for device in self.all_devices},
            finished_seconds=self.finished,
            timeline=tuple(self.timeline),
            planner_seconds=self.planner_seconds,
        )


def _changes(failures: Iterable[Failure]) -> Iterable[tuple[float, str, bool]]:
    """(time, device, whether it comes back) of every loss and repair."""
    for failure in failures:
        yield failure.at_seconds, failure.device, False
        if failure.repair_seconds is not None:
            yield failure.at_seconds + failure.repair_seconds, failure.device, True
