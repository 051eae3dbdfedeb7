"""SC'18's nodes in miniature: as many samples a second as published, with a 256th of their bytes.

Each node's one loader sleeps so as to prepare as many samples a second as Titan's 16 cores did, so that a machine of a
few cores carries twenty nodes. Traffic of a node's link waits for a token bucket in each direction, where the exchange
calls ``torch.distributed.broadcast``: a node pays for each block that it receives, and for each copy that gloo's
binomial tree makes it send or forward.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from sc18 import SOLO_PEAK
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import Dataset

import argosy
from argosy.stream.sharing import PIPELINES

__all__ = ["BLOCK", "LENGTH", "SAMPLE_BYTES", "busiest", "study"]

SAMPLE_BYTES = 602_112 // 256
"""A 256th of an image of 3 x 224 x 224 floats."""
LENGTH, BLOCK = 1024, 64
BROADCAST = dist.broadcast
BURST_SECONDS = 0.25


class Bucket:
    """A token bucket with a rate per second; a late caller may catch up within a moment."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._free = 0.0
        """The time at which all that was taken so far has passed."""
        self._lock = threading.Lock()

    def take(self, amount: float) -> None:
        """Queue this amount."""
        with self._lock:
            self._free = max(time.monotonic() - BURST_SECONDS, self._free) + amount / self.per_second

    def wait(self) -> None:
        """Wait until all that was taken so far has passed."""
        time.sleep(max(self._free - time.monotonic(), 0.0))


class Images(Dataset[Tensor]):
    """Samples prepared at the rate of a node of Titan; the process that opens them gets a link with this rate of samples."""

    def __init__(self, link_samples_per_second: float) -> None:
        self.link_samples_per_second = link_samples_per_second

    def __getstate__(self) -> dict[str, Any]:
        return {"link_samples_per_second": self.link_samples_per_second}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set up in a feeder, from which its exchange and its one loader are forked."""
        self.__init__(**state)  # type: ignore[misc]
        self.cores = Bucket(SOLO_PEAK)
        bytes_per_second = self.link_samples_per_second * SAMPLE_BYTES
        dist.broadcast = _limited(BROADCAST, out=Bucket(bytes_per_second), into=Bucket(bytes_per_second))

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Tensor:
        self.cores.take(1)
        self.cores.wait()
        return torch.full((SAMPLE_BYTES // 4,), float(index))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Passing:
    """A broadcast that ends when its bytes have passed this node's link."""

    work: Any
    out: Bucket
    into: Bucket
    received: int
    forwarded: int

    def wait(self) -> None:
        """See `torch.distributed.Work`."""
        self.work.wait()
        self.into.take(self.received)
        self.out.take(self.forwarded)
        self.into.wait()
        self.out.wait()


def _limited(broadcast: Callable[..., Any], *, out: Bucket, into: Bucket) -> Callable[..., Any]:
    def through_link(tensor: Tensor, src: int, group: Any, *, async_op: bool) -> _Passing:
        size, rank, root = dist.get_world_size(group), dist.get_rank(group), dist.get_group_rank(group, src)
        sent, own = tensor.nbytes * copies_of((rank - root) % size, size), rank == root
        if own:
            # A node's own blocks leave one after another.
            out.wait()
            out.take(sent)
        work = broadcast(tensor, src=src, group=group, async_op=async_op)
        passes = {"received": 0, "forwarded": 0} if own else {"received": tensor.nbytes, "forwarded": sent}
        return _Passing(work=work, out=out, into=into, **passes)

    return through_link


def copies_of(rank: int, size: int) -> int:
    """Return how many copies a rank sends in a binomial tree from rank 0.

    >>> [copies_of(rank, 8) for rank in range(8)]
    [3, 2, 1, 1, 0, 0, 0, 0]
    """
    return sum(rank < 2**hop and rank + 2**hop < size for hop in range(size.bit_length()))


def busiest(side: str, nodes: int, preparing: int) -> float:
    """Return how often, on average, a block passes the busiest link of a pipeline in its busier direction.

    >>> busiest("all-shared", 8, 8), busiest("multi-broadcast", 8, 5)
    (0.875, 1.4)
    """
    pipeline = PIPELINES[side](nodes, preparing)
    sent, received = [0] * nodes, [0] * nodes
    for turn in pipeline.turns:
        for hop in turn.hops:
            ranks = pipeline.groups[hop.group]
            for place, node in enumerate(ranks):
                sent[node] += copies_of((place - ranks.index(hop.root)) % len(ranks), len(ranks))
                received[node] += node != hop.root
    return max(*sent, *received) / len(pipeline.turns)


def _touch(model: Any, batch: Any) -> Tensor:
    """Take a training step that has a gradient but does no work."""
    del batch
    return model.weight.sum()


def study(count: int, *, link: float, epochs: int) -> argosy.Study:
    """Return a study of `count` stripped networks, on links of `link` samples a second."""
    members = [
        argosy.Member(
            f"network-{number:02}",
            model=partial(nn.Linear, 1, 1),
            optimizer=partial(SGD, lr=0.01),
            step=_touch,
            batch_size=BLOCK,
        )
        for number in range(count)
    ]
    return argosy.Study(
        data=argosy.Data(train=Images(link), keep=False), members=members, stop=argosy.MaxEpochs(epochs)
    )
