"""SC'18's experiments on one machine: members that share one stream against members that each prepare for themselves.

For n members of light, middle and heavy training demand: CPU seconds and wall time of an epoch with ``none`` (a
pipeline per member), ``local`` (one stream on one node) and the pipelines that nodes share, compared with the limit
(nP+T)/(P+T) and SC'18's curves. P is preparing once, and T the n members' own training, in plain PyTorch in as many
processes as the pipeline has; they and the pipeline take turns of half a second. Start-up is measured apart on all
sides (see `sharing_sides.py`). Then follow peak(n), with training stripped; core limits; and a producer with eight idle
consumers. Figures count only if all sides end every epoch with equal losses and digests.

All nodes are on this machine and share its cores. SC'18's nodes gain by preparing on the cores of all of them; here
they gain by no longer taking these cores from each other.
"""

import math
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sc18
import torch
from measuring import arguments, finish, hardware, quartiles, target
from photographs import Photographs, write_photographs
from sharing_sides import (
    BLOCK,
    CORES,
    DEMANDS,
    NODES,
    Side,
    Work,
    by_argosy,
    pipelines,
    shape_of,
)

COUNTS = (1, 2, 4, 8, 16)
EIGHT = 8
"""Idle consumers of one producer, and members under core limits."""
IDLE_PAIRS = 3
"""Pairs of idle consumers' runs in each round."""
SHARED = ("all-shared", "single-broadcast", "multi-broadcast")
STREAMS = ("local", *SHARED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One demand and number of members in one round."""

    members: int
    sides: dict[str, Side]

    def parts(self, side: str) -> tuple[float, float]:
        """Return P and T at the time and concurrency of this side."""
        alone = self.sides[side].alone
        assert alone is not None
        return alone.preparing, alone.training

    def limit(self, side: str) -> float:
        """Return the largest possible reduction of CPU seconds."""
        preparing, training = self.parts(side)
        return (self.members * preparing + training) / (preparing + training)

    def cost(self, side: str) -> float:
        """Return what the side takes beyond P + T for what it prepared and trained, as a share of that."""
        preparing, training = self.parts(side)
        ran = self.sides[side]
        return ran.cpu_seconds / (ran.preparations * preparing + ran.epochs * training) - 1.0

    def cpu_seconds(self, side: str) -> float:
        """Return the CPU seconds of an epoch of all members, prepared once, or with ``none`` once for each member."""
        preparing, training = self.parts(side)
        times = self.members if side == "none" else 1
        return (1.0 + self.cost(side)) * (times * preparing + training)

    def of_limit(self, side: str) -> float:
        """Return the share of the limit that was reached.

        That is what a pipeline per member takes over what this side takes, each relative to what it must take at its
        time, so that changes of the machine's speed cancel out.
        """
        return (1.0 + self.cost("none")) / (1.0 + self.cost(side))

    def reduction(self, side: str) -> float:
        """Return the CPU seconds of a pipeline per member over those of this side."""
        return self.of_limit(side) * self.limit(side)


Cells = dict[tuple[str, int], Cell]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The photographs, and the length of a run."""

    folder: Path
    samples: int
    epoch_seconds: float
    """Approximate CPU seconds of preparing an epoch."""
    seconds: float
    """Approximate CPU seconds that a run counts."""

    def work(self, demand: str, members: int, *, each: bool = False) -> Work:
        """Return as many epochs as take the time: of all members on one stream, or of `each` on its own."""
        at_once = min(members, CORES) if each else members
        load = at_once * ((1.0 if each else 1.0 / members) + DEMANDS.get(demand, 0.0))
        rounds = max(math.ceil(self.seconds / (self.epoch_seconds * load)), 1)
        return Work(
            folder=self.folder,
            samples=self.samples,
            demand=demand,
            members=members,
            at_once=at_once,
            counted=rounds * at_once,
        )


def prepare(folder: Path, samples: int, seconds: float) -> Bench:
    """Write the photographs, and the tensors for T."""
    write_photographs(folder / "train", samples, seed=0)
    dataset = Photographs(folder / "train", train=True)
    for _ in range(2):  # the first pass warms up
        began = time.process_time()
        prepared = [dataset[index] for index in range(samples)]
        epoch_seconds = time.process_time() - began
    torch.save((torch.stack([x for x, _ in prepared]), torch.tensor([y for _, y in prepared])), folder / "tensors.pt")
    return Bench(folder=folder, samples=samples, epoch_seconds=epoch_seconds, seconds=seconds)


def turned(names: Iterable[str], number: int) -> list[str]:
    """Return the names rotated, so that each round begins with another one."""
    names = list(names)
    turn = number % len(names)
    return [*names[turn:], *names[:turn]]


def one_cell(bench: Bench, demand: str, members: int, number: int) -> Cell:
    """Measure every pipeline, each with P and T."""
    runs, sides = pipelines(members), {}
    for name in turned(runs, number):
        work = bench.work(demand, members, each=name == "none")
        sides[name] = by_argosy(work, runs[name], beside=shape_of(name, members))
    check_equal(sides)
    return Cell(members=members, sides=sides)


def check_equal(sides: dict[str, Side]) -> None:
    """Raise unless all sides have the same losses and digests, bit for bit, in the epochs that they all ended."""
    for name, side in sides.items():
        for member, epochs in side.results.items():
            expected = sides["local"].results[member]
            common = min(len(epochs), len(expected))
            if epochs[:common] != expected[:common]:
                raise AssertionError(f"{member} ended differently on side {name} than on side local: figures are void.")


def epoch_seconds(side: Side) -> float:
    """Return the wall time of an epoch of all members."""
    return side.wall_seconds / side.epochs


def show_cell(demand: str, cell: Cell) -> None:
    published = sc18.at(sc18.REDUCTION[demand], cell.members)
    print(f"{demand} n={cell.members}; SC'18's {sc18.NETWORKS[demand]}, all-shared: {published:.2f}")
    for name, side in cell.sides.items():
        preparing, training = cell.parts(name)
        print(
            f"    {name:<17} CPU {cell.cpu_seconds(name):7.3f} s, P {preparing:7.3f} s, T {training:7.3f} s, cost "
            f"{100 * cell.cost(name):+5.1f} %   wall {epoch_seconds(side):7.3f} s   reduction {cell.reduction(name):5.2f}, "
            f"limit {cell.limit(name):5.2f}, of it {cell.of_limit(name):5.3f}   nodes {side.nodes}, "
            f"{side.preparations:.2f} preparations, {side.epochs:.2f} epochs",
            flush=True,
        )


def peak(bench: Bench) -> dict[str, float]:
    """Return the samples/s that each node receives with training stripped, as ``<pipeline>/<nodes>``."""
    rates: dict[str, float] = {}
    for nodes in (1, 2, NODES):
        runs = pipelines(nodes)
        for name in SHARED if nodes > 1 else ("local",):
            side = by_argosy(bench.work("stripped", nodes), runs[name])
            rate = rates[f"{name}/{nodes}"] = bench.samples / epoch_seconds(side)
            print(
                f"peak({nodes}) {name:<17} {rate:8.0f} samples/s on {side.nodes} nodes, "
                f"{rate / rates['local/1']:.2f} of what the cores prepare{beside_peak(name, nodes)}",
                flush=True,
            )
    return rates


def beside_peak(name: str, nodes: int) -> str:
    """Return what SC'18 reached with as many nodes."""
    if name != "all-shared":
        return ""
    rate, possible = sc18.PEAK[16][nodes], nodes * sc18.SOLO_PEAK
    return f"; SC'18 {rate:.0f} images/s, {rate / possible:.2f} of what {nodes} nodes of 16 cores prepare (Fig 8a)"


def core_limits(bench: Bench, cell: Cell | None) -> dict[str, float]:
    """Return the wall time of ``none`` over that of a stream, for each number of cores that the run may use: ``<pipeline>/<cores>``."""
    speedups, limit = {}, f", limit {cell.limit('local'):.2f}" if cell else ""
    runs = pipelines(EIGHT)
    for cores in (1, 2):
        walls = {
            name: epoch_seconds(
                by_argosy(bench.work("light", EIGHT, each=name == "none"), [*runs[name], "--cores", str(cores)])
            )
            for name in ("none", "local", "all-shared")
        }
        for name in ("local", "all-shared"):
            speedups[f"{name}/{cores}"] = walls["none"] / walls[name]
        print(
            f"{cores} cores, {EIGHT} light members: none {walls['none']:.2f} s an epoch, "
            f"local {speedups[f'local/{cores}']:.2f} and all-shared {speedups[f'all-shared/{cores}']:.2f} times as fast"
            f"{limit}; SC'18's 100 {sc18.NETWORKS['light']}s "
            f"with so many cores each {sc18.CORE_LIMITED['light'][cores]} (Fig 11)",
            flush=True,
        )
    return speedups


def idle_consumers(bench: Bench) -> float:
    """Return the rate of a producer with eight consumers that do nothing, over its rate with one."""
    rates = {}
    for count in (1, EIGHT):
        flags = ["--devices", f"cpu:{count}", "--sharing", "local"]
        rates[count] = bench.samples / epoch_seconds(by_argosy(bench.work("stripped", count), flags))
    told = " and ".join(f"{rate:.0f} samples/s to {count}" for count, rate in rates.items())
    print(f"one producer: {told} idle consumers", flush=True)
    return rates[EIGHT] / rates[1]


def show_curves(rounds: list[Cells]) -> None:
    """Print medians of all rounds beside SC'18's curves."""
    for demand in dict.fromkeys(demand for demand, _ in rounds[0]):
        network = sc18.NETWORKS[demand]
        print(f"CPU reduction, {demand}: n, limit, {', '.join(STREAMS)}, SC'18's all-shared with {network} (Fig 10)")
        for members in (members for of, members in rounds[0] if of == demand):
            cells = [one[demand, members] for one in rounds]
            ours = [quartiles([c.reduction(n) for c in cells])[1] if n in cells[0].sides else None for n in STREAMS]
            row = " ".join(f"{value:7.2f}" if value else "      -" for value in ours)
            limit = quartiles([cell.limit("local") for cell in cells])[1]
            print(f"{members:4d} {limit:7.2f} {row} {sc18.at(sc18.REDUCTION[demand], members):7.2f}")
    for name, curve in sc18.AGAINST_ALL_SHARED.items():
        cells = [cell for one in rounds for cell in largest(one)]
        ratios = [(1.0 + cell.cost(name)) / (1.0 + cell.cost("all-shared")) for cell in cells]
        if ratios:
            fewest = min(curve)
            print(
                f"CPU of {name} over all-shared: {quartiles(ratios)[1]:.2f} with most members; "
                f"SC'18 {curve[fewest]} at n={fewest} (Fig 9)"
            )


def largest(cells: Cells) -> list[Cell]:
    """Return, for each demand, the cell of most members, if nodes share there."""
    most = max(members for _, members in cells)
    return [cell for (_, members), cell in cells.items() if members == most and "all-shared" in cell.sides]


def targets_of(rounds: list[Cells], idle: list[float]) -> list[dict[str, Any]]:
    """Return targets: for each demand and pipeline, at the number of members at which it does worst."""
    targets = []
    for demand in dict.fromkeys(demand for demand, _ in rounds[0]):
        for name in STREAMS:
            found = {
                members: [one[demand, members] for one in rounds]
                for of, members in rounds[0]
                if of == demand and name in rounds[0][of, members].sides
            }
            if not found:
                continue
            shares = {n: [cell.of_limit(name) for cell in cells] for n, cells in found.items()}
            worst = min(shares, key=lambda n: quartiles(shares[n])[1])
            what = f"{demand}, {name}: CPU reduction / limit, at its worst n = {worst}"
            targets.append(target(what, shares[worst], at_least=0.9))
            costs = {n: [cell.cost(name) for cell in cells] for n, cells in found.items()}
            worst = max(costs, key=lambda n: quartiles(costs[n])[1])
            what = f"{demand}, {name}: CPU seconds beyond P + T, at its worst n = {worst}"
            targets.append(target(what, costs[worst], at_most=0.08))
    targets.append(target(f"rate of a producer with {EIGHT} idle consumers / with one", idle, at_least=0.9))
    return targets


def figures_of(rounds: list[Cells]) -> dict[str, Any]:
    """Return everything that was measured, each a list over the rounds."""
    figures: dict[str, Any] = {}
    for demand, members in rounds[0]:
        cells = [one[demand, members] for one in rounds]
        sides: dict[str, Any] = {
            name: {
                "cpu_seconds": [cell.cpu_seconds(name) for cell in cells],
                "wall_seconds": [epoch_seconds(cell.sides[name]) for cell in cells],
                "preparations": [cell.sides[name].preparations for cell in cells],
                "epochs": [cell.sides[name].epochs for cell in cells],
                "P": [cell.parts(name)[0] for cell in cells],
                "T": [cell.parts(name)[1] for cell in cells],
                "limit": [cell.limit(name) for cell in cells],
                "reduction": [cell.reduction(name) for cell in cells],
                "cost": [cell.cost(name) for cell in cells],
                "nodes": [cell.sides[name].nodes for cell in cells],
            }
            for name in cells[0].sides
        }
        figures[f"{demand}/{members}"] = {
            "sc18_reduction": sc18.at(sc18.REDUCTION[demand], members),
            "sides": sides,
        }
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=1)
    parser.add_argument("--photographs", type=int, default=1920, help="samples of an epoch")
    parser.add_argument("--seconds", type=float, default=8.0, help="approximate CPU seconds that a run counts")
    parser.add_argument("--members", type=int, nargs="*", default=COUNTS, help="numbers of members")
    parser.add_argument("--demands", nargs="*", default=list(DEMANDS), choices=DEMANDS)
    options = parser.parse_args()
    print(f"{hardware()}; every training process uses one torch thread; blocks of {BLOCK} samples")
    torch.set_num_threads(1)
    rounds, peaks, speedups, idle = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="argosy-sharing-") as name:
        bench = prepare(Path(name), options.photographs, options.seconds)
        print(
            f"{bench.samples} photographs, prepared in {bench.epoch_seconds:.2f} s of CPU; CPU and wall of one epoch:"
        )
        for number in range(options.rounds):
            cells: Cells = {}
            for demand in options.demands:
                for members in options.members:
                    cells[demand, members] = one_cell(bench, demand, members, number)
                    show_cell(demand, cells[demand, members])
            rounds.append(cells)
            peaks.append(peak(bench))
            speedups.append(core_limits(bench, cells.get(("light", EIGHT))))
            idle += [idle_consumers(bench) for _ in range(IDLE_PAIRS)]
    show_curves(rounds)
    print("Every member ended every epoch with equal losses and digests on all sides.")
    figures = {"cells": figures_of(rounds), "peak_samples_per_second": peaks, "core_limit_speedups": speedups}
    finish("sharing", figures, targets_of(rounds, idle), as_json=options.json)


if __name__ == "__main__":
    main()
