"""Measures what it costs other members that some leave, join, rest, come back and move, and that an epoch has several sections.

* In one study ten things change at the end of every epoch; a quiet one has equally many members on each device in every
  section. They run interleaved. Members to which nothing happens must end with the quiet study's weights, and every
  member with those of a plain loop over the stream epochs journaled for it. No sample may be prepared twice.
* The same, but a trainer is killed just after a member has started on it, before the member could be saved.
* One, four and sixteen validations an epoch must give equal weights, and equal validation at the end of the epoch.
  Sixteen are also compared with one on sixteen times as many samples.
"""

import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from measuring import arguments, finish, hardware, target
from small_sides import Ship, check_weights, lists_of, loop, weights_of

from argosy.running.directory.inbox import write_command

RUN = "crews_run.py"
DEVICES = ("cpu:0", "cpu:1")
VAL = 128
CHANGES = 10
"""Changes at the end of every epoch: four members move, two rest, two come back, one leaves and one joins."""
ADDED = """
from small_study import member, study
from argosy import MaxEpochs

study = study([member(name, stop=MaxEpochs(1)) for name in {names!r}], samples=64, val=64, epochs=1)
"""

Crews = dict[str, list[str]]


def steady_of(count: int) -> dict[str, list[str]]:
    """Return the members to which nothing happens, by device."""
    return {device: [f"steady-{number}-{i}" for i in range(count)] for number, device in enumerate(DEVICES)}


def crews_at(epoch: int, steady: int) -> Crews:
    """Return the members that are assigned in an epoch of the changing study."""
    turn = epoch % 2
    movers = [["mover-0", "mover-1"], ["mover-2", "mover-3"]]
    crews = steady_of(steady)
    for number, device in enumerate(DEVICES):
        crews[device] += movers[(number + turn) % 2]
        crews[device].append(f"turn-{number}-{turn}")
    crews[DEVICES[0]].append(f"once-{epoch}")
    return crews


def quiet_crews(steady: int) -> Crews:
    """Return equally many members for each device, none of which changes."""
    crews = steady_of(steady)
    for number, device in enumerate(DEVICES):
        crews[device] += [f"mover-{2 * number}", f"mover-{2 * number + 1}", f"turn-{number}-0"]
    crews[DEVICES[0]].append("once-0")
    return crews


def told_of(script: Sequence[Crews], *, epochs: int, samples: int, cues: bool, victim: str | None) -> dict[str, Any]:
    """Return the instructions for a study whose members train when the script says so."""
    assigned = [{name for crew in crews.values() for name in crew} for crews in script]
    everybody = sorted(set.union(*assigned))
    added = [name for name in everybody if name.startswith("once-") and name not in assigned[0]]
    return {
        "script": script,
        "members": {
            name: sum(name in here for here in assigned) if cues else epochs for name in everybody if name not in added
        },
        "added": len(added),
        "samples": samples,
        "val": VAL,
        "epochs": epochs,
        "sections": 1,
        "devices": f"cpu:{len(DEVICES)}",
        "checkpoint_seconds": 300.0,
        "cues": cues,
        "victim": victim,
    }


def changing(out: Path, *, steady: int, epochs: int, samples: int, victim: str | None = None) -> Ship:
    """Start a study that changes at the end of every epoch."""
    script = [crews_at(epoch, steady) for epoch in range(epochs)]
    (out / "run").mkdir(parents=True)
    names = [f"once-{epoch}" for epoch in range(1, epochs)]
    (out / "added.py").write_text(ADDED.format(names=names))
    write_command(out / "run", {"command": "add", "study": str(out / "added.py")})
    return Ship(RUN, told_of(script, epochs=epochs, samples=samples, cues=True, victim=victim), out)


def quiet(out: Path, *, steady: int, epochs: int, samples: int) -> Ship:
    """Start a study in which nothing changes."""
    told = told_of([quiet_crews(steady)], epochs=epochs, samples=samples, cues=False, victim=None)
    return Ship(RUN, told, out)


def worked(ship: Ship) -> dict[str, float]:
    """Return the seconds from the first start to the last section of members to which nothing happens, and the CPU time of all."""
    found = ship.end()
    lines = [json.loads(line) for line in (ship.directory / "journal.jsonl").read_text().splitlines()]
    steady = [line for line in lines if line["event"] == "SectionEnded" and line["member"].startswith("steady")]
    started, ended = found["started"], found["ended"]
    return {
        "seconds": steady[-1]["at"] - started["wall"],
        "cpu_seconds": ended["cpu_seconds"] - started["cpu_seconds"],
        "driver_seconds": ended["driver_seconds"] - started["driver_seconds"],
    }


def check_lists(ship: Ship, out: Path, samples: int) -> None:
    """Raise unless every member equals a plain loop over the stream epochs journaled for it."""
    state = ship.state
    lists = lists_of(state)
    check_weights(ship.directory, loop(lists, out / "loop", samples=samples, val=VAL)["weights"])
    wrong = {name: one for name, one in state.members.items() if one.status != "done"}
    if wrong:
        raise AssertionError(f"not every member is done: {wrong}")


def check_script(ship: Ship, epochs: int) -> None:
    """Raise unless every member that joined trained on the epoch of the script; after a kill it may come to a later one."""
    lists = lists_of(ship.state)
    for name in [f"once-{epoch}" for epoch in range(epochs)]:
        if lists[name] != [int(name.removeprefix("once-"))]:
            raise AssertionError(f"{name} trained on stream epochs {lists[name]}")


def changes(options: Any, folder: Path, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Compare quiet and changing studies, interleaved."""
    rounds: list[dict[str, Any]] = []
    count = CHANGES * (options.epochs - 1)
    size = {"steady": options.steady, "epochs": options.epochs, "samples": options.samples}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            sides = {"quiet": quiet, "changing": changing}
            ships, found = {}, {}
            for side in (sorted(sides), sorted(sides, reverse=True))[number % 2]:
                ships[side] = sides[side](Path(name) / side, **size)
                found[side] = worked(ships[side])
            for steady in itertools.chain.from_iterable(steady_of(options.steady).values()):
                if weights_of(ships["quiet"].directory, steady) != weights_of(ships["changing"].directory, steady):
                    raise AssertionError(f"{steady} ended with different weights beside members that changed.")
            if number == 0:
                check_lists(ships["changing"], Path(name), options.samples)
                check_script(ships["changing"], options.epochs)
            state = ships["changing"].state
        delay = {
            f"{what}_ms": 1000 * (found["changing"][what] - found["quiet"][what]) / count
            for what in ("seconds", "cpu_seconds", "driver_seconds")
        }
        rounds.append({**found, **delay, "preparations": state.preparations})
        print(
            f"{count} changes: {delay['seconds_ms']:.1f} ms each for the others ({found['quiet']['seconds']:.1f} s quiet, "
            f"{found['changing']['seconds']:.1f} s changing), {delay['cpu_seconds_ms']:.1f} ms CPU each of all processes, "
            f"{delay['driver_seconds_ms']:.1f} ms of them the driver's; preparations {state.preparations:.3f}",
            flush=True,
        )
    figures["changes"] = rounds
    targets.append(target("ms a change for the others", [one["seconds_ms"] for one in rounds], at_most=20.0))
    targets.append(target("ms CPU a change, of all processes", [one["cpu_seconds_ms"] for one in rounds], at_most=20.0))
    targets.append(target("preparations of each sample", [one["preparations"] for one in rounds], at_most=1.0))


def kill(options: Any, folder: Path, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Kill the trainer that a member has just joined."""
    epochs = 4
    with tempfile.TemporaryDirectory(dir=folder) as name:
        ship = changing(
            Path(name), steady=min(options.steady, 4), epochs=epochs, samples=options.samples, victim="once-2"
        )
        ship.end()
        lost = len(ship.state.lost)
        check_lists(ship, Path(name), options.samples)
    figures["kill"] = {"trainers_lost": lost}
    targets.append(target("trainers killed before a joiner's first save, with equal weights", [lost], at_least=1))


def validations(options: Any, folder: Path, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Compare studies with different numbers of sections in an epoch."""
    members = {f"m{number}": 2 for number in range(options.members)}
    told = {
        "script": None,
        "members": members,
        "added": 0,
        "samples": options.long_samples,
        "epochs": 2,
        "devices": "cpu:1",
        "checkpoint_seconds": 300.0,
        "cues": False,
        "victim": None,
    }
    rounds = []
    sides = ((16, VAL), (1, 16 * VAL), (4, VAL), (1, VAL))
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            ships, cpu = {}, {}
            for sections, val in (sides, sides[::-1])[number % 2]:
                key = f"{sections} of {val}"
                ship = ships[key] = Ship(RUN, {**told, "sections": sections, "val": val}, Path(name) / key)
                found = ship.end()
                cpu[key] = found["ended"]["cpu_seconds"] - found["started"]["cpu_seconds"]
            _check_equal([ships[f"{sections} of {VAL}"] for sections in (1, 4, 16)], list(members))
        rounds.append({**cpu, "cost": cpu[f"16 of {VAL}"] / cpu[f"1 of {16 * VAL}"]})
        print(
            ", ".join(f"{key}: {seconds:.1f} s CPU" for key, seconds in cpu.items())
            + "; equal weights, equal validation at the epochs' ends",
            flush=True,
        )
    figures["validations"] = rounds
    targets.append(
        target("CPU of 16 validations / of one of 16 times as many samples", [r["cost"] for r in rounds], at_most=1.03)
    )


def _check_equal(ships: Sequence[Ship], names: Sequence[str]) -> None:
    """Raise unless all runs ended with equal weights, and with equal validation at each epoch's end."""
    first, *others = ships
    whole = first.state
    for ship in others:
        state = ship.state
        assert state.started is not None
        last = state.started.validations_per_epoch - 1
        for name in names:
            if weights_of(ship.directory, name) != weights_of(first.directory, name):
                raise AssertionError(f"{name} ended with different weights with {last + 1} validations an epoch.")
            ends = [row.metrics for row in state.member(name).sections if row.section == last]
            if ends != [row.metrics for row in whole.member(name).sections]:
                raise AssertionError(
                    f"{name} has different figures at an epoch's end with {last + 1} validations an epoch."
                )


PARTS = {"changes": changes, "kill": kill, "validations": validations}


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("--steady", type=int, default=10, help="members on each device to which nothing happens")
    parser.add_argument("--epochs", type=int, default=21, help="epochs; ten changes at the end of each but the last")
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--members", type=int, default=10, help="members of the studies with sections")
    long = "samples of an epoch with sections: enough that 3 %% of a run exceeds the differences between runs"
    parser.add_argument("--long-samples", type=int, default=320_000, help=long)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="only these parts")
    options = parser.parse_args()
    print(hardware(), flush=True)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    targets: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="argosy-crews-") as name:
        for part in options.parts:
            PARTS[part](options, Path(name), figures, targets)
    finish("crews", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
