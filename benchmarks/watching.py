"""What a view costs a run that fails, takes a second a call, or never comes back: nothing, beside a run that nobody watches.

One study on two CPU devices, watched by each of them in interleaved rounds; wall time of the whole call.
"""

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

import argosy
from argosy.running.phase import Phase
from argosy.running.view import Silent
from argosy.views.terminal import Terminal

INPUTS, CLASSES = 32, 10
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


def network(hidden: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def train(view: Any, *, members: int, samples: int, epochs: int) -> float:
    """Seconds of a whole run."""
    x = torch.randn(samples, INPUTS, generator=torch.Generator().manual_seed(1))
    fleet = [
        argosy.Member(f"m{n}", model=partial(network, 16 + n), optimizer=partial(SGD, lr=0.1), batch_size=32)
        for n in range(members)
    ]
    data = argosy.Data(arrays=(x, x[:, :CLASSES].argmax(dim=1)))
    study = argosy.Study(data=data, members=fleet, stop=argosy.MaxEpochs(epochs))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        report = argosy.train(study, directory=Path(folder) / "run", devices="cpu:2", view=view)
        assert all(row.status == "done" for row in report.rows)
        return time.perf_counter() - began


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=10)
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
