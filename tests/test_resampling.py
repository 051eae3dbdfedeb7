"""Tests of folds and bootstraps: how they divide samples, that they share one stream, and what they predict for held-out samples."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import pytest
import studies
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.model_selection import RepeatedKFold, StratifiedGroupKFold, TimeSeriesSplit
from torch.utils.data import Dataset

import argosy
from argosy.errors import StudyError
from argosy.results.bands import Band
from argosy.results.fold import RunState
from argosy.results.intervals import Interval, t_quantile
from argosy.results.repetitions import Repetitions
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import read_journal
from argosy.running.directory.study_json import describe, ranges_of
from argosy.stream.opening import open_sources
from argosy.study import Repetition


def fold_of_each(members: list[argosy.Member], samples: int) -> np.ndarray:
    """Return the fold that holds out each sample; asserts that only the others train on it."""
    fold = np.full(samples, -1)
    for number, member in enumerate(members):
        assert (fold[member.val_subset] == -1).all()
        fold[member.val_subset] = number
        assert sorted([*member.subset, *member.val_subset]) == list(range(samples))
    assert (fold >= 0).all()
    return fold


@given(st.integers(2, 7), st.integers(7, 60), st.integers(0, 2**40))
def test_every_sample_is_held_out_once(folds: int, samples: int, seed: int) -> None:
    members = argosy.kfold(studies.member("a"), folds, samples=samples, seed=seed)
    sizes = np.bincount(fold_of_each(members, samples), minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    again = argosy.kfold(studies.member("a"), folds, samples=samples, seed=seed)
    assert [member.subset for member in again] == [member.subset for member in members]


@pytest.mark.parametrize(
    "splitter",
    [TimeSeriesSplit(3), StratifiedGroupKFold(3), RepeatedKFold(n_splits=3, n_repeats=2, random_state=0)],
    ids=repr,
)
def test_folds_of_a_splitter_are_its_own(splitter: Any) -> None:
    y, groups = np.arange(24) % 3, np.arange(24) // 2 if isinstance(splitter, StratifiedGroupKFold) else None
    pairs = [*splitter.split(y, y, groups)]
    members = argosy.kfold(studies.member("a"), splitter.split(y, y, groups))
    assert [(member.subset, member.val_subset) for member in members] == [
        (train.tolist(), val.tolist()) for train, val in pairs
    ]
    assert [member.name for member in members] == [f"a-fold={fold}" for fold in range(len(pairs))]
    assert [member.repetition.overlap for member in members] == [len(val) / len(train) for train, val in pairs]
    tensors = argosy.kfold(studies.member("a"), [(torch.tensor(train), torch.tensor(val)) for train, val in pairs])
    assert [(member.subset, member.val_subset) for member in tensors] == [
        (member.subset, member.val_subset) for member in members
    ]


@pytest.mark.parametrize("folds", [5.0, np.int64(5), None, TimeSeriesSplit(5)], ids=repr)
def test_folds_that_are_neither_a_number_nor_pairs_are_not_called_pairs(folds: Any) -> None:
    with pytest.raises(StudyError, match="it must be an int of at least 2, or pairs of training and validation"):
        argosy.kfold(studies.member("a"), folds, samples=60)


def test_a_fold_without_samples_is_not_told_to_take_all() -> None:
    with pytest.raises(StudyError, match=r"validation is empty\. Pass the indices of at least one sample\.$"):
        argosy.kfold(studies.member("a"), [([0, 1], [2]), ([0, 1, 2], [])])


@pytest.mark.parametrize(
    "members",
    [argosy.kfold(studies.member("a"), 4, samples=4000), argosy.bootstrap(studies.member("a"), 4, samples=4000)],
    ids=["folds", "bootstraps"],
)
def test_millions_of_indices_are_there_once_for_all_members_and_described_as_ranges(
    members: list[argosy.Member],
) -> None:
    every = [[*member.subset, *member.val_subset] for member in members]
    assert len({id(index) for index in itertools.chain(*every)}) == 4000
    for member in members:
        described = describe(member, None)
        for field in ("subset", "val_subset"):
            indices, text = getattr(member, field), described[field]
            assert [*itertools.chain(*ranges_of(text))] == indices
            assert describe(replace(member, **{field: torch.tensor(indices)}), None)[field] == text
            assert len(text) <= len(json.dumps(indices))


def test_folds_in_an_earlier_study_json_are_read_as_lists(tmp_path: Path) -> None:
    fleet = argosy.kfold(studies.member("a"), 2, samples=40)
    study = studies.study(40, val=40, fleet=fleet, epochs=1)
    argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1", quiet=True)
    path = tmp_path / "study.json"
    now = json.loads(path.read_text())
    for member in fleet:
        now["members"][member.name].update(subset=member.subset, val_subset=member.val_subset)
    path.write_text(json.dumps(now))
    assert argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1", quiet=True).status == "done"
    assert audit(tmp_path) == []


@given(st.integers(2, 5), st.lists(st.integers(5, 12), min_size=1, max_size=6))
def test_folds_get_equal_shares_of_each_label(folds: int, counts: list[int]) -> None:
    labels = np.random.RandomState(0).permutation(np.repeat([f"label {n}" for n in range(len(counts))], counts))
    fold = fold_of_each(argosy.kfold(studies.member("a"), folds, stratify=list(labels)), len(labels))
    for label in np.unique(labels):
        sizes = np.bincount(fold[labels == label], minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= 1


@given(st.integers(2, 5), st.lists(st.integers(1, 12), min_size=5, max_size=20))
def test_no_group_is_in_two_folds(folds: int, counts: list[int]) -> None:
    groups = torch.tensor(np.random.RandomState(0).permutation(np.repeat(np.arange(len(counts)), counts)))
    fold = fold_of_each(argosy.kfold(studies.member("a"), folds, groups=groups), len(groups))
    for group in range(len(counts)):
        assert len(set(fold[groups.numpy() == group])) == 1
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= max(counts)


def test_a_bootstrap_is_validated_on_what_it_did_not_draw() -> None:
    members = argosy.bootstrap(studies.member("a"), 3, samples=200)
    for member in members:
        assert len(member.subset) == 200
        assert not set(member.subset) & set(member.val_subset)
        assert {*member.subset, *member.val_subset} == set(range(200))
        assert max(Counter(member.subset).values()) > 1
    assert [member.name for member in members] == ["a-bootstrap=0", "a-bootstrap=1", "a-bootstrap=2"]
    assert members[0].subset != members[1].subset


def test_a_mean_over_bootstraps_is_in_its_interval_as_often_as_it_says() -> None:
    draw, inside = np.random.RandomState(0), 0
    members = argosy.bootstrap(studies.member("a"), 10, samples=100)
    overlap = max(member.repetition.overlap for member in members)
    for _ in range(1000):
        x = draw.normal(size=100)
        # The error of a mean: its expectation is the variance of the samples, and that of the mean of a bootstrap.
        errors = [float(((x[m.val_subset] - x[m.subset].mean()) ** 2).mean()) for m in members]
        low, high = Interval.of(errors, overlap=overlap).bounds
        inside += low <= 1 + (2 - 1 / 100) / 100 <= high
    assert 935 <= inside <= 970


def test_what_is_fitted_to_a_fold_is_told_its_training_samples() -> None:
    told = []

    def build(train: np.ndarray) -> argosy.Member:
        told.append(train.tolist())
        return studies.member("a", hidden=len(told))

    for make in (partial(argosy.kfold, build, 3), partial(argosy.bootstrap, build, 2)):
        told.clear()
        members = make(samples=10)
        assert [list(member.subset) for member in members] == told
    assert {member.repetition.of for member in members} == {"a"}
    assert [member.hyperparameters["model.hidden"] for member in members] == [1, 2]


def test_a_fold_can_be_replicated() -> None:
    found = [m for fold in argosy.kfold(studies.member("a"), 2, samples=9) for m in argosy.replicate(fold, 2)]
    assert [m.name for m in found] == ["a-fold=0-seed=0", "a-fold=0-seed=1", "a-fold=1-seed=0", "a-fold=1-seed=1"]
    assert {m.repetition.of for m in found} == {"a"}
    assert [m.repetition.under for m in found][:2] == ["fold=0-seed=0", "fold=0-seed=1"]
    assert found[0].repetition.overlap == pytest.approx(5 / 4)


def test_repeats_deal_out_the_samples_otherwise_each_time() -> None:
    labels = [n % 3 for n in range(30)]
    found = argosy.kfold(studies.member("a"), 3, stratify=labels, repeats=4, seed=5)
    assert [m.name for m in found[:4]] == [
        "a-repeat=0-fold=0",
        "a-repeat=0-fold=1",
        "a-repeat=0-fold=2",
        "a-repeat=1-fold=0",
    ]
    folds = [m.val_subset for m in found]
    assert folds[:3] == [m.val_subset for m in argosy.kfold(studies.member("a"), 3, stratify=labels, seed=5)]
    for start in range(0, 12, 3):
        assert sorted(index for fold in folds[start : start + 3] for index in fold) == list(range(30))
        assert all(
            np.bincount([labels[index] for index in fold]).tolist() in ([3, 3, 4], [3, 4, 3], [4, 3, 3])
            for fold in folds[start : start + 3]
        )
    assert len({tuple(fold) for fold in folds}) == 12
    assert {m.repetition.of for m in found} == {"a"} and len({m.repetition.draw for m in found}) == 12
    assert [m.repetition.fold for m in found[:4]] == [0, 1, 2, 0]


def test_repeats_are_one_interval_and_each_sample_has_a_mean_over_them(tmp_path: Path) -> None:
    members = argosy.kfold(studies.member("plain"), 3, samples=60, repeats=2)
    report = trained(tmp_path, members)
    (found,) = report.repetitions.configurations
    values = [row.metrics["val_loss"] for row in report.rows]
    half = t_quantile(5) * np.std(values, ddof=1) * np.sqrt(1 / 6 + 20 / 40)
    assert found.metrics["val_loss"].half == pytest.approx(half)
    said = [report.predict((data().arrays[0],), m.name) for m in members]
    wanted = torch.stack([sum(said[n][i] for n, m in enumerate(members) if i in m.val_subset) / 2 for i in range(60)])
    torch.testing.assert_close(report.out_of_fold("plain"), wanted)


def test_the_interval_of_folds_is_wider_by_what_they_share() -> None:
    values = [0.1, 0.2, 0.4, 0.3, 0.2]
    found = Interval.of(values, overlap=1 / 4)
    assert found.half == pytest.approx(t_quantile(4) * np.std(values, ddof=1) * np.sqrt(1 / 5 + 1 / 4))
    assert Interval.of(values).half == pytest.approx(stats.t.interval(0.95, 4, 0, stats.sem(values))[1])


def test_seeds_of_a_fold_are_one_value_of_its_interval() -> None:
    folds = {"a": [0.1, 0.2, 0.4, 0.3, 0.2], "b": [0.2, 0.2, 0.3, 0.5, 0.2]}

    def found(seeds: list[str], overlap: float) -> Repetitions:
        members = [
            (Repetition(of=name, under=f"fold={fold}{seed}", overlap=overlap), {"val_loss": value})
            for name, values in folds.items()
            for fold, value in enumerate(values)
            for seed in seeds
        ]
        return Repetitions.of(members, objective="val_loss", mode="min")

    once, thrice = found([""], 1 / 4), found(["-seed=0", "-seed=1", "-seed=2"], 1 / 4)
    half = once.configurations[0].metrics["val_loss"].half
    assert thrice.configurations[0].metrics["val_loss"].half == pytest.approx(half)
    half = once.compare("a", "b").first_minus_second.half
    assert thrice.compare("a", "b").first_minus_second.half == pytest.approx(half)
    curves = [{1.0: value} for value in folds["a"] for _ in range(3)]
    band = Band.of("a", curves, "ci", overlap=1 / 4, draws=[fold for fold in range(5) for _ in range(3)])
    assert band.bounds[0] == pytest.approx(Band.of("a", curves[::3], "ci", overlap=1 / 4).bounds[0])
    assert Repetition(of="a", under="seed=1").draw == "seed=1", "without folds each seed is its own draw"
    lacking = Interval.of([1.0, 1.0, 1.0, 3.0], draws=[0, 0, 0, 1])
    assert lacking.mean == Interval.of([1.0, 3.0]).mean == 2.0, (
        "a fold of which two seeds failed counts as much as the others"
    )
    spread = Band.of("a", [{1.0: value} for value in (1.0, 1.0, 1.0, 3.0)], "std", draws=[0, 0, 0, 1])
    assert spread.means == [2.0] and spread.bounds == [(1.0, 3.0)], "the band is around the mean that is drawn"
    assert Band.of("a", [{1.0: 1.0}, {1.0: 1.0}, {1.0: 3.0}], None, draws=[0, 0, 1]).means == [2.0]


def data(samples: int = 60) -> argosy.Data:
    """Return Data with the same samples for training and validation, as folds need it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 12, generator=generator)
    rows = (x, x[:, :10].argmax(dim=1))
    return argosy.Data(arrays=rows, val_arrays=rows)


def trained(directory: Path, members: list[argosy.Member], rows: argosy.Data | None = None) -> argosy.Report:
    """Train these members inline for two epochs; exact, because otherwise times decide between programs that round differently."""
    study = argosy.Study(data=rows or data(), members=members, stop=argosy.MaxEpochs(2))
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", numerics="exact")


def test_folds_of_one_stream_equal_separate_runs(tmp_path: Path) -> None:
    plain = studies.member("plain", drop_last=True)
    folds = [
        *argosy.kfold(plain, 3, stratify=data().arrays[1] > 4),
        *argosy.kfold(studies.member("wide", hidden=24, drop_last=True), 3, stratify=data().arrays[1] > 4),
    ]
    report = trained(tmp_path / "together", folds)
    assert report.preparations == 1.0
    assert report.preparations_alone == 6 * 2 / 3, "a script for one fold prepares its 2/3 of the samples for training"
    fed = RunState.of(read_journal(tmp_path / "together")).fed
    assert all(samples == 60 for samples in fed.values()), "each sample is fed once for all folds"

    together = evidence.results(tmp_path / "together")
    held_out = report.out_of_fold("plain")
    for member in folds[:3]:
        alone = trained(tmp_path / member.name, [member])
        assert evidence.results(tmp_path / member.name)[member.name] == together[member.name]
        network = alone.best().load()
        with torch.no_grad():
            assert torch.equal(network(data().arrays[0][member.val_subset]), held_out[member.val_subset])
    losses = torch.nn.functional.cross_entropy(held_out, data().arrays[1], reduction="none")
    for member in folds[:3]:
        own = losses[member.val_subset].mean().item()
        assert own == pytest.approx(report.member(member.name).metrics["val_loss"], rel=1e-5)

    mean = next(found for found in report.repetitions.configurations if found.name == "plain").metrics["val_loss"]
    values = [report.member(member.name).metrics["val_loss"] for member in folds[:3]]
    assert mean.mean == pytest.approx(np.mean(values))
    assert mean.half == pytest.approx(t_quantile(2) * np.std(values, ddof=1) * np.sqrt(1 / 3 + 20 / 40))
    assert report.compare("plain", "wide").first_minus_second.count == 3


class Counted(Dataset[Any]):
    """The samples of `data` as a Dataset that counts how often one is prepared."""

    asked = 0

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        Counted.asked += 1
        x, y = data().arrays
        return x[index], int(y[index])


def five_folds_of_four() -> list[argosy.Member]:
    """Return twenty members: four networks on the same five folds."""
    labels = data().arrays[1] > 4
    four = [studies.member(f"net{hidden}", hidden=hidden, drop_last=True) for hidden in (8, 12, 16, 24)]
    return [fold for member in four for fold in argosy.kfold(member, 5, stratify=labels)]


def test_twenty_networks_of_five_folds_have_each_sample_prepared_once(tmp_path: Path) -> None:
    folds, both = five_folds_of_four(), Counted()
    rows = argosy.Data(train=both, val=both)
    before = Counted.asked
    open_sources(rows, seed=0)
    looked_at = Counted.asked - before
    before = Counted.asked
    report = trained(tmp_path / "together", folds, rows)
    assert Counted.asked - before == looked_at + 60

    together = evidence.results(tmp_path / "together")
    for member in folds:
        # With two datasets, samples are prepared for training and again for validation; results must not differ.
        alone = trained(tmp_path / member.name, [member], argosy.Data(train=Counted(), val=Counted()))
        assert evidence.results(tmp_path / member.name)[member.name] == together[member.name]
        with torch.no_grad():
            said = alone.best().load()(data().arrays[0][member.val_subset])
        held_out = report.out_of_fold(member.repetition.of)[member.val_subset]
        assert torch.equal(said, held_out)


def test_loader_workers_prepare_each_sample_once_for_all_folds_and_epochs(tmp_path: Path) -> None:
    both = Counted()
    study = argosy.Study(
        data=argosy.Data(train=both, val=both), members=five_folds_of_four()[:5], stop=argosy.MaxEpochs(3)
    )
    # Blocks are small, so that training samples are still being prepared when validation begins.
    report = argosy.train(study, directory=tmp_path, devices="cpu:1", loader_workers=2, block_size=8)
    prepared = [gauge["prepared"] for gauge in report.gauges.values() if "prepared" in gauge]
    assert prepared == [60]
    fed = RunState.of(read_journal(tmp_path)).fed
    assert {split: sum(n for key, n in fed.items() if key[0] == split) for split in ("train", "val")} == {
        "train": 60,
        "val": 0,
    }


def test_repetitions_that_a_study_leaves_out_are_in_no_mean(tmp_path: Path) -> None:
    folds = argosy.kfold(studies.member("plain"), 3, samples=60)
    trained(tmp_path, [*folds, *argosy.kfold(studies.member("wide"), 3, samples=60), studies.member("one")])
    report = trained(tmp_path, folds[:2])
    found = [(one.name, one.counted, one.repetitions) for one in report.repetitions.configurations]
    assert found == [("plain", 2, 2)]
    assert len(report.ending().rows) == 1
    held_out = {row for fold in folds[:2] for row in fold.val_subset}
    assert {*(~report.out_of_fold("plain").isnan().any(1)).nonzero().flatten().tolist()} == held_out


def test_of_repetitions_that_are_not_done_the_best_so_far_is_named(tmp_path: Path) -> None:
    trained(tmp_path, argosy.kfold(studies.member("plain"), 3, samples=60))
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    ended = next(number for number, line in enumerate(lines) if '"MemberEnded"' in line)
    journal.write_text("".join(lines[:ended]))  # as if the driver had been killed at this point
    report = argosy.load(tmp_path)
    best = report.best()
    assert report.leader is None
    so_far = f"{best.name}, val_loss {best.metrics['val_loss']:.4g} at epoch {best.best_epoch} of {best.epochs}"
    assert report.ending().best[0] == f"Best so far: {so_far}; no configuration has a mean that counts"
    assert [row[0] for row in report.ending().rows] == [row.name for row in report.rows]


def test_a_sample_that_every_bootstrap_drew_has_no_held_out_output(tmp_path: Path) -> None:
    members = argosy.bootstrap(studies.member("bag", drop_last=True), 2, samples=60)
    said = trained(tmp_path, members).out_of_fold("bag")
    drawn_twice = set(members[0].subset) & set(members[1].subset)
    assert {n for n in range(60) if said[n].isnan().all()} == drawn_twice
