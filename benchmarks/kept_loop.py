"""The hand-written sides of `kept.py`: one loop over one DataLoader that steps every network, without Argosy.

Its samples come from a cache file that a Dataset fills during the first epoch, or from LitData's chunks, which are
written before it. Members have the published seeds, and with the cache also the published orders
(docs/internals/stream.md).
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from by_hand import ByHand
from kept_networks import BATCH, MEMBERS, PIXELS, averaged
from kept_photographs import Decoded
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

WORKERS = 2
CHUNK_BYTES = 64 * 2**20
"""Size of LitData's chunks, its usual one."""


class Cached(Dataset[tuple[Tensor, int]]):
    """Prepares each sample at its first access and writes it to a file that all workers map; later reads it there."""

    def __init__(self, dataset: Decoded, folder: Path) -> None:
        self.dataset = dataset
        self.rows = np.memmap(folder / "rows.bin", np.uint8, "w+", shape=(len(dataset), 3, PIXELS, PIXELS))
        self.there = np.memmap(folder / "there.bin", np.bool_, "w+", shape=(len(dataset),))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not self.there[index]:
            self.rows[index] = self.dataset[index][0].numpy()
            self.there[index] = True
        return torch.from_numpy(np.array(self.rows[index])), self.dataset.classes[index]


class Order(Sampler[int]):
    """The published orders of the epochs, one after another."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(np.random.RandomState([0, 0, self.epoch - 1]).permutation(self.length).tolist())


def cached(train: Path, out: Path) -> Iterable[Any]:
    """Return batches read through the cache."""
    dataset = Decoded(train)
    order = Order(len(dataset))
    return DataLoader(
        Cached(dataset, out), batch_size=BATCH, sampler=order, num_workers=WORKERS, persistent_workers=True
    )


def one_of(dataset: Decoded, index: int) -> tuple[np.ndarray[Any, Any], int]:
    """Return a sample as LitData writes it."""
    image, number = dataset[index]
    return image.numpy(), number


def by_litdata(train: Path, out: Path) -> Iterable[Any]:
    """Return batches read through LitData."""
    from functools import partial

    import litdata

    dataset = Decoded(train)
    litdata.optimize(
        partial(one_of, dataset), list(range(len(dataset))), str(out / "chunks"), num_workers=WORKERS,
        chunk_bytes=CHUNK_BYTES,
    )  # fmt: skip
    chunks = litdata.StreamingDataset(str(out / "chunks"), shuffle=True)
    return litdata.StreamingDataLoader(chunks, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)


def seeded(name: str) -> ByHand:
    """Return a network under the seed that Argosy publishes for it."""
    torch.manual_seed(int.from_bytes(hashlib.sha256(f"0/{name}".encode()).digest()[:8], "big") >> 1)
    return ByHand(name, *MEMBERS[name])


def train(batches: Iterable[Any], members: list[ByHand], epochs: int) -> list[float]:
    """Step all members on all batches of each epoch; return when the first step began and each epoch ended."""
    times: list[float] = []
    for _ in range(epochs):
        for batch in batches:
            if not times:
                times.append(time.time())
            inputs_and_classes = averaged(batch)
            for member in members:
                member.step(inputs_and_classes)
        times.append(time.time())
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", type=Path, help="folder of the photographs")
    parser.add_argument("out", type=Path, help="folder for the cache, checkpoints and times")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--litdata", action="store_true", help="use LitData instead of the cache")
    options = parser.parse_args()
    torch.set_num_threads(1)
    members = [seeded(name) for name in MEMBERS]
    batches = (by_litdata if options.litdata else cached)(options.train, options.out)
    times = train(batches, members, options.epochs)
    for member in members:
        member.save(options.out)
    (options.out / "times.json").write_text(json.dumps(times))


if __name__ == "__main__":
    main()
