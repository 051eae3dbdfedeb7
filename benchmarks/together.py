"""Eight small networks on a decode-heavy image set: compares Argosy with what users write today.

Sides: (a) one script per member, one after another; (b) the same scripts, as many at a time as cores; (c) one
hand-written loop over one DataLoader that steps every model; (d) Argosy. Each side is one command or several, and does
the same work: equal epochs, last batches, validation and a checkpoint per epoch, and, by the published orders and
seeds, the same arithmetic. The figures count only if all sides end with equal losses and equal weights. P is one
preparation pass (the DataLoader alone), T the members' own training on prepared tensors, both with every core busy.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import process_tree
import torch
from measuring import arguments, finish, hardware, quartiles, target
from photographs import BATCH, MEMBERS, Photographs, normalize, write_photographs
from process_tree import Cost
from together_loop import Trained
from torch.utils.data import DataLoader

from argosy.training.device.heap import keep_freed_memory

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))
NAMES = list(MEMBERS)
LARGEST = "separable"
VALIDATION = 0.1
"""Size of the validation set, as a share of the training set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What every side does."""

    folder: Path
    """The folder that holds train/, val/ and tensors.pt."""
    lengths: dict[str, int]
    epochs: int
    batch: int = BATCH

    @property
    def data_bytes(self) -> int:
        """Size of all prepared samples."""
        return sum(self.lengths.values()) * (3 * 64 * 64 + 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One side in one round."""

    cost: Cost
    first: float
    """Unix time of the first step."""
    last: float
    """Unix time after the last validation and checkpoint."""
    startup_cpu_seconds: float
    """CPU time before the first step, of the processes that train; 0 if it is not known."""
    results: dict[str, tuple[float, str]]
    """Member -> last validation loss, SHA-256 of its last weights."""

    @property
    def work_cpu_seconds(self) -> float:
        """CPU time without the start-up."""
        return self.cost.cpu_seconds - self.startup_cpu_seconds

    @property
    def steps_seconds(self) -> float:
        """Seconds from the first step to the last."""
        return self.last - self.first


def by_hand(
    work: Work, out: Path, groups: list[list[str]], *, at_once: int, tensors: bool = False, flags: Sequence[str] = ()
) -> Outcome:
    """Run one process of the hand-written loop for each group of members."""
    command = [sys.executable, str(HERE / "together_loop.py"), str(work.folder), str(out)]
    command += ["--epochs", str(work.epochs), "--batch", str(work.batch), *(["--tensors"] if tensors else []), *flags]
    commands = [[*command, "--members", *group] for group in groups]
    cost = process_tree.run(commands, at_once=at_once, output=out / "output.txt")
    found = [json.loads(path.read_text()) for path in out.glob("*.json")]
    losses = {name: loss for one in found for name, loss in one["val_loss"].items()}
    return Outcome(
        cost=cost,
        first=min(one["first"] for one in found),
        last=max(one["last"] for one in found),
        startup_cpu_seconds=sum(one["startup_cpu_seconds"] for one in found),
        results={name: (loss, weights_sum(out / f"{name}.pt")) for name, loss in losses.items()},
    )


def by_argosy(
    work: Work, out: Path, *, devices: int, names: list[str] = NAMES, memory: bool = False, numerics: str = "exact"
) -> Outcome:
    """Run ``argosy run`` on this number of CPU devices."""
    command = [sys.executable, "-m", "argosy", "run", str(HERE / "together_study.py")]
    command += ["--dir", str(out / "run"), "--devices", f"cpu:{devices}", "--numerics", numerics, "--json"]
    environment = {
        "TOGETHER_FOLDER": str(work.folder),
        "TOGETHER_EPOCHS": str(work.epochs),
        "TOGETHER_MEMBERS": " ".join(names),
        "TOGETHER_BATCH": str(work.batch),
    }
    cost = process_tree.run([command], environment=environment, output=out / "output.txt", memory=memory)
    events = [json.loads(line) for line in (out / "run" / "journal.jsonl").read_text().splitlines()]
    ended = [event for event in events if event["event"] == "SectionEnded"]
    losses = {event["member"]: event["metrics"]["val_loss"] for event in ended}
    return Outcome(
        cost=cost,
        first=min(event["at"] for event in events if event["event"] == "MemberStarted"),
        last=max(event["at"] for event in ended),
        startup_cpu_seconds=0.0,
        results={name: (losses[name], weights_sum(out / "run" / "members" / name / "last.pt")) for name in names},
    )


SIDES: dict[str, Callable[[Work, Path], Outcome]] = {
    "P": lambda work, out: by_hand(work, out, [[]], at_once=1),
    "T": lambda work, out: by_hand(work, out, [NAMES[i::CORES] for i in range(CORES)], at_once=CORES, tensors=True),
    "a": lambda work, out: by_hand(work, out, [[name] for name in NAMES], at_once=1),
    "b": lambda work, out: by_hand(work, out, [[name] for name in NAMES], at_once=CORES),
    "c": lambda work, out: by_hand(work, out, [NAMES], at_once=1),
    "d1": lambda work, out: by_argosy(work, out, devices=1),
    "d2": lambda work, out: by_argosy(work, out, devices=2),
}
MEANING = {
    "P": "one preparation pass",
    "T": "training alone, on prepared tensors",
    "a": "one script per member, one after another",
    "b": f"one script per member, {CORES} at a time",
    "c": "hand-written loop, every model",
    "d1": "Argosy, one device",
    "d2": "Argosy, two devices",
}


def weights_sum(path: Path) -> str:
    """Return the SHA-256 of the tensors of a checkpoint's model."""
    digest = hashlib.sha256()
    for tensor in torch.load(path, weights_only=True)["model"].values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def one_round(work: Work, folder: Path, number: int, sides: list[str]) -> dict[str, Outcome]:
    """Run every side once, beginning with another one in each round."""
    turn = number % len(sides)
    outcomes = {}
    for side in [*sides[turn:], *sides[:turn]]:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            outcomes[side] = SIDES[side](work, Path(out))
        cost, steps = outcomes[side].cost, outcomes[side].steps_seconds
        print(
            f"round {number}  {side:<3} {MEANING[side]:<42} wall {cost.wall_seconds:7.1f} s   first to last step "
            f"{steps:7.1f} s   CPU {cost.cpu_seconds:7.1f} s   others {cost.others_cores:.1f} cores",
            flush=True,
        )
    return outcomes


def check_equal(outcomes: dict[str, Outcome]) -> None:
    """Raise unless every side ended with the same losses and weights, bit for bit."""
    trained = {side: outcome.results for side, outcome in outcomes.items() if side not in ("P", "T")}
    for side, results in trained.items():
        for name, result in results.items():
            if result != trained["d2"][name]:
                raise AssertionError(
                    f"{name} ended at {result} on side {side} and at {trained['d2'][name]} on side d2: figures are void."
                )


def bytes_per_member(work: Work, folder: Path) -> float:
    """Return the peak memory that one more member costs, from runs of one epoch with one member and with all.

    The one is the member whose step needs most memory: members on one device take their steps one after another.
    """
    peaks = {}
    for names in ([LARGEST], NAMES):
        with tempfile.TemporaryDirectory(dir=folder) as out:
            short = Work(folder=work.folder, lengths=work.lengths, epochs=1)
            peaks[len(names)] = by_argosy(short, Path(out), devices=1, names=names, memory=True).cost.peak_bytes or 0
    return (peaks[len(NAMES)] - peaks[1]) / (len(NAMES) - 1)


def prepare(folder: Path, seconds: float) -> Work:
    """Write enough files to keep all cores busy for `seconds` on the fastest side, and the tensors for T."""
    write_photographs(folder / "trial", 256, seed=0)
    prepared = seconds * CORES / _seconds_per_sample(folder / "trial")
    epochs = 4 if seconds >= 30 else 2
    length = round(prepared / epochs / (1 + VALIDATION / 2))
    # A last batch of 11, so that it counts and BatchNorm can train on it.
    lengths = {"train": length // BATCH * BATCH + 11, "val": round(length * VALIDATION)}
    tensors = {}
    for number, (split, count) in enumerate(lengths.items(), start=1):
        write_photographs(folder / split, count, seed=number)
        dataset = Photographs(folder / split, train=False)
        samples = [dataset[index] for index in range(count)]
        tensors[split] = (torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples]))
    torch.save(tensors, folder / "tensors.pt")
    return Work(folder=folder, lengths=lengths, epochs=epochs)


def _seconds_per_sample(trial: Path) -> float:
    """Return the seconds to prepare a sample and step every member on it with freed memory kept, in the fastest of some passes."""
    keep_freed_memory()
    dataset = Photographs(trial, train=True)
    members = [Trained(name) for name in NAMES]
    return min(_pass_seconds(dataset, members) for _ in range(4)) / len(dataset)


def _pass_seconds(dataset: Photographs, members: list[Trained]) -> float:
    started = time.perf_counter()
    for x, y in DataLoader(dataset, batch_size=BATCH):
        batch = normalize((x, y))
        for member in members:
            member.step(batch)
    return time.perf_counter() - started


def targets_of(rounds: list[dict[str, Outcome]], memory_shares: list[float], seconds: float) -> list[dict[str, Any]]:
    """Return what must hold, each side against the others of its own round."""

    def each(figure: Callable[[dict[str, Outcome]], float]) -> list[float]:
        return [figure(one) for one in rounds]

    return [
        target("(a) / (d), whole commands, as a share of the limit (nP+T)/(P+T)", each(share_of_limit), at_least=0.9),
        target(
            "(c) / (d) with one device, first to last step",
            each(lambda r: r["c"].steps_seconds / r["d1"].steps_seconds),
            at_least=0.97,
        ),
        target(
            "(c) / (d) with two devices, first to last step",
            each(lambda r: r["c"].steps_seconds / r["d2"].steps_seconds),
            at_least=1.1,
        ),
        target(
            "(d) with one device minus (c), seconds of the whole command",
            each(lambda r: r["d1"].cost.wall_seconds - r["c"].cost.wall_seconds),
            at_most=5.0,
        ),
        target(
            "CPU seconds of (d), start-up included, / (P + T), without theirs",
            each(lambda r: r["d2"].cost.cpu_seconds / (r["P"].work_cpu_seconds + r["T"].work_cpu_seconds)),
            at_most=1.1,
        ),
        target("peak memory per further member, share of the data", memory_shares, at_most=0.05),
        target(
            "seconds of the shortest side",
            each(lambda r: min(one.cost.wall_seconds for side, one in r.items() if side not in ("P", "T"))),
            at_least=seconds,
        ),
    ]


def share_of_limit(outcomes: dict[str, Outcome]) -> float:
    """Return the share that was reached of the possible advantage over one script per member."""
    preparing, training = outcomes["P"].work_cpu_seconds, outcomes["T"].work_cpu_seconds
    limit = (len(NAMES) * preparing + training) / (preparing + training)
    return outcomes["a"].cost.wall_seconds / outcomes["d2"].cost.wall_seconds / limit


def figures_of(rounds: list[dict[str, Outcome]]) -> dict[str, Any]:
    """Return the medians of each side, and print them."""
    figures: dict[str, Any] = {}
    for side in rounds[0]:
        walls = [one[side].cost.wall_seconds for one in rounds]
        steps = [one[side].steps_seconds for one in rounds]
        cpu = [one[side].cost.cpu_seconds for one in rounds]
        others = [one[side].cost.others_cores for one in rounds]
        figures[side] = {"wall_seconds": walls, "steps_seconds": steps, "cpu_seconds": cpu, "others_cores": others}
        if side in ("P", "T"):
            figures[side]["work_cpu_seconds"] = [one[side].work_cpu_seconds for one in rounds]
        print(
            f"{side:<3} {MEANING[side]:<42} wall {quartiles(walls)[1]:7.1f} s   first to last step "
            f"{quartiles(steps)[1]:7.1f} s   CPU {quartiles(cpu)[1]:7.1f} s   others {quartiles(others)[1]:.1f} cores"
        )
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the shortest side")
    parser.add_argument("--sides", nargs="*", choices=SIDES, help="only these sides, without targets, for development")
    options = parser.parse_args()
    print(f"{hardware()}; every training process uses one torch thread")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="argosy-together-") as name:
        work = prepare(Path(name), options.seconds)
        print(f"{work.lengths} samples, {work.epochs} epochs, {work.data_bytes / 2**20:.0f} MiB prepared")
        sides = options.sides or list(SIDES)
        rounds, memory_shares = [], []
        for number in range(options.rounds):
            rounds.append(one_round(work, Path(name), number, sides))
            if not options.sides:
                check_equal(rounds[-1])
                memory_shares.append(bytes_per_member(work, Path(name)) / work.data_bytes)
        figures = figures_of(rounds)
        if not options.sides:
            print("Every member ended with equal losses and weights on all sides.")
            finish("together", figures, targets_of(rounds, memory_shares, options.seconds), as_json=options.json)


if __name__ == "__main__":
    main()
