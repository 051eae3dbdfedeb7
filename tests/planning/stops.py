"""Random jobs that stop unforeseen, and a comparison of ``balanced`` with list scheduling: a few cases in tests, many in a benchmark."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from argosy.cli.simulated import read_scaling
from argosy.cluster import Device
from argosy.planning import POLICIES
from argosy.planning.outcomes import Charges, Simulation, Workload
from argosy.planning.policy import Moving
from argosy.planning.simulate import lower_bound_seconds, simulate
from argosy.profiles import Profile

LIMIT, SAMPLES, SLOWEST = 50, 30_000, 20.0
PREPARATION = {"free": None, "cheap": 0.5, "dear": 4.0}
"""How long preparation takes if each job prepares its own samples, as a multiple of the lower bound of the makespan."""
MOVING = Moving(rebalance_seconds=2.0, bytes_per_second=1e9)
SCALING = Path(__file__).parents[2] / "benchmarks" / "data" / "fleet_fig9_scaling.csv"
CURVES = {
    "whole": [[1.0]],
    "fleet": read_scaling(SCALING),
    "linear": [[float(devices) for devices in range(1, 9)]],
}
"""Rate curves over 1, 2, … devices, of which each job gets one: unsplittable jobs, FLEET's published networks, or perfect scaling."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """A seeded set of jobs and the epochs after which they stop."""

    family: str
    jobs: int
    spread: int
    seed: int
    curves: str = "whole"

    @property
    def workload(self) -> Workload:
        """The jobs in random order."""
        random = Random(f"{self.family}/{self.jobs}/{self.spread}/{self.seed}")
        drawn = (_job(f"job{number:04d}", self._rate(random), random) for number in range(self.jobs))
        profiles = self._scaled(drawn)
        return Workload(
            profiles=profiles,
            epochs={profile.member: max(1, round(LIMIT * self._stop(random))) for profile in profiles},
            samples_per_epoch=SAMPLES,
            epochs_known=False,
            limits={profile.member: LIMIT for profile in profiles},
        )

    def _scaled(self, profiles: Iterable[Profile]) -> tuple[Profile, ...]:
        """Return the same jobs whatever their curves, scaled so that list scheduling takes the same time."""
        random = Random(f"curves/{self.seed}")
        curves = [random.choice(CURVES[self.curves]) for _ in range(self.jobs)]
        return tuple(
            replace(
                profile,
                samples_per_second=tuple(profile.rate(1) * rate / curve[0] for rate in curve),
                splittable=len(curve) > 1,
            )
            for profile, curve in zip(profiles, curves, strict=True)
        )

    def _rate(self, random: Random) -> float:
        place = random.random() if self.family == "even" else min(max(random.gauss(0.5, 0.2), 0.0), 1.0)
        return float(SLOWEST * self.spread**place)

    def _stop(self, random: Random) -> float:
        if self.family == "even":
            return random.uniform(0.1, 1.0)
        return random.uniform(0.1, 0.33) if random.random() < 0.5 else random.triangular(0.33, 1.0, 1.0)


def _job(member: str, rate: float, random: Random) -> Profile:
    state = random.randint(10**7, 10**9)
    return Profile(
        member=member,
        device_kind="gpu",
        samples_per_second=(rate,),
        memory_bytes=4 * state // 3,
        state_bytes=state,
        activation_bytes=state // 3,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The results of all policies for one draw on some devices, at one price of preparation."""

    draw: Draw
    devices: int
    preparation: str
    balanced: Simulation
    rate_first: Simulation
    solo: Simulation
    seconds: float
    """Processor time that the simulated run of ``balanced`` took."""

    def over(self, other: Simulation) -> float:
        """Return the makespan of ``balanced`` divided by that of another policy."""
        return self.balanced.makespan_seconds / other.makespan_seconds


def compare(draw: Draw, devices: Sequence[Device], preparation: str) -> Outcome:
    """Simulate one case under all policies."""
    workload, price = draw.workload, PREPARATION[preparation]
    prepared = SAMPLES * sum(workload.epochs.values())
    rate = price and prepared / (price * lower_bound_seconds(workload, len(devices)))
    charges = Charges(moving=MOVING, preparation_samples_per_second=rate)
    slowest_first = tuple(sorted(workload.profiles, key=lambda profile: profile.rate(1)))
    before = time.process_time()
    balanced = simulate(POLICIES["balanced"], workload, devices, charges=charges, clock=time.process_time)
    seconds = time.process_time() - before
    return Outcome(
        draw=draw,
        devices=len(devices),
        preparation=preparation,
        balanced=balanced,
        rate_first=simulate(POLICIES["solo"], replace(workload, profiles=slowest_first), devices, charges=charges),
        solo=simulate(POLICIES["solo"], workload, devices, charges=charges),
        seconds=seconds,
    )


def over_bound(draw: Draw, devices: Sequence[Device]) -> float | None:
    """Return ``balanced`` over the lower bound if all jobs train all their epochs; None if a single job determines the bound."""
    workload = draw.workload
    workload = replace(workload, epochs=workload.limits)
    bound = lower_bound_seconds(workload, len(devices))
    if bound <= LIMIT * SAMPLES / min(p.rate(p.largest_group(len(devices))) for p in workload.profiles):
        return None
    return simulate(POLICIES["balanced"], workload, devices, charges=Charges(moving=MOVING)).makespan_seconds / bound
