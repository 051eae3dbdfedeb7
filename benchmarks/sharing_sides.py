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

__all__ = [
    "CORES",
    "DEMANDS",
    "NODES",
    "Side",
    "Work",
    "by_argosy",
    "pipelines",
    "preparing_seconds",
    "training_seconds",
]

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))
NODES = 4
"""Most nodes that members are spread over."""
BLOCKS = 16
"""Of an epoch: more than a ring has slots, so that the last epoch is long enough to be prepared ahead like the others."""
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
    """Two of them are not counted."""

    @property
    def environment(self) -> dict[str, str]:
        """For `sharing_study.py`."""
        return {
            "SHARING_FOLDER": str(self.folder),
            "SHARING_EPOCHS": str(self.epochs),
            "SHARING_DEMAND": self.demand,
            "SHARING_MEMBERS": str(self.members),
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


def pipelines(members: int) -> dict[str, list[str]]:
    """Name -> flags of ``argosy run``: a pipeline per member, one on one node, and those that nodes share.

    With as many nodes as members, at most `NODES`; half of them prepare in a broadcast pipeline.
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
            str(work.samples // BLOCKS),
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


def preparing_seconds(work: Work) -> float:
    """P: CPU seconds of preparing one epoch once."""
    return _alone(work, {"P": []})


def training_seconds(work: Work) -> float:
    """T: CPU seconds of one epoch of all members' own training, every core busy.

    Fewer members than cores are trained several times.
    """
    copies = max(CORES // work.members, 1)
    numbers = [str(number) for number in range(work.members)] * copies
    return _alone(work, {f"T{core}": numbers[core::CORES] for core in range(CORES)}) / copies


def _alone(work: Work, parts: dict[str, list[str]]) -> float:
    with tempfile.TemporaryDirectory(dir=work.folder) as name:
        out = Path(name)
        command = [sys.executable, str(HERE / "sharing_alone.py"), str(out), "--part"]
        commands = [[*command, part, *(["--members", *numbers] if numbers else [])] for part, numbers in parts.items()]
        process_tree.run(commands, at_once=len(commands), environment=work.environment, output=out / "output.txt")
        return sum(json.loads((out / f"{part}.json").read_text())["cpu_seconds"] for part in parts)
