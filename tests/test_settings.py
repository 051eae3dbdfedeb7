"""Tests that invalid settings are refused when they are made, before anything is started or journaled."""

import math
from pathlib import Path

import numpy as np
import pytest
import studies

import argosy
from argosy.errors import PlanError, StudyError
from argosy.settings import Settings
from argosy.stream.heartbeat import MAX_LOADERS


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("hang_seconds", 0),
        ("hang_seconds", math.nan),
        ("checkpoint_seconds", -1.0),
        ("time_limit", "1h"),
        ("cores", "4"),
        ("threads", None),
        ("nodes", 2.0),
        ("nodes", 0),
        ("loader_workers", True),
    ],
)
def test_numbers_that_cannot_be_are_refused(setting: str, value: object) -> None:
    with pytest.raises(StudyError, match=f"{setting} is {value!r}; it must be an? "):
        Settings(**{setting: value})


@pytest.mark.parametrize(("setting", "most"), [("nodes", 120), ("loader_workers", MAX_LOADERS)])
def test_more_than_a_run_can_have_is_refused(setting: str, most: int) -> None:
    Settings(**{setting: most})
    with pytest.raises(StudyError, match=f"{setting} is {most + 1}; a run can have at most {most}"):
        Settings(**{setting: most + 1})


@pytest.mark.parametrize("setting", ["compile", "retry_failed"])
@pytest.mark.parametrize("value", ["no", np.bool_(1)])  # numpy's type is named bool, too
def test_a_text_is_no_flag(setting, value):
    with pytest.raises(StudyError, match=f"{setting} is {value!r}; it must be True or False."):
        Settings(**{setting: value})


def test_times_of_zero_are_for_those_that_mean_at_once() -> None:
    assert Settings(checkpoint_seconds=0, time_limit=0).hang_seconds == 120.0


def test_a_misspelt_policy_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match=r"unknown policy 'balancd' \(did you mean 'balanced'\?\); choose one of balanced, exact"
    ):
        argosy.train(studies.study(), directory=tmp_path, launcher="inline", policy="balancd")
    assert not (tmp_path / "journal.jsonl").read_text()
