"""Tests verdicts of several judges: the gravest fate wins, and only sections that all are certain of are certain. A search that
still has trials to bring keeps its run from being done."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import living
import pytest
import studies
from hypothesis import given
from hypothesis import strategies as st
from searches import outcome, tune

import argosy
from argosy.results.fold import RunState
from argosy.running.control.driver import Driver
from argosy.running.control.verdicts import GO_ON, Fate, StoppingRules, Verdict, combine_verdicts

VERDICTS = st.builds(Verdict, st.sampled_from(Fate), st.sampled_from(["", "a", "b"]), st.integers(1, 5))


@dataclass
class Says:
    """A judge that always gives the same verdict."""

    answer: Verdict

    def verdict(self, member: str, state: RunState, study: argosy.Study) -> Verdict:
        return self.answer

    def called(self, resting: object, state: RunState, study: argosy.Study) -> tuple[str, ...]:
        return ()


@given(st.lists(VERDICTS, min_size=1, max_size=5))
def test_the_gravest_fate_counts_and_what_is_certain_to_all(verdicts: list[Verdict]) -> None:
    study = studies.study(fleet=[studies.member("m")])
    found = combine_verdicts([Says(verdict) for verdict in verdicts], "m", RunState(), study)
    fates = [verdict.fate for verdict in verdicts]
    if Fate.END in fates:
        assert found == next(verdict for verdict in verdicts if verdict.fate is Fate.END)
    elif Fate.REST in fates:
        assert found == next(verdict for verdict in verdicts if verdict.fate is Fate.REST)
    else:
        assert found == Verdict(Fate.GO_ON, certain=min(verdict.certain for verdict in verdicts))


def test_rules_are_the_members_own_or_the_studys() -> None:
    fleet = [studies.member("own", stop=argosy.MaxEpochs(3)), studies.member("other")]
    study, state = studies.study(fleet=fleet, epochs=7, validations_per_epoch=4), RunState()
    assert StoppingRules().verdict("own", state, study) == Verdict(Fate.GO_ON, certain=12)
    assert combine_verdicts([StoppingRules(), Says(GO_ON)], "own", state, study).certain == 1
    state.member("other").history.extend({"epochs": (n + 1) / 4, "seconds": 1.0} for n in range(28))
    assert StoppingRules().verdict("other", state, study) == Verdict(Fate.END, "7 epochs")
    assert StoppingRules().called({"own"}, state, study) == ()


LATER = {"scheduler": "random", "n_trials": 4, "max_epochs": 2, "at_once": 2, "numerics": "exact"}
"""Settings of a search that brings the next trial when one has ended."""


def test_a_search_that_is_paused_as_the_trials_at_hand_end_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def days_pass(driver: Driver) -> None:
        if len(driver.members.leaving) == 2:
            driver.run.began -= 1e6

    with monkeypatch.context() as patched:
        living.at_every_round(patched, days_pass)
        report = tune(tmp_path / "run", time_limit=1e5, **LATER).run
    assert report.status == "paused"
    assert {row.name: row.status for row in report.rows} == {"net-0": "done", "net-1": "done"}
    report = tune(tmp_path / "run", **LATER)
    assert report.run.status == "done"
    assert outcome(report) == outcome(tune(tmp_path / "whole", **LATER))


def test_a_search_whose_driver_was_killed_before_it_said_that_a_trial_had_ended_brings_the_others(
    tmp_path: Path,
) -> None:
    settings = {**LATER, "at_once": 1}
    whole = tune(tmp_path / "whole", **settings)
    lines = (tmp_path / "whole" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    ended = next(number for number, line in enumerate(lines) if b'"MemberEnded"' in line)
    again = shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (again / "journal.jsonl").write_bytes(b"".join(lines[:ended]))
    found = tune(again, **settings)
    assert (found.run.status, outcome(found)) == ("done", outcome(whole))
