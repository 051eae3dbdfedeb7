"""What trackers cost that fail, take a second a call, or never come back: the wall time of a run with each, against without.

    python benchmarks/watchers.py --json

Every round runs all of them, one after another; the ratio is of medians. Samples take a moment each, so that what other programs
of the machine do weighs little. Weights and figures of all runs are the same to the bit.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from claims import Target, report
from torch import nn
from torch.optim import SGD
from torch.utils.data import Dataset

import argosy
from argosy.views.trackers import Tracked

BOUND = 1.03
SAMPLE_SECONDS = 0.005


class Slowly(Dataset[tuple[torch.Tensor, int]]):
    """Samples that each take a moment."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(SAMPLE_SECONDS)
        return torch.randn(8), index % 4


class Sound:
    """A tracker that does nothing."""

    def open(self, *_: Any) -> None:
        """See `argosy.tracking.Tracker`."""

    begin = log = end = open


class Failing(Sound):
    """Raises at its first figures."""

    def log(self, *_: Any) -> None:
        raise OSError("no server")


class Slow(Sound):
    """Takes a second a call."""

    def log(self, *_: Any) -> None:
        time.sleep(1.0)

    begin = end = log


class Blocking(Sound):
    """Never comes back."""

    def log(self, *_: Any) -> None:
        time.sleep(1e6)


KINDS: dict[str, list[Any]] = {"none": [], "failing": [Failing], "slow": [Slow], "blocking": [Blocking]}


def study(samples: int, epochs: int) -> argosy.Study:
    """Four small members."""
    members = [
        argosy.Member(
            f"m{seed}", model=partial(nn.Linear, 8, 4), optimizer=partial(SGD, lr=0.1), batch_size=20, seed=seed
        )
        for seed in range(4)
    ]
    return argosy.Study(data=argosy.Data(train=Slowly(samples)), members=members, stop=argosy.MaxEpochs(epochs))


class Waited:
    """Seconds that a run's own thread has spent on trackers: on a busy machine two wall times differ by more than these."""

    seconds = 0.0

    @classmethod
    def on(cls, name: str) -> None:
        """Watch a method."""
        method = getattr(Tracked, name)

        def watched(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                cls.seconds += time.perf_counter() - began

        setattr(Tracked, name, watched)


def timed(kind: str, samples: int, epochs: int) -> tuple[float, float, list[dict[str, float]]]:
    """Wall seconds of one run, those of them that trackers took, and what its members reached."""
    Waited.seconds = 0.0
    trackers = [made() for made in KINDS[kind]]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        found = argosy.train(
            study(samples, epochs),
            directory=Path(folder),
            launcher="inline",
            devices="cpu:1",
            numerics="exact",
            trackers=trackers,
        )
        return time.perf_counter() - began, Waited.seconds, [found.member(f"m{seed}").metrics for seed in range(4)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for name in ("begin", "_tell", "end"):
        Waited.on(name)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    shares: dict[str, list[float]] = {kind: [] for kind in KINDS}
    reached = []
    for _ in range(given.rounds):
        for kind in KINDS:
            took, waited, metrics = timed(kind, given.samples, given.epochs)
            seconds[kind].append(took)
            shares[kind].append(waited / took)
            reached.append(metrics)
    medians = {kind: statistics.median(found) for kind, found in seconds.items()}
    ratios = {kind: medians[kind] / medians["none"] for kind in KINDS if kind != "none"}
    targets = [Target.at_most(f"wall time with a {kind} tracker", ratio, BOUND) for kind, ratio in ratios.items()]
    targets += [
        Target.at_most(f"share of the run that its own thread spent on a {kind} tracker", max(shares[kind]), BOUND - 1)
        for kind in ratios
    ]
    unlike = sum(metrics != reached[0] for metrics in reached)
    targets.append(Target.at_most("runs with other figures", unlike, 0))
    raise SystemExit(
        report("watchers", {"seconds": seconds, "shares": shares, "ratios": ratios}, targets, as_json=given.json)
    )


if __name__ == "__main__":
    main()
