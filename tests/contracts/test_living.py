"""Tests that members which are added, stopped, rested or moved get the results they get alone, and disturb no other member."""

import itertools
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import evidence
import living
import pytest
import studies

import argosy
from argosy.cluster import Cluster
from argosy.plans import Flotilla, Placement
from argosy.protocol.events import MemberStarted
from argosy.protocol.trainer import Lost
from argosy.results.fold import RunState
from argosy.running.control import tolerance
from argosy.running.control.driver import Driver
from argosy.running.control.losses import RecoveryWay
from argosy.running.control.members import State
from argosy.running.directory import inbox
from argosy.running.launch import inline
from argosy.running.launch.discovery import discover
from argosy.running.launch.inline import Inline, InlineWorkers
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import Silent
from argosy.stopping import Stop

SEEDS = 6


class Restless:
    """A policy that places members at random each time it is asked, and ends legs at random."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def launch(self, situation: Any) -> tuple[Flotilla, ...]:
        if not situation.free:
            return ()
        least = min(situation.epochs_done.get(profile.member, 0) for profile in situation.waiting)
        peers = [p for p in situation.waiting if situation.epochs_done.get(p.member, 0) == least]
        chosen = self.draw.sample(peers, self.draw.randint(1, len(peers)))
        placed = [Placement.whole(profile, self.draw.choice(situation.free).name) for profile in chosen]
        return (Flotilla(placements=tuple(placed)),)

    def keeps(self, situation: Any, started: Flotilla, live: Any) -> bool:
        return self.draw.random() < 0.5


class Moody:
    """A judge that rests members at random and calls them back at random, at the latest when no other member trains."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def verdict(self, member: str, state: Any, study: Any) -> Any:
        from argosy.running.control.verdicts import GO_ON, Fate, Verdict

        if state.member(member).sections and self.draw.random() < 0.2:
            return Verdict(Fate.REST, "a mood")
        return GO_ON

    def called(self, resting: Any, state: Any, study: Any) -> list[str]:
        others = [m.name for m in study.members if m.name not in resting and not living.finished(state.member(m.name))]
        return sorted(resting) if not others else [name for name in sorted(resting) if self.draw.random() < 0.1]


LATE = """
import argosy, studies
study = studies.study(90, fleet=[studies.member("late", hidden=8, batch_size=9, stop=argosy.MaxEpochs({epochs}))])
"""


@pytest.mark.parametrize("name", ["of-the-test", "fleet-local"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_members_equal_themselves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, name: str
) -> None:
    draw = random.Random(seed)
    sections = draw.choice([1, 1, 3, 4])
    chaos = living.policy(monkeypatch, Restless(draw), name=name)
    living.trusting(monkeypatch)
    living.way_on(monkeypatch, lambda: draw.choice(list(RecoveryWay)))
    monkeypatch.setattr(tolerance, "LOSSES", 10**6)
    faults, losses, orders = draw.choice([0.0, 0.02, 0.1]), draw.choice([0.0, 0.05, 0.2]), ["add", "stop"]
    run = tmp_path / "run"
    (tmp_path / "newcomers.py").write_text(LATE.format(epochs=draw.randint(1, 3 * sections) / sections))

    def act(driver: Driver) -> None:
        if driver.run.phase is Phase.TRAINING and draw.random() < 0.1:
            driver.carry_out.make_room()
        if driver.run.phase is Phase.TRAINING and draw.random() < faults:
            driver.faults.regroup(draw.choice([None, driver.legs.live[:1]]))
        if driver.run.phase is not Phase.OVER and draw.random() < losses:
            living.lose(driver, f"cpu:{draw.randrange(3)}")
        if orders and draw.random() < 0.05:
            command = orders.pop(draw.randrange(len(orders)))
            inbox.write_command(run, {"command": command, "study": str(tmp_path / "newcomers.py"), "member": "odd"})

    living.at_every_round(monkeypatch, act)
    members = [replace(m, stop=a_rule(draw, sections)) for m in fleet()]
    study = studies.study(90, val=11, fleet=members, validations_per_epoch=sections)
    judges = [Moody(draw)] if draw.random() < 0.5 else []
    living.run(study, run, judges=judges, policy=chaos, devices="cpu:3", block_size=draw.choice([8, 32]))
    state = living.state_of(run)
    late = [studies.member("late", hidden=8, batch_size=9)] if "late" in state.members else []
    done = [name for name, member in state.members.items() if member.status == "done"]
    living.equal_alone(replace(study, members=[*members, *late]), run, *done)
    for member in members:
        rows = state.member(member.name).history
        assert [member.stop.reason(rows[:count]) for count in range(1, len(rows))] == [None] * (len(rows) - 1)
        assert member.stop.reason(rows) is not None or member.name not in done
    others = {name: member.status for name, member in state.members.items() if name not in done}
    assert others in ({}, {"odd": "stopped"})
    assert len(state.answered) == 2 - len(orders)


def a_rule(draw: random.Random, sections: int) -> Stop:
    """Return a random stopping rule that ends a member after a few sections."""
    most = argosy.MaxEpochs(draw.randint(1, 3 * sections) / sections)
    kind = draw.randrange(3)
    if kind == 0:
        return most
    if kind == 1:
        return most | argosy.Plateau("val_loss", patience=draw.randint(1, 2))
    return most & argosy.Target("val_accuracy", 0.0) | argosy.Target("val_accuracy", 0.5)


def fleet() -> list[argosy.Member]:
    """Return four members that differ: batch sizes that cut blocks differently, a bootstrap sample, Adam."""
    return [
        studies.member("plain", batch_size=12),
        studies.member("odd", hidden=24, batch_size=17, clip_grad_norm=1.0),
        studies.member("bootstrap", batch_size=8, subset=[3, 3, 5, *range(40, 80)], drop_last=True),
        studies.member(
            "adam", batch_size=25, accumulate=3, eval_batch_size=7, optimizer=studies.partial(studies.Adam, lr=0.01)
        ),
    ]


def test_a_fault_while_members_move_finds_each_of_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moving = living.policy(monkeypatch, living.Dealt(lambda member, asked: asked + (member == "odd")))
    seen = []

    def act(driver: Driver) -> None:
        if driver.run.phase is Phase.TRAINING and any(leg.starting for leg in driver.legs.live):
            seen.append(driver.legs.live[0].until)
            driver.faults.regroup()
        elif driver.run.phase is Phase.TRAINING and len(seen) < 2:
            driver.carry_out.make_room()

    living.at_every_round(monkeypatch, act)
    study = studies.study(90, val=11, fleet=fleet(), epochs=4)
    living.run(study, tmp_path, policy=moving, devices="cpu:2", block_size=32)
    assert len(seen) == 2
    living.equal_alone(study, tmp_path)
    trained = Counter((line["member"], line["epoch"]) for line in evidence.event_lines(tmp_path, "SectionEnded"))
    assert set(trained.values()) == {1}


@pytest.mark.parametrize("sections", [1, 3])
@pytest.mark.parametrize("way", RecoveryWay)
def test_members_that_shared_a_stream_with_a_lost_trainer_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: RecoveryWay, sections: int
) -> None:
    here = {"plain": 0, "odd": 0, "bootstrap": 1, "adam": 1}
    dealt = living.policy(monkeypatch, living.Dealt(lambda member, asked: here[member], everywhere=False))
    living.way_on(monkeypatch, lambda: way)
    lost: list[int] = []

    def act(driver: Driver) -> None:
        done = driver.state.member("plain").sections
        if driver.run.phase is Phase.TRAINING and len(done) > len(lost) and len(lost) < 2:
            lost.append(len(done))
            living.lose(driver, "cpu:0")

    living.at_every_round(monkeypatch, act)
    study = studies.study(90, val=11, fleet=fleet(), epochs=4, validations_per_epoch=sections)
    living.run(study, tmp_path, policy=dealt, devices="cpu:2", block_size=16, checkpoint_seconds=1000)
    living.equal_alone(study, tmp_path)
    recovered = evidence.event_lines(tmp_path, "Recovered")
    assert (recovered[0]["worker"], recovered[0]["way"]) == ("cpu:0", way)
    assert set(recovered[0]["members"]) == {"plain", "odd"}
    assert len(lost) == 2
    if way is not RecoveryWay.BACK:
        assert quiet(tmp_path, "bootstrap", "adam") == ["bootstrap", "adam"]
        assert len([e for e in evidence.event_lines(tmp_path, "SectionEnded") if e["member"] == "adam"]) == 4 * sections
    if way is RecoveryWay.MEET:
        # All four members read the last epoch on one leg.
        assert len({line["leg"] for line in evidence.event_lines(tmp_path, "Fed") if line["epoch"] == 3}) == 1


def quiet(tmp_path: Path, *names: str) -> list[str]:
    """Return those of the named members that were started only once, so that nothing interrupted them."""
    counted = Counter(line["member"] for line in evidence.event_lines(tmp_path, "MemberStarted"))
    return [name for name in names if counted[name] == 1]


@pytest.mark.parametrize("launcher", ["inline", "processes"])
@pytest.mark.parametrize("sections", [1, 4])
def test_a_member_that_rests_comes_back_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, sections: int
) -> None:
    # By default, rates measured meanwhile may move other members when this one comes back; this policy moves none.
    still = living.policy(monkeypatch, living.Dealt(lambda member, asked: len(member)))
    study = studies.study(90, val=11, fleet=fleet(), epochs=6, validations_per_epoch=sections)

    def later(state: RunState) -> bool:
        return state.member("plain").epochs >= 3

    # With one section per epoch, the member rests at the end of an epoch; with four, in the middle of one.
    rests = living.Rests({"odd": 1 if sections == 1 else 3}, back=later)
    report = living.run(
        study, tmp_path, launcher=launcher, judges=[rests], policy=still, devices="cpu:2", block_size=16
    )
    assert {row.status for row in report.rows} == {"done"}
    living.equal_alone(study, tmp_path)
    assert [line["reason"] for line in evidence.event_lines(tmp_path, "MemberRested") if line["reason"]]
    state = living.state_of(tmp_path)
    if sections == 1:
        epochs = [row.stream_epoch for row in state.member("odd").sections]
        assert epochs[0] == 0
        assert epochs[1] >= 3, "it should join the others at the epoch they had reached"
        assert quiet(tmp_path, "plain", "bootstrap", "adam") == ["plain", "bootstrap", "adam"]
        assert state.preparations == 1.0
    else:
        assert len(state.member("odd").sections) == 24


@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_an_added_member_joins_the_stream_and_changes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    living.trusting(monkeypatch)
    (tmp_path / "newcomers.py").write_text(LATE.format(epochs=2))
    run, left, killed = tmp_path / "run", list[Driver](), list[str]()

    def add(driver: Driver) -> None:
        if not left and any(member.sections for member in driver.state.members.values()):
            inbox.write_command(run, {"command": "add", "study": str(tmp_path / "newcomers.py")})
            left.append(driver)

    class Killing(Silent):
        """Kills the trainer of the added member when it has started it, before it reports a checkpoint."""

        def handle(self, worker: str, message: Any) -> None:
            if isinstance(message, MemberStarted) and message.member == "late" and not killed:
                killed.append(message.device)
                left[0].pool.workers.kill(message.device)

    living.at_every_round(monkeypatch, add)
    members = [replace(m, augment=studies.dawdle) for m in fleet()]
    study = studies.study(90, val=11, fleet=members, epochs=5)
    still = living.policy(monkeypatch, living.Dealt(lambda member, asked: len(member)))
    view = Killing() if launcher == "processes" else None
    living.run(study, run, launcher=launcher, view=view, policy=still, devices="cpu:2", block_size=16)
    late = studies.member("late", hidden=8, batch_size=9)
    living.equal_alone(replace(study, members=[*members, late]), run)
    state = living.state_of(run)
    assert min(row.stream_epoch for row in state.member("late").sections) > 0
    assert len(state.member("late").sections) == 2
    assert [answered.answer for answered in state.answered] == ["added late"]
    if launcher == "inline":
        assert quiet(run, *state.members) == list(state.members), "a member was started twice"
        assert state.preparations == 1.0
    else:
        assert killed
        assert state.lost


@pytest.mark.parametrize("launcher", ["inline", "processes"])
@pytest.mark.parametrize("sections", [1, 4])
def test_members_move_and_those_that_do_not_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, sections: int
) -> None:
    here = {"plain": 0, "bootstrap": 1}
    # "odd" and "adam" swap devices whenever the policy is asked: at the end of every section, where a short member ends.
    moving = living.policy(monkeypatch, living.Dealt(lambda member, asked: here.get(member, asked + (member == "odd"))))
    short = [
        studies.member(f"short{n}", stop=argosy.MaxEpochs(n / 4)) for n in range(1, 12) if n % 4 == 0 or sections == 4
    ]
    study = studies.study(90, val=11, fleet=[*fleet(), *short], epochs=3, validations_per_epoch=sections)
    living.run(study, tmp_path, launcher=launcher, policy=moving, devices="cpu:2", block_size=16)
    living.equal_alone(study, tmp_path)
    counted = Counter(line["member"] for line in evidence.event_lines(tmp_path, "MemberStarted"))
    assert counted["odd"] == counted["adam"] == 1 + len({m.stop for m in short})
    assert quiet(tmp_path, "plain", "bootstrap") == ["plain", "bootstrap"]
    carried = [line["checkpoint"]["carried"] for line in evidence.event_lines(tmp_path, "Saved")]
    assert any(carried) == (sections == 4)
    assert living.state_of(tmp_path).preparations == 1.0


def test_members_that_do_not_fit_take_turns_epoch_by_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = studies.study(90, val=11, fleet=fleet(), epochs=3)
    needs = {p.member: p.memory_bytes for p in argosy.api.profile(study, launcher=Inline()).profiles}
    room = sum(sorted(needs.values())[-2:])

    def small(settings: Any) -> Cluster:
        (node,) = discover(settings).nodes
        return Cluster(nodes=(replace(node, devices=tuple(replace(d, memory_bytes=room) for d in node.devices)),))

    monkeypatch.setattr(inline, "discover", small)
    living.run(study, tmp_path, devices="cpu:1", block_size=16)
    living.equal_alone(study, tmp_path)
    state, most = living.state_of(tmp_path), 0
    behind = dict.fromkeys(needs, 0)
    for line in evidence.event_lines(tmp_path, "SectionEnded"):
        behind[line["member"]] = line["epoch"] + 1
        most = max(most, max(behind.values()) - min(behind.values()))
    assert most == 1, "a member was more than one epoch ahead of another"
    for name in needs:
        assert [row.stream_epoch for row in state.member(name).sections] == [0, 1, 2]
    # Each epoch is prepared for two turns, and one block more for measuring the members.
    assert 2.0 <= state.preparations <= 2.0 + 16 / 270


def test_a_leg_that_regroups_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one leg waits for a trainer that does not release its member, the other leg passes its barriers, though a third member waits."""
    living.trusting(monkeypatch)
    held: list[tuple[str, str, int]] = []
    rounds, passed = itertools.count(), list[int]()

    def act(driver: Driver) -> None:
        workers = driver.pool.workers
        assert isinstance(workers, InlineWorkers)
        assert next(rounds) < 5000
        sections = {name: len(member.sections) for name, member in driver.state.members.items()}
        if not held and len(driver.legs.live) == 2 and sum(sections.values()) > 1:
            first, other = driver.legs.live
            (device,), (name,) = first.devices, other.members
            workers.trainers[device] = living.Dead()  # type: ignore[assignment]
            driver.faults.regroup([first])
            held.append((device, name, sections[name]))
        elif held and not passed and sections[held[0][1]] >= held[0][2] + 2:
            assert driver.legs.regrouping
            passed.append(sections[held[0][1]])
            workers.said.append((held[0][0], Lost(detail="in a test")))

    living.at_every_round(monkeypatch, act)
    study = studies.study(90, val=11, fleet=fleet()[:3], epochs=5)
    living.run(study, tmp_path, policy="solo", devices="cpu:2", block_size=16)
    assert passed
    assert {member.status for member in living.state_of(tmp_path).members.values()} == {"done"}
    living.equal_alone(study, tmp_path)


@pytest.mark.parametrize("where", ["measured", "waits", "rests", "trains"])
def test_a_member_that_is_told_to_stop_stops_whatever_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    living.trusting(monkeypatch)
    left: list[str] = []

    def is_there(driver: Driver) -> bool:
        odd = driver.state.member("odd")
        return {
            "measured": driver.run.phase is Phase.MEASURING,
            "waits": "odd" in driver.members.waiting and driver.run.phase is Phase.TRAINING,
            "rests": "odd" in driver.members.resting,
            "trains": odd.status == "training" and odd.epochs == 1,
        }[where]

    tick = Silent.tick
    drivers: list[Driver] = []
    begin = Driver.__init__

    def remember(driver: Driver, *args: Any, **rest: Any) -> None:
        begin(driver, *args, **rest)
        drivers.append(driver)

    def stop_there(view: Silent, phase: Phase) -> None:
        tick(view, phase)
        if not left and is_there(drivers[-1]):
            left.append(inbox.write_command(tmp_path, {"command": "stop", "member": "odd"}))
        if left and drivers[-1].state.answered:
            # By the time the command is answered, the member has stopped.
            assert drivers[-1].state.member("odd").status == "stopped"

    monkeypatch.setattr(Driver, "__init__", remember)
    monkeypatch.setattr(Silent, "tick", stop_there)
    rests = living.Rests({"odd": 1} if where == "rests" else {}, back=lambda state: False)
    order = [fleet()[0], fleet()[2], fleet()[3], fleet()[1]]
    study = studies.study(90, val=11, fleet=order, epochs=4)
    policy = "solo" if where == "waits" else "balanced"
    living.run(study, tmp_path, judges=[rests], policy=policy, devices="cpu:1", block_size=16)
    state = living.state_of(tmp_path)
    assert [answered.answer for answered in state.answered] == ["odd has been saved and stopped"]
    assert (state.member("odd").status, state.member("odd").reason) == ("stopped", "by command")
    assert {m.status for name, m in state.members.items() if name != "odd"} == {"done"}
    assert len(state.member("odd").sections) == {"measured": 0, "waits": 0, "rests": 1, "trains": 1}[where]
    living.equal_alone(study, tmp_path, "plain", "bootstrap", "adam")


def test_a_device_is_free_for_the_next_one_as_soon_as_its_member_ends(tmp_path: Path) -> None:
    members = [studies.member("long", stop=argosy.MaxEpochs(7))]
    members += [studies.member(f"short{n}", hidden=8 + n, stop=argosy.MaxEpochs(1)) for n in range(4)]
    study = studies.study(90, val=11, fleet=members)
    living.run(study, tmp_path, policy="solo", devices="cpu:2", block_size=16)
    living.equal_alone(study, tmp_path)
    told = [
        (line["event"], line["member"])
        for kind in ("MemberStarted", "MemberEnded")
        for line in evidence.event_lines(tmp_path, kind)
    ]
    assert Counter(told) == Counter((kind, m.name) for kind in ("MemberStarted", "MemberEnded") for m in members)
    assert [line["member"] for line in evidence.event_lines(tmp_path, "MemberEnded")][-1] == "long"


def test_a_member_that_is_told_to_stop_while_it_waits_to_start_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living.trusting(monkeypatch)
    (tmp_path / "newcomers.py").write_text(LATE.format(epochs=2))
    run, left = tmp_path / "run", list[str]()
    # The policy moves "odd" to the device of the added member, which can start only once "odd" has arrived.
    moving = living.policy(
        monkeypatch, living.Dealt(lambda member, asked: member == "late" or (member == "odd" and asked > 1))
    )

    def act(driver: Driver) -> None:
        starting = driver.members.in_states(State.STARTING)
        if not left:
            left.append(inbox.write_command(run, {"command": "add", "study": str(tmp_path / "newcomers.py")}))
        elif "late" in starting and len(left) == 1:
            left.append(inbox.write_command(run, {"command": "stop", "member": "late"}))

    living.at_every_round(monkeypatch, act)
    study = studies.study(90, val=11, fleet=fleet(), epochs=4)
    living.run(study, run, policy=moving, devices="cpu:2", block_size=16)
    state = living.state_of(run)
    assert [answered.answer for answered in state.answered] == ["added late", "late has been saved and stopped"]
    assert len(state.member("late").sections) == 0
    living.equal_alone(study, run)


def test_members_are_the_same_under_every_policy_that_shows_them_the_same_epochs(tmp_path: Path) -> None:
    members = [replace(m, stop=argosy.MaxEpochs(epochs)) for m, epochs in zip(fleet(), (3, 1, 2, 3), strict=True)]
    study, found = studies.study(90, val=11, fleet=members), {}
    for policy in ("solo", "rounds", "balanced"):
        living.run(study, tmp_path / policy, policy=policy, devices="cpu:2", block_size=16, numerics="exact")
        found[policy] = evidence.results(tmp_path / policy)
    assert found["solo"] == found["rounds"] == found["balanced"]


def test_a_member_paused_just_before_the_end_of_an_epoch_is_measured_on_a_whole_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def days_pass(driver: Driver) -> None:
        """Exceed the time limit as soon as members train on the first of two blocks."""
        feeders = driver.pool.workers.feeders.values()  # type: ignore[attr-defined]
        if driver.run.phase is Phase.TRAINING and any(feeder.gauge.prepared >= 168 for feeder in feeders):
            driver.run.began -= 1e6

    study = studies.study(fleet=[studies.member("adam", batch_size=50, accumulate=3)], epochs=1)
    with monkeypatch.context() as patched:
        living.at_every_round(patched, days_pass)
        living.run(study, tmp_path, block_size=168, time_limit=1e5)
    (saved,) = evidence.event_lines(tmp_path, "Saved")
    # Two samples are left of the epoch. They would give micro-batches of one, on which BatchNorm fails.
    assert saved["checkpoint"]["position"] + saved["checkpoint"]["carried"] == 168
    living.run(study, tmp_path, block_size=168)
    living.equal_alone(study, tmp_path)
    assert living.state_of(tmp_path).members["adam"].status == "done"
