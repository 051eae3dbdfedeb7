"""Tests that compared values keep float64 precision from a metric to every file, so that values 1e-12 apart are no tie."""

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optuna.distributions import IntDistribution
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

import argosy
from argosy.adapters.monitored import Monitored
from argosy.stream.order import Digest
from argosy.training.programs.shard.flat import FlatGradient

STEP = 1e-12
EPOCHS = 6
BEST = 3
"""The epoch with the smallest value, counted from 0."""


class Counting(nn.Module):
    """A network that returns, for each sample, the number of its steps as an additional output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return torch.cat((self.layer(x), self.steps.expand(len(x), 1)), 1)


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, 0] - target) ** 2


def at(output: Tensor) -> float:
    """Return 0.7 plus `STEP` for each epoch, of two steps, between the network's epoch and the best one."""
    return 0.7 + STEP * abs(float(output[0, 1]) / 2 - 1 - BEST)


class State:
    """A metric class that returns a Python float."""

    def update(self, output: Tensor, target: Tensor) -> None:
        self.value = at(output)

    def compute(self) -> float:
        return self.value


KINDS: dict[str, Callable[[Tensor, Tensor], Any] | type] = {
    "a Python float": lambda output, target: at(output),
    "a NumPy scalar": lambda output, target: np.float64(at(output)),
    "an array of no dimensions": lambda output, target: np.array(at(output)),
    "a torch scalar": lambda output, target: torch.tensor(at(output), dtype=torch.float64),
    "a tensor for each sample": lambda output, target: torch.full((len(output),), at(output), dtype=torch.float64),
    "an array for each sample": lambda output, target: np.full(len(output), at(output)),
    "a metric class": State,
}


def trained(directory: Path, metric: Any, launcher: str = "inline", **rest: Any) -> argosy.Report:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    member = argosy.Member(
        "net",
        model=Counting,
        optimizer=partial(SGD, lr=0.01),
        batch_size=10,
        loss=squared,
        metrics={"odd": metric},
        **rest,
    )
    study = argosy.Study(
        data=argosy.Data(arrays=(x, x[:, 0]), val_arrays=(x, x[:, 0])),
        members=[member],
        stop=rest.get("stop", argosy.MaxEpochs(EPOCHS)),
        objective="val_odd",
        mode="min",
    )
    return argosy.train(study, directory=directory, launcher=launcher, devices="cpu:1")


WANTED = [0.7 + STEP * abs(epoch - BEST) for epoch in range(EPOCHS)]


def _table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def rows_of(directory: Path) -> dict[str, list[float]]:
    """Return the values of the metric in each file that has them."""
    journal = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    folder = directory / "members" / "net"
    return {
        "journal": [line["metrics"]["val_odd"] for line in journal if line["event"] == "SectionEnded"],
        "csv": [float(row["val_odd"]) for row in _table(folder / "metrics.csv")],
        "jsonl": [json.loads(line)["val_odd"] for line in (folder / "metrics.jsonl").read_text().splitlines()],
    }


@pytest.mark.parametrize("metric", KINDS.values(), ids=KINDS)
def test_the_best_section_is_the_best(tmp_path: Path, metric: Any) -> None:
    report = trained(tmp_path, metric)
    found = rows_of(tmp_path)
    assert all(values == WANTED for values in found.values()), found
    best = report.best()
    assert best.best_epoch == BEST + 1
    assert best.metrics["val_odd"] == WANTED[BEST]
    assert float(best.load().steps) == 2 * (BEST + 1)
    assert float(report.to_pandas()["val_odd"].iloc[0]) == WANTED[BEST]


def test_digits_pass_from_process_to_process(tmp_path: Path) -> None:
    report = trained(tmp_path, KINDS["a Python float"], launcher="processes")
    assert rows_of(tmp_path)["csv"] == WANTED
    assert report.best().best_epoch == BEST + 1


def test_rules_see_the_digits(tmp_path: Path) -> None:
    stop = argosy.Plateau("val_odd", patience=1, mode="min", min_delta=STEP / 2) | argosy.MaxEpochs(EPOCHS)
    trained(tmp_path, KINDS["a Python float"], stop=stop)
    assert rows_of(tmp_path)["journal"] == WANTED[: BEST + 2]
    target = argosy.Target("val_odd", 0.7 + STEP / 2, mode="min")
    trained(tmp_path / "target", KINDS["a Python float"], stop=target)
    assert len(rows_of(tmp_path / "target")["journal"]) == BEST + 1


def test_a_learning_rate_sees_the_digits(tmp_path: Path) -> None:
    plateau = partial(ReduceLROnPlateau, patience=0, threshold=0.0, factor=0.5, eps=0.0)
    trained(tmp_path, KINDS["a Python float"], schedule=plateau)
    rates = [float(row["lr"]) for row in _table(tmp_path / "members" / "net" / "metrics.csv")]
    assert rates == [0.01] * (BEST + 2) + [0.005]


def build(parameters: dict[str, Any]) -> argosy.Member:
    return argosy.Member(
        "net",
        model=Counting,
        optimizer=partial(SGD, lr=0.01),
        batch_size=10,
        loss=squared,
        metrics={"odd": partial(shifted, parameters["shift"])},
    )


def shifted(shift: int, output: Tensor, target: Tensor) -> float:
    return 0.7 + STEP * shift


def test_a_search_finds_the_best_by_its_digits(tmp_path: Path) -> None:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    report = argosy.tune(
        build,
        {"shift": IntDistribution(1, 4)},
        data=argosy.Data(arrays=(x, x[:, 0]), val_arrays=(x, x[:, 0])),
        max_epochs=1,
        n_trials=8,
        objective="val_odd",
        mode="min",
        directory=tmp_path,
        launcher="inline",
        devices="cpu:1",
    )
    values = {trial.params["shift"]: trial.value for trial in report.study.trials if trial.value is not None}
    assert all(value == 0.7 + STEP * shift for shift, value in values.items())
    assert report.study.best_trial.params["shift"] == min(values)


def test_what_a_module_logs_keeps_its_digits() -> None:
    monitored = Monitored(["odd"])
    monitored.add("odd", 0.7 + STEP, 4, hook="training_step", on_step=False, on_epoch=True, reduce_fx="mean")
    assert float(monitored.mean("odd")) == pytest.approx(0.7 + STEP, abs=1e-15)


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_add_up_losses_to_the_last_digit(size: int) -> None:
    weight = torch.zeros(3, requires_grad=True)
    losses = [torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(rank)) for rank in range(size)]
    flats = [FlatGradient([weight], torch.device("cpu"), rank=rank, size=size) for rank in range(size)]
    for flat, of_rank in zip(flats, losses, strict=True):
        flat.fill(of_rank, Digest())
    for other in flats[1:]:
        flats[0].values += other.values
    assert flats[0].take().losses == pytest.approx(float(torch.cat(losses).sum()), abs=1e-13)
