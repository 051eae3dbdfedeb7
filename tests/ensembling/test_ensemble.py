"""An ensemble of a run's members: it is worth more than the best of them, and says what they say."""

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import studies
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import Adam

import argosy
from argosy.ensembling.ensemble import Ensemble
from argosy.ensembling.scores import class_scores


def digits() -> tuple[Tensor, Tensor]:
    """The real ones, 1797 of them, in an order of no meaning."""
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(x))
    return torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])


X, Y = digits()
TRAIN, VAL, TEST = slice(0, 600), slice(600, 900), slice(900, 1797)


def cnn(width: int) -> nn.Module:
    """Two convolutions: small networks that seeds make different."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(9 * width, 10),
    )


def member(name: str, width: int = 8, **rest: object) -> argosy.Member:
    """One network for digits."""
    optimizer = partial(Adam, lr=0.01)
    given = {"model": partial(cnn, width), "metrics": {"accuracy": argosy.accuracy}, **rest}
    return argosy.Member(name, optimizer=optimizer, batch_size=32, **given)


def trained(
    directory: Path, members: list[argosy.Member], *, data: argosy.Data | None = None, epochs: int = 8
) -> argosy.Report:
    """Train them in this process."""
    data = data or argosy.Data(arrays=(X[TRAIN], Y[TRAIN]), val_arrays=(X[VAL], Y[VAL]))
    study = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(epochs))
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> argosy.Report:
    """Of five seeds of one network and one wider network."""
    members = [*argosy.replicate(member("narrow"), seeds=5), member("wide.r", 10)]
    return trained(tmp_path_factory.mktemp("run"), members)


def test_an_ensemble_beats_its_best_member_on_digits_that_nobody_has_seen(report: argosy.Report) -> None:
    best = class_scores(report.predict(X[TEST]).softmax(dim=1), Y[TEST])
    for way in ({}, {"top": 5}, {"select": "greedy"}, {"calibrate": True, "combine": "logits"}):
        found = class_scores(report.predict((X[TEST], Y[TEST]), report.ensemble(**way)), Y[TEST])
        assert found["accuracy"] > best["accuracy"], way
        assert found["nll"] < best["nll"], way


def test_scores_are_those_of_the_run_and_of_the_ensemble(report: argosy.Report) -> None:
    ensemble = report.ensemble(top=4)
    own, *alone = ensemble.scores
    assert [row["network"] for row in alone] == [row.name for row in report.rows[:4]]
    for row in alone:
        metrics = report.member(row["network"]).metrics
        assert row["accuracy"] == pytest.approx(metrics["val_accuracy"])
        assert row["nll"] == pytest.approx(metrics["val_loss"], rel=1e-5)
    found = class_scores(ensemble(X[VAL]), Y[VAL])
    assert {name: own[name] for name in found} == pytest.approx(found, rel=1e-5)
    assert 0.0 < own["disagreement"] < 0.3


def test_greedy_selection_and_temperatures_are_in_the_module(report: argosy.Report) -> None:
    ensemble = report.ensemble(select="greedy", calibrate=True)
    own, *alone = ensemble.scores
    assert own["nll"] <= min(row["nll"] for row in alone)
    weights = {row["network"]: row["weight"] for row in alone if row["weight"]}
    assert weights == pytest.approx(dict(zip(ensemble.names, ensemble.weights.tolist(), strict=True)))
    assert ensemble.temperatures.tolist() != [1.0] * len(ensemble.names)
    found = class_scores(ensemble(X[VAL]), Y[VAL])
    assert {name: own[name] for name in found} == pytest.approx(found, rel=1e-5)


def test_an_ensemble_is_saved_as_plain_data_and_built_again(report: argosy.Report, tmp_path: Path) -> None:
    ensemble = report.ensemble(select="greedy", calibrate=True)
    ensemble.save(tmp_path / "ensemble.pt")
    again = Ensemble.load(tmp_path / "ensemble.pt", [member("wide.r", 10), *argosy.replicate(member("narrow"))])
    assert torch.equal(again(X[TEST]), ensemble(X[TEST]))
    assert again.scores == ensemble.scores
    plain = torch.load(tmp_path / "ensemble.pt", weights_only=True)["networks"]
    best = report.best()
    assert torch.equal(plain[best.name]["1.weight"], best.load()[1].weight)


def test_an_ensemble_is_exported(report: argosy.Report) -> None:
    ensemble = report.ensemble(top=2)
    program = torch.export.export(ensemble, (X[:8],))
    torch.testing.assert_close(program.module()(X[8:16]), ensemble(X[8:16]))


def test_a_prediction_is_what_the_network_says_and_touches_no_random_state(report: argosy.Report) -> None:
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    network = report.best().load()
    with torch.no_grad():
        expected = network(X[VAL])
    for samples in (None, X[VAL], X[VAL].numpy(), (X[VAL],), (X[VAL], Y[VAL])):
        torch.testing.assert_close(report.predict(samples, network), expected)
    torch.testing.assert_close(report.predict(), expected)
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])


class Projected(nn.Module):
    """Looks at samples through what it has drawn, which its ``state_dict`` does not hold, and fills a buffer when it sees the first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(64, 16) / 4, persistent=False)
        self.register_buffer("scale", None)
        self.shift = np.random.rand()
        self.layer = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = torch.full((1,), 2.0)
        return self.layer(x @ self.projection * self.scale + self.shift)


def test_a_network_is_built_again_under_the_seed_that_it_was_trained_with(tmp_path: Path) -> None:
    seeded = {"one": None, "two": 5}
    members = [member(name, model=Projected, seed=seed) for name, seed in seeded.items()]
    report = trained(tmp_path, members, epochs=1)
    ensemble = report.ensemble()
    for row in ensemble.scores[1:]:
        metrics = report.member(row["network"]).metrics
        assert (row["accuracy"], row["nll"]) == pytest.approx((metrics["val_accuracy"], metrics["val_loss"]), rel=1e-5)
    ensemble.save(tmp_path / "ensemble.pt")
    assert torch.equal(Ensemble.load(tmp_path / "ensemble.pt", members)(X[TEST]), ensemble(X[TEST]))


def test_an_ensemble_of_networks_from_elsewhere_is_saved_as_well(tmp_path: Path) -> None:
    networks = {"one": cnn(8), "two": cnn(8)}
    ensemble = Ensemble(networks, combine="logits", weights=[0.5, 0.5], temperatures=[1.0, 1.0])
    ensemble.save(tmp_path / "ensemble.pt")
    again = Ensemble.load(tmp_path / "ensemble.pt", [member(name) for name in networks])
    assert torch.equal(again(X[TEST]), ensemble(X[TEST]))


class Double(nn.Module):
    """Computes in float64, whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.double())


def test_predictions_of_folds_have_the_dtype_of_the_networks(tmp_path: Path) -> None:
    folds = argosy.kfold(member("double", model=Double), 3, samples=600)
    every = (X[TRAIN], Y[TRAIN])
    report = trained(tmp_path, folds, data=argosy.Data(arrays=every, val_arrays=every), epochs=1)
    found = report.out_of_fold("double")
    assert found.dtype == torch.float64
    fold = folds[0]
    assert torch.equal(found[fold.val_subset], report.predict(X[fold.val_subset], report.member(fold.name).load()))


class Counted(studies.Vectors):
    """Counts how often samples are prepared."""

    prepared = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        Counted.prepared += 1
        return super().__getitem__(index)


def doubled(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """What is done on the device, once for all."""
    return batch[0] * 2, batch[1]


def test_a_dataset_is_prepared_once_for_all_members_as_in_the_run(tmp_path: Path) -> None:
    data = argosy.Data(train=studies.Vectors(120), val=Counted(300), on_device=doubled)
    members = [studies.member(name, hidden=hidden) for name, hidden in (("one", 16), ("two", 8))]
    report = trained(tmp_path, members, data=data, epochs=1)
    Counted.prepared = 0
    _, *alone = report.ensemble().scores
    assert 300 <= Counted.prepared < 320, "a few are looked at beforehand"
    for row in alone:
        metrics = report.member(row["network"]).metrics
        assert row["accuracy"] == pytest.approx(metrics["val_accuracy"])
        assert row["nll"] == pytest.approx(metrics["val_loss"], rel=1e-5)


def line(width: int) -> nn.Module:
    """A network of one number."""
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))


def test_an_ensemble_of_numbers_has_a_mean_and_a_spread(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(240, 3, generator=generator)
    y = x.sum(dim=1, keepdim=True).sin()
    data = argosy.Data(arrays=(x[:120], y[:120]), val_arrays=(x[120:], y[120:]))
    wave = argosy.Member(
        "wave", model=partial(line, 8), optimizer=partial(Adam, lr=0.02), batch_size=20, loss=nn.MSELoss()
    )
    report = trained(tmp_path, argosy.replicate(wave, seeds=4), data=data)
    ensemble = report.ensemble(select="greedy")
    own, *alone = ensemble.scores
    assert own["rmse"] <= min(row["rmse"] for row in alone)
    error = (report.predict(network=ensemble) - y[120:]).pow(2).mean().sqrt().item()
    assert own["rmse"] == pytest.approx(error, rel=1e-5)
    every = report.ensemble()
    said = torch.stack([report.member(name).load()(x) for name in every.names])
    torch.testing.assert_close(every(x), said.mean(dim=0))
    torch.testing.assert_close(every.variance(x), said.var(dim=0, unbiased=False))
    assert torch.equal(every.quantiles(x, [0.0, 1.0]), torch.stack([said.amin(dim=0), said.amax(dim=0)]))


def test_members_of_folds_are_one_ensemble_of_which_nobody_knows_the_worth(tmp_path: Path) -> None:
    halves = range(150), range(150, 300)
    folds = [member(f"fold{number}", val_subset=half) for number, half in enumerate(halves)]
    ensemble = trained(tmp_path, folds, epochs=1).ensemble()
    assert ensemble.scores == ()
    assert ensemble(X[:3]).shape == (3, 10)
