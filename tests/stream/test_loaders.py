"""Tests a loader worker whose feeder hangs up."""

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
import studies
import torch
from torch.utils.data import IterableDataset

from argosy import Data
from argosy.stream.blocks import Place
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.loaders import Task, start_loader
from argosy.stream.opening import open_sources
from argosy.stream.ring import Ring

PLACE = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=4, last=True)


class Slow(studies.Vectors):
    """A dataset that takes 50 ms for each sample."""

    def __getitem__(self, index: int) -> object:
        time.sleep(0.05)
        return super().__getitem__(index)


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_a_loader_whose_feeder_hangs_up_ends_in_peace(seconds: float) -> None:
    """A loader worker exits with status 0 if its feeder hangs up before it has a task, or while it works on one."""
    heartbeat, descriptor = Heartbeat.create()
    os.close(descriptor)
    sources = open_sources(Data(train=Slow(4)), seed=0, heartbeat=heartbeat)
    ring = Ring(slots=1, slot_bytes=sources["train"].layout.block_bytes(4))
    loader = start_loader(1, heartbeat, ring, sources, [])
    if seconds:
        loader.give(Task(0, PLACE, 0, np.arange(4)))
        while not heartbeat.read()[1].busy:
            time.sleep(0.001)
    loader.child.connection.close()
    _, status = os.waitpid(loader.child.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


class Counted(IterableDataset):
    """A stream of fifty samples that can only be read forward."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.tensor, range(50))


def test_a_loader_that_skips_samples_shows_so_in_its_own_slot() -> None:
    """A loader that has to skip many samples of a shard would otherwise count as hung."""
    heartbeat, descriptor = Heartbeat.create()
    os.close(descriptor)
    sources = open_sources(Data(train=Counted(), keep=False), seed=0, heartbeat=heartbeat)
    ring = Ring(slots=1, slot_bytes=sources["train"].layout.block_bytes(4))
    loader = start_loader(1, heartbeat, ring, sources, [])
    before = heartbeat.read()
    loader.give(Task(0, PLACE, 0, np.arange(46, 50), shard=0))
    answer = loader.take()
    loader.child.end()
    assert answer is not None
    assert answer[1].error is None
    feeder, own = (after.beat - sign.beat for after, sign in zip(heartbeat.read(), before, strict=True))
    assert feeder == 0
    assert own > 50
