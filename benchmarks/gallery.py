"""Makes the pictures of docs/gallery and of the README: runs trained on scikit-learn's digits, each shown as its page.

`python benchmarks/gallery.py` makes all pictures; names choose some: `python benchmarks/gallery.py 3-members search`.
Runs go to `runs` in the working directory, and one that exists is not trained again. Needs Chromium, Pillow and the
extra `demo`.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn, optim

import argosy
from argosy.running.directory.journal import timeline
from argosy.views.html.report import write_report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import browser

RUNS, PICTURES = Path("runs"), Path(__file__).resolve().parent.parent / "docs" / "gallery"
"""Runs are in the working directory, so that its name is on no picture."""
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}
DEVICES = "cpu:4"


def mlp(hidden: int, dropout: float, activation: str) -> nn.Module:
    """Return an MLP with one hidden layer."""
    return nn.Sequential(nn.Linear(64, hidden), ACTIVATIONS[activation](), nn.Dropout(dropout), nn.Linear(hidden, 10))


def digits() -> argosy.Data:
    """Return a thousand digits for training, and the others for validation."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    return argosy.Data(arrays=(x[:1000], y[:1000]), val_arrays=(x[1000:], y[1000:]))


def member(
    name: str, *, lr: float, hidden: int = 64, dropout: float = 0.0, activation: str = "relu", batch_size: int = 32
) -> argosy.Member:
    """Return a member with one network."""
    return argosy.Member(
        name,
        model=partial(mlp, hidden, dropout, activation),
        optimizer=partial(optim.SGD, lr=lr, momentum=0.9),
        batch_size=batch_size,
        metrics={"accuracy": argosy.accuracy},
    )


def train(directory: Path, fleet: list[argosy.Member], *, epochs: int) -> None:
    """Train a fleet in processes."""
    study = argosy.Study(data=digits(), members=fleet, stop=argosy.MaxEpochs(epochs))
    argosy.train(study, directory=directory, devices=DEVICES, quiet=True)


def three(directory: Path) -> None:
    """Train three hand-written networks."""
    fleet = [
        member("small", lr=0.05, hidden=16),
        member("wide", lr=0.05, hidden=256),
        member("gelu", lr=0.02, activation="gelu"),
    ]
    train(directory, fleet, epochs=20)


def thirty(directory: Path) -> None:
    """Train ten networks under three seeds each."""
    fleet = [
        one
        for activation in ACTIVATIONS
        for lr in (0.003, 0.01, 0.05)
        for one in argosy.replicate(member(f"{activation}-lr={lr}", lr=lr, activation=activation), seeds=3)
    ]
    fleet += argosy.replicate(member("narrow", lr=0.05, hidden=8), seeds=3)
    threading.Thread(target=kill_a_trainer, args=[directory], daemon=True).start()
    train(directory, fleet, epochs=15)


def kill_a_trainer(directory: Path) -> None:
    """Kill a trainer after members have ended some epochs."""
    journal = directory / "journal.jsonl"
    while not journal.exists() or journal.read_text().count('"SectionEnded"') < 150:
        time.sleep(0.05)
    trainers = [one for one in psutil.Process().children(recursive=True) if one.name() == "argosy-trainer"]
    trainers[0].kill()


def hundred(directory: Path) -> None:
    """Train a grid of a hundred networks."""
    fleet = [
        member(f"mlp-lr={lr}-hidden={hidden}-dropout={dropout}", lr=lr, hidden=hidden, dropout=dropout)
        for lr in (0.001, 0.003, 0.01, 0.03, 0.1)
        for hidden in (8, 16, 32, 64, 128)
        for dropout in (0.0, 0.1, 0.2, 0.4)
    ]
    train(directory, fleet, epochs=12)


def search(directory: Path) -> None:
    """Search four parameters by Hyperband."""
    space = {
        "lr": FloatDistribution(1e-3, 1.0, log=True),
        "hidden": IntDistribution(4, 128, log=True),
        "dropout": FloatDistribution(0.0, 0.5),
        "activation": CategoricalDistribution([*ACTIVATIONS]),
    }

    def build(parameters: Mapping[str, Any]) -> argosy.Member:
        return member("mlp", **parameters)

    argosy.tune(build, space, data=digits(), max_epochs=27, directory=directory, devices=DEVICES, quiet=True)


def demo(directory: Path) -> None:
    """Run the demo."""
    subprocess.run([sys.executable, "-m", "argosy", "demo", "--dir", str(directory)], check=True)


STUDIES: Mapping[str, Callable[[Path], None]] = {
    "3-members": three,
    "30-members": thirty,
    "100-members": hundred,
    "search": search,
    "demo": demo,
}
LOOKS = {"1440": (1440, 4000), "800": (800, 3000), "390": (390, 3000), "dark": (1440, 4000)}
"""Width and greatest height of each picture."""
COLOURS = 256
"""Colours of a picture, few so that the file is small."""


def pictured(chromium: browser.Browser, name: str) -> None:
    """Take the pictures of the open page."""
    if name == "demo":
        take(chromium, PICTURES.parent / "report.png", width=1240, most=1100)
        return
    for look, (width, most) in LOOKS.items():
        take(chromium, PICTURES / f"{name}-{look}.png", width=width, most=most, dark=look == "dark")
    if name == "30-members":
        take(chromium, PICTURES.parent / "devices.png", width=1240, most=4000, part="#devices")


def take(chromium: browser.Browser, path: Path, *, width: int, most: int, dark: bool = False, part: str = "") -> None:
    """Take a picture of a page, or of the panel that has this part."""
    chromium.picture(path, width=width, dark=dark)
    # The first picture sets the page's width, on which its height depends.
    height = int(chromium.ask("document.documentElement.scrollHeight"))
    chromium.picture(path, width=width, height=min(height, most), dark=dark)
    picture = Image.open(path).convert("RGB")
    if part:
        box = chromium.ask(f"document.querySelector('{part}').closest('.panel').getBoundingClientRect().toJSON()")
        picture = picture.crop((box["left"], box["top"], box["right"], box["bottom"]))
    # Of the methods, this one leaves the large areas of background in their exact colours.
    picture.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or STUDIES:
        run = RUNS / name
        if not run.exists():
            STUDIES[name](run)
        page = write_report(argosy.load(run), timeline(run))
        with browser.opened(RUNS / "profile") as chromium:
            chromium.open(page)
            chromium.wait("document.querySelector('#curves svg')")
            pictured(chromium, name)
            assert chromium.errors == [], chromium.errors


if __name__ == "__main__":
    main()
