"""What a view costs a run that fails, takes a second a call, or never comes back: nothing, beside a run that nobody watches.

One study, watched by each of them in interleaved rounds; wall time from the first member's start to the end of the call. Samples
take a moment each, so that what other programs of the machine do weighs little.
"""

import json
import tempfile
import threading
import time
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
from argosy.running.phase import Phase
from argosy.running.view import Silent
from argosy.views.terminal import Terminal

INPUTS, CLASSES, SAMPLE_SECONDS = 32, 10, 0.01
MOST = 1.03


class Failing(Silent):
    """Raises whatever it hears."""

    def hear(self, worker: str, message: Any) -> None:
        """See `View.hear`."""
        raise RuntimeError("no colours")


class Slow(Silent):
    """Takes a second a call."""

    def hear(self, worker: str, message: Any) -> None:
        """See `View.hear`."""
        time.sleep(1.0)


class Stuck(Silent):
    """Never comes back."""

    def tick(self, phase: Phase) -> None:
        """See `View.tick`."""
        threading.Event().wait()


def terminal() -> Terminal:
    """A screen of 200 columns, drawn for nobody."""
    return Terminal(Console(file=Path("/dev/null").open("w"), force_terminal=True, width=200, height=50))


VIEWS = {"nobody": lambda: None, "terminal": terminal, "failing": Failing, "slow": Slow, "stuck": Stuck}


class Slowly(Dataset[tuple[torch.Tensor, int]]):
    """Samples that each take a moment."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(SAMPLE_SECONDS)
        return torch.randn(INPUTS), index % CLASSES


def train(view: Any, *, members: int, samples: int, epochs: int) -> float:
    """Seconds of a run, without its start."""
    fleet = [
        argosy.Member(f"m{n}", model=partial(nn.Linear, INPUTS, CLASSES), optimizer=partial(SGD, lr=0.1), batch_size=32)
        for n in range(members)
    ]
    study = argosy.Study(data=argosy.Data(train=Slowly(samples)), members=fleet, stop=argosy.MaxEpochs(epochs))
    settings = {"devices": "cpu:1", "loader_workers": 1, "block_size": 64}
    with tempfile.TemporaryDirectory() as folder:
        report = argosy.train(study, directory=Path(folder) / "run", view=view, **settings)
        ended = time.time()
        assert all(row.status == "done" for row in report.rows)
        lines = map(json.loads, (report.directory / "journal.jsonl").read_text().splitlines())
        return ended - next(line["at"] for line in lines if line["event"] == "MemberStarted")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=5)
    asked = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in VIEWS}
    for number in range(asked.rounds):
        names = list(VIEWS) if number % 2 else list(VIEWS)[::-1]
        for name in names:
            view = VIEWS[name]()
            seconds[name].append(train(view, members=asked.members, samples=asked.samples, epochs=asked.epochs))
    held = []
    for name in list(VIEWS)[1:]:
        ratios = [one / alone for one, alone in zip(seconds[name], seconds["nobody"], strict=True)]
        held.append(target(f"wall of a run with a view: {name}, without = 1", ratios, at_most=MOST))
    finish("watching", {"seconds": seconds}, held, as_json=asked.json)


if __name__ == "__main__":
    main()
