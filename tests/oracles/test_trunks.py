"""Tests that members trained on a frozen trunk's outputs equal members that contain the trunk, also if they train its last layers."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import argosy
from argosy.errors import RunError, StudyError

CUTS = (0, 2, 5)
"""How many of the trunk's last layers members train."""
RATES = (0.05, 0.2)
HEAD = partial(nn.Linear, 8, 3, dtype=torch.float64)


def trunk() -> nn.Sequential:
    """Return a trunk with the same weights and statistics at each call."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        layers = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 8), nn.Tanh()
        made = nn.Sequential(*layers).double()
        made(torch.randn(64, 12, dtype=torch.float64))
        return made


def rows(samples: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 12, dtype=torch.float64, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0))


class Inside(nn.Module):
    """The whole trunk with a head; all but the trunk's last `layers` layers get no gradient and stay in eval()."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.trunk = trunk()
        self.cut = len(self.trunk) - layers
        self.trunk[: self.cut].requires_grad_(False)
        self.head = HEAD()

    def train(self, mode: bool = True) -> "Inside":
        super().train(mode)
        self.trunk[: self.cut].eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.trunk(x))
        return output


def trained(parameters: Any, lr: float) -> torch.optim.SGD:
    return torch.optim.SGD([weight for weight in parameters if weight.requires_grad], lr=lr, momentum=0.9)


def members(model: Any) -> list[argosy.Member]:
    return [
        argosy.Member(
            f"{layers}-{lr}",
            model=model(layers),
            optimizer=partial(trained, lr=lr),
            batch_size=20,
            metrics={"accuracy": argosy.accuracy},
        )
        for layers in CUTS
        for lr in RATES
    ]


def run(data: argosy.Data, fleet: list[argosy.Member], directory: Path, **options: Any) -> argosy.Report:
    study = argosy.Study(data=data, members=fleet, stop=argosy.MaxEpochs(3))
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", **options)


TRAIN, VAL = rows(90, seed=1), rows(30, seed=2)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> argosy.Report:
    """Report of one study of heads and of members that train the last two or five layers of the trunk."""
    data = argosy.Data(
        train=argosy.data.features(TRAIN, trunk(), unfreeze=CUTS),
        val=argosy.data.features(VAL, trunk(), unfreeze=CUTS),
    )
    fleet = members(lambda layers: partial(argosy.data.unfrozen, trunk(), layers, HEAD))
    return run(data, fleet, tmp_path_factory.mktemp("cut"))


def test_members_that_unfreeze_equal_those_with_the_trunk_inside(report: argosy.Report, tmp_path: Path) -> None:
    inside = run(argosy.Data(train=TRAIN, val=VAL), members(lambda layers: partial(Inside, layers)), tmp_path)
    for row in inside.rows:
        wanted, found = (one.member(row.name).load() for one in (inside, report))
        with torch.no_grad():
            torch.testing.assert_close(whole(found)(VAL[:][0]), wanted(VAL[:][0]), atol=1e-10, rtol=1e-10)
        for one, other in zip(
            [*found.tail.state_dict().values(), *found.head.state_dict().values()],
            [*wanted.trunk[wanted.cut :].state_dict().values(), *wanted.head.state_dict().values()],
            strict=True,
        ):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)
        assert report.member(row.name).metrics == pytest.approx(row.metrics, abs=1e-10)
    trunk_of_two = report.member(f"2-{RATES[1]}").load().tail
    assert not torch.equal(trunk_of_two[0].weight, trunk()[4].weight), "the last two layers were not trained"


def whole(network: Any) -> nn.Module:
    """Return the network that a member trained, with the frozen layers below it."""
    below = copy.deepcopy(trunk())[: len(trunk()) - len(network.tail)]
    return nn.Sequential(*below, network).eval()


@pytest.mark.parametrize(
    ("keep", "options", "times"),
    [(True, {}, 1 / 3), (False, {}, 1.0), (True, {"keep_bytes": 1000}, 1.0)],
    ids=["kept", "not kept", "without room"],
)
def test_the_trunk_runs_once_for_all_members(keep: bool, options: Any, times: float, tmp_path: Path) -> None:
    given = argosy.data.features(rows(90, seed=len(options)), trunk(), unfreeze=CUTS)
    fleet = members(lambda layers: partial(argosy.data.unfrozen, trunk(), layers, HEAD))
    assert run(argosy.Data(train=given, keep=keep), fleet, tmp_path, **options).preparations == pytest.approx(
        times, abs=0.05
    )


def test_they_predict_are_exported_and_are_an_ensemble(report: argosy.Report, tmp_path: Path) -> None:
    given = argosy.data.features(VAL, trunk(), unfreeze=CUTS)
    name = f"2-{RATES[0]}"
    with torch.no_grad():
        wanted = whole(report.member(name).load())(VAL[:][0])
    found = report.predict(given, report.member(name).load())
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    ensemble = report.ensemble()
    assert len(ensemble.names) == len(CUTS) * len(RATES)
    torch.testing.assert_close(
        report.predict(given, ensemble), report.predict(network=ensemble), atol=1e-12, rtol=1e-12
    )
    with pytest.raises(
        RunError, match=r"inputs of shape \[12\], but .* Pass .*features\(samples, trunk, unfreeze=\(0, 2, 5\)\)"
    ):
        report.predict(VAL[:][0])
    with pytest.raises(RunError, match="unfreeze"):
        report.predict(argosy.data.features(VAL, trunk()))
    folder = report.export(tmp_path, name, format="torch-export")
    about = json.loads((folder / "config.json").read_text())
    assert ([leaf["shape"] for leaf in about["inputs"]], about["trunk"]) == ([["batch", 16]], "Sequential[:-2]")
    below = trunk()[:4].eval()(VAL[:][0]).detach()
    torch.testing.assert_close(torch.export.load(folder / "model.pt2").module()(below), wanted)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(StudyError, match="the trunk is a Linear, which cannot be cut into layers"):
        argosy.data.features(TRAIN, nn.Linear(12, 3), unfreeze=(1,))
    with pytest.raises(StudyError, match="7 layers are to be unfrozen, but the trunk has 6"):
        argosy.data.unfrozen(trunk(), 7, HEAD)
