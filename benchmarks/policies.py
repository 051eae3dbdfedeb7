"""Runs every policy for real: 12 unlike members under each policy in turn, on all devices of the machine.

The slowest rate is at most an eighth of the fastest, and epochs are 2 to 8. Samples lie in memory, since the bound does
not count preparing them on the cores that train. For each run it gives the makespan, from the first member's start to
the last one's end; its ratio to the lower bound; the share of device time outside of members' own steps; predicted over
actual seconds of sections, with the first of a leg apart; and what the simulator makes of the run, over what it took.
The bound uses the best rate of each member in any run of the same round, since the machine's speed differs more between
rounds than policies do. Members that train unsplit from their first epoch on must end with the same weights under every
policy.
"""

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hindsight import Hindsight
from measuring import arguments, finish, target

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import evidence
import studies

import argosy
from argosy.planning.outcomes import Workload
from argosy.planning.simulate import lower_bound_seconds
from argosy.profiles import Profile
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import timeline
from argosy.running.launch.discovery import discover
from argosy.settings import Settings

POLICIES = ("solo", "rounds", "fleet", "fleet-local", "balanced")
KEYS = ("makespan", "over_bound", "idle", "changing", "saving", "first_prediction", "later_prediction", "simulated")
ALIKE = ("solo", "rounds", "balanced")
"""Policies under which all members train the same epochs of the stream."""
NEAR = 0.15
SIMULATED = 0.1
BOUND = 1.25
FEATURES = 64
VALIDATION = 200


def fleet() -> list[argosy.Member]:
    """Return twelve members, the widest of which takes more than eight times as long per sample as the narrowest."""
    widths, epochs = (16, 32, 64, 96, 128, 256, 384, 512, 768, 1024, 1536, 3072), (8, 5, 3, 7, 2, 6, 4, 8, 3, 5, 2, 4)
    return [
        studies.member(
            f"m{width}",
            model=partial(studies.Mlp, width, FEATURES),
            batch_size=64,
            lr=0.01,
            stop=argosy.MaxEpochs(count),
        )
        for width, count in zip(widths, epochs, strict=True)
    ]


def data(length: int) -> argosy.Data:
    """Return noise around ten centres."""
    dice = torch.Generator().manual_seed(0)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % 10
        return torch.randn(count, FEATURES, generator=dice) + torch.eye(10, FEATURES)[labels], labels

    return argosy.Data(arrays=samples(length), val_arrays=samples(VALIDATION))


def train(policy: str, directory: Path, length: int) -> dict[str, Any]:
    """Run a policy once, and return its figures."""
    study = studies.study(data=data(length), fleet=fleet())
    report = argosy.train(study, quiet=True, directory=directory, policy=policy, numerics="exact")
    assert {row.status for row in report.rows} == {"done"}, report.reason
    past = Hindsight.of(timeline(directory))
    lines = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    stepping = sum(line["seconds"] for line in lines if line["event"] == "SectionEnded")
    first, later = predictions([line for line in lines if line["event"] == "Passed"])
    return {
        "makespan": past.seconds,
        "idle": 1 - stepping / len(past.devices) / past.seconds,
        "first_prediction": first,
        "later_prediction": later,
        "simulated": past.simulate().makespan_seconds / past.seconds,
        "planned_by": past.policy,
        "changing": sum(leg.changing_seconds for leg in report.legs),
        "saving": sum(leg.saving_seconds for leg in report.legs),
        "audit": audit(directory),
        "rates": {row.name: rate(lines, row.name) for row in report.rows},
    }


def predictions(passed: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return predicted over actual seconds, of the first sections of legs and of the later ones."""
    legs: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for section in passed:
        legs[section["leg"]].append(section)
    firsts, laters = [leg[0] for leg in legs.values()], [section for leg in legs.values() for section in leg[1:]]

    def ratio(sections: Sequence[dict[str, Any]]) -> float:
        return sum(s["predicted_seconds"] for s in sections) / max(sum(s["seconds"] for s in sections), 1e-9)

    return ratio(firsts), ratio(laters)


def rate(lines: Sequence[dict[str, Any]], member: str) -> float:
    """Return the rate at which a member trained, validation included."""
    rows = [line for line in lines if line["event"] == "SectionEnded" and line["member"] == member]
    return sum(row["samples"] for row in rows) / sum(row["seconds"] for row in rows)


def bound(figures: Sequence[dict[str, Any]], length: int) -> float:
    """Return the lower bound from the best rate of each member in these runs; medians include members held up by others, and give no bound."""
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
    parser.add_argument("--length", type=int, default=20_000)
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    weights: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="argosy-policies-") as name:
        for number in range(options.rounds):
            for policy in POLICIES:
                directory = Path(name, f"{policy}-{number}")
                found[policy].append(train(policy, directory, options.length))
                weights[policy] = {m: evidence.results_of(directory, m)["weights"] for m in found[policy][-1]["rates"]}
    bounds = [bound(runs, options.length) for runs in zip(*found.values(), strict=True)]
    for runs in found.values():
        for run, least in zip(runs, bounds, strict=True):
            run["over_bound"] = run["makespan"] / least
    figures = {policy: summary(runs) for policy, runs in found.items()}
    print("policy        makespan  /bound   idle  changing  saving  first  later  (predicted/actual)  simulated/actual")
    for policy, row in figures.items():
        cells = (row[key] for key in KEYS)
        words = "{:12} {:8.1f}s {:7.2f} {:6.0%} {:8.1f}s {:6.2f}s {:6.2f} {:6.2f} {:37.2f}  planned by {}"
        print(words.format(policy, *cells, ", ".join(sorted({run["planned_by"] for run in found[policy]}))))
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
            [1 / min(runs[number]["over_bound"] for runs in found.values()) for number in range(options.rounds)],
            at_most=1.0,
        ),
        target("balanced over the bound", [run["over_bound"] for run in found["balanced"]], at_most=BOUND),
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
        *(
            target(f"{policy}: error of the simulator", [abs(run["simulated"] - 1) for run in runs], at_most=SIMULATED)
            for policy, runs in found.items()
        ),
        target(
            "policies with the weights of balanced",
            [sum(weights[p] == weights["balanced"] for p in ALIKE)],
            at_least=len(ALIKE),
        ),
    ]
    finish("policies", {"bound_seconds": bounds, "policies": figures}, targets, as_json=options.json)
    sys.exit(not all(one["holds"] for one in targets))


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return medians over rounds."""
    return {key: median(run[key] for run in runs) for key in KEYS}


if __name__ == "__main__":
    main()
