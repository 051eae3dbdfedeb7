"""Measures what it costs to notice late that members write into their input.

It compares the CPU time of all steps with and without the watch, and measures the watch's own part of it, which other
work on the machine does not disturb. The worst case are networks whose steps take no longer than reading their samples:
copying a block then costs as much as a step on it, and is done the more rarely.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from measuring import arguments, finish, quartiles, target
from torch import nn
from torch.optim import SGD

import argosy
from argosy.stream.blocks import Block
from argosy.training.trainer.stepping import Stepping
from argosy.training.trainer.watch import InputWatch

ROWS, EPOCHS, MOST = 4096, 12, 0.01


def linear() -> nn.Module:
    """Return a network that does little but read its samples."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))


def small() -> nn.Module:
    """Return a network for rows of a few bytes."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def convolutions() -> nn.Module:
    """Return a network with long steps."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()), nn.Linear(16 * 64, 10)
    )


KINDS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "linear": (linear, (3, 32, 32), 1),
    "eight linear": (linear, (3, 32, 32), 8),
    "small": (small, (64,), 4),
    "convolutions": (convolutions, (3, 32, 32), 2),
}
"""A network, the shape of a sample, and the number of members."""


@contextlib.contextmanager
def timed(*, watched: bool, spent: list[float], own: list[float]) -> Iterator[None]:
    """Time steps and the watch's own part within the block; unless `watched`, every block is shared."""
    through, shown, wrote = Stepping.through, InputWatch.shown, InputWatch.restore_if_written

    def timed_through(self: Stepping, block: Block) -> bool:
        began = time.thread_time()
        done = through(self, block)
        spent.append(time.thread_time() - began)
        return done

    def timed_own(function: Any, *given: Any, **named: Any) -> Any:
        began = time.thread_time()
        found = function(*given, **named)
        own.append(time.thread_time() - began)
        return found

    Stepping.through = timed_through  # type: ignore[method-assign]
    if watched:
        InputWatch.shown = lambda *given, **named: timed_own(shown, *given, **named)  # type: ignore[method-assign]
        InputWatch.restore_if_written = lambda *given: timed_own(wrote, *given)  # type: ignore[method-assign]
    else:
        InputWatch.shown = lambda self, block, *, apart: block  # type: ignore[method-assign]
    try:
        yield
    finally:
        Stepping.through, InputWatch.shown, InputWatch.restore_if_written = through, shown, wrote  # type: ignore[method-assign]


def seconds(kind: str, *, watched: bool) -> tuple[float, float]:
    """Return the seconds of all steps of a run, and those of the watch in them."""
    network, shape, count = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(ROWS, *shape, generator=generator), torch.arange(ROWS) % 10
    members = [
        argosy.Member(f"m{n}", model=network, optimizer=partial(SGD, lr=0.01), batch_size=64) for n in range(count)
    ]
    study = argosy.Study(data=argosy.Data(arrays=(x, y)), members=members, stop=argosy.MaxEpochs(EPOCHS))
    spent: list[float] = []
    own: list[float] = []
    with tempfile.TemporaryDirectory() as folder, timed(watched=watched, spent=spent, own=own):
        argosy.train(study, quiet=True, directory=folder, launcher="inline", devices="cpu:1", packing="interleaved")
    return sum(spent), sum(own)


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    figures, targets = {}, []
    for kind in KINDS:
        seconds(kind, watched=True)  # warms up imports and kernels
        rounds = []
        for number in range(options.rounds):
            sides = [
                (watched, seconds(kind, watched=watched))
                for watched in ((True, False) if number % 2 else (False, True))
            ]
            rounds.append(dict(sides))
        ratios = [r[True][0] / r[False][0] for r in rounds]
        shares = [own / (all_of_it - own) for all_of_it, own in (r[True] for r in rounds)]
        sides_by_name = {"with": True, "without": False}
        figures[kind] = {name: quartiles([r[side][0] for r in rounds]) for name, side in sides_by_name.items()}
        targets.append(target(f"{kind}: the watch's share of CPU time of steps", shares, at_most=MOST))
        targets.append(target(f"{kind}: CPU time of steps, with the watch / without", ratios, at_most=1 + MOST))
    finish("late_writes", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
