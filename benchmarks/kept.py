"""Compares cached prepared samples with preparing them anew, with arrays, and with a hand-written cache.

The samples are photographs that take some milliseconds each to decode (`kept_photographs.py`); eight small networks
train on them.

* ``rate``: samples delivered per second in the first epoch, which prepares them, and in the second. Members train
  nothing, so that preparing is the bottleneck.
* ``study``: whole commands of ten epochs: the first on these samples; the same once more; ``Data(keep=False)``; arrays
  of the prepared samples; the hand-written cache (a Dataset that writes each sample into a `np.memmap`, a DataLoader of
  two workers, a loop that steps every network); and, if it is installed, LitData, which writes its chunks first.
  Members must end with equal weights, bit for bit, on all sides of Argosy, and with the loop's but for rounding;
  LitData has its own orders. MosaicML Streaming is left out: it imports torchvision, of which there was no version for
  this torch.
* ``start``: seconds from the command to the first step of a second run on cached samples and of a run on arrays, in
  turn.
* ``disk``: delivery alone, without trainers, from rows ten times the size of the memory that they may take, none of
  which is in the page cache. Only a tenth of an epoch is delivered, after which that memory would be full; so few of
  the rows that readahead brings in are asked for. It is compared with delivery from memory and with preparing anew.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import process_tree
import torch
from kept_networks import MEMBERS
from kept_photographs import Decoded, prepared, write
from measuring import arguments, finish, hardware, quartiles, target
from process_tree import Cost

HERE = Path(__file__).parent
LITDATA = importlib.util.find_spec("litdata") is not None
HAND_WRITTEN: Mapping[str, tuple[str, ...]] = {"loop": (), "litdata": ("--litdata",)}
SIDES = ("anew", "arrays", "loop", *(["litdata"] if LITDATA else []))
WANTED = {
    "anew": ("whole study with keep=False, with kept samples = 1", 3.0),
    "loop": ("whole study by the cache by hand, by Argosy = 1", 1.0),
    "litdata": ("whole study by LitData, by Argosy = 1", 1.0),
}
STARTS = 3
"""Pairs of starts in each round."""
RATE_EPOCHS = 6
ROUNDING = 1e-3
"""The most that a weight may differ from the loop's, which rounds its steps differently from a run with numerics 'equivalent'."""
PART = 10
"""How many times the memory that they may use the rows on disk take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What is measured."""

    folder: Path
    """The folder that holds train/, x.npy and y.npy."""
    samples: int
    epochs: int
    times: int
    """How often each photograph is a sample of part ``disk``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """One command."""

    cost: Cost
    first: float
    """Seconds from the command to the first step."""
    ends: tuple[float, ...]
    """Seconds from the command to the end of each epoch of all members."""
    weights: dict[str, dict[str, torch.Tensor]]
    fed: tuple[int, ...] = ()
    """Samples prepared for each epoch; empty for a hand-written loop."""
    prepared: int = 0
    """Samples prepared in all, including those that probe the data and test whether it can be cached."""

    def rate(self, samples: int, epoch: int) -> float:
        """Return the samples per second of one epoch."""
        return samples / (self.ends[epoch] - (self.ends[epoch - 1] if epoch else self.first))


# ---- whole commands


def by_argosy(work: Work, cache: Path, data: str, *, epochs: int, stripped: bool = False) -> Ran:
    """Run ``argosy run`` with rows and profiles in this cache."""
    with tempfile.TemporaryDirectory(dir=work.folder) as name:
        out, before = Path(name), prepared(work.folder / "train")
        environment = {
            "KEPT_FOLDER": str(work.folder),
            "KEPT_DATA": data,
            "KEPT_EPOCHS": str(epochs),
            "ARGOSY_CACHE": str(cache),
            "XDG_CACHE_HOME": str(cache / "profiles"),
            **({"KEPT_STRIPPED": "1"} if stripped else {}),
        }
        command = [
            sys.executable,
            "-m",
            "argosy",
            "run",
            str(HERE / "kept_study.py"),
            "--dir",
            str(out / "run"),
            "--json",
        ]
        cost = process_tree.run([command], environment=environment, output=out / "output.txt")
        events = [json.loads(line) for line in (out / "run" / "journal.jsonl").read_text().splitlines()]
        ends = {event["epoch"]: event["at"] for event in events if event["event"] == "SectionEnded"}
        fed = {event["epoch"]: event["samples"] for event in events if event["event"] == "Fed"}
        started = min(event["at"] for event in events if event["event"] == "MemberStarted")
        return Ran(
            cost=cost,
            first=started - cost.began,
            ends=tuple(ends[epoch] - cost.began for epoch in range(epochs)),
            weights={name: weights(out / "run" / "members" / name / "last.pt") for name in MEMBERS},
            fed=tuple(fed[epoch] for epoch in range(epochs)),
            prepared=prepared(work.folder / "train") - before,
        )


def by_hand(work: Work, *flags: str) -> Ran:
    """Run the hand-written loop."""
    with tempfile.TemporaryDirectory(dir=work.folder) as name:
        out, before = Path(name), prepared(work.folder / "train")
        command = [sys.executable, str(HERE / "kept_loop.py"), str(work.folder / "train"), name]
        cost = process_tree.run([[*command, "--epochs", str(work.epochs), *flags]], output=out / "output.txt")
        first, *ends = json.loads((out / "times.json").read_text())
        return Ran(
            cost=cost,
            first=first - cost.began,
            ends=tuple(end - cost.began for end in ends),
            weights={name: weights(out / f"{name}.pt") for name in MEMBERS},
            prepared=prepared(work.folder / "train") - before,
        )


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint."""
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return found


def unequal(some: Ran, others: Ran) -> int:
    """Return how many members have different bits."""
    return sum(
        not all(torch.equal(tensor, others.weights[name][key]) for key, tensor in some.weights[name].items())
        for name in MEMBERS
    )


def gap(some: Ran, others: Ran) -> float:
    """Return the largest difference of a weight."""
    return max(
        float((tensor - others.weights[name][key]).abs().max())
        for name in MEMBERS
        for key, tensor in some.weights[name].items()
    )


def show(side: str, ran: Ran) -> None:
    epochs = " ".join(f"{after - before:.2f}" for before, after in zip((ran.first, *ran.ends), ran.ends, strict=False))
    print(
        f"{side:<8} wall {ran.cost.wall_seconds:6.1f} s, first step after {ran.first:5.2f} s, epochs of {epochs} s, CPU "
        f"{ran.cost.cpu_seconds:6.1f} s, {ran.prepared} prepared, others {ran.cost.others_cores:.1f} cores",
        flush=True,
    )


# ---- parts


def rate(work: Work, options: Any, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Measure delivery in the first and second epoch."""
    first, second, later, prepared_later = [], [], [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=work.folder) as cache:
            ran = by_argosy(work, Path(cache), "kept", epochs=RATE_EPOCHS, stripped=True)
        show("stripped", ran)
        first.append(ran.rate(work.samples, 0))
        second.append(ran.rate(work.samples, 1))
        later.append((RATE_EPOCHS - 1) * work.samples / (ran.ends[-1] - ran.ends[0]))
        prepared_later.append(ran.fed[1])
    figures["samples_per_second"] = {
        "first epoch": quartiles(first),
        "second epoch": quartiles(second),
        "second to last epoch": quartiles(later),
    }
    print(figures["samples_per_second"])
    targets.append(target("samples prepared for the second epoch", prepared_later, at_most=0))
    ratios = [two / one for one, two in zip(first, second, strict=True)]
    targets.append(target("samples per second of the second epoch / of the first", ratios, at_least=20))


def sides_of(work: Work, names: list[str], number: int) -> dict[str, Ran]:
    """Run these sides once, beginning with another one in each round; a second run follows the first."""
    turn, found = number % len(names), {}
    for side in [*names[turn:], *names[:turn]]:
        with tempfile.TemporaryDirectory(dir=work.folder) as cache:
            if side in HAND_WRITTEN:
                found[side] = by_hand(work, *HAND_WRITTEN[side])
            else:
                found[side] = by_argosy(work, Path(cache), side, epochs=work.epochs)
            show(side, found[side])
            if side == "kept":
                found["again"] = by_argosy(work, Path(cache), side, epochs=work.epochs)
                show("again", found["again"])
    return found


def study(work: Work, options: Any, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Measure whole commands."""
    rounds = [sides_of(work, ["kept", *options.sides], number) for number in range(options.rounds)]
    walls = {side: [one[side].cost.wall_seconds for one in rounds] for side in rounds[0]}
    figures["study"] = {
        side: {
            "seconds": quartiles(walls[side]),
            "cpu_seconds": quartiles([one[side].cost.cpu_seconds for one in rounds]),
            "first_step": quartiles([one[side].first for one in rounds]),
            "first_epoch": quartiles([one[side].ends[0] - one[side].first for one in rounds]),
            "later_epochs": quartiles([one[side].ends[-1] - one[side].ends[0] for one in rounds]),
            "others_cores": quartiles([one[side].cost.others_cores for one in rounds]),
        }
        for side in rounds[0]
    }
    for side, found in figures["study"].items():
        print(f"{side}: {', '.join(f'{name} {one[1]:.1f}' for name, one in found.items())}")
    targets += equality(rounds)
    for side in options.sides:
        if side in WANTED:
            what, least = WANTED[side]
            targets.append(target(what, ratio(walls, side, "kept"), at_least=least))


def equality(rounds: list[dict[str, Ran]]) -> list[dict[str, Any]]:
    """Return the targets on weights and on what was prepared."""
    ours = [side for side in rounds[0] if side not in (*HAND_WRITTEN, "kept")]
    targets = []
    for side in ours:
        what = f"members with other bits than those of the first run, {side}"
        targets.append(target(what, [max(unequal(one["kept"], one[side]) for one in rounds)], at_most=0))
    targets.append(target("samples prepared for the second run", [sum(one["again"].fed) for one in rounds], at_most=0))
    proved = [one["again"].prepared for one in rounds]
    targets.append(target("samples prepared again to prove what was kept", proved, at_most=3))
    if "loop" in rounds[0]:
        gaps = [gap(one["kept"], one["loop"]) for one in rounds]
        targets.append(target("largest difference of a weight from the loop's", gaps, at_most=ROUNDING))
    return targets


def ratio(walls: dict[str, list[float]], one: str, other: str) -> list[float]:
    """Return the ratios round by round."""
    return [a / b for a, b in zip(walls[one], walls[other], strict=True)]


def start(work: Work, options: Any, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Measure the start of a second run on cached samples and of one on arrays; both have run before."""
    firsts: dict[str, list[float]] = {"kept": [], "arrays": []}
    with tempfile.TemporaryDirectory(dir=work.folder) as kept, tempfile.TemporaryDirectory(dir=work.folder) as arrays:
        caches = {"kept": Path(kept), "arrays": Path(arrays)}
        for side, cache in caches.items():
            by_argosy(work, cache, side, epochs=1)
        for number in range(STARTS * options.rounds):
            for side in list(caches)[:: 1 if number % 2 else -1]:
                ran = by_argosy(work, caches[side], side, epochs=1)
                assert side == "arrays" or sum(ran.fed) == 0, ran.fed
                firsts[side].append(ran.first)
                print(
                    f"{side:<8} first step after {ran.first:.2f} s, others {ran.cost.others_cores:.1f} cores",
                    flush=True,
                )
    figures["start_seconds"] = {side: quartiles(seconds) for side, seconds in firsts.items()}
    ratios = [quartiles(firsts["kept"])[1] / quartiles(firsts["arrays"])[1]]
    targets.append(target("median seconds to the first step of a second run, on arrays = 1", ratios, at_most=1.2))
    pairs = ratio(firsts, "kept", "arrays")
    figures["start_ratios"] = quartiles(pairs)
    print(f"ratios of the pairs: {', '.join(f'{pair:.2f}' for pair in pairs)}")


# ---- from disk


def delivered(work: Work, rows: Path, how: str, samples: int) -> dict[str, Any]:
    """Measure delivery with `kept_disk.py`."""
    command = [sys.executable, str(HERE / "kept_disk.py"), str(work.folder / "train"), str(rows), how]
    command += ["--times", str(work.times), "--samples", str(samples)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{how:<8} {found['samples'] / found['seconds']:9.0f} samples/s, "
        f"{found['samples'] * found['sample_bytes'] / found['seconds'] / 1e6:8.1f} MB/s, "
        f"{found['read_bytes'] / 1e6:7.1f} MB read from disk for {found['samples'] * found['sample_bytes'] / 1e6:.1f} MB of samples",
        flush=True,
    )
    return found


def warm(rows: Path) -> None:
    """Bring the rows into the page cache."""
    for path in rows.glob("*/rows.bin"):
        path.read_bytes()


def evict(rows: Path) -> None:
    """Evict the rows from the page cache."""
    for path in rows.glob("*/rows.bin"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def disk(work: Work, options: Any, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Measure delivery alone."""
    found: dict[str, list[dict[str, Any]]] = {"anew": [], "memory": [], "disk": []}
    whole = work.samples * work.times
    with tempfile.TemporaryDirectory(dir=work.folder) as name:
        rows = Path(name)
        delivered(work, rows, "write", whole)
        for number in range(options.rounds):
            for how in list(found)[:: 1 if number % 2 else -1]:
                evict(rows) if how == "disk" else warm(rows)
                samples = {"anew": min(work.samples, 1000), "memory": whole, "disk": whole // PART}[how]
                found[how].append(delivered(work, rows, how, samples))
    rates = {how: [one["samples"] / one["seconds"] for one in all_of] for how, all_of in found.items()}
    bytes_of_a_sample = found["disk"][0]["sample_bytes"]
    figures["delivered_per_second"] = {how: quartiles(one) for how, one in rates.items()}
    figures["megabytes_per_second"] = {
        how: quartiles([rate * bytes_of_a_sample / 1e6 for rate in one]) for how, one in rates.items()
    }
    read = [one["read_bytes"] / (one["samples"] * bytes_of_a_sample) for one in found["disk"]]
    figures["bytes_read_from_disk_per_byte_delivered"] = quartiles(read)
    targets.append(
        target("samples prepared where they come from disk", [one["prepared"] for one in found["disk"]], at_most=0)
    )
    for how in ("disk", "memory"):
        print(f"samples per second from {how}, prepared anew = 1: {quartiles(ratio(rates, how, 'anew'))[1]:.1f}")


PARTS: Mapping[str, Any] = {"rate": rate, "study": study, "start": start, "disk": disk}


def prepare(folder: Path, options: Any) -> Work:
    """Write the photographs, and arrays of the samples prepared from them."""
    write(folder / "train", options.samples)
    dataset = Decoded(folder / "train")
    samples = [dataset[index] for index in range(len(dataset))]
    np.save(folder / "x.npy", torch.stack([x for x, _ in samples]).numpy())
    np.save(folder / "y.npy", np.array([y for _, y in samples]))
    return Work(folder=folder, samples=options.samples, epochs=options.epochs, times=options.times)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.set_defaults(rounds=3)
    parser.add_argument("--samples", type=int, default=2000, help="photographs")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of a whole study")
    parser.add_argument(
        "--sides", nargs="*", choices=SIDES, default=list(SIDES), help="sides to run besides the cached ones"
    )
    parser.add_argument("--times", type=int, default=10, help="how often each is a sample in part disk")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="only these parts")
    options = parser.parse_args()
    print(f"{hardware()}; every training process uses one torch thread", flush=True)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    targets: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="argosy-kept-") as name:
        work = prepare(Path(name), options)
        for part in options.parts:
            PARTS[part](work, options, figures, targets)
    finish("kept", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
