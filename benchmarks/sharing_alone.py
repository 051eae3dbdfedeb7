"""P and T of `sharing.py`, in plain PyTorch: preparing the study's samples once, or training some of its members alone.

Training takes tensors that are prepared already, and saves each member after every epoch as every side does. The first
epoch warms up; the CPU seconds of a further one are written to ``<part>.json``, those of loader workers included.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from photographs import BATCH, normalize
from sharing_study import EPOCHS, FOLDER, study
from together_loop import loader
from torch.nn import functional

import argosy


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


def preparing() -> Callable[[], None]:
    """One pass over the training samples, by as many workers as cores."""
    batches = loader(FOLDER, "train", workers=len(os.sched_getaffinity(0)))

    def one_epoch() -> None:
        for _ in batches:
            pass

    return one_epoch


def training(members: list[Alone], out: Path) -> Callable[[], None]:
    """One epoch of the members' own training."""
    tensors = torch.load(FOLDER / "tensors.pt")

    def one_epoch() -> None:
        for parts in zip(*(tensor.split(BATCH) for tensor in tensors), strict=True):
            batch = normalize(parts)
            for member in members:
                member.step(batch)
        for member in members:
            member.save(out)

    return one_epoch


def own_seconds() -> float:
    """CPU time of this process and of its workers."""
    workers = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return time.process_time() + sum(times.user + times.system for times in workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for what is saved")
    parser.add_argument("--part", default="P", help="name of the file of results")
    parser.add_argument("--members", type=int, nargs="*", help="train these, by their numbers; none: prepare")
    options = parser.parse_args()
    torch.set_num_threads(1)
    members = [Alone(study.members[number]) for number in options.members or ()]
    one_epoch = training(members, options.out) if members else preparing()
    one_epoch()
    before = own_seconds()
    for _ in range(EPOCHS - 1):
        one_epoch()
    used = (own_seconds() - before) / (EPOCHS - 1)
    (options.out / f"{options.part}.json").write_text(json.dumps({"cpu_seconds": used}))


if __name__ == "__main__":
    main()
