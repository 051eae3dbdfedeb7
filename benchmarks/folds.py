"""Compares eight folds of one small network in one process of Argosy with what people do today on the two cores of a machine.

The rivals are: a pool of two processes, started and warm before the clock runs, which take a fold each and loop over a
`DataLoader`; the same pool with a loop that slices shuffled tensors; and, if skorch is installed, `cross_val_score` of
a skorch network with two jobs. All train the same network on the same folds for as many epochs, with the same batches
and one thread each. The seconds are of whole calls, in turn. Orders of samples differ, so the mean accuracies on
held-out samples are printed beside them.
"""

import importlib.util
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import arguments, finish, quartiles, target
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

import argosy
from argosy.estimators.bagging import MEMORY

FOLDS, SAMPLES, INPUTS, HIDDEN, CLASSES, BATCH, EPOCHS, LR = 8, 4_000, 20, 32, 10, 32, 20, 1e-3
LEAST = 2.5


def network() -> nn.Module:
    """Return an MLP with one hidden layer."""
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def arrays() -> tuple[Tensor, Tensor]:
    """Return samples and their classes."""
    x = torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(1))
    return x, x[:, :CLASSES].argmax(dim=1)


def folds() -> list[argosy.Member]:
    """Return a member for each fold."""
    mlp = argosy.Member(
        "mlp",
        model=network,
        optimizer=partial(AdamW, lr=LR),
        batch_size=BATCH,
        eval_batch_size=500,
        metrics={"accuracy": argosy.accuracy},
    )
    return argosy.kfold(mlp, FOLDS, samples=SAMPLES)


def one_process(packing: str) -> float:
    """Train the folds with Argosy, and return the mean accuracy."""
    data = argosy.Data(arrays=arrays(), val_arrays=arrays())
    study = argosy.Study(data=data, members=folds(), stop=argosy.MaxEpochs(EPOCHS))
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        report = argosy.train(study, directory=folder, launcher="inline", devices="cpu:1", packing=packing, quiet=True)
        return statistics.mean(row.sections[-1].metrics["val_accuracy"] for row in report.rows)


def sliced(x: Tensor, y: Tensor) -> Any:
    """Return batches of shuffled tensors."""
    order = torch.randperm(len(x))
    return ((x[part], y[part]) for part in order.split(BATCH))


def by_loop(loader: bool, fold: tuple[list[int], list[int]]) -> float:
    """Train one fold in a process of the pool, validate after each epoch, and return the last accuracy."""
    (x, y), (train, val) = arrays(), fold
    torch.manual_seed(0)
    model = network()
    optimizer, loss = AdamW(model.parameters(), lr=LR), nn.CrossEntropyLoss()
    batches = DataLoader(TensorDataset(x[train], y[train]), batch_size=BATCH, shuffle=True) if loader else None
    right = 0.0
    for _ in range(EPOCHS):
        model.train()
        for inputs, wanted in batches or sliced(x[train], y[train]):
            optimizer.zero_grad(set_to_none=True)
            loss(model(inputs), wanted).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(x[val]).argmax(dim=1) == y[val]).float().mean().item()
    return right


def in_pool(pool: Any, loader: bool) -> float:
    """Train all folds in the pool, and return the mean accuracy."""
    parts = [(list(fold.subset or ()), list(fold.val_subset or ())) for fold in folds()]
    return statistics.mean(pool.imap_unordered(partial(by_loop, loader), parts))


def skorch() -> float:
    """Return the mean accuracy of a skorch network on the same folds."""
    from sklearn.model_selection import cross_val_score
    from skorch import NeuralNetClassifier

    net = NeuralNetClassifier(
        network,
        criterion=nn.CrossEntropyLoss,
        optimizer=AdamW,
        lr=LR,
        batch_size=BATCH,
        max_epochs=EPOCHS,
        train_split=None,
        verbose=0,
    )
    parts = [(np.array(fold.subset), np.array(fold.val_subset)) for fold in folds()]
    x, y = (array.numpy() for array in arrays())
    return float(cross_val_score(net, x, y, cv=parts, n_jobs=2, scoring="accuracy").mean())


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sides", nargs="+", help="names of rivals; all by default")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with multiprocessing.get_context("spawn").Pool(2, torch.set_num_threads, (1,)) as pool:
        sides: dict[str, Callable[[], float]] = {
            "argosy": partial(one_process, "auto"),
            "interleaved": partial(one_process, "interleaved"),
            "pool": partial(in_pool, pool, True),
            "pool of slices": partial(in_pool, pool, False),
        }
        if importlib.util.find_spec("skorch"):
            sides["skorch"] = skorch
        sides = {side: run for side, run in sides.items() if side == "argosy" or side in (asked.sides or sides)}
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        accuracies = {side: run() for side, run in sides.items()}  # this also warms up all sides
        for number in range(asked.rounds):
            for side in list(sides)[:: 1 if number % 2 else -1]:
                began = time.perf_counter()
                accuracies[side] = sides[side]()
                seconds[side].append(time.perf_counter() - began)
    ratios = {side: [a / b for a, b in zip(found, seconds["argosy"], strict=True)] for side, found in seconds.items()}
    for side, found in seconds.items():
        ratio = quartiles(ratios[side])[1]
        print(f"{side}: {quartiles(found)[1]:.2f} s, {ratio:.2f} of Argosy's, accuracy {accuracies[side]:.4f}")
    held = [
        target(f"seconds of {side}, of Argosy in one process = 1", ratios[side], at_least=LEAST)
        for side in ratios
        if side in ("pool", "skorch")
    ]
    finish("folds", {"seconds": seconds, "accuracies": accuracies}, held, as_json=asked.json)


if __name__ == "__main__":
    main()
