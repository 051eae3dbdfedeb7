"""Eight members of two small architectures on decode-heavy photographs, end to end: `argosy run` against a hand-written loop.

Argosy steps members of one architecture at once; the loop over one DataLoader steps them one by one. Both train in one
process beside as many loader workers as cores. They are whole commands with the same epochs, batches, validations and
checkpoints (`together.py`), in interleaved rounds. Equality is checked in the same run: without programs of several
members, every weight equals the loop's, bit for bit; with them, losses differ from the loop's by at most three times
the difference that results if each of the loop's initial weights is the next larger number.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from measuring import arguments, finish, hardware, quartiles, target
from photographs import ALIKE, write_photographs
from together import Outcome, Work, by_argosy, by_hand

import argosy

NAMES = list(ALIKE)
BATCH = 8
LEAST = 1e-4
"""Smaller differences of a loss say nothing, whatever the control says."""

SIDES: Mapping[str, Callable[[Work, Path], Outcome]] = {
    "loop": lambda work, out: by_hand(work, out, [NAMES], at_once=1),
    "argosy": lambda work, out: by_argosy(work, out, devices=1, names=NAMES, numerics="equivalent"),
}
CHECKS: Mapping[str, Callable[[Work, Path], Outcome]] = {
    "exact": lambda work, out: by_argosy(work, out, devices=1, names=NAMES),
    "perturbed": lambda work, out: by_hand(work, out, [NAMES], at_once=1, flags=["--perturbed"]),
}


def prepare(folder: Path, length: int, epochs: int) -> Work:
    """Write the photographs; the last batch has three, so that it counts."""
    lengths = {"train": length // BATCH * BATCH + 3, "val": length // 10}
    for number, (split, count) in enumerate(lengths.items(), start=1):
        write_photographs(folder / split, count, seed=number)
    return Work(folder=folder, lengths=lengths, epochs=epochs, batch=BATCH)


def programs(directory: Path) -> str:
    """Return in words what programs an Argosy run chose for each device; nothing for the loop."""
    if not (directory / "journal.jsonl").exists():
        return ""
    chosen = {pack.device: pack for pack in argosy.load(directory).packs}
    return "".join(f"; {device} in programs of {[*map(len, pack.programs)]}" for device, pack in chosen.items())


def outcome(sides: Mapping[str, Callable[[Work, Path], Outcome]], side: str, work: Work) -> Outcome:
    """Return the outcome of a whole command."""
    with tempfile.TemporaryDirectory(dir=work.folder) as out:
        found, packed = sides[side](work, Path(out)), programs(Path(out) / "run")
    cost = found.cost
    print(
        f"{side:<10} wall {cost.wall_seconds:6.1f} s, first to last step {found.steps_seconds:6.1f} s, "
        f"CPU {cost.cpu_seconds:6.1f} s, others {cost.others_cores:.1f} cores{packed}",
        flush=True,
    )
    return found


def gap(one: Outcome, other: Outcome) -> float:
    """Return the largest difference of a last validation loss."""
    return max(abs(one.results[name][0] - other.results[name][0]) for name in NAMES)


def equality(work: Work, rounds: list[dict[str, Outcome]]) -> list[dict[str, Any]]:
    """Return targets on equality, since a speed-up of unequal training is void."""
    found = {side: outcome(CHECKS, side, work) for side in CHECKS}
    loop = rounds[0]["loop"]
    unequal = sum(found["exact"].results[name] != loop.results[name] for name in NAMES)
    control = max(gap(found["perturbed"], loop), LEAST)
    gaps = [gap(one["argosy"], one["loop"]) / control for one in rounds]
    return [
        target("members that are not the loop's to the bit, without programs", [unequal], at_most=0),
        target("difference of losses, of the loop's from perturbed weights = 1", gaps, at_most=3),
    ]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    print(f"{hardware()}; every training process uses one torch thread")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="argosy-packing-") as name:
        work = prepare(Path(name), options.samples, options.epochs)
        rounds = []
        for number in range(options.rounds):
            order = list(SIDES) if number % 2 else list(SIDES)[::-1]
            rounds.append({side: outcome(SIDES, side, work) for side in order})
        targets = equality(work, rounds)
    walls = [one["loop"].cost.wall_seconds / one["argosy"].cost.wall_seconds for one in rounds]
    steps = [one["loop"].steps_seconds / one["argosy"].steps_seconds for one in rounds]
    cpu = [one["loop"].cost.cpu_seconds / one["argosy"].cost.cpu_seconds for one in rounds]
    targets.append(target("whole command of the loop, of argosy = 1", walls, at_least=1.2))
    figures = {
        "first to last step, loop / argosy": quartiles(steps),
        "CPU seconds, loop / argosy": quartiles(cpu),
        "seconds": {side: quartiles([one[side].cost.wall_seconds for one in rounds]) for side in SIDES},
    }
    print(figures)
    finish("packing, photographs", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
