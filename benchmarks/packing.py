"""Compares members of one architecture stepped as one program with the same members one after another, on one device.

The ladder: in one process and on one CPU thread, all sides take the same steps in interleaved rounds, from the same
weights and on the same batches. The sequential sides are the hand-written loop with torch's default Adam ("loop"), with
torch's fused Adam kernel ("loop, fused Adam"), on CUDA with each member's whole step as a graph (there the fused
program also runs captured), with ``--full`` and 8 members under torch.compile, and Argosy's own programs one after
another. The fused side does everything that a trainer asks of it: it cuts batches, keeps losses and digests and moves
positions; the loops keep nothing.

What a trainer chooses among the programs is a side of its own ("chosen"), which has tried them before the rounds begin.
It must come within 5 % of the best of them, and must never be slower than one after another, even if there is nothing
to gain.

Both ratios are printed: against the default loop and against the strongest sequential side. On a CPU, the processor
time of the one thread counts. Equality is checked in the same run: in float64, after 50 steps of four members.
"""

import itertools
import random
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import arguments, finish, hardware, quartiles, target
from packing_networks import WORKLOADS, Workload
from packing_sides import Chosen, Compiled, Graphed, Loop, Side, Task, captured, compiled, fused, one_after_another

from argosy.training.device.heap import give_back_memory, keep_freed_memory

SIZES = (1, 2, 4, 8, 16, 32, 64)
PROGRAMS = "one after another", "fused", "fused, captured"
"""Sides to choose among, if they exist."""
WARM = 2
"""Rounds that do not count."""
BUILDS = 5
"""How often sides are built in a rung with short rounds."""
NEAR = 1.25
"""The largest ratio of a rival's time to the choice's at which the two are timed once more."""
Sides = Mapping[str, Callable[[Task], Side]]
Rounds = Mapping[str, Sequence[float]]
EAGER: Sides = {
    "loop": Loop,
    "loop, fused Adam": partial(Loop, fused=True),
    "one after another": one_after_another,
    "fused": fused,
}


def sides(options: Namespace, size: int) -> Sides:
    """Return the sides of a rung of the ladder."""
    made = {**EAGER, "chosen": Chosen}
    if options.device == "cuda":
        made |= {"loop, graphed": Graphed, "fused, captured": captured}
    if options.full and size == 8:
        made |= {"loop, compiled": Compiled, "fused, compiled": compiled}
    return made


def seconds_of(side: Side, task: Task, epoch: int, device: str) -> float:
    """Return the seconds of all steps of a round: of the thread on a CPU, of the clock with a device that computes on its own."""
    block = task.block(epoch)
    assert block.sums  # computed once for all members of a device
    side.prepare(epoch)
    if device == "cpu":
        began = time.thread_time()
        side.run(block)
        return time.thread_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    side.run(block)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def choose(side: Side, task: Task, device: str) -> None:
    """Let a side try its programs until it has chosen."""
    assert isinstance(side, Chosen)
    epoch = 0
    while epoch == 0 or not side.settled:
        seconds_of(side, task, epoch, device)
        epoch += 1


def rung(workload: Workload, size: int, options: Namespace) -> tuple[Rounds, Rounds]:
    """Return the seconds of each side in each interleaved round, and those of the choice in duels in which a rival takes 1.

    In rungs with short rounds, all sides are built anew several times: two equal sides may differ by two hundredths in
    round after round, because of where their tensors happen to lie.
    """
    rounds: dict[str, list[float]] = {}
    duels: dict[str, list[float]] = {}
    dice, began = random.Random(size), time.perf_counter()
    while not rounds or time.perf_counter() - began < options.seconds * (1 - 1 / BUILDS):
        for known, found in zip((rounds, duels), built(workload, size, options, dice), strict=True):
            for name, values in found.items():
                known.setdefault(name, []).extend(values)
    return rounds, duels


def built(workload: Workload, size: int, options: Namespace, dice: random.Random) -> tuple[Rounds, Rounds]:
    """Return the same for sides that are built once."""
    task = Task(workload, size, f"{options.device}:0", torch.float32)
    made = {name: side(task) for name, side in sides(options, size).items()}
    epochs = itertools.count()

    def found(names: Sequence[str], rounds: int) -> Rounds:
        times, began = {name: list[float]() for name in names}, time.perf_counter()
        while len(times[names[0]]) < rounds or time.perf_counter() - began < options.seconds / BUILDS:
            # The side that follows one that has filled the caches pays for it, so the order alternates.
            epoch = next(epochs)
            for name in dice.sample(names, len(names)):
                times[name].append(seconds_of(made[name], task, epoch, options.device))
        return times

    choose(made["chosen"], task, options.device)
    rounds = {name: times[WARM:] for name, times in found(list(made), WARM + options.rounds).items()}
    near = statistics.median(rounds["chosen"]) * NEAR
    rivals = [name for name in PROGRAMS if name in made and statistics.median(rounds[name]) < near]
    return rounds, {name: ratios(found(["chosen", name], options.rounds), "chosen", to=name) for name in rivals}


def ratios(rounds: Rounds, side: str, *, to: str = "fused") -> list[float]:
    """Return the ratio of a side's seconds to those of the fused side, or of another one, in each round."""
    return [other / own for other, own in zip(rounds[side], rounds[to], strict=True)]


def regrets(name: str, rungs: Mapping[int, tuple[Rounds, Rounds]]) -> list[dict[str, Any]]:
    """Return targets on the choice's cost relative to the best program and to one after another, at the worst number of members.

    Each of these is timed once more together with the choice alone, unless it is far slower.
    """

    def worst(what: str, found: Mapping[int, Sequence[float]], bound: float) -> dict[str, Any]:
        size = max(found, key=lambda size: statistics.median(found[size]))
        return target(f"{name}, the choice for {size} members, where {what} takes 1", found[size], at_most=bound)

    best, solo = {}, {}
    for size, (rounds, duels) in rungs.items():
        cheapest = min((side for side in PROGRAMS if side in rounds), key=lambda side: statistics.median(rounds[side]))
        best[size], solo[size] = (
            duels.get(side) or ratios(rounds, "chosen", to=side) for side in (cheapest, PROGRAMS[0])
        )
    return [worst("the best program", best, 1.05), worst("one after another", solo, 1.02)]


def unequal(workload: Workload, device: str) -> float:
    """Return the largest difference between weights of four fused members and of the same members alone, after 50 steps."""
    task = Task(workload, 4, f"{device}:0", torch.float64)
    one, other = one_after_another(task), fused(task)
    for epoch in range(-(-50 // workload.steps)):
        for side in (one, other):
            seconds_of(side, task, epoch, device)
    models = zip(one.models, other.models, strict=True)
    pairs = (pair for a, b in models for pair in zip(a.parameters(), b.parameters(), strict=True))
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


# ---- memory


def peak(workload: Workload, side: Callable[[Task], Side], size: int, device: str) -> int:
    """Return the most bytes that a side's members and two of its rounds take."""
    task = Task(workload, size, f"{device}:0", torch.float32)
    before = _memory_in_use(device)
    made = side(task)
    for epoch in range(2):
        seconds_of(made, task, epoch, device)
    return _most_in_use(device) - before


def _memory_in_use(device: str) -> int:
    """Return the memory in use now, and count the peak from here on."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    give_back_memory()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _most_in_use(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


# ---- the whole


def memory(workloads: Mapping[str, Workload], options: Namespace) -> dict[str, Any]:
    """Measure each workload with 8 members on each side."""
    found = {}
    for name, workload in workloads.items():
        for make in EAGER.values():
            peak(workload, make, 1, options.device)  # memory that torch keeps after a first call is no member's
        bytes_of = {side: peak(workload, make, 8, options.device) for side, make in EAGER.items()}
        print(f"{name}, 8 members, peak MiB: " + ", ".join(f"{n / 2**20:.1f} {side}" for side, n in bytes_of.items()))
        found[name] = bytes_of
    return found


def ladder(name: str, workload: Workload, options: Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the figures of a workload at every size, and its targets."""
    gap = unequal(workload, options.device)
    figures: dict[str, Any] = {"difference": gap}
    targets = [target(f"{name}, difference from alone in float64", [gap], at_most=1e-10)]
    rungs = {}
    for size in options.sizes:
        rounds, duels = rungs[size] = rung(workload, size, options)
        sequential = [side for side in rounds if not side.startswith(("fused", "chosen"))]
        strongest = min(sequential, key=lambda side: statistics.median(rounds[side]))
        times = {side: [one / workload.steps for one in found] for side, found in rounds.items()}
        figures[str(size)] = {"seconds": times, "strongest": strongest}
        low, median, high = quartiles(times["fused"])
        print(
            f"{name}, {size:2d} members: a step {1e3 * median:.2f} ms (least {1e3 * min(times['fused']):.2f}, quartiles "
            f"{1e3 * low:.2f} to {1e3 * high:.2f}); {quartiles(ratios(rounds, 'loop'))[1]:.2f} x loop, "
            f"{quartiles(ratios(rounds, strongest))[1]:.2f} x strongest ({strongest}); "
            f"chosen {quartiles(ratios(rounds, 'chosen', to=PROGRAMS[0]))[1]:.2f} of one after another"
            + "".join(f", in duels {quartiles(found)[1]:.3f} of {side}" for side, found in duels.items()),
            flush=True,
        )
        if size in workload.wanted and options.device == "cpu":
            words = f"{name}, {size} members, against the strongest sequential side"
            targets.append(target(words, ratios(rounds, strongest), at_least=workload.wanted[size]))
    return figures, [*targets, *regrets(name, rungs)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--full", action="store_true", help="compiled sides too, with 8 members")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of a rung if its rounds take less")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--only", nargs="+", choices=tuple(WORKLOADS), default=tuple(WORKLOADS))
    parser.set_defaults(rounds=9)
    options = parser.parse_args()
    print(hardware())
    torch.set_num_threads(1)
    # Sides take different numbers of steps, and products with denormal gradients, which come late, take three times as
    # long.
    torch.set_flush_denormal(True)
    began = time.perf_counter()
    workloads = {name: WORKLOADS[name] for name in options.only}
    figures: dict[str, Any] = {"peak bytes": memory(workloads, options)}
    keep_freed_memory()  # set before memory is measured, as in every trainer
    targets = []
    for name, workload in workloads.items():
        figures[name], found = ladder(name, workload, options)
        targets += found
    print(f"{time.perf_counter() - began:.0f} s")
    finish("packing", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
