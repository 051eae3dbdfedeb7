"""A hundred members for real, in two parts.

``kills``: small unlike members that converge at random, a trainer killed every 30 seconds: all of them end, and nothing grows. No
rule knows when a member will end: each stops where its validation loss has not improved for an epoch. Processes are looked at all
the time; memory, descriptors and shared memory of each role are compared between the second quarter of the run and the last.

``miniature``: FLEET's own hundred networks (`miniature.py`) on 4 and on 8 CPU slots, under ``rounds``, ``fleet`` and ``balanced``:
how much longer the others take than ``balanced`` is what the simulator says.
"""

import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psutil
from endurance import Usage, usage_of
from measuring import arguments, finish, target

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from family import Run
from miniature import networks, sail

from argosy.running.audit import audit

SCRIPT = """
import random, sys, argosy, studies
dice = random.Random(0)
stop = argosy.Plateau("val_loss", patience=1) | argosy.MaxEpochs({epochs})
members = [studies.member(f"m{{n:03}}", hidden=dice.randint(4, 128), batch_size=dice.choice([8, 12, 20, 33, 50]),
                          lr=10 ** dice.uniform(-3, -0.5)) for n in range({members})]
study = argosy.Study(data=argosy.Data(train=studies.Vectors({length}), val=studies.Vectors(100)), members=members, stop=stop)
argosy.train(study, directory=sys.argv[1], {settings}, checkpoint_seconds=5, hang_seconds={hang_seconds})
"""
SETTINGS = 'devices="cpu:2", loader_workers=1'
ROLES = ("driver", "trainer", "feeder", "server")
LOOK_SECONDS = 1.0
GROWTH = 0.05
SLOTS = (4, 8)
POLICIES = ("rounds", "fleet", "balanced")
NEAR = 0.1
PARTS = ("kills", "miniature")

Target = dict[str, Any]


def watch(run: Run, every: float) -> tuple[list[tuple[float, dict[str, list[Usage]]]], int]:
    """Until the run ends: what its processes held, by role, over time; and how many trainers were killed."""
    began, seen, kills, dice = time.monotonic(), [], 0, random.Random(0)
    while run.process.poll() is None:
        moment: dict[str, list[Usage]] = defaultdict(list)
        for role in ROLES:
            for process in run.role(role):
                with contextlib.suppress(OSError, psutil.NoSuchProcess):
                    moment[role].append(usage_of(process))
        seen.append((time.monotonic() - began, dict(moment)))
        if time.monotonic() - began > (kills + 1) * every and (victims := run.role("trainer")):
            dice.choice(victims).kill()
            kills += 1
        time.sleep(LOOK_SECONDS)
    return seen, kills


def grown(seen: list[tuple[float, dict[str, list[Usage]]]], field: str) -> dict[str, tuple[float, float]]:
    """By role: the median over the second quarter and over the last one, of the largest of its processes at each moment."""
    end = seen[-1][0]
    quarters: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for at, moment in seen:
        for role, usages in moment.items():
            if 0.25 * end < at < 0.5 * end or at > 0.75 * end:
                quarters[role][at > 0.75 * end].append(max(getattr(usage, field) for usage in usages))
    return {role: (statistics.median(a), statistics.median(b)) for role, (a, b) in quarters.items() if a and b}


def kills(options: Any, folder: Path) -> tuple[dict[str, Any], list[Target]]:
    """Part one."""
    directory, script = folder / "run", SCRIPT.replace("{members}", str(options.members))
    run = Run(directory, script, settings=SETTINGS, length=options.length, epochs=options.epochs)
    seen, killed = watch(run, options.every)
    if run.process.returncode != 0:
        raise AssertionError(run.errors[-3000:])
    figures: dict[str, Any] = {field: grown(seen, field) for field in ("bytes", "descriptors", "segments")}
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
            "memory, last quarter over second, largest role",
            [max(b / a for a, b in figures["bytes"].values())],
            at_most=1 + GROWTH,
        ),
        target("descriptors more than before, any role", [more["descriptors"]], at_most=0),
        target("shared mappings more than before, any role", [more["segments"]], at_most=0),
    ]


def miniature(options: Any, folder: Path) -> tuple[dict[str, Any], list[Target]]:
    """Part two."""
    del options
    figures: dict[str, Any] = {}
    targets = []
    print(f"{'slots':>5} {'policy':9} {'run':>8} {'simulated':>9} {'legs':>5} {'simulated':>9}  gate, ms  leg, ms")
    for slots in SLOTS:
        rows = {policy: sail(networks(), policy, slots, folder / f"{policy}-{slots}") for policy in POLICIES}
        for policy, row in rows.items():
            print(
                f"{slots:5} {policy:9} {row['seconds']:7.1f}s {row['simulated_seconds']:8.1f}s {row['legs']:5} "
                f"{row['simulated_legs']:9} {1e3 * row['gate_seconds']:9.1f} {1e3 * row['leg_seconds']:8.1f}",
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
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--members", type=int, default=100, help="of the first part")
    parser.add_argument("--length", type=int, default=2000, help="of its data")
    parser.add_argument("--epochs", type=int, default=40, help="of its members, at most")
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
