"""Mistakes in samples, and in messages between processes."""

import functools
import socket
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from argosy import Data
from argosy.stream.blocks import Layout, Place
from argosy.stream.course import FeedSchedule
from argosy.stream.framing import LENGTH, MAX_VALUE_BYTES, Authenticated
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.listener import dial
from argosy.stream.loaders import Task, run_task
from argosy.stream.opening import Opening, make_lazy_source, open_sources
from argosy.stream.preparation import MAX_DEATHS, Preparation
from argosy.stream.sources import ArraySource, Source
from argosy.stream.wire import Peer

__all__ = ["CASES"]

DRIVER = ("127.0.0.1", 1)
"""An address at which no process listens."""
PLACE = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=4, last=True)
TASK = Task(0, PLACE, 0, np.arange(4))


class Rows:
    """A dataset whose samples are computed from their index by a function."""

    def __init__(self, sample: Any, length: int = 20) -> None:
        self.sample, self.length = sample, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def opened(sample: Any, *, length: int = 20, **rest: Any) -> Source:
    """Open and probe a dataset of these samples."""
    return open_sources(Data(train=Rows(sample, length), **rest), seed=0)["train"]


def filled(sample: Any) -> None:
    """Prepare four of these samples into a block."""
    source = opened(sample)
    block = source.layout.block(PLACE, np.zeros(source.layout.block_bytes(4), np.uint8))
    source.fill(block, 0, TASK.indices)


def in_arrays(*arrays: Any) -> None:
    """Open these arrays."""
    ArraySource(arrays, "train", heartbeat=Heartbeat.private())


class Once:
    """A stream whose iterator is the same each time."""

    def __init__(self) -> None:
        self.samples = iter([0])

    def __iter__(self) -> Iterator[int]:
        return self.samples


class Endless(Rows):
    """A dataset that does not know its length."""

    def __len__(self) -> int:
        raise OSError("no such index")


def unreadable() -> Any:
    """A factory whose file does not exist."""
    raise FileNotFoundError("no photographs in /data")


def another_one() -> None:
    """Open a dataset of twenty samples that has nineteen when it is opened again."""
    facts = opened(lambda index: torch.zeros(3)).facts
    fewer = Opening(data=Data(train=Rows(lambda index: torch.zeros(3), 19)), seed=0)
    _ = make_lazy_source("train", facts, lambda: fewer, fewer.heartbeat).preparing


def lists() -> None:
    """Let a loader worker prepare samples that raise."""

    def fill(*_: Any) -> None:
        raise OSError("truncated file")

    source = SimpleNamespace(layout=Layout.of(torch.zeros(3)), fill=fill)
    run_task(TASK, SimpleNamespace(slot=lambda _: np.zeros(4096, np.uint8)), {"train": source})


def dying_loaders() -> None:
    """Prepare samples that kill the process once too often."""
    Preparation._retry(SimpleNamespace(), replace(TASK, deaths=MAX_DEATHS - 1))


def growing(index: int) -> torch.Tensor:
    """Return samples of varying length."""
    return torch.zeros(3 + (index == 2))


def quantized(index: int) -> Any:
    """Return a quantized tensor."""
    del index
    with warnings.catch_warnings(action="ignore"):  # torch is going to drop them
        return torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8)


def branching(index: int) -> Any:
    """Return samples of different structures."""
    return (torch.zeros(3), 0) if index == 2 else torch.zeros(3)


def broken(index: int) -> Any:
    """Raise for every sample."""
    raise OSError("truncated file")


def on_gpu(index: int) -> Any:
    """Raise what torch raises for tensors on a GPU in a fork of a process that has used it."""
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")


GENERATOR = np.random.default_rng()


def said(words: bytes) -> None:
    """Receive these bytes from another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        ours.sendall(words)
        peer = Peer(theirs)
        peer.receive()


def many_descriptors() -> None:
    """Send more descriptors than one message may carry."""
    here, _there = Peer.pair()
    here.send("files", [0] * 65)


class Stranger(socket.socket):
    """A connection to a process that does not know the key."""

    def connect(self, address: Any) -> None:
        """Connect."""

    def sendall(self, *_: Any) -> None:
        """Send."""

    def recv(self, size: int, *_: Any) -> bytes:
        """Receive a wrong proof."""
        return bytes(size)


def stranger(patch: pytest.MonkeyPatch) -> None:
    """Call such a process."""
    patch.setattr(socket, "socket", Stranger)
    dial(DRIVER, b"key", "rank 1", seconds=5)


def injected() -> None:
    """Receive a message that was injected between two nodes."""
    ours, theirs = socket.socketpair()
    peer = Peer(theirs, Authenticated(sends=bytes(32), receives=bytes(32)))
    with ours:
        ours.sendall(LENGTH.pack(3) + bytes(16) + b"abc" + bytes(16))
        peer.receive()


CASES = {
    "a sample that contains a string": lambda: opened(lambda index: ("cat", index)),
    "a sample with a quantized tensor": lambda: opened(quantized),
    "samples of different structures": lambda: filled(branching),
    "samples of different shapes": lambda: filled(growing),
    "a sample that raises": lambda: opened(broken),
    "a sample on a GPU, read by a fork": lambda: opened(on_gpu),
    "a dataset in which every sample raises": lambda: opened(broken, on_error="skip"),
    "a dataset with its own generator": lambda: opened(lambda index: torch.tensor(GENERATOR.random())),
    "a dataset that keeps what it draws": lambda: opened(functools.cache(lambda _: torch.rand(()))),
    "a dataset without samples": lambda: opened(growing, length=0),
    "tensors of different lengths": lambda: in_arrays(np.zeros(3), np.zeros(4)),
    "an array with rows of different shapes": lambda: open_sources(Data(arrays=([[1, 2], [3]],)), seed=0),
    "a sparse tensor among the arrays": lambda: Data(arrays=(torch.eye(3).to_sparse(),)),
    "a nested tensor among the arrays": lambda: Data(
        arrays=(torch.nested.nested_tensor([torch.eye(3)], layout=torch.jagged),)
    ),
    "an array of dates": lambda: open_sources(Data(arrays=(np.zeros(3, "datetime64[s]"),)), seed=0),
    "a dataset whose length raises": lambda: open_sources(Data(train=Endless(growing)), seed=0),
    "a data factory that raises": lambda: open_sources(Data(train=unreadable), seed=0),
    "a stream that can be read only once": lambda: open_sources(Data(train=Once()), seed=0),
    "a data factory that returns no Dataset": lambda: open_sources(Data(train=lambda: 3), seed=0),
    "a dataset that differs each time it is opened": another_one,
    "more validations than samples": lambda: FeedSchedule({"train": 6, "val": 9}, per_epoch=8, block_size=64),
    "a dataset that fails in a loader worker": lists,
    "a sample that kills loader workers": dying_loaders,
    "a caller's name that is too long": lambda: dial(DRIVER, b"key", "rank 1" * 52, seconds=5),
    "no process answers a call": lambda: dial(DRIVER, b"key", "rank 1", seconds=5),
    "an unknown process answers a call": stranger,
    "too many descriptors in one message": many_descriptors,
    "a message that cannot be read": lambda: said(LENGTH.pack(3) + b"abc"),
    "a message that was injected between two nodes": injected,
    "a message too large": lambda: said(LENGTH.pack(MAX_VALUE_BYTES + 1)),
}
