"""Turns that all members of a program have made, recorded in the members' tallies later, all at once.

Recording each lockstep for each member takes as long as a step of many small networks.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.stream.batches import Batch
from argosy.stream.order import Digest
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.lockstep import Lockstep

__all__ = ["Made", "counts_of"]


class Made:
    """Turns of these members, by row. Positions move at once; steps, samples, digests and losses with `tell`."""

    def __init__(self, lives: Sequence[LiveMember]) -> None:
        self._lives = lives
        self._untold: list[tuple[Lockstep, Tensor]] = []

    def add(self, lockstep: Lockstep, totals: Tensor) -> int:
        """Add a lockstep with a batch for each member, and their loss sums, float64 ``[members]``; returns its samples."""
        self._untold.append((lockstep, totals))
        samples = 0
        for live, batch in zip(self._lives, lockstep, strict=True):
            assert batch is not None and live.cutter is not None
            samples += batch.rows
            if live.cutter.position < batch.stop:  # members may share one
                live.cutter.commit(batch)
        return samples

    def tell(self) -> None:
        """Record in the members what they have made since the last call."""
        untold, self._untold = self._untold, []
        if not untold:
            return
        totals, event = self._lives[0].backend.fetch(torch.stack([of_turn for _, of_turn in untold], 1))
        batches: Any = list(zip(*(lockstep for lockstep, _ in untold), strict=True))  # of each member, and none is None
        for live, own, found, counted in zip(self._lives, batches, totals, counts_of(batches), strict=True):
            live.commit_several(len(own), *counted, found, event)


def counts_of(batches: Sequence[Sequence[Batch]]) -> Iterator[tuple[int, Digest]]:
    """Yield the samples and the digest of the batches of each member; computed once for those that share them."""
    known: dict[tuple[int, ...], tuple[int, Digest]] = {}
    for own in batches:
        key = tuple(map(id, own))
        if key not in known:
            digest = Digest()
            for batch in own:
                digest = digest.plus(batch.digest)
            known[key] = sum(batch.rows for batch in own), digest
        yield known[key]
