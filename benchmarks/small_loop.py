"""The hand-written side of `conversation.py` and `crews.py`: one loop that steps every network, without Argosy.

Each member trains on its own list of stream epochs, in the published orders and under the published seeds, so that it
must end with the same weights; files are written at given moments.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_networks import BATCH, SEED, learning_rate, member_seed, network, table, weights_sum
from torch import Tensor
from torch.nn import functional

__all__ = ["Trained", "train"]


class Trained:
    """One network with its optimizer and the sums of its losses."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(member_seed(name))
        self.name, self.model = name, network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate(name), momentum=0.9)
        self.train_loss = self.val_loss = 0.0
        self._losses: list[Tensor] = []

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        losses = functional.cross_entropy(self.model(x), y, reduction="none")
        losses.mean().backward()
        self.optimizer.step()
        self._losses.append(losses.detach().double().sum())

    def evaluate(self, x: Tensor, y: Tensor) -> None:
        self._losses.append(functional.cross_entropy(self.model(x), y, reduction="none").double().sum())

    def mean_loss(self, samples: int) -> float:
        losses, self._losses = self._losses, []
        return sum(torch.stack(losses).tolist()) / samples

    def save(self, folder: Path, *, sync: bool) -> None:
        """Write a file of the model and its optimizer; with `sync` wait until it is on disk."""
        path = folder / f"{self.name}.pt"
        unfinished = path.with_suffix(".new")
        with unfinished.open("wb") as file:
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        unfinished.rename(path)


def train(
    epochs: Mapping[str, Sequence[int]],
    *,
    samples: int,
    val: int,
    saves: Mapping[int, Sequence[str]],
    folder: Path,
    sync: bool,
) -> dict[str, Any]:
    """Train members by name, each on its stream epochs, and save members after the epochs of `saves`; return what it took."""
    members = {name: Trained(name) for name in epochs}
    x, y = table(samples, seed=1)
    passes = {"val": table(val, seed=2)}
    cpu, wall = time.process_time(), time.perf_counter()
    for epoch in sorted({epoch for of_member in epochs.values() for epoch in of_member}):
        here = [members[name] for name in members if epoch in epochs[name]]
        order = torch.from_numpy(np.random.RandomState([SEED, 0, epoch]).permutation(samples))
        for member in here:
            member.model.train()
        for batch in order.split(BATCH):
            inputs, target = x[batch], y[batch]
            for member in here:
                member.step(inputs, target)
        for member in here:
            member.train_loss = member.mean_loss(samples)
            member.model.eval()
        with torch.no_grad():
            for inputs, target in zip(*(part.split(BATCH) for part in passes["val"]), strict=True):
                for member in here:
                    member.evaluate(inputs, target)
        for member in here:
            member.val_loss = member.mean_loss(val)
        for name in saves.get(epoch, ()):
            members[name].save(folder, sync=sync)
    return {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "val_loss": {name: member.val_loss for name, member in members.items()},
        "weights": {name: weights_sum(member.model.state_dict()) for name, member in members.items()},
    }


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    saves = {int(epoch): names for epoch, names in told.pop("saves").items()}
    found = train(told.pop("epochs"), saves=saves, folder=Path(told.pop("folder")), **told)
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
