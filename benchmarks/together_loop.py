"""The hand-written sides of `together.py`: plain PyTorch as a careful user writes it, without Argosy.

It is one loop over one DataLoader that steps every model it is given. With one model it is the script that is started
once per member; with none it is a preparation pass alone; over tensors instead of a DataLoader it is training alone.
Orders and seeds are the published ones (docs/internals/stream.md), so that every side must end with the same weights.
"""

import argparse
import hashlib
import json
import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from by_hand import ByHand
from photographs import BATCH, NETWORKS, Photographs, normalize
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler

WORD = 2**64
SPLITS = ("train", "val")


def mix64(value: int) -> int:
    """Return the finalizer of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) % WORD
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WORD
    return value ^ (value >> 31)


class Seeded(Dataset[Any]):
    """Prepares the sample of a key (epoch, index) under its own seed."""

    def __init__(self, dataset: Photographs, split: str) -> None:
        self.dataset, self.split = dataset, SPLITS.index(split)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        seed = mix64(mix64(mix64(0) ^ (2 * epoch + self.split)) ^ index)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(seed)
        return self.dataset[index]


class Order(Sampler[tuple[int, int]]):
    """The keys of one epoch after another: training samples shuffled, validation samples in order."""

    def __init__(self, length: int, split: str) -> None:
        self.length, self.split, self.epoch = length, split, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[int, int]]:
        shuffle = np.random.RandomState([0, 0, self.epoch]).permutation
        indices = shuffle(self.length) if self.split == "train" else np.arange(self.length)
        yield from ((self.epoch, index) for index in indices.tolist())
        self.epoch += 1


class Trained(ByHand):
    """One of the networks, under its published seed, with the sum of its validation losses."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(int.from_bytes(hashlib.sha256(f"0/{name}".encode()).digest()[:8], "big") >> 1)
        super().__init__(name, *NETWORKS[name])
        self.val_loss = torch.zeros((), dtype=torch.float64)

    def evaluate(self, batch: Any) -> None:
        x, y = batch
        self.val_loss += functional.cross_entropy(self.model(x), y, reduction="none").double().sum()


def perturb(models: Iterable[nn.Module]) -> None:
    """Move every weight to the next larger number, to see what rounding does."""
    with torch.no_grad():
        for model in models:
            for weight in model.parameters():
                weight.copy_(torch.nextafter(weight, torch.full_like(weight, torch.inf)))


def train(members: list[Trained], passes: dict[str, Iterable[Any]], epochs: int, folder: Path) -> dict[str, Any]:
    """Step on all batches of every epoch, validate and save; return times, and each member's last validation loss."""
    first, startup = None, 0.0
    for _ in range(epochs):
        for member in members:
            member.model.train()
            member.loss, member.val_loss = torch.zeros(2, dtype=torch.float64).unbind()
        for batch in passes["train"]:
            if first is None:
                first, startup = time.time(), time.process_time()
            batch = normalize(batch) if members else batch
            for member in members:
                member.step(batch)
        for member in members:
            member.model.eval()
        with torch.no_grad():
            for batch in passes["val"]:
                batch = normalize(batch) if members else batch
                for member in members:
                    member.evaluate(batch)
        for member in members:
            member.save(folder)
    losses = {member.name: float(member.val_loss) / passes_length(passes["val"]) for member in members}
    return {"first": first, "last": time.time(), "startup_cpu_seconds": startup, "val_loss": losses}


class Batches:
    """Tensors that are already prepared, cut into batches."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self.tensors = tensors

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return zip(*(tensor.split(BATCH) for tensor in self.tensors), strict=True)


def passes_length(batches: Any) -> int:
    """Return the samples in one pass."""
    samples: Any = batches.dataset if isinstance(batches, DataLoader) else batches.tensors[0]
    return len(samples)


def loader(dataset: Photographs, split: str, workers: int, batch_size: int) -> DataLoader[Any]:
    """Return a DataLoader whose workers live as long as the run."""
    order = Order(len(dataset), split)
    return DataLoader(
        Seeded(dataset, split), batch_size=batch_size, sampler=order, num_workers=workers, persistent_workers=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of train/, val/ and tensors.pt")
    parser.add_argument("out", type=Path, help="folder for checkpoints and the results")
    parser.add_argument("--members", nargs="*", default=[], choices=NETWORKS)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--tensors", action="store_true", help="train on prepared tensors")
    parser.add_argument(
        "--perturbed", action="store_true", help="begin with each weight moved to the next larger number"
    )
    options = parser.parse_args()
    # Several processes share the cores, and what a convolution computes depends on its number of threads.
    torch.set_num_threads(1)
    passes: dict[str, Iterable[Any]]
    if options.tensors:
        passes = {
            split: Batches(tensors)
            for split, tensors in torch.load(options.folder / "tensors.pt", weights_only=True).items()
        }
    else:
        workers = len(os.sched_getaffinity(0))
        datasets = {split: Photographs(options.folder / split, train=split == "train") for split in SPLITS}
        passes = {split: loader(dataset, split, workers, options.batch) for split, dataset in datasets.items()}
    members = [Trained(name) for name in options.members]
    if options.perturbed:
        perturb([member.model for member in members])
    results = train(members, passes, options.epochs, options.out)
    (options.out / f"{'-'.join(options.members[:1]) or 'none'}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
