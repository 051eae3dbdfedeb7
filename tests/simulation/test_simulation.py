"""Tests that runs in virtual time end with the same members whatever happens to them, and that the simulator finds planted bugs."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from argosy.running.control import choices
from argosy.running.directory import records
from simulation.campaign import Covered, played
from simulation.made import CREDIT_TO_A_BUSY_TRAINER, MADE
from simulation.planted import PLANTED, Planted
from simulation.runs import play
from simulation.scenario import Fault, Scenario, drawn

SEEDS, CHUNK, FEW = 2000, 100, 20
SOME = [pytest.param(0, FEW, marks=pytest.mark.quick), (FEW, CHUNK)]
HERE = Path(__file__).resolve().parent.parent
SECTIONS = Scenario(seed=1, epochs=(5, 4, 1), batches=(8, 16, 5), row_ms=(2.0, 5.0, 1.0), per_epoch=2)
"""A scenario of twenty sections."""


@pytest.mark.parametrize(("first", "end"), [*SOME, *((first, first + CHUNK) for first in range(CHUNK, SEEDS, CHUNK))])
def test_whatever_happens_to_it_a_run_ends_as_without(first: int, end: int) -> None:
    assert not played(range(first, end)).wrong, "python -m simulation --story SEED tells it"


@pytest.mark.parametrize("seed", [39244, 41799, 60561, 67171, 139211, 157386, 200826, 481306, 504394, 506290])
def test_runs_of_campaigns_that_were_wrong_end_well(seed: int) -> None:
    """Seeds that went wrong in long campaigns end well.

    The causes were bounds that were too tight; a trainer that was paused for a member it still saved, so that its other members
    stood still; searches that were not resumed to their end; a clone of a member at its end, which no driver reported before
    the power was cut; blocks of a new leg that a pause threw away; a file that was saved twice, after which links of later members
    were not updated; and a clone that a pause had kept from joining, whose request had no answer.
    """
    assert not played([seed]).wrong


def test_a_seed_replays_bit_for_bit_whatever_the_order_of_sets() -> None:
    told = "from simulation.runs import play; from simulation.scenario import drawn; print([play(drawn(s)).journal for s in (*range(20), 44, 89, 91)])"
    runs = [
        subprocess.run(
            [sys.executable, "-c", told],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(HERE)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("2", "7")
    ]
    assert runs[0] == runs[1]
    assert b"''" not in runs[0], "each has a journal"


@pytest.mark.parametrize("seed", [0, 1, 47])
def test_how_its_process_and_machine_are_called_decides_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal does not depend on the names of process and machine or on versions.

    Files contain them, so their real length would decide where a power cut tears a file.
    """
    played = play(drawn(seed))
    assert any(fault.kind == "power" for fault in played.happened)
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(socket, "gethostname", lambda: "a-machine-with-a-long-name")
    for where in (records, choices):
        monkeypatch.setattr(where, "versions", dict)
    assert play(drawn(seed)).journal == played.journal


@pytest.mark.parametrize("every", [1, 9], ids=["each", "ninth"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["driver", "power", "full"])
def test_a_run_that_is_cut_off_at_any_of_its_writes_goes_on_to_the_same_weights(
    kind: str, before: bool, every: int
) -> None:
    write, happened = 1 - every, True
    while happened:
        write += every
        outcome = play(replace(SECTIONS, faults=(Fault(kind=kind, at="write", count=write, before=before),)))
        assert not outcome.wrong, outcome.told()
        happened = bool(outcome.happened)
    assert write > 100


@pytest.mark.parametrize("every", [1, 5], ids=["each", "fifth"])
@pytest.mark.parametrize("then", [None, "driver"])
def test_a_member_whose_kernel_asserts_is_found_wherever_that_begins(then: str | None, every: int) -> None:
    """A member whose kernel asserts is found whichever step it begins at, even if the driver is killed after the first loss."""
    step, happened = 1 - every, True
    while happened:
        step += every
        faults = (Fault(kind="poison", at="step", count=step), Fault(kind="driver", at="loss", count=1))
        outcome = play(replace(SECTIONS, faults=faults if then else faults[:1]))
        assert not outcome.wrong, outcome.told()
        happened = bool(outcome.happened)
        assert len(outcome.lost) == 2 * happened, outcome.told()
    assert step > 20


def test_each_pair_of_a_state_and_an_event_is_reached_by_a_scenario_made_for_it() -> None:
    covered = Covered()
    for made in MADE:
        played = made.played()
        assert not made.left(played), f"no seed of {made.scenario} reaches these"
        covered.join(played)
    assert not covered.wrong
    assert not covered.never


def test_a_busy_trainer_gets_all_blocks_of_a_feeder_that_it_read_before() -> None:
    assert not play(CREDIT_TO_A_BUSY_TRAINER).wrong


def test_the_page_about_it_has_the_bugs_that_are_planted() -> None:
    page = (HERE.parent / "docs" / "internals" / "simulation.md").read_text()
    found = [line for line in page.partition("| planted |")[2].splitlines() if line.startswith("| ")]
    assert found == [
        f"| {one.what} | {one.commit or '–'} | {one.found if isinstance(one.found, int) else 'made by hand'} |"
        for one in PLANTED
    ]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.what)
def test_a_bug_that_was_mended_is_found_again(planted: Planted) -> None:
    assert not play(planted.scenario).wrong
    with planted():
        assert play(planted.scenario).wrong
