"""FLEET's hundred networks in miniature, run for real beside the simulator: same relative rates, sizes and epochs, less work.

A member's step sleeps for as long as its samples take (those of its share, if it is split), so that a machine has more
devices than cores.
"""

import csv
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import evidence
import torch
from torch import Tensor, nn
from torch.optim import SGD

import argosy
from argosy.planning import POLICIES, Policy, Situation
from argosy.planning.fleet import Fleet
from argosy.planning.outcomes import Charges, Simulation, Workload
from argosy.planning.policy import Moving
from argosy.planning.rounds import Rounds
from argosy.planning.simulate import simulate
from argosy.plans import Flotilla
from argosy.profiles import Profile

__all__ = ["SCALE", "Network", "networks", "run_policy"]

TABLE = Path(__file__).parent / "data" / "fleet_100dnns.csv"
SCALE = 32.0
"""Samples per second here over those of the table."""
SAMPLES, BATCH, BLOCK = 256, 128, 64
"""Samples of an epoch, a step and a block: all hundred take 243 seconds of a device, and none can run ahead by more than an epoch or two."""
WATCHED: dict[str, Policy] = {
    "rounds": Rounds(),
    "fleet": Fleet(delta=20 * SCALE),
    "balanced": POLICIES["balanced"],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A row of the table."""

    name: str
    samples_per_second: float
    epochs: int
    weights: int


def networks() -> list[Network]:
    """Return the table, at the rates of this benchmark and with a thousandth of the weights."""
    with TABLE.open(newline="") as file:
        return [
            Network(
                name=row["name"],
                samples_per_second=float(row["samples_per_second"]) * SCALE,
                epochs=int(row["epochs"]),
                weights=int(float(row["model_mb"]) * 1e3 / 4),
            )
            for row in csv.DictReader(file)
        ]


class Sleeping(nn.Module):
    """A network that sleeps for a given time per sample."""

    def __init__(self, seconds: float, weights: int) -> None:
        super().__init__()
        self.seconds = seconds
        self.weights = nn.Parameter(torch.zeros(weights))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds * len(x))
        return -self.weights.mean().expand(len(x))


def as_it_is(output: Tensor, target: Tensor) -> Tensor:
    """Return the output, which is the loss."""
    del target
    return output


def member(network: Network) -> argosy.Member:
    """Return a member that ends after the table's epochs."""
    model = partial(Sleeping, 1 / network.samples_per_second, network.weights)
    stop = argosy.MaxEpochs(network.epochs)
    return argosy.Member(
        network.name, model=model, optimizer=partial(SGD, lr=1.0), loss=as_it_is, batch_size=BATCH, stop=stop
    )


def study(found: Sequence[Network]) -> argosy.Study:
    """Return a study on meaningless samples."""
    nothing = argosy.Data(arrays=[torch.zeros(SAMPLES, 1), torch.zeros(SAMPLES)])
    return argosy.Study(data=nothing, members=[member(network) for network in found], objective="train_loss")


@dataclass(slots=True)
class Asked:
    """A policy that remembers the first situation it was asked about."""

    policy: Policy
    first: Situation | None = field(default=None)

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        self.first = self.first or situation
        return self.policy.launch(situation)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        return self.policy.keeps(situation, started, live)


def run_policy(found: Sequence[Network], policy: str, devices: int, directory: Path) -> dict[str, Any]:
    """Run a policy and simulate it with the run's own profiles, epochs, and costs of barriers and legs."""
    POLICIES[policy] = asked = Asked(WATCHED[policy])
    report = argosy.train(
        study(found),
        quiet=True,
        directory=directory,
        policy=policy,
        devices=f"cpu:{devices}",
        packing="interleaved",
        block_size=BLOCK,
    )
    assert {row.status for row in report.rows} == {"done"}, report.reason
    epochs = Counter(line["member"] for line in evidence.event_lines(directory, "SectionEnded"))
    assert epochs == {network.name: network.epochs for network in found}
    assert asked.first is not None
    seconds, barrier, leg = makespan(directory), barrier_seconds(directory), leg_seconds(directory)
    simulated = simulation(asked.first, WATCHED[policy], epochs, barrier=barrier, leg=leg)
    return {
        "seconds": seconds,
        "simulated_seconds": simulated.makespan_seconds,
        "of_bound": simulated.makespan_seconds / simulated.bound_seconds,
        "legs": len(evidence.event_lines(directory, "PlanMade")),
        "simulated_legs": simulated.flotillas,
        "barrier_seconds": barrier,
        "leg_seconds": leg,
    }


def simulation(asked: Situation, policy: Policy, epochs: Counter[str], *, barrier: float, leg: float) -> Simulation:
    """Simulate the same policy, which knows as much about epochs as in the run."""
    workload = Workload(profiles=asked.waiting, epochs=epochs, samples_per_epoch=SAMPLES)
    # FLEET does not ask what a move costs; the measured time of its legs includes its moves.
    moving = Moving() if isinstance(policy, Fleet) else asked.moving
    charges = Charges(moving=moving, flotilla_seconds=leg, checkpoint_seconds=barrier)
    return simulate(policy, workload, asked.devices, charges=charges)


def makespan(directory: Path) -> float:
    """Return the seconds from the first member's start to the last one's end."""
    begins = min(line["at"] for line in evidence.event_lines(directory, "MemberStarted"))
    return max(line["at"] for line in evidence.event_lines(directory, "MemberEnded")) - begins


def barrier_seconds(directory: Path) -> float:
    """Return the seconds of an epoch outside of the steps of its busiest device and of changes of assignments."""
    passed = evidence.event_lines(directory, "Passed")
    return max(mean(line["seconds"] - max(line["stepping"].values()) - line["changing_seconds"] for line in passed), 0)


def leg_seconds(directory: Path) -> float:
    """Return the mean seconds from the end of a leg until all members of the next one are ready; 0 if there was one leg."""
    found: list[float] = []
    ended = started = 0.0
    since: float | None = None
    for line in map(json.loads, (directory / "journal.jsonl").read_text().splitlines()):
        if line["event"] == "PlanMade":
            since = ended or None
        elif line["event"] == "MemberStarted":
            started = line["at"]
        elif line["event"] == "SectionEnded":
            if since is not None:
                found.append(started - since)
            ended, since = line["at"], None
    return mean(found) if found else 0.0
