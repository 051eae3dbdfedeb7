"""P and T of `sharing.py`, in plain PyTorch: preparing the study's samples, or training some of its members alone.

Training takes tensors that are prepared already, and saves each member after every epoch as every side does. All parts
work at the same time, each for itself: they wait for each other, warm up, count the batches and the CPU seconds of some
seconds, those of loader workers included, and go on until everybody has counted.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from photographs import BATCH, normalize
from sharing_study import FOLDER, study
from together_loop import loader
from torch.nn import functional

import argosy

WARM_UP_SECONDS = 1.0


class Alone:
    """One member, stepped by hand."""

    def __init__(self, member: argosy.Member) -> None:
        self.name = member.name
        self.model = member.model()
        self.optimizer = member.optimizer(self.model.parameters())
        self.loss = torch.zeros((), dtype=torch.float64)

    def step(self, batch: Any) -> None:
        """One step of SGD."""
        x, y = batch
        self.optimizer.zero_grad(set_to_none=True)
        losses = functional.cross_entropy(self.model(x), y, reduction="none")
        losses.mean().backward()
        self.optimizer.step()
        self.loss += losses.detach().double().sum()

    def save(self, folder: Path) -> None:
        """Write its state."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / f"{self.name}.pt")


def preparing(workers: int) -> Iterator[None]:
    """Passes over the training samples, a batch at a time."""
    batches = loader(FOLDER, "train", workers=workers)
    while True:
        for _ in batches:
            yield


def training(members: list[Alone], out: Path) -> Iterator[None]:
    """Epochs of the members' own training, a batch at a time."""
    tensors = torch.load(FOLDER / "tensors.pt")
    while True:
        for parts in zip(*(tensor.split(BATCH) for tensor in tensors), strict=True):
            batch = normalize(parts)
            for member in members:
                member.step(batch)
            yield
        for member in members:
            member.save(out)


def work_until(batches: Iterator[None], moment: float) -> int:
    """Work until then; returns the batches done."""
    done = 0
    while time.monotonic() < moment:
        next(batches)
        done += 1
    return done


def own_seconds() -> float:
    """CPU time of this process and of its workers."""
    workers = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return time.process_time() + sum(times.user + times.system for times in workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for what is saved, and where parts meet")
    parser.add_argument("--part", help="name of this part")
    parser.add_argument("--parts", type=int, help="how many there are")
    parser.add_argument("--seconds", type=float, help="to be counted")
    parser.add_argument("--workers", type=int, default=0, help="loader workers that prepare")
    parser.add_argument("--members", type=int, nargs="*", help="train these, by their numbers; none: prepare")
    options = parser.parse_args()
    torch.set_num_threads(1)
    members = [Alone(study.members[number]) for number in options.members or ()]
    batches = training(members, options.out) if members else preparing(options.workers)
    next(batches)
    (options.out / f"{options.part}.ready").touch()
    while len(list(options.out.glob("*.ready"))) < options.parts:
        next(batches)
    work_until(batches, time.monotonic() + WARM_UP_SECONDS)
    before = own_seconds()
    done = work_until(batches, time.monotonic() + options.seconds)
    per_batch = (own_seconds() - before) / done
    (options.out / f"{options.part}.json").write_text(json.dumps({"cpu_seconds_per_batch": per_batch}))
    while len(list(options.out.glob("*.json"))) < options.parts:
        next(batches)


if __name__ == "__main__":
    main()
