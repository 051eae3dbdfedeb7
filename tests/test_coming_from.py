"""Tests that other tools' scripts and ours train networks to the same figures, and that the pages count the changed lines."""

import ast
import re
import runpy
from collections.abc import Callable, Collection
from difflib import SequenceMatcher
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_examples import lines_of

import argosy

ROOT = Path(__file__).parents[1]
SCRIPTS, PAGES = ROOT / "examples" / "coming_from", ROOT / "docs" / "coming-from"
GRID = list(product((16, 64, 256), (0.01, 0.001)))
"""Pairs of hidden units and learning rate, in the order of the grids."""


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Return a function that runs a script in an empty folder and returns its global names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(SCRIPTS)

    def run(name: str) -> dict[str, Any]:
        return runpy.run_path(str(SCRIPTS / name), run_name="__main__")

    return run


def trained(study: argosy.Study, numerics: str = "exact") -> argosy.Report:
    """Train our study and return its report."""
    return argosy.train(study, directory="run", launcher="inline", devices="cpu:1", numerics=numerics, quiet=True)


def curve(row: Any) -> list[float]:
    return [section.metrics["val_loss"] for section in row.sections]


def grid(study: argosy.Study) -> dict[tuple[int, float], list[float]]:
    """Train our study and return the validation losses of each point of the grid."""
    found = {}
    for row in trained(study).rows:
        values = row.hyperparameters
        found[values["model.hidden"], values["optimizer.lr"]] = curve(row)
    return found


def test_a_plain_loop(play: Callable[[str], dict[str, Any]]) -> None:
    theirs, report = play("theirs_plain_loop.py"), trained(play("ours_plain_loop.py")["study"])
    assert {row.name: curve(row) for row in report.rows} == theirs["curves"]
    for name, network in theirs["networks"].items():
        ours = report.member(name).load().state_dict()
        assert ours.keys() == network.state_dict().keys()
        assert all(torch.equal(ours[key], tensor) for key, tensor in network.state_dict().items()), name


def test_a_plain_loop_breaks_after_the_epoch_that_the_rule_beside_it_stops_after() -> None:
    page = (PAGES / "plain_loop.md").read_text()
    (condition, rule) = re.findall(r"\| `if (.*): break` \| `stop=(argosy\.Plateau.*)` \|", page)[0]
    losses = [2.0, 1.0, 1.5, 1.5, 1.5, 1.5]
    loop = (epoch for epoch in range(len(losses)) if eval(condition, {"epoch": epoch, "best": 1}))
    stop = eval(rule, {"argosy": argosy})
    ours = (epoch for epoch in range(len(losses)) if stop.reason([{"val_loss": loss} for loss in losses[: epoch + 1]]))
    assert next(loop) == next(ours) == 4


@pytest.mark.filterwarnings("ignore")  # warnings of the other library
def test_lightning(play: Callable[[str], dict[str, Any]]) -> None:
    pytest.importorskip("lightning.pytorch")
    theirs, report = play("theirs_lightning.py"), trained(play("ours_lightning.py")["study"], "equivalent")
    assert theirs["losses"].keys() == {row.name for row in report.rows}
    for name, module in theirs["networks"].items():
        assert curve(report.member(name))[-1] == pytest.approx(theirs["losses"][name], rel=0, abs=1e-10)
        last = torch.load(Path("run", "members", name, "last.pt"), weights_only=True)["model"]
        for key, tensor in module.state_dict().items():
            assert tensor.dtype == torch.float64
            torch.testing.assert_close(last[key], tensor, rtol=0, atol=1e-10)


def test_optuna(play: Callable[[str], dict[str, Any]]) -> None:
    pytest.importorskip("optuna")
    theirs, search = play("theirs_optuna.py")["study"], play("ours_optuna.py")["search"]
    settings = {"directory": "run", "launcher": "inline", "devices": "cpu:1", "numerics": "exact", "quiet": True}
    report = argosy.tune(search, **settings)
    assert [trial.params for trial in report.study.trials] == [trial.params for trial in theirs.trials]
    assert [trial.value for trial in report.study.trials] == [trial.value for trial in theirs.trials]
    assert report.best_parameters == theirs.best_params


@pytest.mark.filterwarnings("ignore")  # warnings of the other library
def test_ray_tune(play: Callable[[str], dict[str, Any]]) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.tune", reason="needs ray[tune]")
    path = {"env_vars": {"PYTHONPATH": str(SCRIPTS)}}
    ray.init(address="local", num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False, runtime_env=path)
    try:
        results = play("theirs_ray_tune.py")["results"]
    finally:
        ray.shutdown()
    theirs = {(one.config["hidden"], one.config["lr"]): one.metrics_dataframe["val_loss"].tolist() for one in results}
    assert len(theirs) == len(GRID)
    assert grid(play("ours_ray_tune.py")["study"]) == theirs


def test_sweeps_of_wandb(play: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Our grid equals a W&B sweep; a stand-in for their server asks for each point of the grid."""
    wandb = pytest.importorskip("wandb")
    theirs = {}

    def agent(sweep: dict[str, Any], trial: Callable[[], None]) -> None:
        assert sweep["method"] == "grid"
        for hidden, lr in product(*(values["values"] for values in sweep["parameters"].values())):
            with monkeypatch.context() as patched:
                run = wandb.init(mode="disabled", config={"hidden": hidden, "lr": lr})
                losses = theirs[hidden, lr] = []
                patched.setattr(run, "log", lambda logged, losses=losses: losses.append(logged["val_loss"]))
                patched.setattr(wandb, "init", lambda run=run: run)
                trial()

    monkeypatch.setattr(wandb, "sweep", lambda sweep, project: sweep)
    monkeypatch.setattr(wandb, "agent", agent)
    play("theirs_wandb_sweeps.py")
    assert list(theirs) == GRID
    assert grid(play("ours_wandb_sweeps.py")["study"]) == theirs


def test_determined(play: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Our grid equals a Determined experiment; a stand-in for their master runs the script for each point in the YAML file."""
    determined = pytest.importorskip("determined")
    points = re.findall(r"vals: \[(.*)\]", (SCRIPTS / "theirs_determined.yaml").read_text())
    theirs = {}
    for hidden, lr in product(*(map(float, values.split(",")) for values in points)):
        core, losses = determined.core.init(), theirs.setdefault((int(hidden), lr), [])
        trial = SimpleNamespace(trial=SimpleNamespace(hparams={"hidden": int(hidden), "lr": lr}))
        with monkeypatch.context() as patched:
            patched.setattr(determined.core, "init", lambda core=core: core)
            patched.setattr(determined, "get_cluster_info", lambda trial=trial: trial)
            patched.setattr(core.train, "report_validation_metrics", partial(_noted, losses))
            play("theirs_determined.py")
    assert list(theirs) == GRID
    assert grid(play("ours_determined.py")["study"]) == theirs


def _noted(losses: list[float], *, steps_completed: int, metrics: dict[str, float]) -> None:
    losses.append(metrics["val_loss"])
    assert steps_completed == len(losses)


def test_skorch(play: Callable[[str], dict[str, Any]]) -> None:
    """Our last losses equal the scores up to rounding; scikit-learn scores only the last epoch, by logarithms of float32 probabilities."""
    pytest.importorskip("skorch")
    found = play("theirs_skorch.py")["search"].cv_results_
    points = [(point["module__hidden"], point["optimizer__lr"]) for point in found["params"]]
    theirs = dict(zip(points, -found["mean_test_score"], strict=True))
    assert list(theirs) == GRID
    ours = {point: losses[-1] for point, losses in grid(play("ours_skorch.py")["study"]).items()}
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_the_page_counts_the_lines_that_change() -> None:
    rows = re.findall(
        r"(?m)^\| \[[^]]+\]\((\w+)\.md\) \| (\d+) \| (\d+) \| (\d+) \|", (PAGES / "README.md").read_text()
    )
    assert {name: (int(stay), int(go), int(come)) for name, stay, go, come in rows} == {
        path.stem.removeprefix("theirs_"): changed(path.stem.removeprefix("theirs_"))
        for path in SCRIPTS.glob("theirs_*.py")
    }


def changed(name: str) -> tuple[int, int, int]:
    """Return how many lines of their script stay and go, and how many are new; what our script imports from theirs stays."""
    theirs, ours = ((SCRIPTS / f"{side}_{name}.py").read_text() for side in ("theirs", "ours"))
    imported = {
        alias.name
        for node in ast.parse(ours).body
        if isinstance(node, ast.ImportFrom) and node.module == f"theirs_{name}"
        for alias in node.names
    }
    kept = {
        line
        for node in ast.parse(theirs).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in imported
        for line in range(node.lineno, node.end_lineno + 1)
    }
    before, after = code(theirs, without=kept), code(ours)
    equal = sum(block.size for block in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks())
    return equal + len(code(theirs)) - len(before), len(before) - equal, len(after) - equal


def code(text: str, *, without: Collection[int] = ()) -> list[str]:
    """Return the lines of code of a text without indentation."""
    lines = text.splitlines()
    return [lines[number - 1].strip() for number in lines_of(text) if number not in without]


def test_pages_show_the_scripts_as_they_are() -> None:
    shown = {}
    for page in PAGES.glob("*.md"):
        shown |= dict(re.findall(r"```\w+\n# (\w+\.\w+)\n(.*?)```", page.read_text(), flags=re.DOTALL))
    expected = {path.name: path.read_text() for path in SCRIPTS.iterdir() if path.is_file()}
    assert shown == expected
