"""Compares unlike MLPs as one program with as many of one shape, with the same one after another, and padded to the widest and deepest.

64 members with their own widths, depths, activations, dropout, optimizers and rates run on one CPU thread in
interleaved rounds. "Alike" are 64 members with the width and depth whose number of weights is nearest to the unlike
ones' mean, with the same rates of dropout and the same optimizers, stepped by Argosy's fused program. "Grouped" is
Argosy's program of unlike members, "one after another" what it does without that. "Padded" is what TabPack does, in
PyTorch alone (`unlike_sides.py`); it keeps nothing of a step.

Equality is checked in the same run, in float64: grouped members against the same alone, and padded ones without
dropout, since they draw other masks.
"""

import itertools
import random
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from measuring import arguments, finish, hardware, quartiles, target
from packing_networks import Workload
from packing_sides import Programs, Task, fused, one_after_another
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from unlike_sides import Padded

from argosy.training.device.heap import keep_freed_memory
from argosy.training.programs.fused.grouped import Grouped

MEMBERS, INPUTS, CLASSES, STEPS = 64, 32, 10, 8
WIDTHS, DEPTHS, RATES = (32, 48, 64, 96, 128), (1, 2, 3, 4), (0.0, 0.1, 0.2)
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh)
WARM = 1
"""Rounds that do not count."""


class Shape(NamedTuple):
    """The structure of a member's network."""

    width: int
    depth: int
    rate: float
    activation: type[nn.Module]

    @property
    def weights(self) -> int:
        """Weights that it trains."""
        inner = (self.depth - 1) * (self.width + 1) * self.width
        return (INPUTS + 1) * self.width + inner + (self.width + 1) * CLASSES


def mlp(shape: Shape) -> nn.Module:
    """Return hidden layers of one width, each with activation and dropout."""
    sizes = [INPUTS, *[shape.width] * shape.depth]
    hidden = [
        (nn.Linear(size, width), shape.activation(), nn.Dropout(shape.rate))
        for size, width in itertools.pairwise(sizes)
    ]
    return nn.Sequential(*itertools.chain(*hidden), nn.Linear(shape.width, CLASSES))


def unlike(widths: Sequence[int] = WIDTHS) -> list[Shape]:
    """Return the members' shapes, drawn at random."""
    dice = random.Random(0)
    return [Shape(*map(dice.choice, (widths, DEPTHS, RATES, ACTIVATIONS))) for _ in range(MEMBERS)]  # type: ignore[arg-type]


def alike(shapes: Sequence[Shape], widths: Sequence[int] = WIDTHS) -> list[Shape]:
    """Return as many members of one shape, whose number of weights is nearest to the mean of these."""
    mean = statistics.mean(shape.weights for shape in shapes)
    every = [Shape(width, depth, 0.0, nn.ReLU) for width in widths for depth in DEPTHS]
    nearest = min(every, key=lambda shape: abs(shape.weights - mean))
    return [nearest._replace(rate=shape.rate) for shape in shapes]


def optimizer(number: int, parameters: Any) -> Optimizer:
    """Return a member's optimizer, with its own hyper-parameters."""
    lr = 1e-3 * (number % 16 + 1)
    made: list[Callable[[], Optimizer]] = [
        lambda: Adam(parameters, lr=lr),
        lambda: AdamW(parameters, lr=lr, weight_decay=0.01 * (number % 5)),
        lambda: SGD(parameters, lr=10 * lr, momentum=0.8 + 0.01 * (number % 16)),
    ]
    return made[number % 3]()


def task_of(shapes: Sequence[Shape], batch: int, dtype: torch.dtype = torch.float32, *, device: str = "cpu:0") -> Task:
    """Return the members and their samples."""
    models = [partial(mlp, shape) for shape in shapes]
    task = Task(Workload(models=models, inputs=INPUTS, batch=batch, steps=STEPS, wanted={}), len(shapes), device, dtype)
    task.members = [replace(one, optimizer=partial(optimizer, n)) for n, one in enumerate(task.members)]
    return task


def grouped(task: Task) -> Programs:
    """Return all members as one program."""
    return Programs(task, [Grouped.of(task.lives())])


def seconds_of(side: Any, task: Task, epoch: int) -> float:
    """Return the CPU seconds of this thread for all steps of a round."""
    block = task.block(epoch)
    assert block.sums  # computed once for all members of a device
    side.prepare(epoch)
    began = time.thread_time()
    side.run(block)
    return time.thread_time() - began


def rounds_of(batch: int, options: Namespace) -> Mapping[str, Sequence[float]]:
    """Return the seconds of each side in each interleaved round."""
    shapes = unlike()
    different, same = task_of(shapes, batch), task_of(alike(shapes), batch)
    sides: dict[str, tuple[Task, Any]] = {
        "alike, fused": (same, fused(same)),
        "alike, grouped": (same, grouped(same)),
        "one after another": (different, one_after_another(different)),
        "grouped": (different, grouped(different)),
        "padded": (different, Padded(different)),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    dice = random.Random(batch)
    for epoch in range(WARM + options.rounds):
        for name in dice.sample(list(sides), len(sides)):
            task, side = sides[name]
            times[name].append(seconds_of(side, task, epoch))
    return {name: found[WARM:] for name, found in times.items()}


def unequal(side: Callable[[Task], Any], shapes: Sequence[Shape], epochs: int) -> float:
    """Return the largest difference in float64 between weights of the members and of the same alone."""
    task = task_of(shapes, 64, torch.float64)
    alone, together = one_after_another(task), side(task)
    for epoch in range(epochs):
        for each in (alone, together):
            seconds_of(each, task, epoch)
    if isinstance(together, Padded):
        together.show()
    models = zip(alone.models, together.models, strict=True)
    pairs = (pair for a, b in models for pair in zip(a.parameters(), b.parameters(), strict=True))
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=(64, 256))
    options = parser.parse_args()
    print(hardware())
    torch.set_num_threads(1)
    keep_freed_memory()
    shapes = unlike()
    still = [shape._replace(rate=0.0) for shape in shapes]
    targets = [
        target("grouped, difference from alone in float64", [unequal(grouped, shapes, 2)], at_most=1e-10),
        target("padded, without dropout, difference from alone", [unequal(Padded, still, 1)], at_most=1e-8),
    ]
    figures: dict[str, Any] = {}
    for batch in options.batches:
        times = rounds_of(batch, options)
        figures[str(batch)] = {name: [one / STEPS for one in found] for name, found in times.items()}
        for name, found in figures[str(batch)].items():
            low, median, high = quartiles(found)
            print(
                f"batches of {batch}, {name}: {1e3 * median:.1f} ms a step of all ({1e3 * low:.1f} to {1e3 * high:.1f})"
            )

        def against(other: str, times: Mapping[str, Sequence[float]] = times) -> list[float]:
            return [theirs / own for theirs, own in zip(times[other], times["grouped"], strict=True)]

        for other, least in (("alike, fused", 0.7), ("one after another", 3.0), ("padded", 1.0)):
            targets.append(target(f"batches of {batch}, grouped against {other}", against(other), at_least=least))
    finish("unlike", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
