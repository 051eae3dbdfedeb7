"""Play many simulated runs on all cores, and report what went wrong and what was reached."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from argosy.running.control.members import State
from simulation.runs import Outcome, play
from simulation.scenario import drawn, is_rough, shrunk

__all__ = ["PLACES", "Covered", "main", "played"]

PLACES = tuple(State)
"""The states of a member."""
EVENTS = (
    *("SectionReport", "Progress", "Measured", "SumsTimed", "Opened", "Held", "Paused", "OutOfMemory", "Fed", "Broke"),
    *("DevicePoisoned", "Lost trainer", "Lost feeder", "Lost node", "Came"),
)
"""What a driver hears, except `Failed`, which ends it, and `Probed` and `Parted`, as exchanges are not simulated.

Seeds reach few of the rarer pairs of a state and such an event; `simulation.made` has scenarios for each of them.
"""
CHUNK = 100


@dataclass
class Covered:
    """What a number of runs have reached."""

    runs: int = 0
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(state of a member, what the driver heard)."""
    wrong: dict[int, str] = field(default_factory=dict)
    """The last line of the first error, by seed."""

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of one run."""
        self.runs += 1
        self.rounds += outcome.rounds
        self.faults.update(fault.kind for fault in outcome.happened)
        self.pairs.update(outcome.covered)
        if outcome.wrong:
            self.wrong[outcome.scenario.seed] = outcome.wrong[0].strip().splitlines()[-1]

    def join(self, other: "Covered") -> None:
        """Add the runs of another `Covered`."""
        self.runs += other.runs
        self.rounds += other.rounds
        self.faults.update(other.faults)
        self.pairs.update(other.pairs)
        self.wrong.update(other.wrong)

    @property
    def never(self) -> list[tuple[State, str]]:
        """The pairs that were not reached."""
        return [(place, event) for place in PLACES for event in EVENTS if not self.pairs[place, event]]

    def to_json(self) -> dict[str, object]:
        """Return the figures, and the pairs that were not reached."""
        never = [f"{place} x {event}" for place, event in self.never]
        return {
            "runs": self.runs,
            "rounds": self.rounds,
            "faults": dict(sorted(self.faults.items())),
            "pairs": f"{len(PLACES) * len(EVENTS) - len(never)} of {len(PLACES) * len(EVENTS)}",
            "never": never,
            "wrong": {str(seed): what for seed, what in sorted(self.wrong.items())},
        }


def played(seeds: Iterable[int]) -> Covered:
    """Play the runs of some seeds; each depends on its seed alone."""
    covered = Covered()
    for seed in seeds:
        covered.add(play(drawn(seed)))
    return covered


def _chunks(first: int, seeds: int) -> Iterator[range]:
    for start in range(first, first + seeds, CHUNK):
        yield range(start, min(start + CHUNK, first + seeds))


def _rough(seeds: Iterable[int]) -> list[int]:
    return [*filter(is_rough, seeds)]


def main() -> int:
    """Run the command, and return 1 if a run went wrong."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--story", type=int, help="tell the end of this seed's story, as small as it goes, and play no other"
    )
    parser.add_argument("--rough", action="store_true", help="of these, only the one in twenty on rough machines")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.story is not None:
        found = drawn(asked.story)
        small = shrunk(found, lambda smaller: bool(play(smaller).wrong)) if play(found).wrong else found
        print(play(small).told())
        return 0
    covered, began = Covered(), time.monotonic()
    chunks = _chunks(asked.first, asked.seeds)
    with ProcessPoolExecutor() as pool:
        for part in pool.map(played, map(_rough, chunks) if asked.rough else chunks):
            covered.join(part)
            if not asked.json and part.wrong:
                print(part.wrong, file=sys.stderr)
    seconds = time.monotonic() - began
    result = {**covered.to_json(), "runs_per_second_and_core": round(covered.runs / seconds / (os.cpu_count() or 1), 1)}
    print(json.dumps(result, indent=None if asked.json else 2))
    return bool(covered.wrong)
