"""The sides of `sharing.py`: `argosy run` with every pipeline, beside P and T by hand, measured in its steady state.

A run is measured between two marks, which are numbers of ended epochs, and killed at the second one, so that nothing of
start-up, planning and end lies between them. It counts what it prepares and trains between the marks, since it may have
prepared further ahead at one mark than at the other. From the first mark on, the run and P and T alone
(`sharing_alone.py`) take turns of half a second, each held while the other works, so that changes of the machine's
speed affect both.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tally
from photographs import BATCH
from process_tree import Tree

__all__ = [
    "BLOCK",
    "CORES",
    "DEMANDS",
    "NODES",
    "Alone",
    "Shape",
    "Side",
    "Work",
    "by_argosy",
    "pipelines",
    "shape_of",
]

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))
NODES = 4
"""The most nodes that members are spread over."""
BLOCK = 192
"""Samples of a block: about half of what Argosy itself would take, so that an epoch has more blocks than a ring has slots."""
DEMANDS = {"light": 0.1, "middle": 0.4, "heavy": 0.75}
"""Name -> a member's own training over preparation, approximately; lengths of runs are chosen by it."""
POLL_SECONDS = 0.01
TURN_SECONDS = 0.5
ENDED = '"event": "SectionEnded"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a side does."""

    folder: Path
    """The folder that holds train/ and tensors.pt."""
    samples: int
    demand: str
    """One of `DEMANDS`, or ``stripped``."""
    members: int
    at_once: int
    """Members that train at a time."""
    counted: int
    """Epochs of members between the marks."""

    def environment(self, counts: Path) -> dict[str, str]:
        """Return the environment for `sharing_study.py`, with the folder of its counts."""
        return {
            "SHARING_COUNTS": str(counts),
            "SHARING_FOLDER": str(self.folder),
            "SHARING_EPOCHS": str(-(-(self.counted + 2 * self.at_once) // self.members)),
            "SHARING_DEMAND": self.demand,
            "SHARING_MEMBERS": str(self.members),
            "SHARING_BATCH": str(BLOCK if self.demand == "stripped" else BATCH),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """CPU seconds of an epoch, each part alone."""

    preparing: float
    """P of an epoch."""
    training: float
    """T of an epoch of all members."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One run in its steady state, between two marks."""

    cpu_seconds: float
    """CPU time of all processes together."""
    wall_seconds: float
    """Wall time without the turns of others."""
    preparations: float
    """How often all samples were prepared."""
    epochs: float
    """Epochs of all members that were trained."""
    alone: Alone | None
    """P and T at the same time."""
    nodes: int
    """Nodes that got members."""
    results: dict[str, list[Any]]
    """Member -> training loss and digest of every epoch that it ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Numbers of processes that prepare and that train at the same time."""

    loaders: int
    trainers: int


def shape_of(side: str, members: int) -> Shape:
    """Return the processes of ``argosy run``: a trainer per device, and on each preparing node as many loader workers as cores."""
    if side in ("none", "local"):
        return Shape(loaders=CORES, trainers=min(members, CORES))
    nodes = min(members, NODES)
    preparing = nodes // 2 if side.endswith("broadcast") else nodes
    return Shape(loaders=preparing * max(CORES // nodes, 1), trainers=nodes)


def pipelines(members: int) -> dict[str, list[str]]:
    """Return the flags of ``argosy run`` by name: a pipeline per member, one on one node, and those that nodes share.

    There are as many nodes as members, at most `NODES`; half of them prepare in a broadcast pipeline.
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


def by_argosy(work: Work, flags: Sequence[str], *, beside: Shape | None = None) -> Side:
    """Run ``argosy run``, in turns with P and T in processes of this shape."""
    with tempfile.TemporaryDirectory(dir=work.folder) as name:
        folder = Path(name)
        command = [sys.executable, "-m", "argosy", "run", str(HERE / "sharing_study.py"), "--dir", str(folder / "run")]
        command += ["--json", "--packing", "interleaved", "--numerics", "exact", "--block-size", str(BLOCK), *flags]
        with (
            _alone(work, beside, folder) as others,
            Tree(command, environment=work.environment(folder / "counts"), output=folder / "output.txt") as tree,
        ):
            journal = folder / "run" / "journal.jsonl"
            _work_until(journal, work.at_once, tree, None)
            if others is not None:
                (folder / "count").touch()
            before = _figures(tree, folder)
            wall_seconds = _work_until(journal, work.at_once + work.counted, tree, others)
            after = _figures(tree, folder)
            tree.hold()
            ended = [json.loads(line) for line in journal.read_text().splitlines() if ENDED in line]
            apart = None if beside is None or others is None else _count(work, beside, others, folder)
    cpu_seconds, prepared, trained = (one - other for one, other in zip(after, before, strict=True))
    results: dict[str, list[Any]] = {}
    for event in ended:
        results.setdefault(event["member"], []).append([event["metrics"]["train_loss"], event["digest"]])
    return Side(
        cpu_seconds=cpu_seconds,
        wall_seconds=wall_seconds,
        preparations=prepared / work.samples,
        epochs=trained / (work.samples * work.members),
        alone=apart,
        nodes=len({event["device"].rpartition("/")[0] for event in ended}),
        results=results,
    )


def _figures(tree: Tree, folder: Path) -> tuple[float, int, int]:
    """Return the CPU seconds so far, and the samples prepared and trained on."""
    return tree.cpu_seconds(), tally.total(folder / "counts" / "prepared"), tally.total(folder / "counts" / "trained")


def _work_until(journal: Path, epochs: int, tree: Tree, others: Tree | None) -> float:
    """Let a run work until this number of epochs has ended, in turns with others; return the seconds of its own turns."""
    worked, began = 0.0, time.perf_counter()
    while not journal.exists() or journal.read_text().count(ENDED) < epochs:
        tree.check()
        time.sleep(POLL_SECONDS)
        if others is not None and time.perf_counter() - began > TURN_SECONDS:
            tree.hold()
            worked += time.perf_counter() - began
            others.go_on()
            time.sleep(TURN_SECONDS)
            others.hold()
            began = time.perf_counter()
            tree.go_on()
    return worked + time.perf_counter() - began


@contextmanager
def _alone(work: Work, shape: Shape | None, folder: Path) -> Iterator[Tree | None]:
    """Yield P and T in processes of their own, warm and held."""
    if shape is None:
        yield None
        return
    command = [sys.executable, str(HERE / "sharing_alone.py"), str(folder)]
    command += ["--loaders", str(shape.loaders), "--trainers", str(shape.trainers)]
    with Tree(command, environment=work.environment(folder / "alone"), output=folder / "alone.txt") as tree:
        _wait_until(lambda: len(list(folder.glob("*.ready"))) == 1 + shape.trainers, tree)
        tree.hold()
        yield tree


def _count(work: Work, shape: Shape, others: Tree, folder: Path) -> Alone:
    """Return what P and T took."""
    (folder / "stop").touch()
    others.go_on()
    parts = [folder / "P.json", *(folder / f"T{trainer}.json" for trainer in range(shape.trainers))]
    _wait_until(lambda: all(part.exists() for part in parts), others)
    preparing, *training = (json.loads(part.read_text()) * work.samples for part in parts)
    return Alone(preparing=preparing, training=sum(training))


def _wait_until(done: Callable[[], bool], tree: Tree) -> None:
    while not done():
        tree.check()
        time.sleep(POLL_SECONDS)
