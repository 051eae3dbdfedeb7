"""Blocks on their way from the ring to a device, which never waits for them, nor the host.

Contract. A block lies in a slot of the ring, which other trainers and the feeder share, until its copy has passed:
`Copies` holds the block until then, and nobody else needs to. Whoever takes a block calls `release_done` now and then, at
least before it waits for the next one: a slot that nobody releases is one that the feeder lacks. Steps that are asked for
after `start` come after the copy by the device's own order, so the host goes on at once.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from argosy.errors import StudyError
from argosy.stream.blocks import Block
from argosy.stream.trees import flatten, unflatten
from argosy.training.devices import Backend, Event

__all__ = ["Copies", "same_bits"]


@dataclass(slots=True)
class Copies:
    """Blocks on their way to one device, and the study's own work on them there."""

    backend: Backend
    on_device: Callable[[Any], Any] | None = None
    """`Data.on_device`."""
    _pending: deque[tuple[Event, Block]] = field(default_factory=deque)
    _writes: dict[str, bool] = field(default_factory=dict)
    """By split, whether `on_device` wrote into the first block's leaves."""

    def start(self, block: Block) -> Block:
        """The block on the device, for steps that are asked for from here on."""
        if self.backend.apart:
            leaves, event = self.backend.copy(block.leaves)
            self._pending.append((event, block))
            self.backend.follow(event, leaves)
            block = block.apart(tuple(leaves))
        return block if self.on_device is None else self._transformed(block, self.on_device)

    def release_done(self) -> int:
        """Let go of blocks whose copies have passed; returns how many are still on their way. Never waits."""
        while self._pending and self._pending[0][0].query():
            self._pending.popleft()
        return len(self._pending)

    def finish(self) -> None:
        """Wait for all copies and let go of their blocks: before the ring's memory goes."""
        while self._pending:
            self._pending[0][0].synchronize()
            self._pending.popleft()

    def _transformed(self, block: Block, on_device: Callable[[Any], Any]) -> Block:
        """Work in place is for nobody's eyes but this trainer's: found on a split's first block.

        There also where it goes past torch's eyes, through `.data` or NumPy.
        """
        split, shared = block.place.split, not self.backend.apart
        private = shared and self._writes.get(split, True)
        given = block.private() if private else block
        made, tree = flatten(on_device(unflatten(list(given.leaves), given.tree)))
        wrote = given.touched or (private and not same_bits(given.leaves, block.leaves))
        if shared and wrote and not private:
            raise StudyError(
                f"Data.on_device wrote into its input at sample {block.place.start} of {split} epoch {block.place.epoch}, "
                "which other trainers share, though it did not on its first block. Let it return new tensors, or write on "
                "every block: then it gets copies."
            )
        self._writes.setdefault(split, wrote)
        _check_rows(made, block)
        return block.with_leaves(tuple(made), tree)


def same_bits(some: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    """Whether tensors hold the same, also where that is no number."""
    return all(torch.equal(_bits(a), _bits(b)) for a, b in zip(some, others, strict=True))


def _bits(leaf: Tensor) -> Tensor:
    return leaf.detach().contiguous().reshape(-1).view(torch.uint8)


def _check_rows(leaves: list[Any], block: Block) -> None:
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != block.place.rows:
            found = f"a tensor {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
            raise StudyError(
                f"Data.on_device returned {found} for a block of {block.place.rows} samples; let it return tensors with one row "
                "per sample, in their order."
            )
