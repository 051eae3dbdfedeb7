"""P and T of `sharing.py`, in plain PyTorch: preparing the study's samples, and training its members.

Some loader workers prepare while some processes train independently, as many of each as in the pipeline with which they
are compared. Training takes samples that are prepared already, and saves each member after every epoch as every side
does. Each part works from beginning to end. It counts samples and CPU seconds, including those of its loader workers,
from when a file ``count`` appears in the folder until there is a file ``stop``. As in the runs, a sample counts when it
is prepared: up to two batches per loader worker are under way when counting begins and when it ends, which matters
beside the sixty or so in between.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import tally
import torch
from by_hand import ByHand
from photographs import BATCH, normalize
from sharing_study import FOLDER, PREPARED, TRAINED, Counted, study
from together_loop import loader

from argosy.stream.death import die_with_parent
from argosy.training.device.heap import keep_freed_memory

WARM_UP_SECONDS = 1.0


def preparing(workers: int) -> Iterator[None]:
    """Pass over the training samples, a batch at a time."""
    batches = loader(Counted(FOLDER / "train", train=True), "train", workers, BATCH)
    while True:
        for _ in batches:
            yield


def training(members: list[ByHand], out: Path) -> Iterator[None]:
    """Train the members for epoch after epoch, a batch at a time."""
    tensors = torch.load(FOLDER / "tensors.pt", weights_only=True)
    while True:
        for parts in zip(*(tensor.split(BATCH) for tensor in tensors), strict=True):
            batch = normalize(parts)
            for member in members:
                member.step(batch)
            yield
        for member in members:
            member.save(out)


def own_seconds() -> float:
    """Return the CPU time of this process and of its workers."""
    workers = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return time.process_time() + sum(times.user + times.system for times in workers)


def count(batches: Iterator[None], out: Path, samples: Callable[[], int]) -> float:
    """Return the CPU seconds per sample, measured between the files `count` and `stop`; `samples` returns the samples done."""
    moment = time.monotonic() + WARM_UP_SECONDS
    while time.monotonic() < moment:
        next(batches)
    (out / f"{os.getpid()}.ready").touch()
    while not (out / "count").exists():
        next(batches)
    before, done = own_seconds(), samples()
    while not (out / "stop").exists():
        next(batches)
    return (own_seconds() - before) / (samples() - done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of this comparison")
    parser.add_argument("--loaders", type=int, required=True, help="loader workers that prepare")
    parser.add_argument("--trainers", type=int, required=True, help="processes that train")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as trainers do, so that it makes no difference between the sides
    parts = ["P", *(f"T{trainer}" for trainer in range(options.trainers))]
    # Forked, so that everything is imported once, as in a run.
    parent = os.getpid()
    part = next((name for name in parts if os.fork() == 0), None)
    if part is None:
        # If one part has failed, do not wait for the others.
        sys.exit(next((code for _ in parts if (code := os.waitstatus_to_exitcode(os.wait()[1]))), 0))
    die_with_parent(parent)
    if part == "P":
        seconds = count(preparing(options.loaders), options.out, partial(tally.total, PREPARED))
    else:
        members = [
            ByHand(one.name, one.model, one.optimizer) for one in study.members[int(part[1:]) :: options.trainers]
        ]
        batches = training(members, options.out)
        seconds = count(batches, options.out, partial(tally.own, TRAINED)) * len(members)
    written = options.out / f"{part}.writing"
    written.write_text(json.dumps(seconds))
    written.rename(written.with_suffix(".json"))


if __name__ == "__main__":
    main()
