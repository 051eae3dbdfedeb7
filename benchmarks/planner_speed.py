"""Measures the processor time of planning: one plan of 100 members on 160 devices and of 1,000 on 1,024, and a whole simulation.

python benchmarks/planner_speed.py [--data FOLDER] [--json]
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from claims import Target, report

from argosy.cli.simulated import cluster_of, read_networks, read_scaling
from argosy.planning import WITH_KNOWN_EPOCHS, make_plan
from argosy.planning.choice import simulate_best
from argosy.planning.outcomes import Charges
from argosy.planning.policy import Moving
from argosy.planning.replay import workload_of
from argosy.profiles import Profile

HERE = Path(__file__).parent


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def multiplied(profiles: Sequence[Profile], times: int) -> list[Profile]:
    """Return `times` variants of each profile, each a little faster than the last."""
    return [
        replace(
            profile,
            member=f"{profile.member}-{copy}",
            samples_per_second=tuple(rate * (1 + 0.03 * copy) for rate in profile.samples_per_second),
        )
        for copy in range(times)
        for profile in profiles
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all three, and print the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE / "data", help="folder of the two tables")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(arguments)
    workload = workload_of(
        read_networks(options.data / "fleet_100dnns.csv"),
        scaling=read_scaling(options.data / "fleet_fig9_scaling.csv"),
        samples_per_epoch=30606,
        device_memory_bytes=16 * 10**9,
        activation_bytes=4 * 10**9,
        epochs_known=True,
    )
    small, large = cluster_of(160, 4, 16.0).devices, cluster_of(1024, 4, 16.0).devices
    thousand = multiplied(workload.profiles, 10)
    whole = [replace(profile, splittable=False) for profile in thousand]
    charges = Charges(moving=Moving(rebalance_seconds=2.0, bytes_per_second=1e9))
    figures = {
        "plan, 100 x 160": seconds_of(lambda: make_plan(workload.profiles, small)),
        "plan, 1000 x 1024": seconds_of(lambda: make_plan(thousand, large)),
        "plan, 1000 x 1024, nothing splittable": seconds_of(lambda: make_plan(whole, large)),
        "simulation, 100 x 160, with rounds and solo": seconds_of(
            lambda: simulate_best(WITH_KNOWN_EPOCHS, workload, small, charges=charges)
        ),
    }
    limits = (1.0, 10.0, 10.0, 20.0)
    targets = [
        Target.at_most(f"{what}, seconds", seconds, limit)
        for (what, seconds), limit in zip(figures.items(), limits, strict=True)
    ]
    return report("planner_speed", figures, targets, as_json=options.json)


if __name__ == "__main__":
    raise SystemExit(main())
