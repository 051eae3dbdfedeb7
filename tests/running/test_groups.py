"""Runs whose members span devices: they become what they are alone, also where they move, and where ranks are lost."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import living
import pytest
import studies
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import argosy
from argosy.planning import Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile
from argosy.running import processes
from argosy.running.voyage import Voyage

LENGTH = 150


class Double(nn.Module):
    """Float64 inside, so that what a split rounds otherwise is far from what differs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 10)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.double())


def member(name: str, epochs: float = 3, **rest: Any) -> argosy.Member:
    rest.setdefault("optimizer", partial(SGD, lr=0.05, momentum=0.9))
    return studies.member(name, model=Double, stop=argosy.MaxEpochs(epochs), **rest)


def fleet() -> list[argosy.Member]:
    return [
        member("wide", batch_size=63, optimizer=partial(AdamW, lr=0.01), clip_grad_norm=0.5),
        member("pair", batch_size=20, accumulate=3, augment=studies.dawdle),
        member("whole", batch_size=33),
        member("short", 0.5, batch_size=16),
        member("middle", 2, batch_size=16),
    ]


def study(*names: str, members: list[argosy.Member] | None = None) -> argosy.Study:
    chosen = [one for one in members or fleet() if not names or one.name in names]
    return studies.study(LENGTH, fleet=chosen, val=20, validations_per_epoch=2)


@dataclass(slots=True)
class Seats:
    """A policy that seats members where the test says, by how often it was asked: shares by device."""

    seats: Callable[[str, int], Mapping[int, float]]
    asked: int = field(default=0)

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        if len(situation.free) < len(situation.devices):
            return ()
        self.asked += 1
        return (Flotilla(placements=tuple(self._placed(profile, situation) for profile in situation.waiting)),)

    def _placed(self, profile: Profile, situation: Situation) -> Placement:
        shares = {situation.devices[n].name: share for n, share in self.seats(profile.member, self.asked).items()}
        return Placement.uneven(profile, shares) if len(shares) > 1 else Placement.whole(profile, next(iter(shares)))

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        del situation, started, live
        return False


def first(name: str, asked: int) -> Mapping[int, float]:
    """Groups that overlap, with whole members beside them."""
    del asked
    return {"wide": {0: 0.2, 1: 0.3, 2: 0.5}, "pair": {2: 0.6, 1: 0.4}}.get(name, {0: 1.0})


def moving(name: str, asked: int) -> Mapping[int, float]:
    """Every time elsewhere, split and whole in turn."""
    wide = ({0: 0.2, 1: 0.3, 2: 0.5}, {1: 0.9, 0: 0.1}, {2: 1.0})
    pair = ({1: 1.0}, {0: 0.5, 1: 0.25, 2: 0.25}, {1: 0.4, 0: 0.6})
    found = {"wide": wide, "pair": pair}.get(name, ({0: 1.0}, {2: 1.0}, {1: 1.0}))
    return found[min(asked, 3) - 1]


def train(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seats: Any, wanted: argosy.Study | None = None
) -> argosy.Report:
    policy = living.policy(monkeypatch, Seats(seats))
    how = {"launcher": "processes", "devices": "cpu:3", "loader_workers": 0, "block_size": 64}
    return living.run(wanted or study(), directory, policy=policy, **how)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """Weights of every member, trained by itself on one device."""
    found = {}
    for one in fleet():
        directory = tmp_path_factory.mktemp(one.name)
        argosy.train(study(one.name), directory=directory, launcher="inline", devices="cpu:1", numerics="exact")
        found[one.name] = weights(directory, one.name)
    return found


def weights(directory: Path, name: str) -> dict[str, Tensor]:
    return dict(torch.load(directory / "members" / name / "last.pt", weights_only=True)["model"])


def check(directory: Path, alone: Mapping[str, Mapping[str, Tensor]], *names: str) -> None:
    """Each is what it is alone."""
    for name in names or alone:
        found = weights(directory, name)
        for key, weight in alone[name].items():
            assert float((found[key] - weight).norm() / weight.norm()) <= 1e-9, (name, key)


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
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.1)
    hurt: list[int] = []

    def hurts(voyage: Voyage) -> None:
        workers: Any = voyage.force.workers
        if not hurt and len(voyage.state.member("wide").sections) >= 2:
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

        def pauses(voyage: Voyage) -> None:
            if voyage.state.member("wide").sections:
                voyage.driver.orders.want_pause("a test")

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


def test_a_member_that_raises_on_one_rank_ends_on_all_and_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    bad = member("bad", batch_size=5, loss=fails_once, eval_batch_size=20)
    report = train(tmp_path, monkeypatch, first_and_bad, study(members=[*fleet(), bad]))
    rows = {row.name: row for row in report.rows}
    assert rows["bad"].status == "failed" and "not again" in rows["bad"].reason
    assert evidence.event_lines(tmp_path, "WorkerLost") == []
    check(tmp_path, alone)


def test_a_member_on_several_devices_is_stopped_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Tensor]]
) -> None:
    living.trusting(monkeypatch)
    told: list[Any] = []

    def stops(voyage: Voyage) -> None:
        if not told and voyage.state.member("wide").sections:
            told.append(voyage.driver.orders._stop("wide", "c0.json", {"command": "stop", "member": "wide"}))

    living.at_every_round(monkeypatch, stops)
    members = [
        one if one.name != "wide" else member("wide", 50, batch_size=63, augment=studies.dawdle) for one in fleet()
    ]
    report = train(tmp_path, monkeypatch, first, study(members=members))
    assert {row.name: row.status for row in report.rows}["wide"] == "stopped"
    assert evidence.event_lines(tmp_path, "WorkerLost") == []
    check(tmp_path, alone, "pair", "whole", "short", "middle")
