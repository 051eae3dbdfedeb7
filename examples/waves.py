"""Five waves of eight variants on one live run: add a wave, wait, stop its worse half, begin the next around the best.

`python examples/waves.py runs/waves` runs them. The program keeps all its state in the run, so both it and the run may
be killed and started again.
"""

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from sklearn.datasets import load_digits
from torch import nn, optim

import argosy

WAVES, VARIANTS, LOOK, EPOCHS = 5, 8, 50, 200
x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16
data = argosy.Data(arrays=(x[:1400], y[:1400]), val_arrays=(x[1400:], y[1400:]))


def network(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def variant(name: str, lr: float, epochs: int = EPOCHS) -> argosy.Member:
    optimizer = partial(optim.SGD, lr=lr, momentum=0.9)
    stop = argosy.MaxEpochs(epochs)
    return argosy.Member(name, model=partial(network, 64), optimizer=optimizer, batch_size=50, stop=stop)


def study_of(members: list[argosy.Member]) -> argosy.Study:
    return argosy.Study(data=data, members=members)


# It trains all the time, so that there always is a run to add to.
study = study_of([variant("base", 0.05, epochs=100_000)])
FILE = "import sys\nsys.path.insert(0, {folder!r})\nfrom waves import study_of, variant\n"
FILE += "study = study_of([variant(name, lr) for name, lr in {rates!r}.items()])\n"


class Run:
    """The run as a program sees it: commands and their answers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None

    def command(self, *words: str) -> dict[str, Any]:
        """Repeat the command until a driver has answered; if none runs, start one, which resumes the run."""
        name, *rest = words
        while True:
            if self.process is None or self.process.poll() is not None:
                where = ["run", __file__, "--dir", str(self.directory), "--json"]
                self.process = subprocess.Popen(self._argosy(*where), stdout=subprocess.DEVNULL, text=True)
            told = subprocess.run(
                self._argosy(name, str(self.directory), *rest, "--json"), capture_output=True, text=True, check=False
            )
            if told.stdout:
                return dict(json.loads(told.stdout))
            time.sleep(0.5)

    def members(self, *words: str) -> dict[str, dict[str, Any]]:
        return {row["member"]: row for row in self.command("status", "--verbose", *words)["members"]}

    def _argosy(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "argosy", *words]


def rates_around(members: dict[str, dict[str, Any]], wave: int) -> dict[str, float]:
    """Return a wave's learning rates: a wide grid first, then narrower ones around the best so far."""
    done = {name: row["val_loss"] for name, row in members.items() if name.startswith("w") and "val_loss" in row}
    best = float(min(done, key=lambda name: done[name]).partition("=")[2]) if done else 0.05
    width = 4.0 / 2**wave
    rates = (best * 2 ** (width * (2 * number / (VARIANTS - 1) - 1)) for number in range(VARIANTS))
    return {f"w{wave}-lr={rate:.4g}": float(f"{rate:.4g}") for rate in rates}


def trains(row: dict[str, Any] | None, *, until: int) -> bool:
    """Return whether a member is still training towards that epoch."""
    return row is None or (row["status"] in ("waiting", "training", "resting") and row["epochs"] < until)


def play(directory: Path) -> dict[str, dict[str, Any]]:
    run = Run(directory)
    members = run.members()
    for wave in range(WAVES):
        names = [name for name in members if name.startswith(f"w{wave}-")]
        if not names:
            file = directory / f"wave-{wave}.py"
            rates = rates_around(members, wave)
            file.write_text(FILE.format(folder=str(Path(__file__).resolve().parent), rates=rates))
            run.command("add", str(file))
            names = list(rates)
        while any(trains(members.get(name), until=LOOK) for name in names):
            members = run.members("--wait")
        worse = sorted(names, key=lambda name: members[name].get("val_loss", 9.9))[VARIANTS // 2 :]
        if worse := [name for name in worse if members[name]["status"] == "training"]:
            run.command("stop", *worse)
    while any(trains(row, until=EPOCHS) for name, row in members.items() if name != "base"):
        members = run.members("--wait")
    if trains(members["base"], until=100_000):
        run.command("stop", "base")
    return members


if __name__ == "__main__":
    found = play(Path(sys.argv[1]))
    for name, row in sorted(found.items(), key=lambda pair: pair[1]["val_loss"])[:3]:
        print(f"{name}: {row['val_loss']:.4f} after {row['epochs']} epochs")
