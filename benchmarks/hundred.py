"""Trains a hundred members for real, in two parts.

``kills``: small unlike members that converge at random times, while a trainer is killed every 30 seconds. All of them
must end, and no process may grow. No rule knows when a member will end: each stops when its validation loss has not
improved for an epoch. Processes are sampled all the time. After the first quarter of the run, memory, descriptors and
shared memory of each role are compared between earlier and later moments with equally many processes, since a leg for
members of a lost trainer needs another feeder.

``miniature``: FLEET's own hundred networks (`miniature.py`) on 4 and on 8 CPU slots, under ``rounds``, ``fleet`` and
``balanced``: the other policies must take longer than ``balanced`` by the factor that the simulator says.
"""

import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from endurance import Usage, usage_of
from measuring import arguments, finish, target

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from family import Run
from miniature import networks, run_policy

from argosy.running.directory.audit import audit

SCRIPT = """
import random, sys, argosy, studies
dice = random.Random(0)
stop = argosy.Plateau("val_loss", patience=1) | argosy.MaxEpochs({epochs})
members = [studies.member(f"m{{n:03}}", hidden=dice.randint(4, 128), batch_size=dice.choice([8, 12, 20, 33, 50]),
                          lr=10 ** dice.uniform(-3, -0.5)) for n in range({members})]
study = argosy.Study(data=argosy.Data(train=studies.Vectors({length}), val=studies.Vectors(100)), members=members, stop=stop)
argosy.train(study, quiet=True, directory=sys.argv[1], {settings}, checkpoint_seconds=5, hang_seconds={hang_seconds})
"""
SETTINGS = 'devices="cpu:2", loader_workers=1'
ROLES = ("driver", "trainer", "feeder", "server")
POLL_SECONDS = 1.0
GROWTH = 0.05
SLOTS = (4, 8)
POLICIES = ("rounds", "fleet", "balanced")
NEAR = 0.1
PARTS = ("kills", "miniature")

Target = dict[str, Any]
Moment = dict[str, list[Usage]]
"""What the processes of each role held at a moment."""


def watch(run: Run, every: float) -> tuple[list[tuple[float, Moment]], int]:
    """Sample a run's processes by role until it ends; return the samples with their times, and how many trainers were killed."""
    began, seen, kills, dice = time.monotonic(), [], 0, random.Random(0)
    while run.process.poll() is None:
        moment: Moment = {role: [] for role in ROLES}
        for role in ROLES:
            for process in run.role(role):
                with contextlib.suppress(OSError, psutil.NoSuchProcess):
                    moment[role].append(usage_of(process))
        seen.append((time.monotonic() - began, moment))
        if time.monotonic() - began > (kills + 1) * every and (victims := run.role("trainer")):
            dice.choice(victims).kill()
            kills += 1
        time.sleep(POLL_SECONDS)
    return seen, kills


def alike(seen: list[tuple[float, Moment]]) -> list[Moment]:
    """Return the moments after the first quarter with the most common number of processes in each role, since each process has connections."""
    later = [moment for at, moment in seen if at > seen[-1][0] / 4]
    counts = [tuple(len(moment[role]) for role in ROLES) for moment in later]
    ((most, _),) = Counter(counts).most_common(1)
    return [moment for moment, count in zip(later, counts, strict=True) if count == most]


def grown(moments: list[Moment], field: str) -> dict[str, tuple[float, float]]:
    """Return for each role the median of its largest process over the first half of these moments and over the second."""

    def largest(role: str, some: list[Moment]) -> float:
        return statistics.median(max(getattr(usage, field) for usage in moment[role]) for moment in some)

    half = len(moments) // 2
    there = [role for role in ROLES if moments[0][role]]
    return {role: (largest(role, moments[:half]), largest(role, moments[half:])) for role in there}


def kills(options: Any, folder: Path) -> tuple[dict[str, Any], list[Target]]:
    """Run part one."""
    directory, script = folder / "run", SCRIPT.replace("{members}", str(options.members))
    run = Run(directory, script, settings=SETTINGS, length=options.length, epochs=options.epochs)
    seen, killed = watch(run, options.every)
    if run.process.returncode != 0:
        raise AssertionError(run.errors[-3000:])
    moments = alike(seen)
    figures: dict[str, Any] = {field: grown(moments, field) for field in ("bytes", "descriptors", "segments")}
    wrong, ended = audit(directory), [line for line in run.lines() if line["event"] == "MemberEnded"]
    epochs = Counter(line["member"] for line in run.lines() if line["event"] == "SectionEnded")
    left = run.left()
    figures |= {"kills": killed, "seconds": seen[-1][0], "epochs": sorted(epochs.values())}
    print(json.dumps(figures), flush=True)
    more = {field: max(b - a for a, b in figures[field].values()) for field in ("descriptors", "segments")}
    return figures, [
        target("members done", [sum(line["status"] == "done" for line in ended)], at_least=options.members),
        target("trainers killed", [killed], at_least=1),
        target("findings of the audit, and processes left", [len(wrong) + len(left)], at_most=0),
        target(
            "memory, later over before, largest role",
            [max(b / a for a, b in figures["bytes"].values())],
            at_most=1 + GROWTH,
        ),
        target("descriptors more than before, any role", [more["descriptors"]], at_most=0),
        target("shared mappings more than before, any role", [more["segments"]], at_most=0),
    ]


def miniature(options: Any, folder: Path) -> tuple[dict[str, Any], list[Target]]:
    """Run part two."""
    del options
    figures: dict[str, Any] = {}
    targets = []
    print(f"{'slots':>5} {'policy':9} {'run':>8} {'simulated':>9} {'legs':>5} {'simulated':>9}  barrier, ms  leg, ms")
    for slots in SLOTS:
        rows = {policy: run_policy(networks(), policy, slots, folder / f"{policy}-{slots}") for policy in POLICIES}
        for policy, row in rows.items():
            print(
                f"{slots:5} {policy:9} {row['seconds']:7.1f}s {row['simulated_seconds']:8.1f}s {row['legs']:5} "
                f"{row['simulated_legs']:9} {1e3 * row['barrier_seconds']:9.1f} {1e3 * row['leg_seconds']:8.1f}",
                flush=True,
            )
        figures[str(slots)] = rows
        for policy in POLICIES[:-1]:
            measured, simulated = (
                rows[policy][key] / rows["balanced"][key] for key in ("seconds", "simulated_seconds")
            )
            print(f"{slots} slots: {policy} takes {measured:.3f} times as long as balanced, simulated {simulated:.3f}")
            what = f"error of the simulated ratio of {policy} to balanced, {slots} slots"
            targets.append(target(what, [abs(simulated / measured - 1)], at_most=NEAR))
    return figures, targets


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"parts to run, of {', '.join(PARTS)}")
    parser.add_argument("--members", type=int, default=100, help="members of the first part")
    parser.add_argument("--length", type=int, default=2000, help="samples of its data")
    parser.add_argument("--epochs", type=int, default=40, help="most epochs of its members")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    for part in options.parts.split(","):
        with tempfile.TemporaryDirectory(prefix="argosy-hundred-") as name:
            figures[part], found = {"kills": kills, "miniature": miniature}[part](options, Path(name))
        targets += found
    finish("hundred", figures, targets, as_json=options.json)
    sys.exit(not all(one["holds"] for one in targets))


if __name__ == "__main__":
    main()
