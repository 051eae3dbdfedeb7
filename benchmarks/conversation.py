"""Messages in a large fleet: the driver's CPU time, what members cost against a plain loop, and how soon a signal is obeyed.

* A thousand small members train on one device and on two, and three thousand of which fifty train at a time: CPU time
  of the driver's process per member and section. The weights must be those of a plain loop over the same stream epochs.
* The same runs are ended by SIGTERM at random moments and continued: each must end soon, and the last with equal
  weights.
* Argosy against that loop, interleaved, with both writing the same files at the same moments: CPU time from first step
  to last.
* A hundred members are added to a running study, all by one command and each by its own.
"""

import random
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from measuring import arguments, finish, hardware, quartiles, target
from small_sides import Ship, check_weights, lists_of, loop

from argosy.protocol.events import Saved
from argosy.running.directory.inbox import write_command
from argosy.running.directory.journal import read_journal

RUN = "conversation_run.py"
VAL = 64
ADDED = """
from small_study import member, study

study = study([member(name) for name in {names!r}], samples=64, val=64, epochs=1)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One study, as both sides train it."""

    names: tuple[str, ...]
    samples: int
    epochs: int
    devices: str = "cpu:1"
    width: int | None = None
    """Members that train at a time; None for all."""

    @property
    def told(self) -> dict[str, Any]:
        """Return the instructions for the process that runs it."""
        return {**asdict(self), "val": VAL, "added": []}

    @property
    def sections(self) -> int:
        """Sections that all members train together."""
        return len(self.names) * self.epochs

    def __str__(self) -> str:
        turns = "" if self.width is None else f", {self.width} at a time"
        return f"{len(self.names)} members{turns}, {self.devices}"


def saves_of(directory: Path) -> dict[int, list[str]]:
    """Return after which stream epochs which members were saved; every member trains on all epochs."""
    saves: dict[int, list[str]] = {}
    for event in read_journal(directory):
        if isinstance(event, Saved):
            saves.setdefault(event.checkpoint.epoch - 1, []).append(event.member)
    return saves


# ---- a large fleet


def fleet(work: Work, folder: Path) -> dict[str, Any]:
    """Run the fleet, then the plain loop over the stream epochs that its members had; if they take turns, over those of some members."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        ship = Ship(RUN, work.told, out / "argosy")
        found = ship.end()
        state = ship.state
        lists = lists_of(state)
        shown = work.names if work.width is None else work.names[:: max(len(work.names) // 20, 1)]
        plain = loop({one: lists[one] for one in shown}, out / "loop", samples=work.samples, val=VAL)
        check_weights(ship.directory, plain["weights"])
        begun, started, ended = found["begun"], found["started"], found["ended"]
        figures = {
            "driver_ms": 1000 * (ended["driver_seconds"] - started["driver_seconds"]) / work.sections,
            "driver_ms_with_start": 1000 * (ended["driver_seconds"] - begun["driver_seconds"]) / work.sections,
            "seconds_to_start": started["wall"] - begun["wall"],
            "seconds": ended["wall"] - started["wall"],
            "cpu_seconds": ended["cpu_seconds"] - started["cpu_seconds"],
            "loop_cpu_seconds": plain["cpu_seconds"] * len(work.names) / len(shown),
            "preparations": state.preparations,
        }
    print(
        f"{work}: {figures['seconds_to_start']:.1f} s to the first step, then {figures['seconds']:.1f} s; driver "
        f"{figures['driver_ms']:.2f} ms CPU a member and section ({figures['driver_ms_with_start']:.2f} with its start); "
        f"CPU {figures['cpu_seconds']:.1f} s, the members alone in a loop without files "
        f"{figures['loop_cpu_seconds']:.1f} s; preparations {figures['preparations']:.3f}; weights are equal",
        flush=True,
    )
    return figures


# ---- signals


def interrupted(work: Work, folder: Path, *, signals: int, seconds: float, dice: random.Random) -> dict[str, Any]:
    """Interrupt a run at random moments of its expected length and continue it; return how long each end took."""
    took: list[float] = []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        for _ in range(signals):
            ship = Ship(RUN, work.told, out)
            # Before there is a lock, the interpreter is still importing and handles no signal.
            while not (ship.directory / "run.lock").exists() and ship.process.poll() is None:
                time.sleep(0.01)
            time.sleep(dice.uniform(1.0, seconds))
            if ship.process.poll() is not None:
                break
            told = time.monotonic()
            ship.process.send_signal(signal.SIGTERM)
            ship.process.wait()
            took.append(time.monotonic() - told)
            print(f"{work}: ended {took[-1]:.1f} s after SIGTERM, {ship.process.returncode}", flush=True)
        ship = Ship(RUN, work.told, out)
        ship.end()
        lists = lists_of(ship.state)
        shown = work.names[:: max(len(work.names) // 20, 1)]
        plain = loop({one: lists[one] for one in shown}, out / "loop", samples=work.samples, val=VAL)
        check_weights(ship.directory, plain["weights"])
    return {"seconds_to_end": took}


# ---- against a plain loop that writes the same files


def against_loop(work: Work, folder: Path) -> dict[str, float]:
    """Measure both sides once: CPU seconds from the first step to the last file, and of the whole commands."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        ship = Ship(RUN, work.told, out / "argosy")
        found = ship.end()
        lists, saves = lists_of(ship.state), saves_of(ship.directory)
        plain = {
            sync: loop(lists, out / f"loop-{sync}", samples=work.samples, val=VAL, saves=saves, sync=sync)
            for sync in (False, True)
        }
        check_weights(ship.directory, plain[True]["weights"])
    figures = {
        "argosy": found["ended"]["cpu_seconds"] - found["started"]["cpu_seconds"],
        "loop": plain[False]["cpu_seconds"],
        "loop_synced": plain[True]["cpu_seconds"],
        "argosy_whole": found["ended"]["cpu_seconds"],
        "loop_whole": plain[False]["whole_cpu_seconds"],
        "files": float(sum(map(len, saves.values()))),
    }
    print(
        f"{work}: CPU {figures['argosy']:.1f} s; plain loop {figures['loop']:.1f} s, with fsync "
        f"{figures['loop_synced']:.1f} s; {figures['files']:.0f} files each; whole commands {figures['argosy_whole']:.1f} "
        f"and {figures['loop_whole']:.1f} s",
        flush=True,
    )
    return figures


# ---- additions


def addition(work: Work, folder: Path, count: int, *, commands: int) -> dict[str, float]:
    """Add `count` members to a running study by `commands` commands; return what the driver worked until the last of them trained."""
    names = [f"added-{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        files = []
        for number in range(commands):
            files.append(out / f"added_{number}.py")
            files[-1].write_text(ADDED.format(names=names[number::commands]))
        ship = Ship(RUN, {**work.told, "added": names}, out / "argosy")
        while not ship.under_way:
            if ship.process.poll() is not None:
                ship.end()
            time.sleep(0.1)
        for file in files:
            write_command(ship.directory, {"command": "add", "study": str(file)})
        found = ship.end()
        state = ship.state
        lists = {name: epochs for name, epochs in lists_of(state).items() if name in (*names[::10], *work.names[:5])}
        plain = loop(lists, out / "loop", samples=work.samples, val=VAL)
        check_weights(ship.directory, plain["weights"])
        lost = len(state.lost)
    if "added" not in found:
        raise RuntimeError("the study had ended before the members were added: give it more epochs.")
    figures = {
        "driver_ms": 1000 * found["added"]["driver_seconds"] / count,
        "seconds": found["added"]["seconds"],
        "restarted": float(found["added"]["restarted"] + lost),
        "preparations": state.preparations,
    }
    print(
        f"{count} members added by {commands} commands: driver {figures['driver_ms']:.2f} ms CPU each, all train after "
        f"{figures['seconds']:.1f} s; {figures['restarted']:.0f} workers restarted; preparations "
        f"{figures['preparations']:.3f}",
        flush=True,
    )
    return figures


def names_of(count: int) -> tuple[str, ...]:
    """Return the names of `count` members."""
    return tuple(f"m{number:05d}" for number in range(count))


def ratios(rounds: Iterable[Mapping[str, float]], above: str, below: str) -> list[float]:
    """Return the ratio of two figures in each round."""
    return [one[above] / one[below] for one in rounds]


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("--members", type=int, default=1000, help="members of the large fleet")
    parser.add_argument("--turns", type=int, default=3000, help="members of which --width train at a time")
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--loops", type=int, nargs="*", default=[100, 400], help="members of the fleets beside a loop")
    parser.add_argument("--added", type=int, default=100, help="members that join a running study")
    parser.add_argument("--samples", type=int, default=640, help="samples in an epoch; ten times as many beside a loop")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--signals", type=int, default=2, help="SIGTERMs sent to each large fleet")
    parser.add_argument("--seed", type=int, default=0, help="seed of their moments")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="only these parts")
    options = parser.parse_args()
    print(hardware(), flush=True)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    targets: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="argosy-conversation-") as name:
        for part in options.parts:
            PARTS[part](options, Path(name), figures, targets)
    finish("conversation", figures, targets, as_json=options.json)


def _fleets(options: Any, folder: Path, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    large = Work(names=names_of(options.members), samples=options.samples, epochs=options.epochs)
    turns = replace(large, names=names_of(options.turns), epochs=2, width=options.width)
    dice = random.Random(options.seed)
    for work in (large, replace(large, devices="cpu:2"), turns):
        found = figures[str(work)] = fleet(work, folder)
        targets.append(target(f"{work}: driver, ms a member and section", [found["driver_ms"]], at_most=1.0))
        if options.signals:
            seconds = found["seconds_to_start"] + found["seconds"]
            found |= interrupted(work, folder, signals=options.signals, seconds=0.8 * seconds, dice=dice)
            targets.append(target(f"{work}: s from SIGTERM to the end", [max(found["seconds_to_end"])], at_most=30.0))


def _loops(options: Any, folder: Path, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    for count in options.loops:
        work = Work(names=names_of(count), samples=10 * options.samples, epochs=options.epochs)
        rounds = [against_loop(work, folder) for _ in range(options.rounds)]
        figures[f"{work} beside a loop"] = rounds
        for below, what in (("loop", "a plain loop"), ("loop_synced", "one with fsync")):
            targets.append(target(f"{work}: CPU / that of {what}", ratios(rounds, "argosy", below), at_most=1.2))
        whole = quartiles(ratios(rounds, "argosy_whole", "loop_whole"))[1]
        print(f"{work}: whole commands, start and imports included: {whole:.2f}")


def _additions(options: Any, folder: Path, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    work = Work(names=names_of(8), samples=10 * options.samples, epochs=40)
    for commands in (1, options.added):
        what = f"{options.added} members added by {commands} commands"
        rounds = figures[what] = [addition(work, folder, options.added, commands=commands)]
        targets.append(target(f"{what}: driver, ms each", [one["driver_ms"] for one in rounds], at_most=5.0))
        targets.append(target(f"{what}: workers restarted", [one["restarted"] for one in rounds], at_most=0.0))


PARTS = {"fleets": _fleets, "loops": _loops, "additions": _additions}


if __name__ == "__main__":
    main()
