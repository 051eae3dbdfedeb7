"""Tests that members split over several devices get the results they get alone, even if they move or lose ranks."""

import gc
import os
import re
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import late
import living
import pytest
import studies
from splits import all_alone, check, fleet, member, study, train, weights
from torch import Tensor, nn
from torch.optim import SGD

import argosy
from argosy.running.control import faults
from argosy.running.control.driver import Driver
from argosy.running.directory import inbox
from argosy.running.launch import processes
from argosy.training.choice.fusion_group import FusionGroup
from argosy.training.programs.shard.parallel import Group, Sum

devices = late.devices


def first(name: str, asked: int) -> Mapping[int, float]:
    """Return the shares of a member by device: two groups that overlap, and whole members on device 0."""
    del asked
    return {"wide": {0: 0.2, 1: 0.3, 2: 0.5}, "pair": {2: 0.6, 1: 0.4}}.get(name, {0: 1.0})


def moving(name: str, asked: int) -> Mapping[int, float]:
    """Return shares on other devices each time the policy is asked, so that members move and are whole or split in turn."""
    wide = ({0: 0.2, 1: 0.3, 2: 0.5}, {1: 0.9, 0: 0.1}, {2: 1.0})
    pair = ({1: 1.0}, {0: 0.5, 1: 0.25, 2: 0.25}, {1: 0.4, 0: 0.6})
    found = {"wide": wide, "pair": pair}.get(name, ({0: 1.0}, {2: 1.0}, {1: 1.0}))
    return found[min(asked, 3) - 1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    return all_alone(tmp_path_factory.mktemp("alone"))


def test_members_on_several_devices_become_what_they_are_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    report = train(tmp_path, monkeypatch, first)
    assert {row.status for row in report.rows} == {"done"}
    check(tmp_path, alone)
    lines = evidence.event_lines(tmp_path, "Split")
    assert {(line["member"], tuple(line["devices"]), tuple(line["shares"])) for line in lines} == {
        ("wide", ("cpu:0", "cpu:1", "cpu:2"), (0.2, 0.3, 0.5)),
        ("pair", ("cpu:2", "cpu:1"), (0.6, 0.4)),
    }
    started = [line for line in evidence.event_lines(tmp_path, "MemberStarted") if line["member"] == "wide"]
    assert [line["device"] for line in started] == ["cpu:0"]
    stepped = sum(line["stepping"]["cpu:1"] for line in evidence.event_lines(tmp_path, "Passed"))
    of_both = sum(row.seconds for row in report.rows if row.name in ("wide", "pair"))
    assert stepped == pytest.approx(of_both, abs=1e-3), "cpu:1 should be the first rank of no member and step two"


@pytest.mark.usefixtures("devices")
def test_devices_that_are_no_cpus_add_up_in_memory_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    def halves(name: str, asked: int) -> Mapping[int, float]:
        del asked
        return {0: 0.3, 1: 0.7} if name == "wide" else {1: 1.0}

    report = train(tmp_path, monkeypatch, halves, study("wide", "short"), devices="late:0,1")
    assert {row.status for row in report.rows} == {"done"}
    assert [line["devices"] for line in evidence.event_lines(tmp_path, "Split")] == [["late:0", "late:1"]]
    check(tmp_path, alone, "wide", "short")


def test_a_program_of_several_members_goes_on_beside_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(fusion_group: FusionGroup, seconds: float, samples: int, need: int | None = None) -> None:
        """Make programs cheaper the more members they step."""
        if samples:
            fusion_group.tries[fusion_group.now] = [1.0 / fusion_group.now.size]

    def shares_of(name: str, asked: int) -> Mapping[int, float]:
        del asked
        return {0: 0.6, 1: 0.4} if name == "wide" else {0: 1.0}

    monkeypatch.setattr(FusionGroup, "note", note)
    alike = [member(f"m{n}", batch_size=10, optimizer=partial(SGD, lr=0.02 * (n + 1))) for n in range(3)]
    fleet = [member("wide", batch_size=20), *alike, member("early", 1, batch_size=10)]
    wanted = study(members=fleet)
    report = train(tmp_path / "beside", monkeypatch, shares_of, wanted, packing="auto")
    sizes = [sorted(map(len, e["programs"])) for e in evidence.event_lines(tmp_path / "beside", "Packed")]
    assert max(map(max, sizes)) == 4
    argosy.train(wanted, directory=tmp_path / "alone", launcher="inline", devices="cpu:1", numerics="exact")
    names = ["wide", "m0", "m1", "m2", "early"]
    assert {row.status for row in report.rows} == {"done"}
    check(tmp_path / "beside", {name: weights(tmp_path / "alone", name) for name in names})


def test_members_move_between_devices_and_groups_through_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    train(tmp_path, monkeypatch, moving)
    check(tmp_path, alone)
    assert [tuple(line["devices"]) for line in evidence.event_lines(tmp_path, "Split") if line["member"] == "wide"] == [
        ("cpu:0", "cpu:1", "cpu:2"),
        ("cpu:1", "cpu:0"),
        ("cpu:2",),
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("device", ["cpu:0", "cpu:2"])
def test_a_lost_rank_is_replaced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alone: dict[str, dict[str, Tensor]],
    device: str,
    number: signal.Signals,
) -> None:
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 0.3)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.1)
    hurt: list[int] = []

    def hurts(driver: Driver) -> None:
        workers: Any = driver.pool.workers
        if not hurt and len(driver.state.member("wide").sections) >= 2:
            hurt.append(workers.workers[device].pid)
            os.kill(hurt[0], number)

    living.at_every_round(monkeypatch, hurts)
    train(tmp_path, monkeypatch, first)
    assert hurt and evidence.event_lines(tmp_path, "WorkerLost")
    check(tmp_path, alone)


def test_a_run_that_was_paused_goes_on_in_the_same_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    with monkeypatch.context() as patched:

        def pauses(driver: Driver) -> None:
            if driver.state.member("wide").sections:
                driver.requests.request_pause("a test")

        living.at_every_round(patched, pauses)
        report = train(tmp_path, patched, first)
    assert {row.status for row in report.rows if row.name in ("wide", "pair")} == {"paused"}
    train(tmp_path, monkeypatch, lambda name, asked: {{"wide": 0, "pair": 1}.get(name, 2): 1.0})
    check(tmp_path, alone)
    before, after = (line["plan"]["flotillas"][0]["placements"] for line in evidence.event_lines(tmp_path, "PlanMade"))
    for name in ("wide", "pair"):
        then, again = (next(p for p in placements if p["member"] == name) for placements in (before, after))
        assert (then["devices"], then["shares"]) == (again["devices"], again["shares"])


calls = [0]


def fails_once(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy that raises in the second epoch, on the device whose share of the batch is three samples."""
    calls[0] += output.requires_grad
    if calls[0] > 60 and len(output) == 3:
        raise ValueError("not again")
    return nn.functional.cross_entropy(output, target, reduction="none")


def first_and_bad(name: str, asked: int) -> Mapping[int, float]:
    return {0: 0.4, 2: 0.6} if name == "bad" else first(name, asked)


def test_a_member_that_raises_on_one_rank_ends_on_all_and_no_other_member_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    bad = member("bad", batch_size=5, loss=fails_once, eval_batch_size=20)
    report = train(tmp_path, monkeypatch, first_and_bad, study(members=[*fleet(), bad]))
    rows = {row.name: row for row in report.rows}
    assert rows["bad"].status == "failed" and "not again" in rows["bad"].reason
    assert evidence.event_lines(tmp_path, "WorkerLost") == []
    check(tmp_path, alone)


def is_cut_once(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy that once breaks the groups of the device whose share of the batch is three samples."""
    calls[0] += output.requires_grad
    if calls[0] == 61 and len(output) == 3:
        for group in (found for found in gc.get_objects() if isinstance(found, Group)):
            group.broken = "cut by a test"
    return nn.functional.cross_entropy(output, target, reduction="none")


def test_a_group_that_breaks_without_a_loss_is_formed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    monkeypatch.setattr(faults, "BROKEN_SECONDS", 0.3)
    cut = member("bad", batch_size=5, loss=is_cut_once, eval_batch_size=20)
    report = train(tmp_path, monkeypatch, first_and_bad, study(members=[*fleet(), cut]))
    assert {row.status for row in report.rows} == {"done"}
    (lost,) = evidence.event_lines(tmp_path, "WorkerLost")
    assert lost["worker"] == "cpu:2/group" and "cut by a test" in lost["detail"]
    check(tmp_path, alone)


class Never:
    """Stands for torch's handle of a sum that never completes."""

    def is_completed(self) -> bool:
        return False


def is_never_begun(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy after which one device only seems to begin its sums, until its group is formed again."""
    calls[0] += output.requires_grad
    if calls[0] == 61 and len(output) == 3:
        for group in [found for found in gc.get_objects() if isinstance(found, Group)]:
            hanging: Any = group
            hanging.add_up = lambda values, group=group: Sum(group, Never())
    return nn.functional.cross_entropy(output, target, reduction="none")


def test_a_sum_that_one_rank_never_begins_is_named_and_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    never = member("bad", batch_size=5, loss=is_never_begun, eval_batch_size=20)
    wanted = study(members=[*fleet(), never])
    report = train(tmp_path, monkeypatch, first_and_bad, wanted, hang_seconds=3.0, checkpoint_seconds=1.0)
    assert {row.status for row in report.rows} == {"done"}
    (lost,) = evidence.event_lines(tmp_path, "WorkerLost")
    assert lost["worker"] == "cpu:0/group"
    assert re.match(r"no progress for \d+ s: cpu:0 waiting for the other devices of member ", lost["detail"])
    assert "of member 'bad'" in lost["detail"] and "; cpu:2 waiting" in lost["detail"]
    check(tmp_path, alone)


def across(name: str, asked: int) -> Mapping[int, float]:
    """Return shares that split two members over both nodes, differently each time, and keep the others on one node."""
    shares = {"wide": (0.3, 0.9, 0.5), "pair": (0.6, 0.2, 0.4)}.get(name)
    if shares is None:
        return {len(name) % 2: 1.0}
    here = shares[min(asked, 3) - 1]
    return {0: here, 1: 1.0 - here} if name == "wide" else {1: here, 0: 1.0 - here}


def test_members_on_devices_of_two_nodes_become_what_they_are_alone_though_a_rank_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    hurt: list[int] = []

    def hurts(driver: Driver) -> None:
        workers: Any = driver.pool.workers
        if not hurt and len(driver.state.member("wide").sections) >= 2:
            hurt.append(workers.workers["node1/cpu:0"].pid)
            os.kill(hurt[0], signal.SIGKILL)

    living.at_every_round(monkeypatch, hurts)
    report = train(tmp_path, monkeypatch, across, devices="cpu:1", nodes=2, sharing="all-shared")
    assert {row.status for row in report.rows} == {"done"}
    assert "node1/cpu:0" in [line["worker"] for line in evidence.event_lines(tmp_path, "WorkerLost")]
    groups = {tuple(line["devices"]) for line in evidence.event_lines(tmp_path, "Split") if line["member"] == "wide"}
    assert groups == {("node0/cpu:0", "node1/cpu:0")}
    check(tmp_path, alone)


def test_a_member_on_several_devices_is_stopped_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    living.trusting(monkeypatch)
    told: list[Any] = []

    def stops(driver: Driver) -> None:
        if not told and driver.state.member("wide").sections:
            told.append(inbox.write_command(tmp_path, {"command": "stop", "member": "wide"}))

    living.at_every_round(monkeypatch, stops)
    members = [
        one if one.name != "wide" else member("wide", 50, batch_size=63, augment=studies.dawdle) for one in fleet()
    ]
    report = train(tmp_path, monkeypatch, first, study(members=members))
    assert {row.name: row.status for row in report.rows}["wide"] == "stopped"
    assert evidence.event_lines(tmp_path, "WorkerLost") == []
    check(tmp_path, alone, "pair", "whole", "short", "middle")
