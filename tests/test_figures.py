"""Results as DataFrames, figures and files: what a paper is made of."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas
import pytest
import studies

import argosy
from argosy.protocol.events import SectionEnded
from argosy.running.directory.journal import read_journal

FLEET = [
    *argosy.replicate(studies.member("wide"), seeds=3),
    *argosy.replicate(studies.member("slow", lr=1e-3), seeds=3),
    studies.member("adam", optimizer=studies.partial(studies.Adam, lr=1, amsgrad=True), stop=argosy.MaxEpochs(1)),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> argosy.Report:
    """Two networks under three seeds, and one alone that is done after an epoch of two sections."""
    study = studies.study(90, fleet=FLEET, epochs=3, validations_per_epoch=2)
    folder = tmp_path_factory.mktemp("figures") / "run"
    return argosy.train(study, directory=folder, launcher="inline", devices="cpu:1")


def journaled(report: argosy.Report) -> dict[tuple[Any, ...], float]:
    """What the journal says of each member, epoch, section and metric, the former from 1."""
    return {
        (event.member, event.epoch + 1, event.section + 1, metric): value
        for event in read_journal(report.directory)
        if isinstance(event, SectionEnded)
        for metric, value in event.metrics.items()
    }


def test_curves_are_what_was_journaled(report: argosy.Report) -> None:
    frame = report.curves()
    assert [*frame.columns] == ["member", "configuration", "seed", "fold", "epoch", "section", "metric", "value"]
    index = ["member", "epoch", "section", "metric"]
    assert frame.set_index(index)["value"].to_dict() == journaled(report)
    assert frame["member"].drop_duplicates().tolist() == [row.name for row in report.rows], "best first"
    assert (frame["epoch"].min(), frame["epoch"].max(), frame["epoch"].dtype) == (1, 3, "int64")
    assert frame["value"].dtype == "float64"
    losses = frame[frame["metric"] == "val_loss"]
    means = losses.groupby(["configuration", "epoch", "section"])["value"].mean()
    by_hand = defaultdict(list)
    for (name, epoch, section, metric), value in journaled(report).items():
        if metric == "val_loss":
            by_hand[name.partition("-")[0], epoch, section].append(value)
    assert means.to_dict() == pytest.approx({at: sum(found) / len(found) for at, found in by_hand.items()})


def test_the_table_says_which_repetition_a_row_is_and_keeps_the_kinds_of_values(report: argosy.Report) -> None:
    frame = report.to_pandas().set_index("member")
    assert frame.loc["slow-seed=2", ["configuration", "seed", "optimizer.lr"]].tolist() == ["slow", 2, 1e-3]
    assert frame["configuration"].value_counts().to_dict() == {"wide": 3, "slow": 3, "adam": 1}
    assert pandas.isna(frame.loc["adam", "seed"])
    assert frame["fold"].isna().all()
    dtypes = {name: str(frame[name].dtype) for name in ("seed", "fold", "batch_size", "optimizer.lr", "model.hidden")}
    assert dtypes == {
        "seed": "Int64",
        "fold": "Int64",
        "batch_size": "int64",
        "optimizer.lr": "float64",
        "model.hidden": "int64",
    }
    assert (str(frame["optimizer.amsgrad"].dtype), frame["optimizer.amsgrad"].sum()) == ("boolean", 1)


def test_folds_are_numbers(tmp_path: Path) -> None:
    fleet = [
        one
        for seed in argosy.replicate(studies.member("mlp"), seeds=[4, 2])
        for one in argosy.kfold(seed, 2, samples=40)
    ]
    assert [(one.repetition.fold, one.seed) for one in fleet if one.repetition] == [(0, 4), (1, 4), (0, 2), (1, 2)]
    data = argosy.Data(train=studies.Vectors(40), val=studies.Vectors(40))
    study = argosy.Study(data=data, members=fleet, stop=argosy.MaxEpochs(1))
    report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
    frame = report.curves()
    assert "section" not in frame.columns
    assert frame.groupby(["configuration", "seed", "fold"])["member"].nunique().to_dict() == {
        ("mlp", seed, fold): 1 for seed in (2, 4) for fold in (0, 1)
    }


def test_a_run_without_a_finished_section_has_curves_of_no_rows(report: argosy.Report, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes((report.directory / "study.json").read_bytes())
    lines = (report.directory / "journal.jsonl").read_text().splitlines(keepends=True)
    begun = [line for line in lines if json.loads(line)["event"] != "SectionEnded"]
    (tmp_path / "journal.jsonl").write_text("".join(begun))
    frame = argosy.load(tmp_path).curves()
    assert (len(frame), [*frame.columns]) == (0, [*report.curves().columns])
