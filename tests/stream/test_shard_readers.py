"""Tests that each shard of a stream that is not kept is read forward, by one loader worker."""

import os
import selectors
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy import Data
from argosy.data import from_shards
from argosy.stream.blocks import Place
from argosy.stream.gauges import StreamGauge
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.opening import open_sources
from argosy.stream.order import shard_order
from argosy.stream.preparation import Preparation
from argosy.stream.ring import Ring

LENGTHS = (50, 3, 80, 64, 21, 40, 0, 33, 70, 12, 55, 48)
TOTAL, BLOCK = sum(LENGTHS), 64


def noted(path: Path, shard: int, row: int) -> Iterator[Any]:
    for number in range(row, LENGTHS[shard]):
        with path.open("a", buffering=1) as notes:
            notes.write(f"{os.getpid()} {shard} {number}\n")
        yield torch.tensor(float(sum(LENGTHS[:shard]) + number))


@pytest.mark.parametrize("killed", [False, True])
def test_a_shard_is_read_by_one_worker_as_long_as_that_lives(killed: bool, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    stream = from_shards(range(len(LENGTHS)), read=partial(noted, notes), lengths=LENGTHS)
    sources = open_sources(Data(train=stream, keep=False), seed=0)
    layout = sources["train"].layout
    notes.write_text("")
    selector, heartbeat = selectors.DefaultSelector(), Heartbeat.private()
    ring = Ring(slots=4, slot_bytes=layout.block_bytes(BLOCK))
    preparation = Preparation(
        ring,
        sources,
        StreamGauge(),
        heartbeat,
        selector,
        wanted_loaders=3,
    )
    for _ in range(3):
        preparation.start_loader()
    order = shard_order(0, 0, LENGTHS)
    starts = iter(range(0, TOTAL, BLOCK))
    found: list[float] = []
    while len(found) < TOTAL:
        while preparation.free and (start := next(starts, None)) is not None:
            rows = min(BLOCK, TOTAL - start)
            place = Place(leg=0, split="train", epoch=0, section=0, start=start, rows=rows, last=start + rows == TOTAL)
            preparation.start(place, order[start : start + rows], ())
        preparation.dispatch()
        if killed and len(found) >= TOTAL // 2:
            killed = False
            os.kill(preparation.loaders[1].child.pid, signal.SIGKILL)
        for key, _ in selector.select():
            key.data()
        while preparation.filling and not preparation.filling[0].missing:
            filling = preparation.filling.popleft()
            block = layout.block(filling.place, ring.slot(filling.slot))
            found += block.leaves[0].tolist()
            preparation.free.append(filling.slot)
    read = [tuple(map(int, line.split())) for line in notes.read_text().splitlines()]
    died = len({process for process, *_ in read}) > 3
    preparation.end()
    assert found == order.tolist()
    assert len({process for process, *_ in read}) >= 3
    if not died:
        assert sorted((shard, row) for _, shard, row in read) == [
            (shard, row) for shard, length in enumerate(LENGTHS) for row in range(length)
        ]
