"""Tests of results as DataFrames, figures and files, as papers need them."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import studies

import argosy
from argosy.errors import ArgosyError
from argosy.protocol.events import SectionEnded
from argosy.results.bands import Band
from argosy.results.intervals import Interval
from argosy.running.directory.journal import read_journal

FLEET = [
    *argosy.replicate(studies.member("wide"), seeds=3),
    *argosy.replicate(studies.member("slow", lr=1e-3), seeds=3),
    studies.member("adam", optimizer=studies.partial(studies.Adam, lr=1, amsgrad=True), stop=argosy.MaxEpochs(1)),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> argosy.Report:
    """Return the report of two networks under three seeds, and a member that is done after one epoch of two sections."""
    study = studies.study(90, fleet=FLEET, epochs=3, validations_per_epoch=2)
    folder = tmp_path_factory.mktemp("figures") / "run"
    return argosy.train(study, directory=folder, launcher="inline", devices="cpu:1")


def journaled(report: argosy.Report) -> dict[tuple[Any, ...], float]:
    """Return the journal's metrics by member, epoch, section and name; epochs and sections count from 1."""
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
    assert frame["parameters"].tolist() == [row.parameters for row in report.rows]
    assert frame["parameters"].min() > 0
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


@pytest.fixture
def pyplot() -> Iterator[Any]:
    """Return pyplot, and close all figures after the test."""
    found = pytest.importorskip("matplotlib.pyplot", reason="figures are drawn by matplotlib, the extra report")
    yield found
    found.close("all")


def test_members_are_lines_and_the_best_is_in_colour(report: argosy.Report, pyplot: Any) -> None:
    axes = report.plot()
    by_hand = {
        row.name: sorted(
            (epoch - 1 + section / 2, value)
            for (name, epoch, section, metric), value in journaled(report).items()
            if (name, metric) == (row.name, "val_loss")
        )
        for row in report.rows
    }
    drawn = [[(float(x), float(y)) for x, y in line.get_xydata()] for line in axes.lines]
    assert drawn == [by_hand[row.name] for row in reversed(report.rows)], "the best is drawn last, on top"
    *others, best = [line.get_color() for line in axes.lines]
    assert best not in others
    assert len({*others}) == 1
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [f"best: {report.best().name}"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "val_loss")
    assert all(tick == int(tick) for tick in axes.get_xticks()), "whole epochs, however few there are"
    mine = pyplot.figure().subplots()
    assert report.plot("train_loss", axes=mine) is mine
    assert mine.get_ylabel() == "train_loss"


@pytest.mark.parametrize("band", ["ci", "std", "range", None])
def test_the_mean_of_a_configuration_and_its_band_are_those_of_its_members(
    report: argosy.Report, pyplot: Any, band: Any
) -> None:
    axes = report.plot("val_accuracy", by="configuration", band=band)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    best_first = [found.name for found in report.repetitions.configurations]
    assert labels == [f"{best_first[0]} (n = 3)", f"{best_first[1]} (n = 3)", "adam (n = 1)"]
    for number, name in enumerate(best_first):
        curves = report.curves()
        curves = curves[(curves["configuration"] == name) & (curves["metric"] == "val_accuracy")]
        values = curves.pivot_table(index=["epoch", "section"], columns="seed", values="value").to_numpy(float)
        x, means = axes.lines[number].get_data()
        assert x.tolist() == [0.5, 1, 1.5, 2, 2.5, 3]
        assert means == pytest.approx(values.mean(axis=1))
        if band is None:
            assert not axes.collections
            continue
        deviation = values.std(axis=1, ddof=1)
        half = {"ci": 4.302653 * deviation / np.sqrt(3), "std": deviation, "range": None}[band]
        low = values.min(axis=1) if half is None else means - half
        high = values.max(axis=1) if half is None else means + half
        vertices = axes.collections[number].get_paths()[0].vertices
        edges = {at: sorted({y for x, y in vertices.tolist() if x == at}) for at in x.tolist()}
        assert [edges[at][0] for at in x.tolist()] == pytest.approx(low, abs=1e-6)
        assert [edges[at][-1] for at in x.tolist()] == pytest.approx(high, abs=1e-6)


def test_a_band_ends_where_the_first_of_its_members_does() -> None:
    found = Band.of("a", [{1.0: 0.5, 2.0: 0.4, 3.0: 0.1}, {1.0: 0.7, 2.0: 0.8}], "range")
    assert (found.epochs, found.means, found.bounds) == ([1, 2], pytest.approx([0.6, 0.6]), [(0.5, 0.7), (0.4, 0.8)])
    unlike = Band.of("a", [{1.0: 0.5}, {1.0: float("inf")}], "ci")
    assert np.isnan(unlike.bounds).all()
    folds = [{1.0: value} for value in (0.5, 0.7, 0.9)]
    half = Interval.of([0.5, 0.7, 0.9], overlap=0.25).half
    assert half is not None and half > 1.3 * (Interval.of([0.5, 0.7, 0.9]).half or 0)
    (low, high) = Band.of("a", folds, "ci", overlap=0.25).bounds[0]
    assert high - low == pytest.approx(2 * half)


def test_a_figure_of_many_configurations_shows_all_their_names(pyplot: Any) -> None:
    from argosy.results import figures

    bands = [Band.of(f"cnn-width=128-lr={number}", [{1.0: 0.5, 2.0: 0.4}], None) for number in range(20)]
    with figures.paper_style():
        axes = figures.new_axes()[0]
        figures.draw_bands(axes, bands, "val_loss")
        axes.figure.canvas.draw()
    outside, legend, drawn = axes.figure.bbox, axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert legend.x1 <= outside.x1 and legend.y0 >= 0 and drawn.width > outside.width / 3
    assert drawn.height > outside.height / 2


def test_members_are_grouped_by_any_column(report: argosy.Report, pyplot: Any) -> None:
    for by, labels in {
        "optimizer.lr": ["optimizer.lr = 0.001 (n = 3)", "optimizer.lr = 0.05 (n = 3)", "optimizer.lr = 1 (n = 1)"],
        "seed": ["seed = 0 (n = 2)", "seed = 1 (n = 2)", "seed = 2 (n = 2)"],
        "optimizer.amsgrad": ["optimizer.amsgrad = True (n = 1)"],
        "fold": [],
    }.items():
        _, found = report.plot(by=by).get_legend_handles_labels()
        assert found == labels, by


def test_a_member_without_the_metric_is_in_no_mean_of_it(report: argosy.Report, pyplot: Any) -> None:
    best, *others = report.rows
    sections = tuple(replace(ended, metrics={"val_loss": ended.metrics["val_loss"]}) for ended in best.sections)
    some = replace(report, rows=(replace(best, sections=sections), *others))
    lines, labels = some.plot("val_accuracy", by="optimizer.lr").get_legend_handles_labels()
    at = labels.index(f"optimizer.lr = {best.hyperparameters['optimizer.lr']} (n = 2)")
    assert len(lines[at].get_xydata()) == 6


def test_hyperparameters_are_drawn_against_the_objective(report: argosy.Report, pyplot: Any) -> None:
    axes = report.plot_hyperparameters()
    assert [one.get_xlabel() for one in axes] == ["optimizer.lr", "optimizer.momentum", "optimizer.amsgrad"]
    points = axes[0].collections[0].get_offsets().tolist()
    assert points == [[row.hyperparameters["optimizer.lr"], row.metrics["val_loss"]] for row in reversed(report.rows)]
    *others, best = axes[0].collections[0].get_facecolors().tolist()
    assert best not in others, "the best is drawn last, on top"
    assert [axis.get_xscale() for axis in axes] == ["log", "linear", "linear"]
    assert [text.get_text() for text in axes[2].get_xticklabels()] == ["True"]


def test_what_is_misspelt_is_said(report: argosy.Report) -> None:
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib, the extra report")
    for ask, says in (
        (lambda: report.plot("val_los"), r"reports 'val_los' \(did you mean 'val_loss'\?\)"),
        (lambda: report.plot(by="configuratoin"), r"by 'configuratoin' \(did you mean 'configuration'\?\)"),
        (lambda: report.plot(by="seed", band="sem"), "report.plot: band is 'sem'; it must be 'ci', 'std' or 'range'"),
        (lambda: report.plot_hyperparameters("acc"), r"reports 'acc' \(did you mean 'val_accuracy'\?\)"),
    ):
        with pytest.raises(ArgosyError, match=says):
            ask()


def test_figures_for_a_paper_are_the_same_files_again(report: argosy.Report, tmp_path: Path, pyplot: Any) -> None:
    names = [
        f"{name}.{kind}"
        for name in ("objective", "configurations", "hyperparameters")
        for kind in ("png", "svg", "pdf")
    ]
    files, before = {}, pyplot.get_fignums()
    (tmp_path / "a").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "a" / names[0]).symlink_to(tmp_path / "mine")
    for folder in ("a", "b/c"):
        written = report.write_figures(tmp_path / folder)
        assert written == [tmp_path / folder / name for name in names]
        files[folder] = [file.read_bytes() for file in written]
        begins = [content[:5] for content in files[folder]]
        assert begins == [b"\x89PNG\r", b"<?xml", b"%PDF-"] * 3
    assert files["a"] == files["b/c"]
    assert (tmp_path / "mine").read_text() == "mine", "a link under a figure's name is replaced, not followed"
    assert pyplot.get_fignums() == before, "figures that nobody will look at are closed"


def test_a_search_has_its_trials_as_a_table_and_its_members_as_figures(tmp_path: Path, pyplot: Any) -> None:
    optuna = pytest.importorskip("optuna", reason="searches sample with Optuna, the extra tune")

    def build(parameters: dict[str, Any]) -> argosy.Member:
        return studies.member("net", hidden=parameters["hidden"], lr=1 / parameters["slowness"])

    space = {
        "hidden": optuna.distributions.IntDistribution(4, 16),
        "slowness": optuna.distributions.FloatDistribution(2.0, 900.0, log=True),
    }
    rest: dict[str, Any] = {"launcher": "inline", "devices": "cpu:1", "scheduler": "random", "n_trials": 4}
    found = argosy.tune(build, space, data=studies.data("drawn", 60), max_epochs=2, directory=tmp_path / "run", **rest)
    frame = found.to_pandas()
    assert frame["trial"].tolist() == [row.name for row in found.rows]
    assert (frame["hidden"].dtype, frame["slowness"].dtype) == ("int64", "float64")
    assert found.curves().equals(found.run.curves())
    assert [axes.get_xlabel() for axes in found.plot_parameters()] == ["hidden", "slowness"]
    points = found.plot_parameters()[1].collections[0].get_offsets().tolist()
    assert points[-1] == [found.best_parameters["slowness"], found.best().metrics["val_loss"]]
    assert len(found.plot().lines) == 4
    written = found.write_figures(tmp_path / "figures")
    assert [file.name for file in written if file.suffix == ".pdf"] == ["objective.pdf", "parameters.pdf"]
