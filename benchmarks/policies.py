"""Every policy for real: 12 unlike members, under each policy in turn, on all devices of the machine.

Rates spread at least 8 times, epochs are 2 to 8. Of each run: the makespan, from the first member's start to the last one's end;
its ratio to the lower bound of the measured profiles, that of the rates at which members trained in all runs; the share of device
time outside of members' own steps; and what was predicted of each section over what came, the first one of a leg apart. Who trains
whole, from its first epoch on, must end with the same weights under every policy.
"""

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from measuring import arguments, finish, target

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import evidence
import studies

import argosy
from argosy.planning.outcomes import Workload
from argosy.planning.simulate import lower_bound_seconds
from argosy.profiles import Profile
from argosy.running.audit import audit
from argosy.running.launcher import discover
from argosy.settings import Settings

POLICIES = ("solo", "rounds", "fleet", "fleet-local", "balanced")
ALIKE = ("solo", "rounds", "balanced")
"""They see that everybody trains the same epochs of the stream."""
NEAR = 0.15
BOUND = 1.25


def fleet() -> list[argosy.Member]:
    """Twelve, the widest of which takes more than eight times as long for a sample as the narrowest."""
    widths, epochs = (16, 32, 64, 96, 128, 256, 384, 512, 768, 1024, 1536, 2048), (8, 5, 3, 7, 2, 6, 4, 8, 3, 5, 2, 4)
    return [
        studies.member(f"m{width}", hidden=width, batch_size=64, lr=0.01, stop=argosy.MaxEpochs(count))
        for width, count in zip(widths, epochs, strict=True)
    ]


def train(policy: str, directory: Path, length: int) -> dict[str, Any]:
    """One run, and its figures."""
    study = studies.study(length, fleet=fleet(), val=200)
    report = argosy.train(study, directory=directory, policy=policy, numerics="exact")
    assert {row.status for row in report.rows} == {"done"}, report.reason
    lines = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    begins = min(line["at"] for line in lines if line["event"] == "MemberStarted")
    ends = max(line["at"] for line in lines if line["event"] == "MemberEnded")
    stepping = sum(line["seconds"] for line in lines if line["event"] == "SectionEnded")
    devices = len(discover(Settings()).devices)
    first, later = predictions([line for line in lines if line["event"] == "Passed"])
    return {
        "makespan": ends - begins,
        "idle": 1 - stepping / devices / (ends - begins),
        "first_prediction": first,
        "later_prediction": later,
        "audit": audit(directory),
        "rates": {row.name: rate(lines, row.name) for row in report.rows},
    }


def predictions(passed: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Predicted over actual seconds: of the legs' first sections, and of the later ones."""
    legs: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for section in passed:
        legs[section["leg"]].append(section)
    firsts, laters = [leg[0] for leg in legs.values()], [section for leg in legs.values() for section in leg[1:]]

    def ratio(sections: Sequence[dict[str, Any]]) -> float:
        return sum(s["predicted_seconds"] for s in sections) / max(sum(s["seconds"] for s in sections), 1e-9)

    return ratio(firsts), ratio(laters)


def rate(lines: Sequence[dict[str, Any]], member: str) -> float:
    """At which a member trained, validation included."""
    rows = [line for line in lines if line["event"] == "SectionEnded" and line["member"] == member]
    return sum(row["samples"] for row in rows) / sum(row["seconds"] for row in rows)


def bound(figures: Sequence[dict[str, Any]], length: int) -> float:
    """By the best rate of each member in any run: a median would be of members that others held up, and no bound."""
    profiles = [
        Profile(
            member=member.name,
            device_kind="cpu",
            samples_per_second=(max(run["rates"][member.name] for run in figures),),
            memory_bytes=1,
            state_bytes=0,
        )
        for member in fleet()
    ]
    epochs = {member.name: int(member.stop.max_epochs or 0) for member in fleet() if member.stop is not None}
    workload = Workload(profiles=tuple(profiles), epochs=epochs, samples_per_epoch=length)
    return lower_bound_seconds(workload, len(discover(Settings()).devices))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--length", type=int, default=6000)
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    weights: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="argosy-policies-") as name:
        for number in range(options.rounds):
            for policy in POLICIES:
                directory = Path(name, f"{policy}-{number}")
                found[policy].append(train(policy, directory, options.length))
                weights[policy] = {m: evidence.results_of(directory, m)["weights"] for m in found[policy][-1]["rates"]}
    least = bound([run for runs in found.values() for run in runs], options.length)
    figures = {policy: summary(runs, least) for policy, runs in found.items()}
    print(f"{'policy':12} {'makespan':>9} {'/bound':>7} {'idle':>6} {'first':>6} {'later':>6}  (predicted/actual)")
    for policy, row in figures.items():
        cells = (row[key] for key in ("makespan", "over_bound", "idle", "first_prediction", "later_prediction"))
        print("{:12} {:8.1f}s {:7.2f} {:6.0%} {:6.2f} {:6.2f}".format(policy, *cells))
    rates = [run["rates"] for run in found["balanced"]]
    targets = [
        target("spread of rates", [max(r.values()) / min(r.values()) for r in rates], at_least=8),
        target(
            "runs with something wrong in the audit",
            [sum(bool(r["audit"]) for rs in found.values() for r in rs)],
            at_most=0,
        ),
        target(
            "the bound over the shortest makespan",
            [least / min(row["makespan"] for row in figures.values())],
            at_most=1.0,
        ),
        target("balanced over the bound", [run["makespan"] / least for run in found["balanced"]], at_most=BOUND),
        target(
            "balanced over the best other policy",
            [
                run["makespan"] / min(found[other][n]["makespan"] for other in POLICIES if other != "balanced")
                for n, run in enumerate(found["balanced"])
            ],
            at_most=1.0,
        ),
        target(
            "balanced: error of the prediction from the second section on",
            [abs(run["later_prediction"] - 1) for run in found["balanced"]],
            at_most=NEAR,
        ),
        target(
            "policies with the weights of balanced",
            [sum(weights[p] == weights["balanced"] for p in ALIKE)],
            at_least=len(ALIKE),
        ),
    ]
    finish("policies", {"bound_seconds": least, "policies": figures}, targets, as_json=options.json)
    sys.exit(not all(one["holds"] for one in targets))


def summary(runs: Sequence[dict[str, Any]], least: float) -> dict[str, float]:
    """Medians over rounds."""
    keys = ("makespan", "idle", "first_prediction", "later_prediction")
    middle = {key: median(run[key] for run in runs) for key in keys}
    return {**middle, "over_bound": middle["makespan"] / least}


if __name__ == "__main__":
    main()
