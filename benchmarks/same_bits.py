"""Tests that the same command gives the same bits: in fresh directories, beside other load, on other devices, together and alone.

Each study runs several times with one cache, which the first run fills, and every other time beside two processes that
only compute; then with an emptied cache and the program choices of the first run (`like`). It also runs on one device
instead of two, and with its members one after another: there, members that had the bits of alone in both runs are
compared. Every section of every member must equal that of the first run to the bit: losses, metrics, learning rate,
digest of the samples. Programs are chosen by timing if that cannot change results, so the runs differ in their
programs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import arguments, finish, hardware, target
from optuna.distributions import CategoricalDistribution, FloatDistribution
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import TensorDataset

import argosy
from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal

TRAIN = 1437
Sections = Mapping[tuple[str, int], Any]
"""The results of each section of each member."""


def digits() -> argosy.Data:
    """Return scikit-learn's digits as vectors of 64."""
    images, targets = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 16, dtype=torch.float32)
    labels = torch.tensor(targets)
    train, val = (TensorDataset(inputs[part], labels[part]) for part in (slice(0, TRAIN), slice(TRAIN, None)))
    return argosy.Data(train=train, val=val)


def mlp(hidden: int, depth: int = 1) -> nn.Module:
    """Return an MLP with one hidden layer or more."""
    inner = [layer for _ in range(depth - 1) for layer in (nn.Linear(hidden, hidden), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), *inner, nn.Linear(hidden, 10))


def cnn(width: int) -> nn.Module:
    """Return two convolutions with a BatchNorm."""
    first = nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
    second = nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Linear(2 * width, 10))


def lenet() -> nn.Module:
    """Return a network whose channels round differently in a convolution of several members."""
    first = nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(6, 16, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 10))


def fleet() -> argosy.Study:
    """Return a study of eight unlike networks."""
    models = [partial(mlp, 32), partial(mlp, 64, 2), partial(mlp, 128, 3), partial(cnn, 8), partial(cnn, 16), lenet]
    members = [
        argosy.Member(f"m{number}", model=model, optimizer=partial(AdamW, lr=2e-3), batch_size=32 + 16 * (number % 3))
        for number, model in enumerate([*models, *models[:2]])
    ]
    return argosy.Study(data=digits(), members=members, stop=argosy.MaxEpochs(5))


def alike() -> argosy.Study:
    """Return a study of twenty MLPs of one architecture and four small CNNs."""
    members = [
        argosy.Member(
            f"mlp{n}", model=partial(mlp, 64, 2), optimizer=partial(Adam, lr=1e-3 * (1 + n % 5)), batch_size=32
        )
        for n in range(20)
    ]
    optimizer = partial(SGD, lr=0.05, momentum=0.9)
    members += [argosy.Member(f"cnn{n}", model=partial(cnn, 8), optimizer=optimizer, batch_size=32) for n in range(4)]
    return argosy.Study(data=digits(), members=members, stop=argosy.MaxEpochs(5))


def wide() -> argosy.Study:
    """Return a study of two members, one of which does most of the work, so that two devices share it."""
    optimizer = partial(SGD, lr=0.05)
    members = [
        argosy.Member(name, model=partial(mlp, hidden, 3), optimizer=optimizer, batch_size=256)
        for name, hidden in (("wide", 1000), ("narrow", 200))
    ]
    return argosy.Study(data=digits(), members=members, stop=argosy.MaxEpochs(5))


def built(parameters: Mapping[str, Any]) -> argosy.Member:
    """Return a trial of the search."""
    optimizer = partial(Adam, lr=parameters["lr"])
    return argosy.Member("net", model=partial(mlp, parameters["hidden"], 2), optimizer=optimizer, batch_size=32)


def trained(study: Callable[[], argosy.Study], directory: Path, **how: Any) -> None:
    """Run a study."""
    argosy.train(study(), quiet=True, directory=directory, **how)


def searched(directory: Path, **how: Any) -> None:
    """Run a search of twelve trials."""
    space = {"hidden": CategoricalDistribution([32, 64]), "lr": FloatDistribution(1e-4, 1e-2, log=True)}
    argosy.tune(built, space, data=digits(), n_trials=12, max_epochs=9, seed=1, quiet=True, directory=directory, **how)


RUNS: Mapping[str, Callable[..., None]] = {
    "fleet": partial(trained, fleet),
    "alike": partial(trained, alike),
    "search": searched,
    "split": partial(trained, wide),
}


@contextmanager
def load(there: bool) -> Iterator[None]:
    """Keep both cores busy within the block."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 if there else 0)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def sections(state: RunState, names: Iterable[str]) -> Sections:
    """Return the results of these members in a run."""
    return {
        (name, number): (dict(ended.metrics), ended.digest, ended.best)
        for name in names
        for number, ended in enumerate(state.member(name).sections)
    }


def differing(state: RunState, first: RunState, names: Collection[str]) -> tuple[int, int]:
    """Return the number of these members' sections that differ between two runs, and the number of all of the first run's."""
    found, wanted = sections(state, names), sections(first, names)
    return sum(found.get(key) != value for key, value in wanted.items()) + len(found.keys() - wanted.keys()), len(
        wanted
    )


def compare(name: str, options: Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run a study in all ways, and compare."""
    cache = os.environ["XDG_CACHE_HOME"] = str(folder / f"{name}-cache")

    def run(words: str, *, busy: bool = False, devices: str = "cpu:2", **how: Any) -> RunState:
        with load(busy):
            RUNS[name](folder / f"{name}-{words}", devices=devices, **how)
        return RunState.of(read_journal(folder / f"{name}-{words}"))

    states = {f"run {number + 1}": run(f"{number + 1}", busy=number % 2 == 1) for number in range(options.rounds)}
    first = states["run 1"]
    shutil.rmtree(cache)
    states["like"] = run("like", like=str(folder / f"{name}-1"))
    apart = {"one device": run("one", devices="cpu:1"), "alone": run("alone", packing="interleaved")}
    results = []
    for words, state in (states | apart).items():
        alike = [
            one
            for one in first.members
            if words in states or (first.member(one).as_alone and state.member(one).as_alone)
        ]
        wrong, count = differing(state, first, {*alike, *(state.members.keys() - first.members.keys())})
        results.append(target(f"{name}, {words}: sections that differ, of {count}", [wrong], at_most=0))
    programs = {frozenset((one.device, one.programs, one.kind) for one in state.packed) for state in states.values()}
    splits = sum(member.split is not None for member in first.members.values())
    print(f"{name}: {len(programs)} choices of programs in {len(states)} runs, {splits} members split in the first")
    return results


def main() -> None:
    """Run the benchmark."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS))
    options = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory() as folder:
        targets = [held for name in options.only for held in compare(name, options, Path(folder))]
    finish("same_bits", {}, targets, as_json=options.json)


if __name__ == "__main__":
    main()
