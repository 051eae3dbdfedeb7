"""Blocks on their way from the ring to a device, which never waits for them, nor the host.

Contract. A block lies in a slot of the ring, which other trainers and the feeder share, until its copy has passed:
`Copies` holds the block until then, and nobody else needs to. Whoever takes a block calls `release_done` now and then, at
least before it waits for the next one: a slot that nobody releases is one that the feeder lacks. Steps that are asked for
after `start` come after the copy by the device's own order, so the host goes on at once.

Where a device is the host itself, steps are made on the slot, and members' code may keep what it is shown: a metric object
all targets, say. So a block is copied there too while somebody has a part of an earlier one, and the first of each split
since somebody came aboard. One slot is the most that a trainer keeps from the feeder, where a member begins to keep later on.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from argosy.errors import StudyError
from argosy.stream.blocks import Block
from argosy.stream.samples import generator_states
from argosy.stream.trees import Structure, flatten, unflatten
from argosy.training.device.devices import Backend, DeviceEvent

__all__ = ["Copies", "same_bits"]

FEW = 2
"""Samples that `Data.on_device` is tried on by themselves: what it makes of all together is another thing for so few."""
ROUNDING = 1e-3
"""Share of a leaf's largest number by which that may differ: kernels for few rows round otherwise than those for many."""


@dataclass(slots=True)
class Copies:
    """Blocks on their way to one device, and the study's own work on them there."""

    backend: Backend
    on_device: Callable[[Any], Any] | None = None
    """`Data.on_device`."""
    _pending: deque[tuple[DeviceEvent, Block]] = field(default_factory=deque)
    _shown: set[str] = field(default_factory=set)
    """Splits of which there was a block since somebody came aboard."""
    _memory: list[weakref.ref[torch.UntypedStorage]] = field(default_factory=list)
    """Of blocks that somebody may still have a part of."""
    _writes: dict[str, bool] = field(default_factory=dict)
    """By split, whether `on_device` wrote into the first block's leaves."""
    _tried: set[str] = field(default_factory=set)
    """Splits of which `on_device` was tried on few samples."""

    def boarded(self) -> None:
        """Somebody came aboard, of whom nobody knows what he keeps."""
        self._shown.clear()

    def start(self, block: Block) -> Block:
        """The block on the device, for steps that are asked for from here on."""
        if self.backend.apart:
            leaves, event = self.backend.copy(block.leaves)
            self._pending.append((event, block))
            self.backend.follow(event, leaves)
            block = block.copied_out(tuple(leaves))
        else:
            block = self._lent(block)
        if self.on_device is None or not block.place.rows:
            return block
        return self._transformed(block, self.on_device)

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

    def _lent(self, block: Block) -> Block:
        """The block in its slot, or a copy that may be kept."""
        self._memory = [memory for memory in self._memory if memory() is not None]
        if self._memory or block.place.split not in self._shown:
            block = block.private()
        self._shown.add(block.place.split)
        self._memory += [weakref.ref(leaf.untyped_storage()) for leaf in block.leaves]
        return block

    # ---- the study's own work

    def _transformed(self, block: Block, on_device: Callable[[Any], Any]) -> Block:
        """Work in place is for nobody's eyes but this trainer's: found on a split's first block.

        There also where it goes past torch's eyes, through `.data` or NumPy.
        """
        split, shared = block.place.split, not self.backend.apart
        private = shared and self._writes.get(split, True)
        parts = _parts(block) if split not in self._tried and block.place.rows >= 2 * FEW else ()
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
        if parts:
            self._check_parts(on_device, parts, made, tree)
            self._tried.add(split)
        return block.with_leaves(tuple(map(_plain, made)), tree)

    def _check_parts(
        self, on_device: Callable[[Any], Any], parts: Iterable[Any], made: list[Tensor], tree: Structure
    ) -> None:
        """Raise StudyError unless it makes of these parts of a block what it has made of the whole, and draws nothing."""
        before = self._generators()
        (first, as_first), (others, as_others) = (flatten(on_device(part)) for part in parts)
        if self._generators() != before:
            raise StudyError(
                "Data.on_device draws random numbers, for which it has no seed: what it makes of a sample would depend on the "
                "devices, and on where a run was interrupted. Draw in the dataset or in Member.augment, and call eval() on a network."
            )
        if not (as_first == as_others == tree and all(map(_alike, made, first, others))):
            raise StudyError(
                f"Data.on_device makes other values of a block in two parts, its first {FEW} samples and the rest, than of the block as a "
                "whole: results would depend on the block size. Let it treat each sample by itself, and always alike: with the mean "
                "of all training samples, say, in place of that of its input, and with a network in eval()."
            )

    def _generators(self) -> tuple[Any, ...]:
        state = self.backend.random_state()
        return (*generator_states(), None if state is None else state.numpy().tobytes())


def same_bits(some: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    """Whether tensors hold the same, also where that is no number."""
    return all(torch.equal(_bits(a), _bits(b)) for a, b in zip(some, others, strict=True))


def _bits(leaf: Tensor) -> Tensor:
    return leaf.detach().contiguous().reshape(-1).view(torch.uint8)


def _plain(leaf: Tensor) -> Tensor:
    """With its numbers in the order of its dimensions, as batches over several blocks have them: kernels round by that order.

    Flattened in between, because torch also goes by the strides of dimensions of size 1, which are anything.
    """
    return leaf.resolve_conj().resolve_neg().reshape(-1).view(leaf.shape)


def _parts(block: Block) -> tuple[Any, Any]:
    """Copies of its first few samples, and of the others."""
    few, others = (
        unflatten([leaf[rows].clone() for leaf in block.leaves], block.tree) for rows in (slice(FEW), slice(FEW, None))
    )
    return few, others


def _alike(whole: Tensor, *parts: Any) -> bool:
    """Whether these are its first few rows and the others, but for rounding."""
    whole = whole.detach()
    expected = whole[:FEW], whole[FEW:]
    if any(
        not isinstance(part, Tensor) or (part.dtype, part.shape) != (rows.dtype, rows.shape)
        for part, rows in zip(parts, expected, strict=True)
    ):
        return False
    if not (whole.is_floating_point() or whole.is_complex()):
        return all(map(torch.equal, parts, expected))
    largest = float(whole.abs().nan_to_num(0.0, 0.0, 0.0).max()) if whole.numel() else 0.0
    allowed = max(ROUNDING, 4 * torch.finfo(whole.dtype).eps) * largest
    return all(map(partial(torch.allclose, rtol=0.0, atol=allowed, equal_nan=True), parts, expected))


def _check_rows(leaves: list[Any], block: Block) -> None:
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != block.place.rows:
            found = f"a tensor {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
            raise StudyError(
                f"Data.on_device returned {found} for a block of {block.place.rows} samples; let it return tensors with one row "
                "per sample, in their order."
            )
