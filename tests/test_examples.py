"""Tests that every example of the recipes runs unchanged, and is as long as the recipes say."""

import ast
import io
import re
import runpy
import signal
import subprocess
import sys
import tokenize
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import browser
import pytest
from torch.utils.data import Subset

import argosy
from argosy import api
from argosy.cli import app as cli

ROOT = Path(__file__).parents[1]
EXAMPLES, RECIPES = ROOT / "examples", ROOT / "docs" / "recipes.md"
DATA = ("photos", "csv_folds", "language", "boxes", "streaming", "heads")
"""Examples that load data in common formats; each, with its model, fits on a screen."""
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@pytest.fixture
def play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function that runs an example and its commands in an empty folder and returns the printed lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", partial(typed, subprocess.run))
    for stage in ("train", "tune"):
        monkeypatch.setattr(api, stage, partial(getattr(api, stage), launcher="inline", devices="cpu:1", quiet=True))

    def run(name: str, *arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def typed(run: Callable[..., Any], words: list[str], **settings: Any) -> Any:
    """Run argosy commands in this process, as a replacement for ``subprocess.run``."""
    if words[1:3] != ["-m", "argosy"]:
        return run(words, **settings)
    code = cli.app(words[3:], standalone_mode=False) or 0
    assert code == 0
    return subprocess.CompletedProcess(words, code)


def numbers(line: str) -> list[float]:
    return [float(found) for found in re.findall(r"[-\d]+\.\d+", line)]


def test_an_ensemble_of_five_seeds_beats_the_best_and_the_best_is_taken_along(play: Callable[..., list[str]]) -> None:
    best, ensemble = play("ensemble.py")
    assert numbers(ensemble)[0] > numbers(best)[0] > 0.9
    (said,) = play("deploy.py", "runs/ensemble")
    assert re.fullmatch(r"cnn-seed=\d, loss 0\.\d+: this is a \d", said)
    pictured(play("picture.py", "runs/ensemble"), Path("runs/ensemble"))
    for package in ("matplotlib", "pandas"):
        pytest.importorskip(package, reason="curves.py needs the extra report")
    header, _, row = play("curves.py")
    assert (header.split(), row.split()[0], row.split()[-1]) == (["mean", "std", "count"], "cnn", "5")
    assert Path("curves.pdf").read_bytes().startswith(b"%PDF-")
    assert len(Path("curves.csv").read_text().splitlines()) == 1 + 5 * 8 * 3  # five seeds, eight epochs, three metrics


def pictured(lines: list[str], run: Path) -> None:
    """Assert that the run's page was written, and a picture of it if there is a browser."""
    assert "Learning curves" in (run / "report.html").read_text()
    if browser.CHROMIUM is not None:
        assert lines[-1] == f"Written: {run.resolve() / 'report.png'}"
        assert (run / "report.png").read_bytes().startswith(b"\x89PNG")


def test_folds_of_three_networks_have_scores_of_samples_that_they_have_not_seen(play: Callable[..., list[str]]) -> None:
    lines = play("tabular.py")
    assert len(lines) == 3
    assert all(" ± " in line and 0.93 < numbers(line)[-1] < 1.0 for line in lines)


def test_a_table_with_gaps_becomes_an_ensemble_in_one_line(play: Callable[..., list[str]]) -> None:
    ensemble, *members, new = play("table_in_a_line.py")
    assert [line.partition(":")[0] for line in members] == ["mlp", "resnet", "tabm"]
    assert numbers(ensemble)[1] <= min(numbers(line)[1] for line in members)
    assert numbers(new)[0] > 0.93


def test_half_of_thirty_trials_are_out_at_every_rung(play: Callable[..., list[str]]) -> None:
    best, epochs = play("sweep.py")
    assert best.startswith("best of 30: {'hidden': ")
    assert numbers(best)[-1] < 0.5
    spent, whole = map(float, re.findall(r"[\d.]+", epochs))
    assert spent < 0.6 * whole


def test_a_folder_of_images_is_an_ensemble(play: Callable[..., list[str]]) -> None:
    (line,) = play("photos.py")
    assert numbers(line)[0] > 0.9
    assert line.endswith("prepared once and kept from now on (never prepared here before)")


def test_a_csv_file_is_five_folds(play: Callable[..., list[str]]) -> None:
    lines = play("csv_folds.py")
    assert sorted(line.split(":")[0] for line in lines) == ["mlp-32", "mlp-8"]
    assert all(numbers(line)[0] < 0.2 for line in lines)


def test_lines_of_json_are_language_models(play: Callable[..., list[str]]) -> None:
    lines = play("language.py")
    assert [line.split(":")[0] for line in lines] == ["gru-32", "gru-16"]
    assert all(1 < numbers(line)[0] < 60 for line in lines)  # perplexity; guessing among 256 bytes has 256


def test_pictures_have_boxes(play: Callable[..., list[str]]) -> None:
    (line,) = play("boxes.py")
    assert numbers(line)[0] < 3


def test_graphs_have_their_own_numbers_of_nodes(play: Callable[..., list[str]]) -> None:
    (line,) = play("graphs.py")
    assert numbers(line)[-1] > 90


def test_a_stream_is_a_sweep(play: Callable[..., list[str]]) -> None:
    (line,) = play("streaming.py")
    assert line.startswith("best: linear-lr=0.1")
    assert "read once into a file" in line


def test_a_frozen_trunk_has_twenty_heads(play: Callable[..., list[str]]) -> None:
    (line,) = play("heads.py")
    assert line.startswith("best of 20 heads: ")
    assert line.endswith("the trunk saw each image 0.2 times an epoch")


def test_two_targets_have_an_error_each(play: Callable[..., list[str]]) -> None:
    lines = play("regression.py")
    both = [numbers(line)[0] for line in lines]
    assert both == sorted(both)
    for line in lines:
        whole, pressure, progression = numbers(line)[:3]
        assert whole**2 == pytest.approx((pressure**2 + progression**2) / 2, rel=0.01)
        assert whole < 0.95, "predicting the mean has an error of about 1"


def test_wider_codes_say_more_of_digits(play: Callable[..., list[str]]) -> None:
    *rows, codes = play("autoencoder.py")
    assert [row.split(":")[0] for row in rows] == ["code-32", "code-8", "code-2"]
    assert codes.endswith("(5, 32)")


@pytest.mark.filterwarnings("ignore:the run in .* is paused")  # runs are quiet here
def test_a_run_is_interrupted_and_goes_on_with_one_network_more_and_one_less(play: Callable[..., list[str]]) -> None:
    # A shell that runs the tests in the background makes them ignore SIGINT.
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        first, *_, second = play("interrupted.py")
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert sorted(re.findall(r"(mlp-\d+) (\w+)", first)) == [("mlp-16", "paused"), ("mlp-64", "paused")]
    found = dict(re.findall(r"(mlp-\d+) (\w+)", second))
    assert found == {"mlp-16": "paused", "mlp-64": "stopped", "mlp-128": "paused"}


def test_trackers_have_a_run_for_each_network(play: Callable[..., list[str]]) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    # Trackers that other tests slowed down miss calls; the second run repeats these.
    for _ in range(2):
        said = play("trackers.py")
        assert [name in line for name, line in zip(("tensorboard", "mlflow"), said, strict=True)] == [True, True]
    assert len({path.parent for path in Path("runs/trackers/tensorboard").glob("mlp-*/events*")}) == 4
    assert len(list(Path("runs/trackers/mlruns").glob("*/*/metrics/val_loss"))) == 4


def test_networks_of_another_library_train(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    study = runpy.run_path(str(EXAMPLES / "hub_nets.py"))["study"]
    few = {"train": Subset(study.data.train(), range(64)), "val": Subset(study.data.val(), range(32))}
    short = replace(study, data=replace(study.data, **few), stop=argosy.MaxEpochs(1))
    report = argosy.train(short, directory=tmp_path, launcher="inline", devices="cpu:1")
    assert {row.status for row in report.rows} == {"done"}, [row.reason for row in report.rows]
    assert all("val_accuracy" in row.metrics for row in report.rows)


def test_the_cells_of_a_notebook_run_one_after_another(play: Callable[..., list[str]]) -> None:
    del play  # the fixture changes to an empty folder and trains inline
    cells = re.split(r"^# %%.*$", (EXAMPLES / "notebook.py").read_text(), flags=re.MULTILINE)
    names: dict[str, object] = {"__name__": "__main__"}
    shown = [shows(cell, names) for cell in cells]
    tables = [table for table in shown if hasattr(table, "columns")]
    assert [set(table["epochs"]) for table in tables] == [{3}, {6}]
    assert tuple(shown[-1].shape) == (3, 3)


def shows(cell: str, names: dict[str, object]) -> object:
    """Run a notebook cell and return what is shown below it: the value of its last line if that is an expression."""
    body = ast.parse(cell).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(last, "cell", "eval"), names) if last else None


def lines_of(text: str) -> list[int]:
    """Return the numbers of the lines of code, which are neither empty nor comments nor docstrings."""
    documented = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    found = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return sorted(found - documented)


def length(path: Path) -> tuple[int, int]:
    """Return the number of lines of code, and of those from the first statement that uses argosy."""
    text = path.read_text()
    lines, body = lines_of(text), ast.parse(text).body
    # In a script that only runs commands this is the last statement.
    first = next(
        (node.lineno for node in body if "argosy." in (ast.get_source_segment(text, node) or "") and not said(node)),
        body[-1].lineno,
    )
    return len(lines), sum(line >= first for line in lines)


def said(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr | ast.Import | ast.ImportFrom)


def test_stories_are_as_long_as_the_recipes_say() -> None:
    rows = re.findall(
        r"^\|.*\(\.\./examples/(\w+\.py)\) \| (\d+) \| (\d+) \|$", RECIPES.read_text(), flags=re.MULTILINE
    )
    assert {name: (int(whole), int(own)) for name, whole, own in rows} == {
        name: length(EXAMPLES / name) for name, _, _ in rows
    }
    assert len(rows) == 23
    assert all(length(EXAMPLES / f"{name}.py")[0] <= 40 for name in DATA)
    assert length(EXAMPLES / "ensemble.py")[1] <= 12
