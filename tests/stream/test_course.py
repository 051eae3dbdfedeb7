"""Tests that a feeder announces exactly the blocks that it has credit for, in order and once each, however often it is held."""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from argosy.protocol.feeder import Credit, Hold, Leg
from argosy.stream.blocks import Layout, Place
from argosy.stream.course import FeedSchedule
from argosy.stream.schedule import choose_block_size, section_start, section_stop


def blocks(
    leg: Leg, sections: range, lengths: dict[str, int], per_epoch: int, size: int
) -> list[tuple[str, int, list[int]]]:
    """Return (split, section, elements) of each block of these sections, computed independently of `FeedSchedule`."""
    found = []
    for section in sections:
        ends = [(number + 1) * lengths["train"] // per_epoch for number in range(per_epoch)]
        first = ends[section % per_epoch - 1] if section % per_epoch else 0
        first = leg.position if section == leg.section else first
        wanted = {"train": list(range(first, ends[section % per_epoch])), "val": list(range(lengths.get("val", 0)))}
        for split in lengths:
            cut = [wanted[split][start : start + size] for start in range(0, len(wanted[split]), size)]
            # Without validation, an empty block has to say that the section is over.
            found += [(split, section, block) for block in cut or ([] if "val" in lengths else [[]])]
    return found


@given(st.integers(0, 2**32))
def test_a_course_announces_what_it_may_and_prepares_no_further(seed: int) -> None:
    draw = Random(seed)
    lengths = {"train": draw.randint(4, 30)} | ({"val": draw.randint(1, 9)} if draw.random() < 0.7 else {})
    per_epoch, size = draw.randint(1, 4), draw.randint(1, 12)
    course = FeedSchedule(lengths, per_epoch=per_epoch, block_size=size)
    fed: dict[tuple[str, int, int], int] = {}
    prepared: dict[tuple[str, int, int], int] = {}
    for number in range(3):
        section = draw.randrange(9)
        low, high = (cut(section, lengths["train"], per_epoch) for cut in (section_start, section_stop))
        leg = Leg(number=number, section=section, position=draw.randint(low, high))
        for event in course.begin(leg):
            fed[event.split, event.epoch, event.section] = (
                fed.get((event.split, event.epoch, event.section), 0) + event.samples
            )
        assert course.peek() is None, "a block is prepared before there is credit"
        until = horizon = section
        ready: list[Place] = []
        told: list[Place] = []
        for _ in range(60):
            what = draw.random()
            if what < 0.1:
                # A driver withdraws credit only by a hold.
                until = max(until, section + draw.randint(0, 5))
                horizon = max(until, horizon or 0) + draw.randint(0, 2) if draw.random() < 0.8 else None
                course.allow(Credit(leg=number, until=until, horizon=horizon, assignments={"cpu:0": 1}))
                course.allow(Credit(leg=number - 1, until=99, horizon=99, assignments={}))
                assert course.assignments == {"cpu:0": 1}
            elif what < 0.15:
                multiple = draw.choice([1, per_epoch])
                held = course.hold(Hold(leg=number, multiple=multiple)).until
                least = told[-1].section + 1 if told else section
                assert held == next(n for n in range(least, least + per_epoch + 1) if n % multiple == 0)
                until = min(until, held)
            elif what < 0.6 and len(ready) < 6:
                place = course.next()
                if place is not None:
                    assert horizon is None or place.section < horizon
                    ready.append(place)
                else:
                    assert horizon is not None
            elif ready and course.may_announce(ready[0]):
                place = ready.pop(0)
                told.append(place)
                key = place.split, place.epoch, place.section % per_epoch
                prepared[key] = prepared.get(key, 0) + place.rows
                event = course.note_announced(place, place.rows)
                assert (event is not None) == place.last
                if event is not None:
                    key = event.split, event.epoch, event.section
                    fed[key] = fed.get(key, 0) + event.samples
            elif ready:
                assert ready[0].section >= until
        seen = [(p.split, p.section, list(range(p.start, p.start + p.rows))) for p in [*told, *ready]]
        assert seen == blocks(leg, range(section, section + 99), lengths, per_epoch, size)[: len(seen)]
        assert all(place.section // per_epoch == place.epoch and place.leg == number for place in told)
    for event in course.begin(Leg.empty()):
        key = event.split, event.epoch, event.section
        fed[key] = fed.get(key, 0) + event.samples
    assert {key: n for key, n in fed.items() if n} == {key: n for key, n in prepared.items() if n}


@pytest.mark.parametrize(
    ("numbers", "rows"), [(1, 4096), (10_000, 64), (250_000, 64), (2_500_000, 6), (25_000_000, 4)], ids=str
)
def test_blocks_of_large_samples_have_fewer_samples(numbers: int, rows: int) -> None:
    assert choose_block_size(Layout(None, (torch.float32,), ((numbers,),))) == rows
