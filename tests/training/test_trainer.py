"""Tests of the trainer's reactions to commands and blocks, which come over different connections and thus in any order."""

import errno
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import late
import numpy as np
import pytest
import studies
import torch
from torch import nn

from argosy.errors import WorkerError
from argosy.protocol.events import MemberEnded, MemberRested, Saved, SectionEnded
from argosy.protocol.feeder import Leg
from argosy.protocol.trainer import (
    Assign,
    Journaled,
    Measure,
    Measured,
    Pause,
    Paused,
    Save,
    SectionReport,
    StartMember,
    Unassign,
)
from argosy.settings import Settings
from argosy.stream.blocks import ALIGNMENT, Block
from argosy.stream.opening import open_sources
from argosy.stream.schedule import Orders, places
from argosy.study import Study
from argosy.training.device.devices import open_backend
from argosy.training.member import checkpoint
from argosy.training.member.files import Saving
from argosy.training.trainer.program_instances import ProgramInstance
from argosy.training.trainer.trainer import Trainer

devices = late.devices

LENGTH, ROWS = 96, 32


def stream(study: Study, epoch: int = 0) -> Iterator[Block]:
    """Yield the blocks of one epoch."""
    sources = open_sources(study.data, seed=study.seed)
    lengths = {split: source.length for split, source in sources.items()}
    orders = Orders(study.seed, lengths)
    for place in places(Leg(number=1, section=epoch, position=0), epoch, lengths, 1, ROWS):
        source = sources[place.split]
        memory = np.empty(source.layout.block_bytes(place.rows) + ALIGNMENT, np.uint8)
        memory = memory[-memory.ctypes.data % ALIGNMENT :]
        source.fill(source.layout.block(place, memory), 0, orders.block(place))
        yield source.layout.block(place, memory)


@pytest.fixture
def said() -> list[Any]:
    """Return the list of messages from the trainer to the driver."""
    return []


class Listening:
    """A driver that has a command at every check between steps after the first `after` checks; with None it has none."""

    def __init__(self) -> None:
        self.after: int | None = None

    def __call__(self) -> bool:
        if self.after is None:
            return False
        self.after -= 1
        return self.after < 0


@pytest.fixture
def driver() -> Listening:
    return Listening()


def make(
    study: Study, folder: Path, said: list[Any], driver: Listening, device: str = "cpu:0", **settings: Any
) -> Trainer:
    backend = open_backend(device)
    trainer = Trainer(
        study.terms, Settings(**settings), folder, name=device, backend=backend, emit=said.append, listen=driver
    )
    sources = open_sources(study.data, seed=study.seed)
    trainer.set_splits({n: s.length for n, s in sources.items()}, {n: s.layout for n, s in sources.items()})
    trainer.enlist(study.members)
    return trainer


@pytest.fixture
def study() -> Study:
    return studies.study(LENGTH, fleet=[studies.member("even", batch_size=32), studies.member("odd", batch_size=33)])


@pytest.fixture
def trainer(study: Study, tmp_path: Path, said: list[Any], driver: Listening) -> Trainer:
    """Return a trainer that shall measure on assignment 1, of which no block has come yet."""
    trainer = make(study, tmp_path, said, driver)
    trainer.obey(measure(1))
    return trainer


def measure(assignment: int | None) -> Measure:
    return Measure(assignment=assignment, members=("even", "odd"), accumulate={"even": 1, "odd": 1})


def assign(assignment: int, *names: str, leave: tuple[str, ...] = ()) -> Assign:
    starts = (
        StartMember(member=name, epoch=0, stream_epoch=0, checkpoint=None, accumulate=1, notes=()) for name in names
    )
    return Assign(assignment=assignment, start=tuple(starts), leave=leave)


def samples_after(trainer: Trainer, blocks: Iterator[Block], assignment: int) -> dict[str, int]:
    """Train on the training blocks, and return how many samples each member has trained on."""
    for block in blocks:
        if block.place.split == "train":
            assert trainer.ready
            trainer.take(block, assignment)
    return {name: assigned.samples for name, assigned in trainer.assigned.items()}


def events(said: list[Any], kind: type) -> list[Any]:
    return [
        event
        for message in said
        if isinstance(message, SectionReport)
        for event in message.events
        if type(event) is kind
    ]


def test_a_block_that_comes_before_the_word_to_measure_on_it_is_kept(
    trainer: Trainer, study: Study, said: list[Any]
) -> None:
    blocks = stream(study)
    trainer.take(next(blocks), 2)
    assert not said, "measured on a block of assignment 2 instead of 1"
    assert not trainer.ready
    trainer.obey(measure(2))
    assert [type(message) for message in said] == [Measured, Measured]
    assert not trainer.ready
    trainer.obey(assign(2, "even", "odd"))
    assert samples_after(trainer, blocks, 2) == {"even": LENGTH, "odd": LENGTH}


@pytest.fixture
def late_trainer(tmp_path: Path, said: list[Any], driver: Listening) -> Trainer:
    """Return a trainer whose device lags behind the host, with a block that takes the device half a second."""
    study = studies.study(LENGTH, fleet=[studies.member("m", loss=late.Taking(0.5), batch_size=ROWS)])
    trainer = make(study, tmp_path, said, driver, device="late:0")
    trainer.obey(assign(1, "m"))
    trainer.take(next(stream(study)), 1)
    return trainer


@pytest.mark.usefixtures("devices")
def test_a_block_is_stepped_on_without_a_wait_for_its_steps(late_trainer: Trainer) -> None:
    assert late_trainer.gauge.busy_seconds < 0.5
    assert late_trainer.copies.ahead == 1


@pytest.mark.usefixtures("devices")
def test_few_blocks_take_memory_of_a_device_that_is_behind(tmp_path: Path, said: list[Any], driver: Listening) -> None:
    """This also holds in a validation, whose sums are not read before its end."""
    member = studies.member("m", loss=late.Taking(0.15), batch_size=ROWS)
    study = studies.study(3 * ROWS, fleet=[member], val=15 * ROWS)
    trainer = make(study, tmp_path, said, driver, device="late:0")
    trainer.obey(assign(1, "m"))
    for block in stream(study):
        while not trainer.ready:
            assert not driver()
            trainer.copies.release_done()
        trainer.take(block, 1)
    assert len(events(said, SectionEnded)) == 1
    assert late.state.most_blocks <= 5


@pytest.mark.usefixtures("devices")
def test_a_wait_for_the_device_is_no_idle_time_of_the_heartbeat(
    late_trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a hang of the device would not be noticed, because an idle worker is never considered hung."""
    signs, waits = [], late.LateEvent.synchronize

    def synchronize(event: late.LateEvent) -> None:
        if event.at > time.monotonic():
            signs.extend(late_trainer.heartbeat.read())
        waits(event)

    monkeypatch.setattr(late.LateEvent, "synchronize", synchronize)
    for block in list(stream(studies.study(LENGTH)))[1:]:
        late_trainer.take(block, 1)
    assert late_trainer.assigned["m"].live.epoch == 1
    assert {sign.doing for sign in signs if sign.busy} == {"training member 'm'", "waiting for its device"}
    assert all(sign.busy for sign in signs)


@pytest.mark.usefixtures("devices")
def test_time_in_which_the_device_steps_is_no_waiting_for_data(late_trainer: Trainer) -> None:
    trainer, asking = late_trainer, late_trainer.gauge.busy_seconds
    trainer.waited(3.0)
    trainer.backend.synchronize()
    while trainer.copies.ahead:
        pass
    trainer.waited(5.0)
    assert trainer.gauge.waiting_seconds == 5.0
    assert trainer.gauge.busy_seconds == asking + 3.0


def test_a_block_that_comes_before_its_assignment_is_kept(trainer: Trainer, study: Study) -> None:
    trainer.obey(assign(1))
    assert trainer.ready
    blocks = stream(study)
    trainer.take(next(blocks), 2)
    trainer.obey(assign(2, "even", "odd"))
    assert samples_after(trainer, blocks, 2) == {"even": LENGTH, "odd": LENGTH}


def test_blocks_of_an_earlier_assignment_are_dropped(trainer: Trainer, study: Study, said: list[Any]) -> None:
    trainer.obey(measure(2))
    trainer.take(next(stream(study)), 1)
    assert trainer.ready
    assert not said
    trainer.obey(assign(2, "even", "odd"))
    assert samples_after(trainer, stream(study), 2) == {"even": LENGTH, "odd": LENGTH}


def test_members_are_measured_beside_those_that_train(trainer: Trainer, study: Study, said: list[Any]) -> None:
    trainer.obey(assign(1, "even"))
    trainer.obey(Measure(assignment=None, members=("odd",), accumulate={"odd": 1}))
    assert samples_after(trainer, stream(study), 1) == {"even": LENGTH}
    assert [message.member for message in said if isinstance(message, Measured)] == ["odd"]


def test_measuring_beside_a_assignment_stops_between_two_steps_for_a_command_and_goes_on(
    trainer: Trainer, study: Study, said: list[Any], driver: Listening
) -> None:
    trainer.obey(assign(1, "even"))
    trainer.obey(Measure(assignment=None, members=("odd",), accumulate={"odd": 1}))
    blocks = stream(study)
    driver.after = 0  # a command after every step
    trainer.take(next(blocks), 1)
    turns = 0
    while trainer.go_on():
        turns += 1
        trainer.obey(Journaled(files={}))
    assert turns >= 3
    assert [message.member for message in said if isinstance(message, Measured)] == ["odd"]
    driver.after = None
    assert samples_after(trainer, blocks, 1) == {"even": LENGTH}


def test_measuring_before_a_leg_stops_for_a_command_and_goes_on_on_the_same_block(
    trainer: Trainer, study: Study, said: list[Any], driver: Listening
) -> None:
    blocks = stream(study)
    driver.after = 0
    trainer.take(next(blocks), 1)
    assert not said
    while trainer.go_on():
        assert not trainer.ready, "the block is still to be trained on"
    driver.after = None
    assert [message.member for message in said if isinstance(message, Measured)] == ["even", "odd"]
    trainer.obey(assign(1, "even", "odd"))
    assert samples_after(trainer, blocks, 1) == {"even": LENGTH, "odd": LENGTH}


@pytest.mark.parametrize("assignment", [None, 1])
def test_a_pause_does_not_wait_for_those_that_are_measured(
    trainer: Trainer, study: Study, said: list[Any], driver: Listening, assignment: int | None
) -> None:
    if assignment is None:
        trainer.obey(assign(1, "even"))
        trainer.obey(Measure(assignment=None, members=("odd",), accumulate={"odd": 1}))
    driver.after = 0
    trainer.take(next(stream(study)), 1)
    trainer.obey(Pause())
    assert isinstance(said[-1], Paused)
    assert not any(isinstance(message, Measured) for message in said)
    assert [event.member for event in events(said, Saved)] == (["even"] if assignment is None else [])
    assert trainer.ready
    assert not trainer.go_on()


def test_a_member_that_leaves_between_two_steps_of_a_block_is_saved_there(
    trainer: Trainer, study: Study, said: list[Any], driver: Listening
) -> None:
    trainer.obey(assign(1, "even", "odd"))
    blocks = list(stream(study))
    trainer.take(blocks[0], 1)
    driver.after = 0  # the driver's command comes after the next step
    trainer.take(blocks[1], 1)
    assert trainer.at_hand is not None
    driver.after = None
    trainer.obey(Unassign(members=("even",)))
    trainer.go_on()
    assert trainer.ready
    (saved,) = events(said, Saved)
    assert (saved.member, saved.checkpoint.position) == ("even", 64)
    assert [event.member for event in events(said, MemberRested)] == ["even"]
    for block in blocks[2:]:
        trainer.take(block, 1)
    (ended,) = events(said, SectionEnded)
    assert (ended.member, ended.samples) == ("odd", LENGTH)


def test_a_pause_between_two_steps_leaves_the_rest_of_the_block(
    trainer: Trainer, study: Study, said: list[Any], driver: Listening
) -> None:
    trainer.obey(assign(1, "even", "odd"))
    blocks = list(stream(study))
    trainer.take(blocks[0], 1)
    driver.after = 0
    trainer.take(blocks[1], 1)
    trainer.obey(Pause())
    assert isinstance(said[-1], Paused)
    assert trainer.ready
    assert {event.member: event.checkpoint.position for event in events(said, Saved)} == {"even": 64, "odd": 0}


def test_members_that_are_through_with_a_block_are_not_asked_again_at_each_interruption(
    tmp_path: Path, said: list[Any], driver: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of small members a block has more interruptions than members, so asking all each time would be quadratic."""
    names = [f"m{number}" for number in range(20)]
    study = studies.study(LENGTH, fleet=[studies.member(name, batch_size=ROWS) for name in names])
    trainer = make(study, tmp_path, said, driver, numerics="exact")
    trainer.obey(assign(1, *names))
    asked: list[str] = []
    follow = ProgramInstance.follow
    monkeypatch.setattr(ProgramInstance, "follow", lambda one, place: asked.extend(one.names) or follow(one, place))
    driver.after = 0
    trainer.take(next(stream(study)), 1)
    while not trainer.ready:
        trainer.go_on()
    assert {assigned.samples for assigned in trainer.assigned.values()} == {ROWS}
    assert len(asked) <= 2 * len(names), "each member is asked once to step, and once to find nothing left"


def test_a_pause_leaves_the_blocks_of_a_later_assignment(
    trainer: Trainer, study: Study, said: list[Any], driver: Listening
) -> None:
    """A leg may begin on a device that a member of another leg has yet to leave."""
    trainer.obey(assign(1, "odd"))
    first, *others = stream(study)
    trainer.take(first, 2)
    trainer.obey(Pause())
    trainer.obey(assign(2, "even"))
    for block in others:
        trainer.take(block, 2)
    (ended,) = events(said, SectionEnded)
    assert (ended.member, ended.samples) == ("even", LENGTH)


def test_files_asked_for_at_a_sections_end_are_written_though_others_were_in_between(
    trainer: Trainer, study: Study, said: list[Any]
) -> None:
    trainer.obey(assign(1, "even", "odd"))
    first, *others = stream(study)
    trainer.take(first, 1)
    trainer.obey(Save())
    trainer.obey(Unassign(members=("odd",)))
    assert [saved.member for saved in events(said, Saved)] == ["odd"], (
        "only the member that leaves is saved within a section"
    )
    for block in others:
        trainer.take(block, 1)
    assert [(saved.member, saved.checkpoint.epoch) for saved in events(said, Saved)][1:] == [("even", 1)]


def test_a_journaled_checkpoint_stays_until_a_newer_one_is_journaled(
    tmp_path: Path, said: list[Any], driver: Listening
) -> None:
    """A driver that is slow or has died relies on the files in its journal while trainers continue to save."""
    study = studies.study(LENGTH, fleet=[studies.member("even", batch_size=32)])
    trainer = make(study, tmp_path, said, driver, checkpoint_seconds=1e-9)
    trainer.obey(assign(1, "even"))

    def files() -> set[str]:
        return {path.name for path in (tmp_path / "members" / "even").glob("e*.pt")}

    def saved() -> list[str]:
        return [event.checkpoint.file for event in events(said, Saved)]

    def take(block: Block) -> None:
        trainer.take(block, 1)
        while trainer.at_hand is not None:
            trainer.go_on()

    blocks = list(stream(study))
    take(blocks[0])
    trainer.obey(Journaled(files={"even": saved()[-1]}))
    first = saved()[-1]
    for block in blocks[1:]:
        take(block)
    assert len(set(saved())) >= 3
    assert files() >= {first, *saved()[saved().index(first) :]}
    trainer.obey(Journaled(files={"even": saved()[-1]}))
    assert files() == set(saved()[-2:])


def test_a_process_that_can_open_nothing_is_no_members_failure_whatever_its_code_says_of_it(
    tmp_path: Path, said: list[Any], driver: Listening
) -> None:
    """`inspect`, for example, reports that it finds no source if it cannot open any file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def network() -> Any:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        raise OSError("could not get source code")

    study = studies.study(LENGTH, fleet=[studies.member("even", model=network)])
    trainer = make(study, tmp_path, said, driver)
    try:
        with pytest.raises(WorkerError, match=r"^cpu:0: \[Errno 24\] .*ulimit -n"):
            trainer.obey(assign(1, "even"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not said


def test_a_checkpoint_that_cannot_be_read_for_now_is_no_members_failure(
    tmp_path: Path, said: list[Any], driver: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = studies.study(LENGTH, fleet=[studies.member("even", batch_size=32)])
    trainer = make(study, tmp_path, said, driver)
    trainer.obey(assign(1, "even"))
    trainer.obey(Pause())
    (saved,) = events(said, Saved)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(torch, "load", refuse)
    start = StartMember(member="even", epoch=0, stream_epoch=0, checkpoint=saved.checkpoint, accumulate=1, notes=())
    with pytest.raises(WorkerError, match=r"cannot be read: .*ulimit -n"):
        trainer.obey(Assign(assignment=2, start=(start,)))
    assert not events(said, MemberEnded)


class EndsLater:
    """An augmentation that returns the first `after` batches unchanged, and then raises or returns NaN."""

    def __init__(self, after: int, how: str) -> None:
        self.left, self.how = after, how

    def __call__(self, batch: Any) -> Any:
        self.left -= 1
        if self.left >= 0:
            return batch
        if self.how == "failed":
            raise ValueError("later")
        return batch[0] * float("nan"), batch[1]


@pytest.mark.parametrize("how", ["failed", "diverged"])
def test_a_member_that_ends_in_the_middle_of_a_section_leaves_its_best_weights(
    tmp_path: Path, said: list[Any], driver: Listening, how: str
) -> None:
    """The best weights are saved even if their section ended before a file was due; the checkpoint stays the earlier one."""
    augment = EndsLater(2 * LENGTH // 32 + 1, how)
    study = studies.study(LENGTH, fleet=[studies.member("even", batch_size=32, augment=augment)])
    trainer = make(study, tmp_path, said, driver)
    trainer.obey(assign(1, "even"))
    for epoch in range(3):
        for block in stream(study, epoch):
            trainer.take(block, 1)
        trainer.saving.seconds = 1e9
    (ended,) = events(said, MemberEnded)
    assert ended.status == how
    assert [(section.epoch, section.best) for section in events(said, SectionEnded)] == [(0, True), (1, True)]
    (first, last) = (event.checkpoint for event in events(said, Saved))
    assert (last.file, last.sha256, last.epoch) == (first.file, first.sha256, 1), "a retry should begin there"
    assert (first.best, last.best) == (first.file, "best-e0001.0.pt")
    weights = checkpoint.load(tmp_path / "members" / "even" / last.best, last.best_sha256)
    assert weights["value"] == events(said, SectionEnded)[1].metrics["val_loss"]
    assert all(bool(tensor.isfinite().all()) for tensor in weights["model"].values())


def test_a_newcomer_is_saved_after_its_first_section_and_the_others_when_it_is_due(
    study: Study, trainer: Trainer, said: list[Any]
) -> None:
    trainer.obey(assign(1, "even"))
    for block in stream(study):
        trainer.take(block, 1)
    trainer.saving.seconds = 1e9
    late = StartMember(member="odd", epoch=0, stream_epoch=1, checkpoint=None, accumulate=1, notes=())
    trainer.obey(Assign(assignment=2, start=(late,)))
    said.clear()
    for block in stream(study, 1):
        trainer.take(block, 2)
    assert [event.member for event in events(said, SectionEnded)] == ["even", "odd"]
    assert [event.member for event in events(said, Saved)] == ["odd"]


def test_the_file_of_a_clones_source_is_none_of_its_own(study: Study, trainer: Trainer, said: list[Any]) -> None:
    trainer.terms = replace(trainer.terms, snapshot_bytes=2**20)
    trainer.obey(assign(1, "odd"))
    for block in stream(study):
        trainer.take(block, 1)
    trainer.obey(Pause())
    saved = events(said, Saved)[-1]
    for assignment, changes in ((2, None), (3, {"optimizer.lr": (0.05, 0.1)}), (4, {})):
        start = StartMember(
            member="odd", epoch=0, stream_epoch=0, checkpoint=saved.checkpoint, accumulate=1, notes=(), changes=changes
        )
        trainer.obey(Assign(assignment=assignment, start=(start,), leave=("odd",)))
        here = trainer.assigned["odd"]
        assert here.files.own == (changes is None)
        assert here.live.snapshots is not None and bool(here.live.snapshots.weights) == (changes is None)


def test_members_whose_programs_are_measured_have_their_turns_though_files_are_always_due(
    tmp_path: Path, said: list[Any], driver: Listening
) -> None:
    """One that has made all steps of its round rests until the others have made theirs."""
    names = "even", "odd", "third"
    study = studies.study(
        4 * ROWS, fleet=[studies.member(name, model=partial(nn.Linear, 12, 10), batch_size=8) for name in names]
    )
    trainer = make(study, tmp_path, said, driver, checkpoint_seconds=0.0)
    trainer.obey(assign(1, *names))
    for block in stream(study):
        trainer.take(block, 1)
        for _ in range(100):
            trainer.go_on()
        assert trainer.at_hand is None
    assert len(events(said, SectionEnded)) == 3
    assert all(instance.round is not None for instance in trainer.instances)


def test_files_of_some_do_not_put_off_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    saving = Saving(checkpoint_seconds=5.0)
    for all_members, overdue in ((False, True), (True, False)):
        now[0] += 10.0
        with saving.timed(all_members=all_members):
            pass
        assert saving.overdue == overdue
