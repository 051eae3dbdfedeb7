"""P and T of `sharing.py`, in plain PyTorch: preparing the study's samples, and training its members.

Some loader workers prepare while some processes train, each for itself, as many of each as the pipeline has that they are
compared with. Training takes tensors that are prepared already, and saves each member after every epoch as every side
does. Each part works from the beginning to the end, and counts samples and CPU seconds, those of its loader workers
included, from the moment when a file ``count`` appears in the folder until there is a file ``stop``. Samples are counted
as the runs count them, as each is prepared: up to two batches a loader worker are under way when the counting begins and
when it ends, which is much of the sixty or so that come in between.
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
    """Passes over the training samples, a batch at a time."""
    batches = loader(Counted(FOLDER / "train", train=True), "train", workers, BATCH)
    while True:
        for _ in batches:
            yield


def training(members: list[ByHand], out: Path) -> Iterator[None]:
    """Epochs of the members' own training, a batch at a time."""
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
    """CPU time of this process and of its workers."""
    workers = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return time.process_time() + sum(times.user + times.system for times in workers)


def count(batches: Iterator[None], out: Path, samples: Callable[[], int]) -> float:
    """CPU seconds of a sample, of which so many are done."""
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
    keep_freed_memory()  # as trainers do: what that saves is no matter of sharing
    parts = ["P", *(f"T{trainer}" for trainer in range(options.trainers))]
    # Forked: everything is imported once, as it is in a run.
    parent = os.getpid()
    part = next((name for name in parts if os.fork() == 0), None)
    if part is None:
        # Where one has failed the others are not waited for.
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
