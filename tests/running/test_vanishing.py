"""Tests that a leaving member whose trainer is lost while saving it resumes from its newest checkpoint, whatever else happens."""

from collections import Counter
from pathlib import Path

import evidence
import fakes
import living
import pytest

from argosy.running.control.driver import Driver
from argosy.running.directory import inbox
from argosy.running.watch.phase import Phase

pytestmark = pytest.mark.tampers  # no member really trains, so no digest is right
A, B, C = fakes.names_of(3)


def starts(directory: Path) -> Counter[str]:
    """Return how often each member started or resumed."""
    return Counter(line["member"] for line in evidence.event_lines(directory, "MemberStarted"))


def test_while_newcomers_are_measured_and_no_member_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, phases = fakes.fleet(1, 2), list[Phase]()
    late = fakes.Brings(study.members[1:], after=A)
    asked = fakes.replace(study, members=study.members[:1])
    living.at_every_round(
        monkeypatch, lambda driver: phases.append(driver.run.phase) if driver.members.leaving else None
    )
    workers, state = fakes.drive_fakes(asked, tmp_path, monkeypatch, {A: ["d1"]}, doomed=A, bringers=[late])
    assert (workers.vanished, phases[0]) == (["d1"], Phase.MEASURING)
    assert {name: (one.status, len(one.sections)) for name, one in state.members.items()} == {
        A: ("done", 1),
        B: ("done", 2),
    }
    assert starts(tmp_path) == {A: 2, B: 1}


def test_while_another_leg_regroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(driver: Driver) -> None:
        if A in driver.members.leaving and not driver.state.lost:
            driver.faults.regroup(driver.legs.live)

    living.at_every_round(monkeypatch, act)
    study = fakes.fleet(1, 4)
    workers, state = fakes.drive_fakes(study, tmp_path, monkeypatch, {A: ["d0"]}, {B: ["d1"]}, doomed=A)
    assert workers.vanished == ["d0"]
    assert {(one.status, len(one.sections)) for one in state.members.values()} == {("done", 1), ("done", 4)}
    assert starts(tmp_path) == {A: 2, B: 2}


def test_while_it_carries_a_part_of_a_member_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = fakes.fleet(1, 3)
    workers, state = fakes.drive_fakes(study, tmp_path, monkeypatch, {A: ["d0"]}, {B: ["d1", "d0"]}, doomed=A)
    assert workers.vanished == ["d0"]
    assert {(one.status, len(one.sections)) for one in state.members.values()} == {("done", 1), ("done", 3)}
    assert starts(tmp_path)[A] == 2


def test_which_it_carried_together_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split member is saved by the first of its own devices, which need not be the leg's first device."""
    living.trusting(monkeypatch)
    left: list[str] = []

    def act(driver: Driver) -> None:
        if not left and driver.legs.live:
            words = {"member": C, "name": "m7", "set": {"optimizer.lr": 0.2}, "warm": True}
            left.append(inbox.write_command(tmp_path, {"command": "clone", **words}))

    living.at_every_round(monkeypatch, act)
    line = {A: ["d0"], B: ["d1"], C: ["d1", "d0"]}
    workers, state = fakes.drive_fakes(fakes.fleet(4, 4, 2), tmp_path, monkeypatch, line, doomed=C)
    assert (workers.vanished, set(workers.saving)) == (["d1"], {"d1"})
    assert [state.member(name).status for name in (A, B, C)] == ["done"] * 3
    assert starts(tmp_path) == {A: 1, B: 2, C: 2}
