"""Compares the cost of eight replicates of one small network with that of one, by `argosy.train` on arrays, on two CPU cores.

It gives two wall times, in interleaved rounds: of the training alone, from the first member's start to the last one's
end as journaled, and of the whole call with its start-up, which is the same for both. The target is on the former.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import arguments, finish, quartiles, target
from torch import nn
from torch.optim import AdamW

import argosy
from argosy.protocol.events import MemberEnded, MemberStarted
from argosy.running.directory.journal import timeline

SEEDS, INPUTS, HIDDEN, CLASSES, BATCH = 8, 20, 32, 10, 32
MOST = 3.0


def network() -> nn.Module:
    """Return an MLP with one hidden layer."""
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def arrays(length: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples and their classes."""
    x = torch.randn(length, INPUTS, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :CLASSES].argmax(dim=1)


def train(seeds: Sequence[int], asked: argparse.Namespace) -> dict[str, float]:
    """Run one study of these replicates, and return what it took."""
    mlp = argosy.Member("mlp", model=network, optimizer=partial(AdamW, lr=1e-3), batch_size=BATCH)
    study = argosy.Study(
        data=argosy.Data(arrays=arrays(asked.samples, seed=1), val_arrays=arrays(asked.samples // 10, seed=2)),
        members=argosy.replicate(mlp, seeds),
        stop=argosy.MaxEpochs(asked.epochs),
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        report = argosy.train(study, quiet=True, directory=Path(folder) / "run", devices="cpu:2", packing=asked.packing)
        whole = time.perf_counter() - began
        assert all(row.status == "done" for row in report.rows)
        times = [(at, event) for at, event in timeline(report.directory)]
    first = min(at for at, event in times if isinstance(event, MemberStarted))
    last = max(at for at, event in times if isinstance(event, MemberEnded))
    return {"training": last - first, "whole": whole, "cpu": report.cpu_seconds}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--packing", choices=["auto", "interleaved"], default="auto")
    asked = parser.parse_args()
    sides: dict[str, list[dict[str, float]]] = {"one": [], "eight": []}
    for number in range(asked.rounds):
        order = ("one", "eight") if number % 2 else ("eight", "one")
        for side in order:
            sides[side].append(train(range(SEEDS if side == "eight" else 1), asked))
    figures: dict[str, Any] = {"sides": sides}
    ratios: dict[str, list[float]] = {}
    for what in ("training", "whole", "cpu"):
        ratios[what] = [e[what] / o[what] for e, o in zip(sides["eight"], sides["one"], strict=True)]
        one, eight = (quartiles([found[what] for found in sides[side]])[1] for side in sides)
        print(f"{what}: one {one:.2f} s, eight {eight:.2f} s, ratio {quartiles(ratios[what])[1]:.2f}")
    held = target("seconds of training of eight replicates, of one = 1", ratios["training"], at_most=MOST)
    finish("replicates", figures, [held], as_json=asked.json)


if __name__ == "__main__":
    main()
