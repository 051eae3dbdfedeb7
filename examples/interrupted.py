"""Ctrl-C, then the same call again, which gains one network and loses another while it runs: `python examples/interrupted.py`.

A thread does here what a person would type in another terminal.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

import argosy

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
RUN = Path("runs/interrupted")


def mlp(hidden: int) -> nn.Module:
    """Return an MLP with one hidden layer."""
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def study_of(*widths: int) -> argosy.Study:
    """Return a study of networks that train until they are stopped."""
    adam = partial(optim.Adam, lr=0.001)
    return argosy.Study(
        data=argosy.Data(arrays=(x[:1200], y[:1200]), val_arrays=(x[1200:], y[1200:])),
        members=[argosy.Member(f"mlp-{n}", model=partial(mlp, n), optimizer=adam, batch_size=32) for n in widths],
        stop=argosy.MaxEpochs(100_000),
    )


def epochs(member: str) -> float:
    """Return how many epochs a member has trained, 0 as long as there is no run."""
    with contextlib.suppress(argosy.ArgosyError):
        return argosy.load(RUN).member(member).epochs
    return 0


def wait_for(member: str, more: float) -> None:
    """Wait until a member has trained `more` epochs more."""
    begun = epochs(member)
    while epochs(member) < begun + more:
        time.sleep(0.2)


def ctrl_c() -> None:
    """Press Ctrl-C: everything is saved, and the call returns."""
    wait_for("mlp-16", 2)
    os.kill(os.getpid(), signal.SIGINT)


def change() -> None:
    """Run two commands, each of which waits for the run's answer; then press Ctrl-C again."""
    wait_for("mlp-16", 2)
    more = Path(__file__).with_name("interrupted_more.py")
    try:
        for words in (["add", RUN, more], ["stop", RUN, "mlp-64"]):
            subprocess.run([sys.executable, "-m", "argosy", *map(str, words)], check=True)
        wait_for("mlp-128", 1)
    finally:
        ctrl_c()


if __name__ == "__main__":
    for typed in (ctrl_c, change):
        threading.Thread(target=typed, daemon=True).start()
        report = argosy.train(study_of(16, 64), directory=RUN)
        print(f"{report.status}: {', '.join(f'{row.name} {row.status}' for row in report.rows)}")
