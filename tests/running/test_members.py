"""Tests which members wait or rest and which stream epochs they get: none gets one twice, and each assignment is journaled."""

from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
import studies
from hypothesis import given
from hypothesis import strategies as st

import argosy
from argosy.errors import RunError
from argosy.protocol.events import Answered, Checkpoint, MemberStarted, Saved, SectionEnded
from argosy.results.fold import RunState
from argosy.running.control import positions
from argosy.running.control.members import TRANSITIONS, Leaving, Members, State
from argosy.running.control.positions import Positions
from argosy.running.control.resume import ResumePoint
from argosy.running.launch.launcher import Job
from argosy.settings import Settings

LENGTHS = {"train": 90, "val": 9}
NAMES = ["a", "b", "c", "d"]


class World:
    """A simulation of one stream at a time, on which the members train whose next section it has reached."""

    def __init__(self, draw: Random, directory: Path) -> None:
        self.draw, self.directory = draw, directory
        study = studies.study(90, val=9, fleet=[studies.member(name) for name in NAMES], epochs=99)
        self.state = RunState()
        job = Job(study=study, settings=Settings(), directory=directory, lock=-1)
        self.positions = Positions(job, self.state)
        self.members = Members(self.positions)
        self.members.begin()
        self.assigned: dict[str, int] = {}
        """Stream epoch of each assigned member."""
        self.epoch = 0

    def assign(self) -> None:
        """Start or resume some of the waiting members at the stream's current epoch."""
        positions, members = self.positions, self.members
        positions.join(members.waiting, self.epoch)
        names = [
            name
            for name in members.waiting
            if positions.stream_section(name) == self.epoch and self.draw.random() < 0.7
        ]
        assigned_event = positions.assigned_event(names)
        if assigned_event is not None:
            assert set(assigned_event.members) <= set(names)
            self.state.apply(assigned_event)
        assert positions.assigned_event(names) is None, "an assignment was journaled twice"
        members.place(names)
        members.assign(names)
        for name in names:
            start = positions.start_member(name, ())
            assert start.stream_epoch == self.epoch == self.state.member(name).stream_epoch(start.epoch)
            place = {"epoch": start.epoch, "section": 0, "stream_epoch": self.epoch, "position": 0}
            self.state.apply(MemberStarted(member=name, device="cpu:0", threads=1, mkldnn=True, **place))
            assert start.epoch == len(self.state.member(name).sections)
            self.assigned[name] = self.epoch

    def go_on(self) -> None:
        """Let each assigned member end the epoch; save some of them."""
        for name in self.assigned:
            epoch = len(self.state.member(name).sections)
            self.state.apply(
                SectionEnded(
                    member=name,
                    device="cpu:0",
                    epoch=epoch,
                    section=0,
                    stream_epoch=self.epoch,
                    position=90,
                    metrics={},
                    epochs=epoch + 1.0,
                    seconds=0.0,
                    samples=90,
                    digest=(0, 0, 0),
                    val_digest=None,
                    best=False,
                )
            )
            if self.draw.random() < 0.7:
                self.save(name)
        self.epoch += 1

    def save(self, name: str) -> None:
        """Journal a checkpoint of the member at the end of its last epoch."""
        epoch = len(self.state.member(name).sections)
        file = self.directory / "members" / name / f"e{epoch}.pt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        saved = Checkpoint(file=file.name, sha256="", epoch=epoch, section=0, position=0)
        self.state.apply(Saved(member=name, checkpoint=saved))

    def leave(self) -> None:
        """Let a random member leave: saved, to wait or to rest, or lost, so that it returns to its newest checkpoint."""
        name = self.draw.choice(sorted(self.assigned))
        del self.assigned[name]
        what = self.draw.choice(["rest", "wait", "lost"])
        if what != "lost":
            self.save(name)
        if what == "lost":
            self.members.regroup([name])
        else:
            self.members.leave(name, Leaving(leg=1, device="cpu:0", verdict=None), moves=False)
        if what == "rest":
            self.members.rest(name)
            return
        if what == "wait":
            self.members.mark_saved(name)
        else:
            self.members.resume(name)
        # The stream has to repeat the epochs that lost members still need.
        self.epoch = min([self.epoch, *map(self.positions.stream_section, self.members.waiting)])
        for other in list(self.assigned):
            self.save(other)
            self.members.regroup([other])
            self.members.resume(other)
            del self.assigned[other]

    def call(self) -> None:
        """Call back a random resting member."""
        self.members.call(self.draw.choice(sorted(self.members.resting)))


@given(st.integers(0, 2**32))
def test_no_member_sees_a_stream_epoch_twice_and_each_has_a_place(seed: int) -> None:
    draw = Random(seed)
    with TemporaryDirectory() as folder:
        world = World(draw, Path(folder))
        for _ in range(draw.randint(5, 60)):
            acts = [world.assign]
            acts += [world.go_on, world.leave] * bool(world.assigned) + [world.call] * bool(world.members.resting)
            draw.choice(acts)()
            members = world.members
            assert sorted([*members.waiting, *members.resting, *world.assigned]) == NAMES
            assert members.waiting == sorted(members.waiting)
            assert world.positions.unsettled <= set(members.waiting)
            for name in NAMES:
                seen = [row.stream_epoch for row in world.state.member(name).sections]
                assert seen == sorted(set(seen))
                assert seen == [world.state.member(name).stream_epoch(own) for own in range(len(seen))]


def test_thousands_of_members_in_an_epoch_of_all_samples_need_no_order_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        positions, "split_order", lambda *_: pytest.fail("an order of millions of samples takes its time")
    )
    saved = Checkpoint(file="e0001-s0000030.pt", sha256="", epoch=1, section=0, position=30)
    study = studies.study(90, val=9, fleet=[studies.member(name) for name in NAMES])
    found = Positions(Job(study=study, settings=Settings(), directory=tmp_path, lock=-1), RunState())
    found._points.update({name: ResumePoint(member=name, stream_epoch=1, checkpoint=saved) for name in NAMES})
    assert found.leg_for(NAMES, LENGTHS).position == 30


def test_epochs_left_and_the_last_section_follow_the_rule(tmp_path: Path) -> None:
    member = studies.member("a", stop=argosy.MaxEpochs(1.5))
    study = replace(studies.study(90, val=9, fleet=[member]), validations_per_epoch=4)
    positions = Positions(Job(study=study, settings=Settings(), directory=tmp_path, lock=-1), RunState())
    members = Members(positions)
    members.begin()
    assert (members.waiting, positions.stream_section("a")) == (["a"], 0)
    assert (positions.epochs_left("a"), positions.end_section("a")) == (2, 6)
    assert positions.leg_for(["a"], LENGTHS).section == 0
    positions.enter(["a"])
    positions.join(["a"], 7)
    assert (positions.stream_section("a"), positions.end_section("a")) == (28, 34)
    positions.join(["a"], 5)
    assert positions.stream_section("a") == 28, "a member went back to an earlier stream epoch"


@pytest.mark.parametrize("state", State)
def test_a_change_that_is_not_lawful_is_named(tmp_path: Path, state: State) -> None:
    study = studies.study(90, val=9, fleet=[studies.member("a")])
    positions = Positions(Job(study=study, settings=Settings(), directory=tmp_path, lock=-1), RunState())
    for wanted in State:
        members = Members(positions)
        members.begin()
        members._members["a"].state = state
        members._of_state[State.WAITING].clear()
        members._of_state[state].add("a")
        if wanted in TRANSITIONS[state]:
            members._to("a", wanted)
            assert members.in_states(wanted) == ["a"]
        else:
            with pytest.raises(AssertionError, match=f"^a is {state} and cannot become {wanted}$"):
                members._to("a", wanted)
            assert members.in_states(state) == ["a"]


def test_a_clone_of_a_member_that_is_gone_is_named(tmp_path: Path) -> None:
    command = {"command": "clone", "member": "gone", "name": "late", "set": {"optimizer.lr": 0.1}, "warm": False}
    state = RunState.of([Answered(file="1-clone.json", command=command, answer="added late")])
    job = Job(study=studies.study(fleet=[studies.member("a")]), settings=Settings(), directory=tmp_path, lock=-1)
    with pytest.raises(
        RunError,
        match=r"^clone 'late' was made from member 'gone', which is no longer in the study\. Restore that member\.$",
    ):
        Positions(job, state).begin()
