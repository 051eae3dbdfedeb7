"""Tests that sections change when a member is validated but not its weights, and that a run resumes exactly from any section."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import evidence
import living
import pytest
import studies

import argosy
from argosy.running.control.driver import Driver
from argosy.running.watch.phase import Phase
from argosy.stream.blocks import Block
from argosy.training.trainer.program_instances import ProgramInstance


def train(directory: Path, sections: int, launcher: str = "inline", **settings: Any) -> dict[str, Any]:
    """Train four different members for two epochs of so many sections; return their results."""
    study = studies.study(130, val=9, validations_per_epoch=sections)
    settings |= {"launcher": launcher, "block_size": 32, "devices": "cpu:2", "numerics": "exact"}
    report = argosy.train(study, directory=directory, **settings)
    assert report.preparations == 1.0
    living.equal_alone(study, directory)
    return evidence.results(directory)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results with one section per epoch."""
    return train(tmp_path_factory.mktemp("whole"), 1)


@pytest.mark.parametrize(("sections", "launcher"), [(4, "inline"), (16, "inline"), (4, "processes")])
def test_weights_do_not_depend_on_sections(tmp_path: Path, whole: dict[str, Any], sections: int, launcher: str) -> None:
    found = train(tmp_path, sections, launcher)
    assert {len(many["epochs"]) for many in found.values()} == {2 * sections}
    # The last section of an epoch reports what an undivided epoch reports.
    assert {name: {**many, "epochs": many["epochs"][sections - 1 :: sections]} for name, many in found.items()} == whole


class Cut(Exception):  # noqa: N818
    """Ends the driver at once, as if it were killed."""


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_goes_on_from_any_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    study = studies.study(130, val=9, validations_per_epoch=3)
    argosy.train(study, directory=tmp_path / "whole", launcher="inline", block_size=16, devices="cpu:2")
    seen = [0]

    def cut_off(driver: Driver) -> None:
        sections = sum(len(member.sections) for member in driver.state.members.values())
        if driver.run.phase is Phase.TRAINING and sections > seen[0]:
            seen[0] = sections
            if killed:
                raise Cut
            driver.requests.request_pause("cut off")

    living.at_every_round(monkeypatch, cut_off)
    runs, status = 0, ""
    while status != "done":
        runs += 1
        assert runs < 40
        try:
            report = argosy.train(study, directory=tmp_path / "cut", launcher="inline", block_size=16, devices="cpu:2")
        except Cut:
            continue
        status = report.status
    assert runs > 5
    cut, whole = evidence.results(tmp_path / "cut"), evidence.results(tmp_path / "whole")
    assert cut == whole


def test_a_section_may_be_of_one_sample(tmp_path: Path) -> None:
    study = studies.study(6, val=9, fleet=[studies.member(batch_size=3)], validations_per_epoch=6)
    report = argosy.train(study, directory=tmp_path, launcher="inline", numerics="exact")
    assert report.preparations == 1.0
    living.equal_alone(study, tmp_path)


@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_a_quarter_of_an_epoch_is_a_budget(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member("quarter", stop=argosy.MaxEpochs(0.25)), studies.member("more", stop=argosy.MaxEpochs(1.5))]
    study = studies.study(130, val=9, fleet=fleet, validations_per_epoch=4)
    settings: dict[str, Any] = {"launcher": launcher, "block_size": 16, "devices": "cpu:1", "numerics": "exact"}
    report = argosy.train(study, directory=tmp_path, **settings)
    assert {row.name: row.epochs for row in report.rows} == {"quarter": 0.25, "more": 1.5}
    assert report.preparations == 1.0
    living.equal_alone(study, tmp_path)


def test_a_run_that_was_cut_off_between_an_epochs_last_step_and_its_validation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is cut off between an epoch's last step and its validation resumes, though no samples are left to measure members on."""
    study = studies.study(96, fleet=[studies.member(batch_size=32)], epochs=2)
    living.run(study, tmp_path / "whole", launcher="inline", devices="cpu:1")
    stopped = []

    def stop_before_validation(instance: ProgramInstance, block: Block, called: Callable[[], bool]) -> bool:
        if not stopped:
            stopped.append(instance.names)
            raise KeyboardInterrupt
        return evaluate(instance, block, called)

    evaluate = ProgramInstance.evaluate
    monkeypatch.setattr(ProgramInstance, "evaluate", stop_before_validation)
    with pytest.raises(KeyboardInterrupt):
        living.run(study, tmp_path / "cut", launcher="inline", devices="cpu:1", checkpoint_seconds=1e-9, block_size=32)
    assert evidence.event_lines(tmp_path / "cut", "Saved")[-1]["checkpoint"]["position"] == 96
    living.run(study, tmp_path / "cut", launcher="inline", devices="cpu:1")
    assert evidence.results(tmp_path / "cut") == evidence.results(tmp_path / "whole")
