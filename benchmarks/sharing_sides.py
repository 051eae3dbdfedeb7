"""The sides of `sharing.py`: `argosy run` by every pipeline, and P and T by hand, each measured at its steady state.

A run is measured between two marks: when as many epochs have ended as members train at a time, and when as many are left
to end. Between them lies nothing of start-up, planning and end; blocks that are prepared ahead are about as many at both.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import process_tree
from photographs import BATCH

__all__ = [
    "BLOCK",
    "CORES",
    "DEMANDS",
    "NODES",
    "Alone",
    "Shape",
    "Side",
    "Work",
    "alone",
    "by_argosy",
    "pipelines",
    "shape_of",
]

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))
NODES = 4
"""Most nodes that members are spread over."""
BLOCK = 256
"""Samples of a block: three quarters of what Argosy itself would take, so that an epoch has more blocks than a ring has
slots, and the last one is prepared ahead like the others."""
DEMANDS = {"light": 0.1, "middle": 0.4, "heavy": 0.75}
"""Name -> a member's own training over preparation, about: what lengths of runs are chosen by."""
POLL_SECONDS = 0.01
ENDED = '"event": "EpochEnded"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a side does."""

    folder: Path
    """Holds train/ and tensors.pt."""
    samples: int
    demand: str
    """Of `DEMANDS`, or ``stripped``."""
    members: int
    epochs: int
    """In as many of them as members train at a time a run warms up, and in as many it ends."""

    @property
    def environment(self) -> dict[str, str]:
        """For `sharing_study.py`."""
        return {
            "SHARING_FOLDER": str(self.folder),
            "SHARING_EPOCHS": str(self.epochs),
            "SHARING_DEMAND": self.demand,
            "SHARING_MEMBERS": str(self.members),
            "SHARING_BATCH": str(BLOCK if self.demand == "stripped" else BATCH),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One run in its steady state; an epoch is one of all members."""

    cpu_seconds: float
    """Of an epoch, all processes together."""
    wall_seconds: float
    """Of an epoch."""
    whole_seconds: float
    """Wall time of the whole command."""
    others_cores: float
    """Cores that everybody else on the machine kept busy."""
    nodes: int
    """Nodes that got members."""
    results: dict[str, Any]
    """Member -> training loss and digest of every epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Processes that prepare and that train, at the same time."""

    loaders: int
    trainers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """CPU seconds of an epoch, each part for itself."""

    preparing: float
    """P."""
    training: float
    """T, of all members."""


def shape_of(side: str, members: int) -> Shape:
    """As ``argosy run`` has it: a trainer a device, on each node as many loader workers as it has cores."""
    if side in ("none", "local") or members == 1:
        return Shape(loaders=CORES, trainers=min(members, CORES))
    nodes = min(members, NODES)
    return Shape(loaders=nodes * max(CORES // nodes, 1), trainers=nodes)


def pipelines(members: int) -> dict[str, list[str]]:
    """Name -> flags of ``argosy run``: a pipeline per member, one on one node, and those that nodes share.

    A pipeline per member is run on one node and, where there are more than cores, on those nodes as well. With as many nodes as members, at most `NODES`; half of them prepare in a broadcast pipeline.
    """
    nodes, devices = min(members, NODES), f"cpu:{min(members, CORES)}"
    runs = {
        "none": ["--devices", devices, "--sharing", "none", "--policy", "solo"],
        "local": ["--devices", devices, "--sharing", "local"],
    }
    if nodes > 1:
        spread, half = ["--nodes", str(nodes), "--devices", "cpu:1"], ["--preparing-nodes", str(nodes // 2)]
        runs["all-shared"] = [*spread, "--sharing", "all-shared"]
        runs["single-broadcast"] = [*spread, "--sharing", "single-broadcast", *half]
        runs["multi-broadcast"] = [*spread, "--sharing", "multi-broadcast", *half]
    if nodes > CORES:
        runs["none-on-nodes"] = ["--nodes", str(nodes), "--devices", "cpu:1", "--sharing", "none", "--policy", "solo"]
    return runs


def by_argosy(work: Work, flags: Sequence[str], *, at_once: int) -> Side:
    """``argosy run``, where so many members train at a time."""
    counted = work.members * work.epochs - 2 * at_once
    assert counted > 0, "nothing lies between the marks"
    with tempfile.TemporaryDirectory(dir=work.folder) as name:
        directory = Path(name) / "run"
        command = [sys.executable, "-m", "argosy", "run", str(HERE / "sharing_study.py"), "--dir", str(directory)]
        command += [
            "--json",
            "--packing",
            "interleaved",
            "--numerics",
            "exact",
            "--block-size",
            str(BLOCK),
            *flags,
        ]
        with _Marks(directory / "journal.jsonl", [at_once, at_once + counted]) as marks:
            cost = process_tree.run([command], environment=work.environment, output=Path(name) / "output.txt")
        lines = (directory / "journal.jsonl").read_text().splitlines()
        ended = [json.loads(line) for line in lines if ENDED in line]
    (cpu_before, wall_before), (cpu_after, wall_after) = marks.found
    share = work.members / counted
    results: dict[str, Any] = {}
    for event in ended:
        results.setdefault(event["member"], []).append([event["metrics"]["train_loss"], event["digest"]])
    return Side(
        cpu_seconds=(cpu_after - cpu_before) * share,
        wall_seconds=(wall_after - wall_before) * share,
        whole_seconds=cost.wall_seconds,
        others_cores=cost.others_cores,
        nodes=len({event["device"].rpartition("/")[0] for event in ended}),
        results=results,
    )


class _Marks:
    """While it is entered: CPU seconds and time at the moments when so many epochs have ended."""

    def __init__(self, journal: Path, counts: list[int]) -> None:
        self.journal = journal
        self.counts = counts
        self.found: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "_Marks":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while len(self.found) < len(self.counts) and not self._over.wait(POLL_SECONDS):
            if self.journal.exists() and self.journal.read_text().count(ENDED) >= self.counts[len(self.found)]:
                self.found.append((process_tree.seconds_so_far(), time.perf_counter()))


def alone(work: Work, shape: Shape, seconds: float) -> Alone:
    """P and T in plain PyTorch, at the same time and in as many processes as a pipeline of this shape has."""
    with tempfile.TemporaryDirectory(dir=work.folder) as name:
        out = Path(name)
        numbers = [str(number) for number in range(work.members)]
        parts = {"P": ["--workers", str(shape.loaders)]}
        parts |= {
            f"T{trainer}": ["--members", *numbers[trainer :: shape.trainers]] for trainer in range(shape.trainers)
        }
        command = [sys.executable, str(HERE / "sharing_alone.py"), str(out), "--seconds", str(seconds)]
        command += ["--parts", str(len(parts))]
        commands = [[*command, "--part", part, *flags] for part, flags in parts.items()]
        process_tree.run(commands, at_once=len(commands), environment=work.environment, output=out / "output.txt")
        found = {part: json.loads((out / f"{part}.json").read_text())["cpu_seconds_per_batch"] for part in parts}
    batches = -(-work.samples // BATCH)
    preparing = found.pop("P") * batches
    return Alone(preparing=preparing, training=sum(found.values()) * batches)
