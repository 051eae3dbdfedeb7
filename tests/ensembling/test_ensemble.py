"""Tests that an ensemble of a run's members scores better than the best of them, and combines exactly what they predict."""

import copy
import io
import json
import random
import re
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR

import argosy
from argosy.ensembling.ensemble import Ensemble
from argosy.ensembling.making import check_classes_first
from argosy.ensembling.predict import Predicted
from argosy.ensembling.scores import class_scores
from argosy.errors import DiskError, RunError, StudyError


def digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's 1797 digits and their labels, shuffled."""
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(x))
    return torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])


X, Y = digits()
TRAIN, VAL, TEST = slice(0, 600), slice(600, 900), slice(900, 1797)


def cnn(width: int) -> nn.Module:
    """Return a network with two convolutions, small enough that seeds make a difference."""
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
    """Return a member for digits."""
    optimizer = partial(Adam, lr=0.01)
    given = {"model": partial(cnn, width), "metrics": {"accuracy": argosy.accuracy}, **rest}
    return argosy.Member(name, optimizer=optimizer, batch_size=32, **given)


def study_of(members: list[argosy.Member], epochs: int, data: argosy.Data | None = None) -> argosy.Study:
    """Return a study of digits, unless other data are given."""
    data = data or argosy.Data(arrays=(X[TRAIN], Y[TRAIN]), val_arrays=(X[VAL], Y[VAL]))
    return argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(epochs))


def trained(
    directory: Path, members: list[argosy.Member], *, data: argosy.Data | None = None, epochs: int = 8
) -> argosy.Report:
    """Train the members in this process."""
    study = study_of(members, epochs, data)
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> argosy.Report:
    """Report of a run of five seeds of one network and one wider network."""
    members = [*argosy.replicate(member("narrow"), seeds=5), member("wide.r", 10)]
    return trained(tmp_path_factory.mktemp("run"), members)


def test_an_ensemble_beats_its_best_member_on_digits_that_no_member_has_seen(report: argosy.Report) -> None:
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
    ensemble.save(tmp_path / "new" / "ensemble.pt")
    with pytest.raises(DiskError, match=r"cannot write .*again\.pt; .* File exists"):
        ensemble.save(tmp_path / "new" / "ensemble.pt" / "again.pt")
    again = Ensemble.load(tmp_path / "new" / "ensemble.pt", [member("wide.r", 10), *argosy.replicate(member("narrow"))])
    assert torch.equal(again(X[TEST]), ensemble(X[TEST]))
    assert again.scores == ensemble.scores
    plain = torch.load(tmp_path / "new" / "ensemble.pt", weights_only=True)["networks"]
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
    """A network that depends on random numbers that its ``state_dict`` does not hold, and that fills a buffer in its first forward pass."""

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


def test_a_member_whose_best_weights_are_not_saved_yet_is_loaded_with_a_warning(tmp_path: Path) -> None:
    first = trained(tmp_path, [member("net")], epochs=1).best().metrics
    second = trained(tmp_path, [member("net")], epochs=2).best().metrics
    assert second["val_loss"] < first["val_loss"]
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if '"SectionEnded"' in line)
    journal.write_text(
        "".join(f"{line}\n" for line in lines[: last + 1])
    )  # as if the driver had been killed at this moment
    report = argosy.load(tmp_path, study=study_of([member("net")], 2))
    assert report.best().metrics == second
    said = (
        f"the best saved weights are from epoch 1, with val_loss {first['val_loss']:.4g}; the weights of epoch 2, with "
        f"{second['val_loss']:.4g}, are not saved yet"
    )
    with pytest.warns(UserWarning, match=said) as warned:
        report.best().load()
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match=said):
        folder = report.export(tmp_path / "exported", "net")
    config = json.loads((folder / "config.json").read_text())
    assert (config["epochs"], config["figures"]) == (1, first)


def test_an_export_says_after_which_part_of_an_epoch_its_weights_were_best(tmp_path: Path) -> None:
    rates = partial(LambdaLR, lr_lambda=lambda step: 1.0 if step < 9 else 1000.0)
    study = study_of([member("net", schedule=rates, schedule_per="step")], 1)
    study = replace(study, validations_per_epoch=2)
    report = argosy.train(study, directory=tmp_path / "run", launcher="inline", devices="cpu:1")
    assert [ended.best for ended in report.best().sections] == [True, False]
    folder = report.export(tmp_path / "exported", "net", format="hub")
    assert json.loads((folder / "config.json").read_text())["epochs"] == 0.5
    assert "after 0.5 epochs:" in (folder / "README.md").read_text()


def made(activation: Any, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(12, width), activation(), nn.Linear(width, 10))


def test_a_network_that_has_changed_since_it_was_trained_is_loaded_with_a_warning(tmp_path: Path) -> None:
    def study(activation: Any, width: int = 8) -> argosy.Study:
        return studies.study(fleet=[studies.member("m", model=lambda: made(activation, width))])

    argosy.train(study(nn.ReLU), directory=tmp_path, launcher="inline")
    argosy.load(tmp_path, study=study(nn.ReLU)).member("m").load()
    with pytest.warns(UserWarning) as told:
        argosy.load(tmp_path, study=study(nn.Tanh)).member("m").load()
    (warning,) = told
    assert warning.filename == __file__
    assert re.fullmatch(
        r"member 'm': its network has changed since it was trained \(model: .*<lambda> changed since the run began\), but it has the "
        r"old weights, so its outputs may differ from the report's\. Load it with the original study\.",
        str(warning.message),
    )


def counted(config: dict[str, int]) -> nn.Module:
    config["built"] = config.get("built", 0) + 1  # as configurations of Hugging Face do
    return made(nn.ReLU, config["width"])


def test_what_building_a_network_fills_in_is_no_change(tmp_path: Path) -> None:
    def study() -> argosy.Study:
        config = {"width": 8}
        return studies.study(fleet=[studies.member(name, model=lambda: counted(config)) for name in "ab"])

    report = argosy.train(study(), directory=tmp_path, launcher="inline")
    for found in (report, argosy.load(tmp_path, study=study())):
        for name in "ab":
            found.member(name).load()


def test_a_member_is_given_by_its_name_or_as_the_report_has_it(report: argosy.Report, tmp_path: Path) -> None:
    row = report.member("wide.r")
    wanted = report.predict(X[TEST], row.load())
    for given in ("wide.r", row):
        assert torch.equal(report.predict(X[TEST], given), wanted)
        folder = report.export(tmp_path / "exported", given)
        assert json.loads((folder / "config.json").read_text())["figures"] == row.metrics
        assert report.ensemble(members=[given]).names == ("wide.r",)
        taught = argosy.distill(report, member("student"), teacher=given).data.train
        assert torch.equal(taught[3][1][1], report.predict(X[TRAIN], row.load())[3])
    other = trained(tmp_path / "other", [member("wide.r")], epochs=1)
    with pytest.raises(RunError, match=r"belongs to the run in .*other, but this report is of"):
        report.predict(X[TEST], other.best())


class Counting(nn.Module):
    """A network whose state begins with something that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.passes = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"passes": self.passes}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        output: Tensor = self.last(x)
        return output


def test_a_network_whose_state_holds_more_than_tensors_predicts(tmp_path: Path) -> None:
    report = trained(tmp_path, [member("counting", model=Counting)], epochs=1)
    network = report.best().load()
    assert network.passes
    assert torch.equal(report.predict(X[TEST]), network(X[TEST]))
    assert report.ensemble().scores


class Undefined(nn.Linear):
    """A network that trains normally, and returns NaN when it is validated."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if self.training else torch.nan)


def test_a_member_without_a_number_as_its_objective_is_in_an_ensemble_only_where_it_is_named(tmp_path: Path) -> None:
    undefined = member("undefined", model=partial(Undefined, 64, 10))
    members = [member("a"), undefined, *argosy.replicate(replace(undefined, name="bad"), 1)]
    report = trained(tmp_path, members, epochs=1)
    assert {row.status for row in report.rows} == {"done"}
    assert report.ensemble().names == ("a",)
    with pytest.raises(RunError, match=r"2 members, but only 1 of .* have a val_loss that counts"):
        report.ensemble(top=2)
    with pytest.raises(RunError, match="one or more members, but only 0 of"):
        report.ensemble(members=["bad"])
    found = report.ensemble(members="undefined")
    assert (found.names, found.scores[0]["accuracy"]) == (("undefined",), 0.0)


def test_an_ensemble_of_networks_from_elsewhere_is_saved_as_well(tmp_path: Path) -> None:
    networks = {"one": cnn(8), "two": cnn(8)}
    ensemble = Ensemble(networks, combine="logits", weights=[0.5, 0.5], temperatures=[1.0, 1.0])
    ensemble.save(tmp_path / "ensemble.pt")
    again = Ensemble.load(tmp_path / "ensemble.pt", [member(name) for name in networks])
    assert torch.equal(again(X[TEST]), ensemble(X[TEST]))


class Scaling(nn.Linear):
    """A layer that scales its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


def test_networks_of_an_ensemble_may_write_into_their_inputs() -> None:
    networks, x = {name: Scaling(4, 3) for name in "abc"}, torch.randn(5, 4)
    ensemble, before = Ensemble(networks, combine="mean", weights=[1.0] * 3, temperatures=[1.0] * 3), x.clone()
    expected = torch.stack([network(x.clone()) for network in networks.values()])
    assert torch.equal(ensemble.outputs(x), expected)
    assert torch.equal(x, before)


class Sized(dict[str, Tensor]):
    """A batch with an attribute that its items do not give."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x=x)
        self.size = len(x)


class OfSized(nn.Linear):
    """A layer that reads this attribute."""

    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch["x"]) / batch.size


class Recurrent(nn.GRU):
    """A network of packed sequences."""

    def forward(self, sequences: Any) -> Any:
        return super().forward(sequences)[1][0]


def test_networks_of_an_ensemble_get_inputs_of_the_type_that_it_got() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 2, 4), torch.tensor([4, 2]))
    for kind, inputs in ((OfSized, Sized(torch.randn(5, 4))), (Recurrent, packed)):
        networks = {name: kind(4, 3) for name in "ab"}
        ensemble = Ensemble(networks, combine="mean", weights=[1.0] * 2, temperatures=[1.0] * 2)
        assert torch.equal(ensemble.outputs(inputs), torch.stack([one(inputs) for one in networks.values()]))


class Double(nn.Module):
    """A network that computes in float64, whatever it is given."""

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
    """A dataset that counts how often samples are prepared."""

    prepared = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        Counted.prepared += 1
        return super().__getitem__(index)


def doubled(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Double the inputs, as the study's `on_device`."""
    return batch[0] * 2, batch[1]


def test_a_dataset_is_prepared_once_for_all_members_as_in_the_run(tmp_path: Path) -> None:
    data = argosy.Data(train=studies.Vectors(120), val=Counted(300), on_device=doubled)
    members = [studies.member(name, hidden=hidden) for name, hidden in (("one", 16), ("two", 8))]
    report = trained(tmp_path, members, data=data, epochs=1)
    Counted.prepared = 0
    _, *alone = report.ensemble().scores
    assert 300 <= Counted.prepared < 320, "more than once for all members, beside a few probes"
    for row in alone:
        metrics = report.member(row["network"]).metrics
        assert row["accuracy"] == pytest.approx(metrics["val_accuracy"])
        assert row["nll"] == pytest.approx(metrics["val_loss"], rel=1e-5)


class Torn(studies.Vectors):
    """A dataset of which some samples raise, among them all of one batch of a prediction."""

    torn = frozenset({3, *range(256, 512)})

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index in self.torn:
            raise OSError("torn")
        return super().__getitem__(index)


def test_samples_that_raise_have_rows_of_their_own(tmp_path: Path) -> None:
    members = [studies.member("one"), studies.member("two", hidden=8)]
    data = argosy.Data(train=studies.Vectors(120), val=Torn(600), on_error="skip")
    report = trained(tmp_path, members, data=data, epochs=1)
    whole = report.predict(studies.Vectors(600))
    sound = [index for index in range(600) if index not in Torn.torn]
    with pytest.warns(UserWarning, match=r"257 of 600 samples to predict raised \(3, 256, 257, 258, 259 and others\)"):
        found = report.predict()
    assert torch.equal(found[sound], whole[sound])
    assert found[sorted(Torn.torn)].isnan().all()
    for row in report.ensemble().scores[1:]:
        assert row["nll"] == pytest.approx(report.member(row["network"]).metrics["val_loss"], rel=1e-5)
    raising = argosy.Study(data=replace(data, on_error="raise"), members=members)
    with pytest.raises(StudyError, match=r"^report\.predict: samples: sample 300 raised OSError: torn"):
        argosy.load(tmp_path, study=raising).predict(Torn(600))


def line(width: int) -> nn.Module:
    """Return a network that predicts one number."""
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


def test_an_ensemble_of_folds_is_scored_on_what_each_member_held_out(tmp_path: Path) -> None:
    every = (X[TRAIN], Y[TRAIN])
    folds = argosy.kfold(member("net"), 3, samples=600)
    report = trained(tmp_path, folds, data=argosy.Data(arrays=every, val_arrays=every), epochs=2)
    ensemble = report.ensemble(top=3)
    whole, *own = ensemble.scores
    assert (whole["network"], whole["weight"], whole["samples"]) == ("out of fold", None, 600)
    expected = class_scores(report.out_of_fold("net").softmax(dim=1), Y[TRAIN])
    assert {name: whole[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    for row in own:
        metrics = report.member(row["network"]).metrics
        assert (row["samples"], row["nll"]) == (200, pytest.approx(metrics["val_loss"], rel=1e-4))
    assert "so the ensemble itself has no score" in ensemble.note
    ensemble.save(tmp_path / "folds.pt")
    again = Ensemble.load(tmp_path / "folds.pt", folds)
    assert (again.note, again.scores) == (ensemble.note, ensemble.scores)
    assert ensemble(X[:3]).shape == (3, 10)


def of_tokens(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """A step of a network that classifies each token and has classes in the last dimension."""
    logits = model(batch[0])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten()), logits, batch[1]


@pytest.mark.parametrize("tokens", [8, 5])
@pytest.mark.parametrize("folds", [False, True])
def test_classes_behind_tokens_are_not_combined_as_if_tokens_were_classes(
    tmp_path: Path, tokens: int, folds: bool
) -> None:
    words = torch.randint(20, (80, tokens))
    tagger = member(
        "net", model=lambda: nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 5)), step=of_tokens, metrics={}
    )
    members = argosy.kfold(tagger, 2, samples=80) if folds else argosy.replicate(tagger, 2)
    every = (words, words % 5)
    report = trained(tmp_path, members, data=argosy.Data(arrays=every, val_arrays=every), epochs=1)
    for combine in ("probabilities", "votes"):
        with pytest.raises(RunError, match="classes come last, as for tokens"):
            report.ensemble(combine=combine)


def test_as_many_classes_as_places_behind_them_are_known_by_the_loss() -> None:
    square = Predicted([torch.zeros(4, 5, 5)], torch.zeros(4, 5, dtype=torch.long), torch.arange(4), 4)
    check_classes_first(square, known=True)
    with pytest.raises(RunError, match="classes come last"):
        check_classes_first(square, known=False)


def exploding(epoch: int) -> float:
    """Return a factor for the learning rate that makes training diverge after the first epoch."""
    return 1e30 if epoch else 1.0


def test_a_fold_that_failed_predicts_nothing_out_of_fold(tmp_path: Path) -> None:
    every = (X[TRAIN], Y[TRAIN])
    folds = argosy.kfold(member("net"), 3, samples=600)
    folds[1] = replace(folds[1], schedule=partial(LambdaLR, lr_lambda=exploding))
    with pytest.warns(argosy.errors.MemberFailed):
        report = trained(tmp_path, folds, data=argosy.Data(arrays=every, val_arrays=every), epochs=3)
    assert report.member("net-fold=1").metrics, "the failed fold should have ended an epoch"
    with pytest.warns(
        UserWarning, match="1 of 3 members of 'net' have failed or diverged: net-fold=1; rows of samples"
    ) as warned:
        said = report.out_of_fold("net")
    assert warned[0].filename == __file__
    assert said.isnan().any(dim=1).nonzero().flatten().tolist() == folds[1].val_subset


def test_an_ensemble_says_why_it_has_no_scores(tmp_path: Path) -> None:
    unseen = trained(tmp_path / "unseen", [member("net")], data=argosy.Data(arrays=(X[TRAIN], Y[TRAIN])), epochs=1)
    assert unseen.ensemble().scores == ()
    assert unseen.ensemble().note == "no scores: the study has no validation samples"
    halves = [member(f"fold{number}", val_subset=half) for number, half in enumerate((range(150), range(150, 300)))]
    numbers = trained(tmp_path / "halves", halves, epochs=1).ensemble(combine="mean")
    assert numbers.scores == ()
    assert numbers.note.startswith("no scores: outputs of the members have shape (150, 10), but targets")
    assert trained(tmp_path / "halves", halves, epochs=1).ensemble().scores[0]["samples"] == 300


def test_logits_have_no_errors_of_numbers(tmp_path: Path) -> None:
    """Logits get no scores as numbers: their distance from targets 0 and 1 is large even if the network is sure and right."""
    data = argosy.Data(arrays=(X, X[:, :10].gt(0).float()), val_arrays=(X, X[:, :10].gt(0).float()))
    report = trained(tmp_path, [member("net", loss=nn.BCEWithLogitsLoss(), metrics={})], data=data, epochs=1)
    found = report.ensemble(combine="mean")
    assert (found.scores, found.note) == ((), "no scores: outputs are logits, but targets are not")
    assert torch.equal(found(X), report.best().load()(X))
    with pytest.raises(RunError, match="members with BCEWithLogitsLoss return logits"):
        report.ensemble(combine="mean", select="greedy")


def scaled(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Scale images in `on_device`, as the how-to does."""
    images, labels = batch
    return images.float() / 16, labels


class Bytes(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """A dataset of digits as bytes, with or without labels."""

    def __init__(self, *, labels: bool = True, named: bool = False) -> None:
        self.labels, self.named = labels, named

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> object:
        image, label = (X[index] * 16).byte(), int(Y[index])
        if self.named:
            return {"x": image, "labels": label} if self.labels else {"x": image}
        return (image, label) if self.labels else image


class ByName:
    """A dataset of digits in two named parts, with labels."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> object:
        return {"upper": X[index][:32], "lower": X[index][32:]}, int(Y[index])


class Halves(nn.Module):
    """A network that takes both parts by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, parts: dict[str, Tensor]) -> Tensor:
        return self.inner(torch.cat([parts["upper"], parts["lower"]], 1))


def test_arrays_are_predicted_by_their_names(tmp_path: Path) -> None:
    data = argosy.Data(train=ByName(), val=ByName())
    report = trained(tmp_path, [member("net", model=Halves)], data=data, epochs=1)
    parts = {"upper": X[:40, :32], "lower": X[:40, 32:].numpy()}
    wanted = report.predict(ByName())[:40]
    with_shape = ByName()
    with_shape.shape = 300, 2  # type: ignore[attr-defined]  # as a dataset of Hugging Face has
    torch.testing.assert_close(report.predict(with_shape)[:40], wanted)
    for samples in (parts, (parts,), (parts, Y[:40])):
        torch.testing.assert_close(report.predict(samples), wanted)
    with pytest.raises(StudyError, match="arrays have 39 and 40 rows"):
        report.predict({**parts, "lower": X[:39, 32:]})


def standardized(batch: Any, mean: torch.Tensor) -> Any:
    return batch[0] - mean, batch[1]


def test_what_on_device_holds_is_where_networks_predict(tmp_path: Path) -> None:
    on_device = partial(standardized, mean=X.mean(0))
    data = argosy.Data(arrays=(X, Y), val_arrays=(X, Y), on_device=on_device)
    report = trained(tmp_path, argosy.replicate(member("net"), 2), data=data, epochs=1)
    given = X[:4].to("meta")
    for network in (report.best().load(preprocess=True), report.ensemble(preprocess=True)):
        there = network.to("meta")
        assert there(given).is_meta
    for samples in (None, (X[:4], Y[:4])):
        with pytest.raises(NotImplementedError, match="copy out of meta"):  # the outputs, which have no values
            report.predict(samples, report.best().load().to("meta"))
    assert on_device.keywords["mean"].device.type == "cpu"


@pytest.mark.parametrize("arrays", [True, False])
def test_what_is_predicted_needs_no_target_for_on_device(tmp_path: Path, arrays: bool) -> None:
    images = (X * 16).byte()
    data = argosy.Data(arrays=(images[VAL], Y[VAL]), val_arrays=(images[VAL], Y[VAL]), on_device=scaled)
    if not arrays:
        data = argosy.Data(train=Bytes(), val=Bytes, on_device=scaled)
    report = trained(tmp_path, argosy.replicate(member("net"), 2), data=data, epochs=1)
    network, given = report.best().load(), images[:300]
    with torch.no_grad():
        said = network(X[:300])
    for samples in (
        given,
        (given,),
        given.numpy(),
        (given, Y[:300]),
        Bytes(labels=False),
        Bytes(),
        given[:2],
        given[:1],
    ):
        torch.testing.assert_close(report.predict(samples), said[: len(samples if hasattr(samples, "dtype") else said)])
    ready = report.best().load(preprocess=True)
    torch.testing.assert_close(ready(given), said)
    torch.testing.assert_close(report.predict(given, ready), said)
    program = torch.export.export(ready, (given[:8],))
    torch.testing.assert_close(program.module()(given[8:16]), said[8:16])
    plain, ensemble = report.ensemble(), report.ensemble(preprocess=True)
    together = plain(X[:300])
    assert plain.preparation is None
    for network in (plain, ensemble):
        torch.testing.assert_close(report.predict(given, network), together)
    torch.testing.assert_close(ensemble(given), together)
    assert ensemble.scores == plain.scores
    program = torch.export.export(ensemble, (given[:8],))
    torch.testing.assert_close(program.module()(given[8:16]), together[8:16])
    ensemble.save(tmp_path / "ensemble.pt")
    members = argosy.replicate(member("net"), 2)
    again = Ensemble.load(tmp_path / "ensemble.pt", members, preparation=ensemble.preparation)
    torch.testing.assert_close(again(given), together)
    with pytest.raises(argosy.ArgosyError, match="is an ensemble with preprocess=True"):
        Ensemble.load(tmp_path / "ensemble.pt", members)
    with pytest.raises(
        argosy.ArgosyError, match=r"have the structure \(·, ·, ·\), but Data.on_device takes the study's, \(·, ·\)"
    ):
        report.ensemble(preprocess=True)((given, given, given))


def by_name(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scale images of samples that are dicts; this reads the labels too."""
    return {"x": batch["x"].float() / 16, "labels": batch["labels"].clone()}


class Named(nn.Module):
    """A network for batches that are dicts; it ignores the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.layer(x)


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """A step for a batch that is a dict."""
    return nn.functional.cross_entropy(model(batch["x"]), batch["labels"])


def test_samples_that_are_dicts_need_no_labels_for_on_device(tmp_path: Path) -> None:
    data = argosy.Data(train=Bytes(named=True), val=Bytes(named=True), on_device=by_name)
    report = trained(tmp_path, [member("net", model=Named, step=loss_of, metrics={})], data=data, epochs=1)
    assert torch.equal(report.predict(Bytes(named=True, labels=False)), report.predict())


def test_what_on_device_fills_in_for_missing_labels_reaches_no_network(tmp_path: Path) -> None:
    data = argosy.Data(train=Bytes(named=True), val=Bytes(named=True), on_device=by_name)
    report = trained(tmp_path, [member("net", model=Named, step=loss_of, metrics={})], data=data, epochs=1)

    class Leaning(Named):
        """A network whose output depends on the labels if it is given any."""

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
            return super().forward(x) if labels is None else labels[:, None] + super().forward(x)

    network = Leaning().eval()
    without, whole = (Bytes(named=True, labels=labels) for labels in (False, True))
    with torch.no_grad():
        alone = network(X[:300])
    torch.testing.assert_close(report.predict(without, network), alone)
    torch.testing.assert_close(report.predict(whole, network), alone + Y[:300, None])
    ready = report.best().load(preprocess=True)
    named = {"x": (X[:8] * 16).byte()}
    torch.testing.assert_close(ready(named), report.predict(without)[:8])
    torch.testing.assert_close(torch.export.export(ready, (named,)).module()(named), ready(named))


def halved(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Scale images in place, with a global tensor as factor."""
    images, labels = batch
    images.div_(2, rounding_mode="floor")
    return images * FACTOR, labels


FACTOR = torch.tensor(1 / 8)
PREPARED = {
    "as in the how-to": lambda batch: (batch[0].float() / 16, batch[1]),
    "in place": halved,
    "bound": partial(lambda factor, batch: (batch[0] * factor, batch[1]), FACTOR),
    "labels computed too": lambda batch: (batch[0].float() / 16, batch[1] * 1 + batch[0][:, 0].long() * 0),
}
AFTERWARDS = {
    "torch.export": lambda network, x: torch.export.export(network, (x,)).module(),
    "torch.export, strict": lambda network, x: torch.export.export(network, (x,), strict=True).module(),
    "torch.jit.trace": lambda network, x: torch.jit.trace(network, (x,)),
    "copy.deepcopy": lambda network, x: copy.deepcopy(network),
    "torch.save": lambda network, x: saved_and_loaded(network),
}


def saved_and_loaded(network: nn.Module) -> nn.Module:
    """Return the network after saving and loading it."""
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def of_bytes(directory: Path, on_device: object, **rest: object) -> argosy.Report:
    """Train on digits as bytes, and return a report that is loaded anew, so that it has predicted nothing yet."""
    images = (X * 16).byte()
    data = argosy.Data(arrays=(images[TRAIN], Y[TRAIN]), val_arrays=(images[VAL], Y[VAL]), on_device=on_device)
    study = argosy.Study(data=data, members=[member("net", **rest)], stop=argosy.MaxEpochs(1))
    argosy.train(study, directory=directory, launcher="inline", devices="cpu:1")
    return argosy.load(directory, study=study)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")  # from torch 2.14 on a FutureWarning
@pytest.mark.parametrize("on_device", PREPARED.values(), ids=PREPARED)
def test_a_network_with_its_preparation_goes_anywhere_right_after_load(tmp_path: Path, on_device: object) -> None:
    images = (X[TEST] * 16).byte()
    first = of_bytes(tmp_path, on_device)
    said = first.predict(images[:20])
    for way, gone in AFTERWARDS.items():
        report = argosy.load(tmp_path, study=first.networks().study)
        for network, expected in (
            (report.best().load(preprocess=True), said),
            (report.ensemble(preprocess=True), said.softmax(dim=1)),
        ):
            given = images[:20].clone()
            torch.testing.assert_close(gone(network, images[:20])(given), expected, msg=way)
            torch.testing.assert_close(network(given), expected, msg=way)
            assert torch.equal(given, images[:20]), way


def test_images_that_are_scaled_already_are_doubted_where_the_study_has_bytes(tmp_path: Path) -> None:
    report = of_bytes(tmp_path, lambda batch: (batch[0] / 16, batch[1]))
    images = (X[TEST] * 16).byte()
    torch.testing.assert_close(report.predict(images.float()), report.predict(images))
    with pytest.warns(
        UserWarning, match=r"have fractions \(torch.float32\), but .* whole numbers .*\(torch.uint8\)"
    ) as told:
        report.predict(images / 255)
    assert len(told) == 1  # for several batches
    with pytest.raises(StudyError, match=r"^report\.predict: samples: sample 0 contains 'n' of type str"):
        report.predict("new.jpg")


def test_a_network_around_one_with_its_preparation_is_prepared_once(tmp_path: Path) -> None:
    images = (X[TEST] * 16).byte()
    report = of_bytes(tmp_path / "run", next(iter(PREPARED.values())))
    for network in (report.best().load(preprocess=True), report.ensemble(preprocess=True)):
        around = nn.Sequential(network, nn.Softmax(1))
        torch.testing.assert_close(report.predict(images[:20], around), around(images[:20]))
        folder = report.export(tmp_path / "exported", around, preprocess=True, format="torch-export")
        assert json.loads((folder / "config.json").read_text())["preprocessing"] is True
        loaded = torch.export.load(folder / "model.pt2").module()
        torch.testing.assert_close(loaded(images[:20]), around(images[:20]))


def test_a_saved_network_with_its_preparation_is_loaded_where_neither_run_nor_script_is(tmp_path: Path) -> None:
    factor = 1 / 16
    report = of_bytes(tmp_path / "run", lambda batch: (batch[0] * factor, batch[1]))
    images = (X[TEST] * 16).byte()
    torch.save(report.best().load(preprocess=True), tmp_path / "net.pt")
    torch.save(images, tmp_path / "images.pt")
    script = "import torch; network = torch.load('net.pt', weights_only=False); torch.save(network(torch.load('images.pt')), 'said.pt')"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    torch.testing.assert_close(torch.load(tmp_path / "said.pt"), report.predict(images), rtol=1e-4, atol=1e-5)


def test_a_preparation_that_cannot_be_saved_is_one_sentence(tmp_path: Path) -> None:
    lock = threading.Lock()
    network = of_bytes(tmp_path, lambda batch: (batch[0] / 16, batch[1] if lock else None)).best().load(preprocess=True)
    with pytest.raises(argosy.ArgosyError, match=r"Data.on_device cannot be saved with the network: .*lock"):
        saved_and_loaded(network)


def marked(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Replace the last pixel by the label, so that inputs depend on targets."""
    images, labels = batch
    return torch.cat([images[:, :-1] / 16, labels[:, None].float()], dim=1), labels


def test_inputs_that_are_made_of_labels_are_predicted_with_labels_alone(tmp_path: Path) -> None:
    report = of_bytes(tmp_path, marked)
    images, network = (X * 16).byte()[VAL], report.best().load()
    with torch.no_grad():
        said = network(marked((images, Y[VAL]))[0])
    torch.testing.assert_close(report.predict(), said)
    torch.testing.assert_close(report.predict((images, Y[VAL])), said)
    ready = report.best().load(preprocess=True)
    torch.testing.assert_close(ready((images, Y[VAL])), said)
    torch.testing.assert_close(torch.export.export(ready, ((images, Y[VAL]),)).module()((images, Y[VAL])), said)
    for predicted in (
        lambda: report.predict(images),
        lambda: report.predict(images, report.ensemble(preprocess=True)),
        lambda: ready(images),
        lambda: torch.export.export(ready, (images,)),
    ):
        with pytest.raises(
            argosy.ArgosyError, match=r"without a target, but Data.on_device also uses the target to make"
        ):
            predicted()


class Own(nn.Module):
    """A network that takes batches of one size only, because of a buffer, or of a view that would mix up other batches."""

    def __init__(self, size: int, *, view: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("state", torch.ones(size, 10))
        self.view = view

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x).view(len(self.state), -1)
        return made[:, :10] if self.view else made * self.state


@pytest.mark.parametrize("view", [False, True])
def test_a_network_that_takes_its_own_batch_size_alone_predicts(tmp_path: Path, view: bool) -> None:
    rest: dict[str, object] = {"drop_last": True, "metrics": {}}
    own = replace(member("own", model=partial(Own, 30, view=view), **rest), batch_size=30)
    members = [own, member("any", **rest)]
    report = trained(tmp_path, members, epochs=1)
    network = report.member("own").load()
    with torch.no_grad():
        said = network.layer(X)
    for samples in (slice(0, 1), slice(0, 29), slice(0, 30), slice(0, 301), slice(0, 800)):
        torch.testing.assert_close(report.predict(X[samples], network), said[samples])
    ensemble = report.ensemble()
    both = (said.softmax(dim=1) + report.predict(X, report.member("any").load()).softmax(dim=1)) / 2
    torch.testing.assert_close(report.predict(X, ensemble), both)


def test_a_network_that_takes_no_batch_of_the_study_is_one_sentence(tmp_path: Path) -> None:
    report = trained(tmp_path, [member("net")], epochs=1)
    for network, why in (
        (Own(7), r"raised RuntimeError.*"),
        (Own(7, view=True), r"returned a tensor of shape \(7, 10\)"),
    ):
        with pytest.raises(
            argosy.ArgosyError,
            match=rf"a network {why} for a batch of 14 samples, and also fails for validation batches of 32",
        ):
            report.predict(X[:14], network)
    with pytest.raises(
        argosy.ArgosyError, match=r"Each sample was \[64\] of float64: pass samples with the shapes and dtypes of"
    ):
        report.predict(X[:14].numpy().astype("float64"))


@pytest.mark.parametrize("ignored", [-100, 0, 255])
def test_padded_tokens_count_in_no_choice_and_no_score_of_an_ensemble(tmp_path: Path, ignored: int) -> None:
    y = torch.stack([Y, Y, torch.zeros_like(Y)], dim=1)
    y[::2, 1:] = ignored
    loss = None if ignored < 0 else nn.CrossEntropyLoss(ignore_index=ignored, reduction="none")
    data = argosy.Data(arrays=(X[:900], y[:900]), val_arrays=(X[VAL], y[VAL]))
    tagging = [
        member(name, metrics={}, loss=loss, model=partial(tagger, width)) for name, width in (("a", 8), ("b", 16))
    ]
    study = argosy.Study(data=data, members=tagging, stop=argosy.MaxEpochs(2), ensemble=argosy.EnsemblePlateau())
    report = argosy.train(study, directory=tmp_path, launcher="inline", quiet=True)
    known = y[VAL] != ignored
    for combine in ("probabilities", "logits", "votes"):
        ensemble = report.ensemble(select="greedy", combine=combine, calibrate=True)
        with torch.no_grad():
            said = ensemble(X[VAL])
        assert ensemble.scores[0]["accuracy"] == pytest.approx(float((said.argmax(1) == y[VAL])[known].double().mean()))
    ensemble = report.ensemble()
    with torch.no_grad():
        mean = functional.nll_loss(ensemble(X[VAL]).log(), y[VAL], ignore_index=ignored)
    assert ensemble.scores[0]["nll"] == pytest.approx(float(mean), abs=1e-5)


def tagger(width: int) -> nn.Module:
    """Return a network that classifies three tokens, with classes in dimension 1."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 30), nn.Unflatten(1, (10, 3)))
