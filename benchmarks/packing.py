"""Members of one architecture as one program, against the same members one after another, on one device and one thread.

Three sides take the same steps in interleaved rounds: the fused program, `Solo` programs in turn, and a hand-written loop
whose Adam is torch's own kernel (``fused=True``), the strongest sequential side that needs no compilation. What counts is
the processor time of the one thread. Equality is checked in the same run: in float64, after two rounds.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import arguments, finish, hardware, quartiles, target
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from argosy import Member
from argosy.stream.blocks import Block, Layout, Place
from argosy.stream.schedule import Orders
from argosy.training.devices import backend_of
from argosy.training.fused import Fused
from argosy.training.heap import keep_freed_memory
from argosy.training.member import build
from argosy.training.program import Program
from argosy.training.solo import Solo

SIZES = (1, 2, 4, 8, 16, 32)
STEPS = 8
"""Of each member in a round."""


def mlp(inputs: int, hidden: int) -> nn.Module:
    """Two hidden layers."""
    layers = nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    return nn.Sequential(*layers)


def cnn(width: int = 8) -> nn.Module:
    """Two convolutions on pictures of 16 x 16."""
    return nn.Sequential(
        nn.Unflatten(1, (3, 16, 16)),
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


WORKLOADS: dict[str, tuple[Callable[[], nn.Module], int, int, dict[int, float]]] = {
    "tiny MLP": (partial(mlp, 4, 4), 4, 4, {32: 5.0}),
    "MLP h64": (partial(mlp, 64, 64), 64, 32, {32: 3.5}),
    "small CNN": (cnn, 768, 32, {8: 1.35}),
}
"""Network, numbers in a sample, batch size; and the least ratio to the strongest sequential side by pack size."""


class Bench:
    """The sides of one workload at one pack size; each has members of its own, which begin alike."""

    def __init__(self, model: Callable[[], nn.Module], inputs: int, batch: int, size: int, dtype: torch.dtype) -> None:
        rows = STEPS * batch
        generator = torch.Generator().manual_seed(0)
        self.arrays = (torch.randn(rows, inputs, generator=generator, dtype=dtype), torch.arange(rows) % 10)
        self.orders = Orders(0, {"train": rows})
        members = [
            Member(
                f"m{n}",
                model=partial(typed, model, dtype),
                optimizer=partial(Adam, lr=1e-3 * (n + 1)),
                batch_size=batch,
            )
            for n in range(size)
        ]
        self.batch = batch
        self.solos = [Solo(live(member)) for member in members]
        self.fused = Fused.of([live(member) for member in members])
        self.loop = [
            (one.model, Adam(one.model.parameters(), lr=member.optimizer.keywords["lr"], fused=True))  # type: ignore[attr-defined]
            for one, member in zip(map(live, members), members, strict=True)
        ]
        self.epoch = 0

    def block(self) -> Block:
        """All samples, in the order of the epoch."""
        order = self.orders.epoch("train", self.epoch)
        layout, rows = Layout.of(tuple(array[0] for array in self.arrays)), len(order)
        place = Place(leg=0, split="train", epoch=self.epoch, section=0, start=0, rows=rows, last=True)
        found = layout.block(place, np.zeros(layout.block_bytes(rows), np.uint8))
        found.indices[:], found.sound[:] = order, True
        for leaf, array in zip(found.leaves, self.arrays, strict=True):
            leaf.copy_(array[torch.from_numpy(order)])
        return found.private()

    def round(self) -> dict[str, float]:
        """Seconds of each side for its steps on one block."""
        block = self.block()
        seconds = {
            "fused": self.run([self.fused], block),
            "one after another": self.run(self.solos, block),
            "loop": self.run_loop(block.leaves),
        }
        self.epoch += 1
        return seconds

    def run(self, programs: Sequence[Program[Any]], block: Block) -> float:
        """As a trainer does it."""
        for program in programs:
            for one in program.members:
                one.begin_epoch(self.orders, self.epoch)
        began = time.thread_time()
        for program in programs:
            with program.active():
                for batch in program.cut(block):
                    program.begin(batch)
                    program.finish()
        return time.thread_time() - began

    def run_loop(self, leaves: Sequence[Tensor]) -> float:
        """As one writes it."""
        began = time.thread_time()
        batches = list(zip(*(leaf.split(self.batch) for leaf in leaves), strict=True))
        for (model, optimizer), (x, y) in itertools.product(self.loop, batches):
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return time.thread_time() - began

    def difference(self) -> float:
        """The largest between the weights of a fused member and those of the same member alone."""
        alone = {one.members[0].member.name: one.members[0].model for one in self.solos}
        pairs = ((one.model, alone[one.member.name]) for one in self.fused.members)
        gaps = (p.sub(q).abs().max() for a, b in pairs for p, q in zip(a.parameters(), b.parameters(), strict=True))
        return max(map(float, gaps))


def typed(model: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    return model().to(dtype)


def live(member: Member) -> Any:
    return build(member, backend_of("cpu:0"), study_seed=0, objective="train_loss", mode="min")


def unequal(model: Callable[[], nn.Module], inputs: int, batch: int, size: int) -> float:
    """By how much weights differ after two rounds in float64."""
    bench = Bench(model, inputs, batch, size, torch.float64)
    for _ in range(2):
        bench.round()
    with torch.no_grad():
        return bench.difference()


def main() -> None:
    options = arguments(__doc__).parse_args()
    print(hardware())
    torch.set_num_threads(1)
    keep_freed_memory()  # as every trainer does
    figures: dict[str, Any] = {}
    targets = []
    for name, (model, inputs, batch, wanted) in WORKLOADS.items():
        for size in SIZES:
            bench = Bench(model, inputs, batch, size, torch.float32)
            rounds = [bench.round() for _ in range(options.rounds + 2)][2:]
            ratios = {side: [one[side] / one["fused"] for one in rounds] for side in ("one after another", "loop")}
            step = quartiles([one["fused"] / STEPS for one in rounds])[1]
            gap = unequal(model, inputs, batch, size)
            figures[f"{name}, {size}"] = {"ratios": ratios, "seconds": step, "difference": gap}
            words = ", ".join(f"{quartiles(found)[1]:.2f} x {side}" for side, found in ratios.items())
            print(f"{name}, {size:2d} members: a step {1e3 * step:.2f} ms, {words}; differs by {gap:.1e}")
            if size in wanted:
                targets.append(
                    target(f"{name}, {size} members, against the loop", ratios["loop"], at_least=wanted[size])
                )
            targets += [] if gap < 1e-10 else [target(f"{name}, {size} members, difference", [gap], at_most=1e-10)]
    finish("packing", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
