"""Members that disturb others, and checkpoints that cannot be trusted."""

import errno
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies
import torch
from blocks import blocks
from torch import nn

import argosy
from argosy.stream.blocks import Place
from argosy.training.device import forks
from argosy.training.device.copies import DeviceCopies
from argosy.training.device.devices import Cpu, open_backend
from argosy.training.member import checkpoint
from argosy.training.member.precision import MIN_SCALE, LossScale
from argosy.training.trainer import watch
from messages.of_studies import trained

__all__ = ["CASES"]


def on_device(*works: Any) -> None:
    """Apply these functions to one block after another, as `Data.on_device`."""
    copies = DeviceCopies(open_backend("cpu:0"))
    for block, copies.on_device in zip(blocks(np.arange(4 * len(works)), 4), works, strict=True):
        copies.start(block)


def changed(batch: Any) -> Any:
    """Change a batch in place."""
    batch[0].add_(1)
    return batch


class Changing(nn.Linear):
    """Writes into its input from its tenth step on."""

    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if self.steps > 9:
            x.mul_(0.5)
        return super().forward(x)


def changing(patch: pytest.MonkeyPatch) -> None:
    """Train such a member on the shared block itself."""
    patch.setattr(watch, "WATCHING_SHARE", 0.0)
    member = studies.member("mlp", model=lambda: Changing(12, 10), batch_size=20)
    trained(member, stop=argosy.MaxEpochs(5), block_size=40)


PLACE = Place(leg=0, split="train", epoch=2, section=2, start=4096, rows=4096, last=False)


def saved(path: str = "last.pt") -> Path:
    """Save a small checkpoint."""
    checkpoint.save({"step": 3}, Path(path))
    return Path(path)


def on_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """Save a checkpoint on a full disk."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "fsync", refuse)
    saved()


def foreign() -> None:
    """Load a file that is not a checkpoint."""
    Path("last.pt").write_text("weights")
    checkpoint.load(Path("last.pt"))


def forked(patch: pytest.MonkeyPatch) -> None:
    """Use a GPU in a process that was forked from one that used it."""
    patch.setitem(forks._before_fork, "pid", 4711 if os.getpid() != 4711 else 1)
    patch.setitem(forks._before_fork, "found", "cuda")
    forks.check_not_forked("cuda:0")


def on_a_full_gpu(patch: pytest.MonkeyPatch) -> None:
    """Train where another process holds all memory of the device."""

    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    patch.setattr(Cpu, "open", refuse)
    trained(studies.member("mlp"))


def on_a_small_gpu(patch: pytest.MonkeyPatch) -> None:
    """Train where not even samples have room."""

    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    patch.setattr(DeviceCopies, "start", refuse)
    trained(studies.member("mlp"))


def packed() -> None:
    """Load an archive of compressed zeros."""
    path = Path("e0001.pt")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("e0001/data/0", bytes(2**26))
    checkpoint.load(path)


CASES = {
    "a missing checkpoint": lambda: checkpoint.load(Path("members/mlp/last.pt")),
    "a damaged checkpoint": lambda: checkpoint.load(saved(), "0" * 64),
    "a file that is not a checkpoint": foreign,
    "a small checkpoint that unpacks to a large one": packed,
    "a checkpoint that cannot be written": on_a_full_disk,
    "a state whose keys are tensors": lambda: checkpoint.to_plain({"optimizer": {"state": {torch.zeros(1): 1}}}),
    "a state that is not plain data": lambda: checkpoint.to_plain({"model": {"queue": [Path("x")]}}),
    "Data.on_device drops rows": lambda: on_device(lambda batch: batch[0][1:]),
    "Data.on_device draws random numbers": lambda: on_device(lambda batch: (batch[0] + torch.rand(()), batch[1])),
    "Data.on_device depends on all samples of a block": lambda: on_device(
        lambda batch: (batch[0] - batch[0].mean(), batch[1])
    ),
    "Data.on_device writes into its input later": lambda: on_device(lambda batch: batch, changed),
    "a member writes into its input later": changing,
    "a member writes into its input later, past torch's count": lambda: watch.InputWatch(shared_from=PLACE).refuse(
        "mlp"
    ),
    "gradients that overflow in float16 at every scale": lambda: LossScale("mlp", value=MIN_SCALE).follow(
        overflowed=True
    ),
    "a GPU that was used before a fork": forked,
    "a GPU whose memory is used by other processes": on_a_full_gpu,
    "a GPU without memory for a block of samples": on_a_small_gpu,
}
