"""Tests of the fold of a journal against simple models: of records about one thing, the last one counts."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from argosy.protocol.events import (
    Assigned,
    BeganAnew,
    Checkpoint,
    Fed,
    MemberEnded,
    MemberRested,
    MemberStarted,
    Retried,
    RunEnded,
    RunStarted,
    Saved,
    SectionEnded,
    Split,
    Used,
    WorkerLost,
)
from argosy.results.fold import FILES_KEPT, RunState
from argosy.running.directory.clone import newest_checkpoint

SECTIONS = 3


def ended(epoch: int, section: int, *, best: bool, mark: float) -> SectionEnded:
    """Return the end of a section; `mark` distinguishes it from another end of the same section."""
    return SectionEnded(
        member="m",
        device="cpu:0",
        epoch=epoch,
        section=section,
        stream_epoch=epoch,
        position=0,
        metrics={"val_loss": mark},
        epochs=epoch + (section + 1) / SECTIONS,
        seconds=mark,
        samples=1,
        digest=(0, 0, 0),
        val_digest=None,
        best=best,
    )


def started(epoch: int, section: int, position: int) -> MemberStarted:
    """Return the start of the member at this position."""
    place = {"epoch": epoch, "section": section, "position": position, "stream_epoch": epoch}
    return MemberStarted(member="m", device="cpu:1", threads=1, mkldnn=True, **place)


def saved(epoch: int, section: int, position: int) -> Saved:
    """Return the saving of a checkpoint at this position."""
    file = f"e{epoch}.{section}-{position}.pt"
    return Saved(
        member="m", checkpoint=Checkpoint(file=file, sha256="", epoch=epoch, section=section, position=position)
    )


@given(st.integers(0, 2**32))
def test_sections_that_are_trained_again_replace_the_first_time(seed: int) -> None:
    draw, state = Random(seed), RunState()
    model: dict[tuple[int, int], SectionEnded] = {}
    files: list[Checkpoint] = []
    here = (0, 0, 0)
    for number in range(draw.randint(1, 40)):
        epoch, section, position = here
        what = draw.random()
        if what < 0.5:
            row = ended(epoch, section, best=draw.random() < 0.4, mark=float(number))
            state.apply(row)
            model = {key: old for key, old in model.items() if key < (epoch, section)} | {(epoch, section): row}
            here = (epoch + 1, 0, 0) if section + 1 == SECTIONS else (epoch, section + 1, position + 10)
        elif what < 0.75:
            event = saved(*here)
            state.apply(event)
            files = [*files, event.checkpoint][-FILES_KEPT:]
        elif what < 0.9:
            # The member resumes from some known checkpoint, or from the beginning if there is none.
            known = state.member("m").saved
            back = draw.choice(known) if known else None
            here = (back.epoch, back.section, back.position) if back else (0, 0, 0)
            state.apply(started(*here))
            model = {key: row for key, row in model.items() if key < here[:2]}
            files = [file for file in files if (file.epoch, file.position) <= (here[0], here[2])]
        else:
            status = draw.choice([("paused", "x"), ("resting", "y")])
            rests = MemberRested(member="m", reason=status[1])
            state.apply(rests if status[0] == "resting" else MemberEnded(member="m", status="paused", reason="x"))
            assert (state.member("m").status, state.member("m").reason) == status
        member = state.member("m")
        rows = [model[key] for key in sorted(model)]
        assert member.sections == rows
        assert [(row["val_loss"], row["seconds"], row["epochs"]) for row in member.history] == [
            (row.metrics["val_loss"], row.seconds, row.epochs) for row in rows
        ]
        assert member.best == next((row for row in reversed(rows) if row.best), None)
        assert member.epochs == (rows[-1].epochs if rows else 0.0)
        newest = files[-1] if files else None
        assert member.saved == files
        assert member.saved_at_its_end == bool(
            rows and newest and (newest.epoch, newest.section) > (rows[-1].epoch, rows[-1].section)
        )


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=12))
def test_a_member_follows_what_it_was_assigned_last(assigned: list[tuple[int, int]]) -> None:
    state, model = RunState(), dict[int, int]()
    for epoch, ahead in assigned:
        stream_epoch = epoch + ahead
        follows = state.member("m").follows(epoch, stream_epoch)
        state.apply(Assigned(members={"m": (epoch, stream_epoch)}))
        wanted = {own: at for own, at in model.items() if own < epoch}
        wanted |= {own: stream_epoch + own - epoch for own in range(epoch, 20)}
        # If the member follows this assignment already, recording it again changes nothing.
        assert not follows or wanted == model
        model = wanted
        assert {own: at for own in range(20) if (at := state.member("m").stream_epoch(own)) is not None} == model
        assert state.member("m").follows(epoch, stream_epoch)
        assert state.member("m").assigned == sorted(state.member("m").assigned)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 50)), min_size=1))
def test_preparations_are_fed_samples_relative_to_the_samples_of_the_fed_sections(
    fed: list[tuple[int, int, int]],
) -> None:
    state = RunState()
    state.apply(
        RunStarted(host="", pid=1, versions={}, settings={}, lengths={"train": 100, "val": 7}, validations_per_epoch=3)
    )
    for epoch, section, samples in fed:
        state.apply(Fed(leg=0, split="train", epoch=epoch, section=section, samples=samples))
        state.apply(Fed(leg=0, split="val", epoch=epoch, section=section, samples=7))
    wanted = sum({0: 33, 1: 33, 2: 34}[section] for _, section in {(epoch, section) for epoch, section, _ in fed})
    assert state.preparations == sum(samples for _, _, samples in fed) / wanted


def test_drivers_that_were_killed_are_counted_and_workers_are_those_of_their_driver() -> None:
    begins = RunStarted(host="", pid=1, versions={}, settings={}, lengths={"train": 1})
    ends = RunEnded(status="paused", reason="", seconds=2.0)
    used = [Used(worker="cpu:0", cpu_seconds=seconds, gauge={}) for seconds in (1.0, 3.0)]
    state = RunState.of([begins, begins, used[0], ends, begins, used[1]])
    assert (state.killed, state.seconds) == (1, 2.0)
    assert state.used == [[], used[:1], used[1:]]


def test_a_member_is_split_until_one_device_has_it() -> None:
    shares = Split(member="m", devices=("cpu:0", "cpu:1"), shares=(0.25, 0.75))
    assert RunState.of([shares]).member("m").split == shares
    assert RunState.of([shares, Split(member="m", devices=("cpu:1",), shares=(1.0,))]).member("m").split is None


def test_a_member_that_is_tried_again_has_the_best_weights_of_its_file() -> None:
    """A retried member drops the checkpoint of its failure, whose best weights are of sections that the fixed code may not repeat."""
    state, file = RunState(), saved(1, 0, 0)
    rescued = replace(file, checkpoint=replace(file.checkpoint, best="b.pt", best_sha256=""))
    for event in (file, rescued, MemberEnded(member="m", status="failed", reason="")):
        state.apply(event)
    assert state.member("m").saved == [file.checkpoint, rescued.checkpoint]
    assert newest_checkpoint(state.member("m")) == file.checkpoint
    state.apply(Retried(members=("m",)))
    assert state.member("m").saved == [file.checkpoint]
    assert state.member("m").status == "waiting"


def test_members_are_suspects_until_they_end_the_section_in_which_their_device_was_lost() -> None:
    """Members on a lost device are suspects until they end a section for the first time, or a later loss of the device names only others."""

    def lost(*suspects: str) -> WorkerLost:
        return WorkerLost(worker="cpu:1", detail="poisoned", suspects=suspects)

    state = RunState.of([started(0, 0, 0), ended(0, 0, best=True, mark=1.0), ended(0, 1, best=True, mark=0.5)])
    state.apply(lost("m", "n"))
    assert state.suspects == {"m": (0, 1), "n": (-1, -1)}
    for event in (started(0, 1, 5), lost(), ended(0, 1, best=True, mark=0.5)):
        state.apply(event)
        assert state.suspects == {"m": (0, 1), "n": (-1, -1)}
    there = state.deep_copy()
    state.apply(ended(0, 2, best=True, mark=0.4))
    assert state.suspects == {"n": (-1, -1)}
    assert there.suspects == {"m": (0, 1), "n": (-1, -1)}
    assert [len(one.member("m").sections) for one in (there, state)] == [2, 3]
    there.apply(lost("n"))
    assert there.suspects == {"n": (-1, -1)}
    there.apply(BeganAnew(members={"n": "members.old/n-1"}))
    assert not there.suspects
