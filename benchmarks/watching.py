"""Measures what it costs a run to be watched: the wall time with each view and tracker, over that of an unwatched run.

    python benchmarks/watching.py --json

It measures a screen on a terminal, a page that is written while the run goes on, all installed trackers of
`argosy.tracking` at once, and views and trackers that fail, that take a second a call, and that never return. Rounds
are interleaved, and each ratio is within one round. A run takes 10 s from the first member's start to the end of the
call; each sample takes a moment, so that other load on the machine matters little. Figures and weights of all runs are
the same to the bit.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import arguments, finish, target
from rich.console import Console
from torch import nn
from torch.optim import SGD
from torch.utils.data import Dataset

import argosy
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import Silent
from argosy.tracking import TRACKERS
from argosy.views.terminal import Terminal

INPUTS, CLASSES, SAMPLE_SECONDS = 32, 10, 0.01
MOST = 1.03
NOBODY = "nobody"
Settings = dict[str, Any]
"""Settings of `argosy.train`."""


class FailingView(Silent):
    """A view that raises at every event."""

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`."""
        raise RuntimeError("no colours")


class SlowView(Silent):
    """A view that takes a second a call."""

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`."""
        time.sleep(1.0)


class BlockingView(Silent):
    """A view that never returns."""

    def tick(self, phase: Phase) -> None:
        """See `View.tick`."""
        threading.Event().wait()


class Sound:
    """A tracker that does nothing."""

    def open(self, *_: Any) -> None:
        """See `argosy.tracking.Tracker`."""

    begin = log = end = open


class FailingTracker(Sound):
    """A tracker that raises at its first figures."""

    def log(self, *_: Any) -> None:
        raise OSError("no server")


class SlowTracker(Sound):
    """A tracker that takes a second a call."""

    def log(self, *_: Any) -> None:
        time.sleep(1.0)

    begin = end = log


class BlockingTracker(Sound):
    """A tracker that never returns."""

    def log(self, *_: Any) -> None:
        threading.Event().wait()


@contextlib.contextmanager
def terminal(_: Path) -> Iterator[Settings]:
    """Watch by a screen of 200 columns on a terminal whose output is read."""
    reads, shows = pty.openpty()
    fcntl.ioctl(shows, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    drawn = []

    def read() -> None:
        # When the other end is closed, Linux raises EIO.
        with contextlib.suppress(OSError):
            while part := os.read(reads, 65536):
                drawn.append(len(part))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with os.fdopen(shows, "w") as screen:
        yield {"view": Terminal(Console(file=screen))}
    reader.join()
    os.close(reads)
    assert sum(drawn) > 10_000, "nothing was drawn"


@contextlib.contextmanager
def page(directory: Path) -> Iterator[Settings]:
    """Watch by ``argosy report --live`` beside the run, as soon as there is something to report."""
    over, begun = threading.Event(), []

    def watch() -> None:
        while not (directory / "journal.jsonl").exists():
            if over.wait(0.05):
                return
        command = [sys.executable, "-m", "argosy", "report", str(directory), "--live"]
        begun.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield {}
    finally:
        over.set()
        watcher.join()
        for process in begun:
            assert process.wait(120) == 0
    assert not (directory / "report.live.js").exists(), "the last page is of the run's end"


def trackers(*kinds: Callable[[], Any] | str) -> Callable[[Path], AbstractContextManager[Settings]]:
    """Watch by these trackers."""
    return lambda _: nullcontext({"trackers": [kind if isinstance(kind, str) else kind() for kind in kinds]})


def view(kind: Callable[[], Any]) -> Callable[[Path], AbstractContextManager[Settings]]:
    """Watch by this view."""
    return lambda _: nullcontext({"view": kind()})


INSTALLED = [name for name in TRACKERS if importlib.util.find_spec(name)]
WATCHERS: dict[str, Callable[[Path], AbstractContextManager[Settings]]] = {
    NOBODY: lambda _: nullcontext({}),
    "terminal": terminal,
    "page that is written while the run goes on": page,
    "failing view": view(FailingView),
    "slow view": view(SlowView),
    "blocking view": view(BlockingView),
    f"trackers {', '.join(INSTALLED)}": trackers(*INSTALLED),
    "failing tracker": trackers(FailingTracker),
    "slow tracker": trackers(SlowTracker),
    "blocking tracker": trackers(BlockingTracker),
}


class Slowly(Dataset[tuple[torch.Tensor, int]]):
    """Samples that each take a moment."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(SAMPLE_SECONDS)
        return torch.randn(INPUTS), index % CLASSES


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The results of a run."""

    seconds: float
    """From the first member's start to the end of the call."""
    figures: list[dict[str, float]]
    weights: list[torch.Tensor]

    def equals(self, other: "Run") -> bool:
        """Return whether both have trained the same networks, to the bit."""
        return self.figures == other.figures and all(map(torch.equal, self.weights, other.weights))


def study(members: int, samples: int, epochs: int) -> argosy.Study:
    """Return a study of small networks, every epoch of which is reported."""
    fleet = [
        argosy.Member(f"m{n}", model=partial(nn.Linear, INPUTS, CLASSES), optimizer=partial(SGD, lr=0.1), batch_size=20)
        for n in range(members)
    ]
    return argosy.Study(
        data=argosy.Data(train=Slowly(samples), keep=False), members=fleet, stop=argosy.MaxEpochs(epochs)
    )


def train(watcher: Callable[[Path], AbstractContextManager[Settings]], asked: argosy.Study) -> Run:
    """Train a study while it is watched."""
    settings = {"devices": "cpu:1", "loader_workers": 1, "block_size": 20, "numerics": "exact"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        directory = Path(folder) / "run"
        with watcher(directory) as watched:
            report = argosy.train(asked, quiet=True, directory=directory, **settings, **watched)
            ended = time.time()
        rows = [report.member(name) for name in asked.names]
        assert all(row.status == "done" for row in rows), [row.reason for row in rows]
        lines = map(json.loads, (directory / "journal.jsonl").read_text().splitlines())
        states = [torch.load(row.folder / "last.pt", weights_only=True)["model"] for row in rows]
        return Run(
            seconds=ended - next(line["at"] for line in lines if line["event"] == "MemberStarted"),
            figures=[row.metrics for row in rows],
            weights=[tensor for state in states for tensor in state.values()],
        )


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.set_defaults(rounds=3)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    asked = study(given.members, given.samples, given.epochs)
    runs: dict[str, list[Run]] = {name: [] for name in WATCHERS}
    for number in range(given.rounds):
        for name in list(WATCHERS)[:: 1 if number % 2 else -1]:
            runs[name].append(train(WATCHERS[name], asked))
            print(f"round {number + 1}, {name}: {runs[name][-1].seconds:.2f} s", file=sys.stderr)
    held = []
    for name in list(WATCHERS)[1:]:
        ratios = [one.seconds / alone.seconds for one, alone in zip(runs[name], runs[NOBODY], strict=True)]
        held.append(target(f"wall of a run with {name}, without = 1", ratios, at_most=MOST))
    unlike = sum(not one.equals(runs[NOBODY][0]) for found in runs.values() for one in found)
    held.append(target("runs with other figures or weights", [float(unlike)], at_most=0))
    seconds = {name: [one.seconds for one in found] for name, found in runs.items()}
    finish("watching", {"seconds": seconds}, held, as_json=given.json)


if __name__ == "__main__":
    main()
