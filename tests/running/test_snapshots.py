"""Tests snapshots: each equals the weights of a run that ended with its section, and an ensemble may use several of one member."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from living import run, state_of
from torch import nn

import argosy
from argosy import EMA, EnsemblePlateau, MaxEpochs
from argosy.ensembling.ensemble import Ensemble
from argosy.ensembling.select import How, negative_log_likelihood, select_weights
from argosy.training.member import checkpoint
from argosy.training.member.snapshots import MAX_SECTIONS, Snapshots, unstack_snapshots

EPOCHS = 4
VAL = (torch.randn(60, 12, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 10)


def study(snapshot_bytes: int = 4 * 2**20, epochs: int = EPOCHS, **rest: Any) -> argosy.Study:
    """Return a study validated on `VAL` whose ensemble ends no member before the last epoch."""
    rule = EnsemblePlateau(patience=20, snapshot_bytes=snapshot_bytes)
    wanted = studies.steered(**rest)
    return replace(
        wanted, ensemble=rule, stop=MaxEpochs(epochs), data=argosy.Data(train=wanted.data.train, val_arrays=VAL)
    )


def kept(directory: Path, name: str) -> dict[tuple[int, int], Mapping[str, torch.Tensor]]:
    """Return the snapshots in a member's newest checkpoint, by epoch and section."""
    saved = state_of(directory).member(name).saved[-1]
    return unstack_snapshots(checkpoint.load(directory / "members" / name / saved.file, saved.sha256)["snapshots"])


def last(directory: Path, name: str) -> dict[str, Any]:
    """Return a member's final weights."""
    saved = state_of(directory).member(name).saved[-1]
    found: dict[str, Any] = checkpoint.load(directory / "members" / name / saved.file, saved.sha256)["model"]
    return found


def equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the weights are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_they_are_the_last_ones_that_the_bytes_hold() -> None:
    found, weight = Snapshots(100), torch.zeros(10)  # 40 bytes
    for section in range(5):
        found.add((section, 0), {"weight": weight.fill_(section)})
    again = unstack_snapshots(found.stacked())
    for kept_here in (found.weights, again):
        assert {at: float(one["weight"][0]) for at, one in kept_here.items()} == {(3, 0): 3.0, (4, 0): 4.0}
    assert unstack_snapshots(Snapshots(100).stacked()) == unstack_snapshots(None) == {}
    many = Snapshots(2**20)
    for section in range(MAX_SECTIONS + 3):
        many.add((section, 1), {"weight": weight})
    assert list(many.weights) == [(section, 1) for section in range(3, MAX_SECTIONS + 3)]


@pytest.mark.parametrize(
    ("weights", "count"),
    [
        ({"weight": torch.zeros(10), "late": torch.zeros(1)}, 1),
        ({"weight": torch.zeros(9)}, 1),
        ({"weight": torch.zeros(10, dtype=torch.float16)}, 1),
        ({"weight": torch.zeros(26)}, 0),
        ({"weight": torch.zeros(10), "_extra_state": "of its own"}, 0),
        ({"weight": torch.zeros(10), "edges": torch.eye(2).to_sparse()}, 0),
    ],
)
def test_of_a_network_whose_state_has_changed_none_from_before_are_kept(weights: dict[str, Any], count: int) -> None:
    found = Snapshots(100)
    for section in range(2):
        found.add((section, 0), {"weight": torch.zeros(10)})
    found.add((2, 0), weights)
    assert len(found.weights) == count
    assert len(unstack_snapshots(found.stacked())) == count


def test_each_is_what_a_run_that_ended_there_has(tmp_path: Path) -> None:
    run(study(), tmp_path / "whole")
    for epochs in range(1, EPOCHS + 1):
        here = tmp_path / str(epochs)
        run(study(epochs=epochs), here)
        for name in study().names:
            assert equal(kept(tmp_path / "whole", name)[epochs - 1, 0], last(here, name)), (epochs, name)


@pytest.mark.parametrize("rest", [{}, {"average": EMA(0.5)}])
def test_in_programs_of_several_they_are_those_of_the_end_and_of_the_best_section(
    rest: dict[str, Any], tmp_path: Path
) -> None:
    report = run(study(**rest), tmp_path, numerics="equivalent", devices="cpu:1")
    for name in study().names:
        state, found = state_of(tmp_path).member(name), kept(tmp_path, name)
        assert state.best is not None
        assert equal(found[state.best.epoch, 0], report.member(name).load().state_dict())
        if not state.sections[-1].metrics.get("averaged"):
            assert equal(found[EPOCHS - 1, 0], last(tmp_path, name))


def test_with_an_average_each_is_what_the_section_was_judged_by(tmp_path: Path) -> None:
    wanted = study(average=EMA(0.5))
    run(wanted, tmp_path)
    found = set()
    for name in wanted.names:
        rows = state_of(tmp_path).member(name).sections
        for row in rows:
            network = wanted.member(name).model()
            network.load_state_dict(kept(tmp_path, name)[row.epoch, 0])
            with torch.no_grad():
                loss = nn.functional.cross_entropy(network.eval()(VAL[0]), VAL[1])
            assert float(loss) == pytest.approx(row.metrics["val_loss"], abs=1e-6)
            found.add(row.metrics["averaged"])
    assert found == {0.0, 1.0}


def test_a_run_that_goes_on_keeps_what_one_keeps_that_was_never_interrupted(tmp_path: Path) -> None:
    run(study(epochs=2), tmp_path / "two")
    run(study(), tmp_path / "two")
    run(study(), tmp_path / "whole")
    for name in study().names:
        one, other = kept(tmp_path / "two", name), kept(tmp_path / "whole", name)
        assert list(one) == list(other) == [(epoch, 0) for epoch in range(EPOCHS)]
        assert all(equal(one[at], other[at]) for at in one)


@pytest.mark.parametrize(("snapshot_bytes", "count"), [(0, 0), (10, 0), (None, 2)])
def test_so_many_are_kept_as_was_said(snapshot_bytes: int | None, count: int, tmp_path: Path) -> None:
    each = sum(tensor.nbytes for tensor in study().member("a").model().state_dict().values())
    report = run(study(2 * each + 1 if snapshot_bytes is None else snapshot_bytes), tmp_path)
    assert len(kept(tmp_path, "a")) == count
    report.ensemble(select="greedy")


@pytest.mark.parametrize("select", ["greedy", "bagged"])
def test_the_ensemble_is_a_choice_of_all_that_is_kept(select: How, tmp_path: Path) -> None:
    wanted = study()
    report = run(wanted, tmp_path)
    x, y = VAL
    names = [row.name for row in report.rows]  # bagging draws halves of these names in the order of the table
    networks = {name: report.member(name).load() for name in names}
    best = {name: state_of(tmp_path).member(name).best for name in names}
    for name, epoch in itertools.product(names, range(EPOCHS)):
        if best[name].epoch == epoch:  # type: ignore[union-attr]
            continue
        network = wanted.member(name).model()
        network.load_state_dict(kept(tmp_path, name)[epoch, 0])
        networks[f"{name}@{epoch + 1}"] = network.eval()
    with torch.no_grad():
        terms = torch.stack([n(x).double().softmax(1).gather(1, y[:, None])[:, 0] for n in networks.values()])
    weights = dict(zip(networks, select_weights(terms, negative_log_likelihood, select), strict=True))
    ensemble = report.ensemble(select=select)
    assert dict(zip(ensemble.names, ensemble.weights.tolist(), strict=True)) == pytest.approx(
        {name: weight for name, weight in weights.items() if weight}
    )
    assert any("@" in name for name in ensemble.names)
    ensemble.save(tmp_path / "ensemble.pt")
    with torch.no_grad():
        assert torch.equal(Ensemble.load(tmp_path / "ensemble.pt", wanted.members)(x), ensemble(x))
    alone = report.ensemble(select=select, snapshots=False)
    assert not any("@" in name for name in alone.names)
    if select == "greedy":
        of_all, of_best = (made.scores[0]["nll"] for made in (ensemble, alone))
        assert of_all <= of_best


@pytest.mark.parametrize(
    "asked", [{"combine": "votes"}, {"combine": "logits"}, {"calibrate": True}, {"snapshots": False}]
)
def test_otherwise_it_is_a_choice_of_best_sections(asked: dict[str, Any], tmp_path: Path) -> None:
    report = run(study(), tmp_path)
    assert any("@" in name for name in report.ensemble(select="greedy").names)
    assert not any("@" in name for name in report.ensemble(select="greedy", **asked).names)


def test_where_the_newest_file_is_gone_they_are_of_the_one_before(tmp_path: Path) -> None:
    report = run(study(), tmp_path, checkpoint_seconds=0.0)
    for name in study().names:
        newest = state_of(tmp_path).member(name).saved[-1]
        if newest.best != newest.file:
            (tmp_path / "members" / name / newest.file).unlink()
    found = {name for name in report.ensemble(select="greedy").names if "@" in name}
    assert found and not any(name.endswith(f"@{EPOCHS}") for name in found)


def test_numbers_are_chosen_by_their_squared_error(tmp_path: Path) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    members = [
        argosy.Member(
            name,
            model=partial(nn.Linear, 4, 1),
            optimizer=partial(torch.optim.SGD, lr=rate),
            batch_size=16,
            loss=nn.MSELoss(),
        )
        for name, rate in (("a", 0.3), ("b", 0.1))
    ]
    data = argosy.Data(arrays=(x, x[:, :1]), val_arrays=(x[:32], x[:32, :1]))
    report = run(
        argosy.Study(data=data, members=members, stop=MaxEpochs(3), ensemble=EnsemblePlateau(patience=20)), tmp_path
    )
    found = report.ensemble(select="greedy")
    with torch.no_grad():
        loss = float((found(x[:32]) - x[:32, :1]).pow(2).mean())
    assert loss <= min(row.metrics["val_loss"] for row in report.rows) * (1 + 1e-6)
