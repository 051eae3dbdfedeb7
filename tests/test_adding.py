"""Tests of the worked examples on the page about adding alternatives: its files do what every alternative of their kind must do."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import evidence
import pytest
import studies
from planning import test_policies

import argosy
from argosy.errors import StudyError
from argosy.planning import POLICIES

PAGE = (Path(__file__).parents[1] / "docs" / "internals" / "adding.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, flags=re.DOTALL))


@pytest.fixture
def added(tmp_path: Path) -> Any:
    """Return a function that writes a file of the page and imports it."""

    def file(name: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(FILES[name])
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return file


def trained(directory: Path, **settings: Any) -> argosy.Report:
    return argosy.train(studies.study(), directory=directory, **{"launcher": "inline", "quiet": True} | settings)


def test_each_file_of_the_page_is_run_here() -> None:
    assert FILES.keys() == {"first", "gap", "slots", "ends"}


def test_a_policy(added: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(POLICIES, "first", added("first").First())
    test_policies.test_the_first_plan_is_valid_and_the_same_when_asked_again("first")
    for count in (1, 4):
        test_policies.test_every_member_gets_its_epochs("first", count)
    test_policies.test_a_member_that_no_device_holds_is_refused("first")
    test_policies.test_nothing_to_do_is_an_empty_plan("first")
    assert {row.status for row in trained(tmp_path / "run", policy="first", devices="cpu:2").rows} == {"done"}


def test_a_stopping_rule(added: Any, tmp_path: Path) -> None:
    gap = added("gap").Gap
    assert gap(0.5).reason([]) is None
    assert gap(0.5).reason([{"val_loss": 1.4, "train_loss": 1.0}]) is None
    assert gap(0.5).reason([{"val_loss": 1.6, "train_loss": 1.0}]) == "val_loss is 0.6 above train_loss"
    with pytest.raises(StudyError, match="Gap: most"):
        gap(0)
    study = studies.study(stop=gap(1e-9) | argosy.MaxEpochs(3))
    report = argosy.train(study, directory=tmp_path / "run", launcher="inline", devices="cpu:1", quiet=True)
    for row in report.rows:
        history = [section.metrics for section in row.sections]
        over = [metrics["val_loss"] > metrics["train_loss"] + 1e-9 for metrics in history]
        assert not any(over[:-1]) and (over[-1] or len(over) == 3), row.name


def test_a_launcher(added: Any, tmp_path: Path) -> None:
    slots = added("slots").Slots(count=3)
    report = trained(tmp_path / "slots", launcher=slots)
    assert {device for row in report.rows for device in [row.device]} == {"cpu:0", "cpu:1", "cpu:2"}
    trained(tmp_path / "inline", devices="cpu:1")
    assert evidence.results(tmp_path / "slots") == evidence.results(tmp_path / "inline")


def test_a_view(added: Any, tmp_path: Path) -> None:
    told = list[str]()
    report = trained(tmp_path / "run", view=added("ends").Ends(told.append), devices="cpu:1")
    assert sorted(told) == sorted(f"{row.name}: {row.status}" for row in report.rows)
