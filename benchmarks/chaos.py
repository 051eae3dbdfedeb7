"""Seeded fault campaign: every run must end with the table and the weights of a run without faults.

In each of ``--runs`` runs, 1 to 5 faults happen at random moments: a trainer, feeder, loader worker, fork server or the
driver is killed (kill -9) or stopped. In ``--driver-kills`` further cases only the driver is killed, and the same
command follows at once. A run whose driver died is continued by the same command, as a person would do. With
``--sharing``, two nodes share their stream by that pipeline, and their exchange processes are victims too. With
``--moves``, members change devices at the ends of sections. ``--edges`` runs have their surroundings damaged instead
(`chaos_edges`).
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from measuring import hardware

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import evidence
from chaos_edges import DATA, campaign_run, study, unkind
from family import MOVES, MOVING, ONE_NODE, SCRIPT, TWO_NODES, Run, repeats_at_most_one_interval

import argosy
from argosy.running.directory.audit import audit
from argosy.stream.sharing import PIPELINES

ROLES = ("trainer", "feeder", "loader", "server", "driver")
SHARING_ROLES = (*ROLES, "exchange")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)
LENGTH, EPOCHS = 400, 4


def start(directory: Path, settings: str) -> Run:
    script = MOVING if settings == MOVES else SCRIPT
    return Run(directory, script, settings=settings, length=LENGTH, epochs=EPOCHS)


def hurt(run: Run, roles: Sequence[str], dice: random.Random) -> str | None:
    """Cause one fault at a random moment, as soon as there is a victim; return None if the run ended before."""
    moment = time.monotonic() + dice.uniform(0.0, 2.0)
    role, number = dice.choice(roles), dice.choice(SIGNALS)
    if role == "driver":
        number = signal.SIGKILL
    while run.process.poll() is None:
        victims = run.role(role) if time.monotonic() > moment else run.processes() and []
        if victims:
            run.signal(dice.choice(victims), number)
            return f"{role}:{number.name}"
        time.sleep(0.02)
    return None


def one_run(directory: Path, settings: str, seed: int) -> tuple[list[str], list[Run]]:
    """Run a study with faults, continue it until it is done, and return the faults that happened and the drivers it took."""
    dice = random.Random(seed)
    runs, faults = [start(directory, settings)], []
    roles = ROLES if settings in (ONE_NODE, MOVES) else SHARING_ROLES
    for _ in range(dice.randint(1, 5)):
        fault = hurt(runs[-1], roles, dice)
        if fault is not None:
            faults.append(fault)
        if fault is not None and fault.startswith("driver"):
            runs[-1].process.wait()
            runs.append(start(directory, settings))
    if runs[-1].end(200) != 0:
        raise AssertionError(f"seed {seed}, {faults}: {runs[-1].errors[-3000:]}")
    return faults, runs


def check(directory: Path, runs: list[Run], expected: dict[str, object]) -> list[str]:
    """Return what is wrong after a run."""
    found = audit(directory)
    if evidence.results(directory) != expected:
        found.append("results differ from the faultless run")
    if not repeats_at_most_one_interval(directory):
        found.append("a member repeated more than one checkpoint interval")
    left = [process for run in runs for process in run.left(10)]
    if left:
        found.append(f"{len(left)} processes left behind")
    return found


def kill_driver(directory: Path, settings: str, kills: int, dice: random.Random) -> tuple[int, list[Run]]:
    """Kill the driver again and again at random moments of one run, and follow each kill at once by the same command."""
    runs, done = [start(directory, settings)], 0
    while done < kills:
        deadline = time.monotonic() + dice.uniform(0.5, 3.5)
        while time.monotonic() < deadline and runs[-1].process.poll() is None:
            runs[-1].processes()
            time.sleep(0.02)
        if runs[-1].process.poll() is not None:
            break
        runs[-1].process.kill()
        runs[-1].process.wait()
        runs.append(start(directory, settings))
        done += 1
    return done, runs


def kills(folder: Path, settings: str, seeds: Sequence[int]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Run the campaign of kills; yield for each seed the run, the faults that happened, and what is wrong."""
    expected = faultless(folder / "faultless", settings)
    for seed in seeds:
        directory = folder / f"seed-{seed}"
        happened, runs = one_run(directory, settings, seed)
        yield f"seed {seed}", happened, check(directory, runs, expected)


def driver_kills(folder: Path, settings: str, wanted: int, first: int) -> Iterator[tuple[str, list[str], list[str]]]:
    """Run the campaign against the driver alone."""
    expected, done, batch = faultless(folder / "faultless", settings), 0, 0
    while done < wanted:
        directory = folder / f"driver-{batch}"
        count, runs = kill_driver(directory, settings, wanted - done, random.Random(first + batch))
        if runs[-1].end(200) != 0:
            raise AssertionError(runs[-1].errors[-3000:])
        yield f"batch {batch} of driver kills", ["driver alone:SIGKILL"] * count, check(directory, runs, expected)
        done, batch = done + count, batch + 1


def edges(folder: Path, seeds: Sequence[int]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Run the campaign at the edges, each run in surroundings of its own."""
    expected = {}
    for seed in seeds:
        kind = DATA[seed % len(DATA)]
        if kind not in expected:
            expected[kind] = inline(folder / f"faultless-{kind}", kind)
        happened, around = campaign_run(folder / f"edge-{seed}", seed, length=LENGTH, epochs=EPOCHS)
        found = [*check(around.directory, around.runs, expected[kind]), *unkind(around, happened)]
        yield f"edge {seed} ({kind})", happened, found


def inline(directory: Path, kind: str) -> dict[str, object]:
    """Return the results of the edges' study when it runs undisturbed in one process."""
    argosy.train(study(kind, LENGTH, EPOCHS), quiet=True, directory=directory, launcher="inline", numerics="exact")
    return evidence.results(directory)


def faultless(directory: Path, settings: str) -> dict[str, object]:
    """Return the results of an undisturbed run."""
    if not directory.exists():
        assert start(directory, settings).end() == 0
    return evidence.results(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--driver-kills", type=int, default=50)
    parser.add_argument("--edges", type=int, default=0)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--sharing", choices=["local", *PIPELINES], help="two nodes that share their stream by this pipeline"
    )
    parser.add_argument("--moves", action="store_true", help="members change devices whenever one of them ends")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = TWO_NODES.format(sharing=options.sharing) if options.sharing else MOVES if options.moves else ONE_NODE
    first = options.first_seed
    print(hardware(), flush=True)
    wrong: list[str] = []
    faults: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="argosy-chaos-") as name:
        folder = Path(name)
        for what, happened, found in chain(
            kills(folder, settings, range(first, first + options.runs)),
            driver_kills(folder, settings, options.driver_kills, first),
            edges(folder, range(first, first + options.edges)),
        ):
            faults.update(happened)
            wrong += [f"{what} ({', '.join(happened)}): {text}" for text in found]
            print(f"{what}: {', '.join(happened) or 'no fault in time'}: {'; '.join(found) or 'ok'}", flush=True)
    runs = options.runs + options.edges
    print(f"{runs} runs, {sum(faults.values())} faults {dict(faults)}: {len(wrong)} wrong")
    if options.json:
        figures = {"runs": runs, "faults": dict(faults), "driver_kills": options.driver_kills, "wrong": wrong}
        targets = [
            {
                "what": "runs that differ from the faultless one",
                "value": len(wrong),
                "target": "== 0",
                "holds": not wrong,
            }
        ]
        print(json.dumps({"benchmark": "chaos", "hardware": hardware(), "figures": figures, "targets": targets}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
