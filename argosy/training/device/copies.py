"""Asynchronous copies of blocks from the ring to a device; neither the device nor the host waits for them.

Contract. Until its copy is complete, a block occupies a slot of the ring, which other trainers and the feeder share. Only `DeviceCopies`
holds the block until then. The caller must call `release_done` regularly, at least before it waits for the next block, because the
feeder cannot reuse a slot before it is released. Steps issued after `start` are ordered behind the copy on the device, so the host
continues at once. If the rows of a block already lie on the device (`argosy.training.device.resident`), only their order is copied.

On the CPU, steps read the slot directly, and members' code may keep references to it (for example a metric object that keeps
all targets). A block is therefore copied there too while part of an earlier block is still referenced, and so is the first block of
each split after a member was assigned. If a member begins to keep references later, the trainer withholds at most one slot.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from argosy.errors import StudyError
from argosy.stream.blocks import Block, same_bits
from argosy.stream.samples import generator_states
from argosy.stream.trees import Structure, flatten, unflatten
from argosy.training.device.devices import Backend, DeviceEvent
from argosy.training.device.equivalence import UNMOVED, ComparedPair, difference
from argosy.training.device.moved import copy_held, note_placement
from argosy.training.device.resident import ResidentRows

__all__ = ["DeviceCopies"]

CHECK_SAMPLES = 2
"""Samples of the separate check of `Data.on_device`; with so few, a difference shows if it uses statistics of the whole block."""


@dataclass(slots=True)
class DeviceCopies:
    """Blocks being copied to one device, and `Data.on_device` applied to them there."""

    backend: Backend
    on_device: Callable[[Any], Any] | None = None
    """`Data.on_device`."""
    resident: ResidentRows = field(init=False)
    _pending: deque[tuple[DeviceEvent, Block, Tensor]] = field(default_factory=deque)
    """Blocks and their columns of indices, which are copied as well."""
    _stepped: deque[DeviceEvent] = field(default_factory=deque)
    """One event per block, behind its steps, for blocks that the device may not have finished."""
    _shown: set[str] = field(default_factory=set)
    """Splits that had a block since a member was last assigned."""
    _memory: list[weakref.ref[torch.UntypedStorage]] = field(default_factory=list)
    """Storages of blocks that may still be referenced."""
    _writes: dict[str, bool] = field(default_factory=dict)
    """Whether `on_device` wrote into the first block's leaves, by split."""
    _tried: set[str] = field(default_factory=set)
    """Splits on which `on_device` was checked with few samples."""

    def __post_init__(self) -> None:
        self.resident = ResidentRows(self.backend)
        if self.backend.device.type != "cpu":
            self.on_device = copy_held(self.on_device, self.backend.device)

    def member_assigned(self) -> None:
        """Note that a member was assigned, which may keep references to its first blocks."""
        self._shown.clear()

    def start(self, block: Block) -> Block:
        """Return the block on the device; steps issued after this call may use it."""
        block = block.with_copies(tuple(self._copied(block))) if self.backend.apart else self._lent(block)
        if self.on_device is None or not block.place.rows:
            return block
        return self._transformed(block, self.on_device)

    def _copied(self, block: Block) -> list[Tensor]:
        """Return the block's leaves on the device: rows that stay there, or copies."""
        is_resident, order = self.resident.has(block), torch.from_numpy(block.indices)
        stays = is_resident or self.resident.reserve(block)
        copied, event = self.backend.copy([*([order] if stays else []), *(() if is_resident else block.leaves)])
        self._pending.append((event, block, order))
        self.backend.follow(event, copied)
        if is_resident:
            return self.resident.read(block, copied[0])
        if stays:
            self.resident.keep(block, copied[0], copied[1:])
            return copied[1:]
        return copied

    def release_done(self) -> int:
        """Release blocks after their copies are complete; returns how many are still being copied. Never waits."""
        while self._pending and self._pending[0][0].query():
            self._pending.popleft()
        return len(self._pending)

    def stepped(self) -> None:
        """Note that all steps on a block have been issued."""
        self._stepped.append(self.backend.stamp())

    @property
    def ahead(self) -> int:
        """Number of blocks whose steps are issued but not completed by the device. Never waits."""
        while self._stepped and self._stepped[0].query():
            self._stepped.popleft()
        return len(self._stepped)

    def finish(self) -> None:
        """Wait for all copies and release their blocks; called before the ring's memory is freed."""
        while self._pending:
            self._pending[0][0].synchronize()
            self._pending.popleft()

    def _lent(self, block: Block) -> Block:
        """Return the block in its slot, or a copy that members may keep."""
        self._memory = [memory for memory in self._memory if memory() is not None]
        if self._memory or block.place.split not in self._shown:
            block = block.private()
        block.labels = block.class_numbers()
        self._shown.add(block.place.split)
        self._memory += [weakref.ref(leaf.untyped_storage()) for leaf in block.leaves]
        return block

    # ---- Data.on_device

    def _transformed(self, block: Block, on_device: Callable[[Any], Any]) -> Block:
        """Apply `on_device`, to copies if it writes into shared input.

        The first block of each split shows whether it writes, even in ways that torch does not count (through `.data` or NumPy).
        """
        split, shared = block.place.split, not self.backend.apart
        private = shared and self._writes.get(split, True)
        parts = _parts(block) if split not in self._tried and block.place.rows >= 2 * CHECK_SAMPLES else ()
        source = block.private() if private else block
        try:
            outputs, tree = flatten(on_device(unflatten(list(source.leaves), source.tree)))
        except RuntimeError as error:
            note_placement(error, self.backend.device)
            raise
        wrote = source.touched or (private and not same_bits(source.leaves, block.leaves))
        if shared and wrote and not private:
            raise StudyError(
                f"Data.on_device wrote into its input at sample {block.place.start} of {split} epoch "
                f"{block.place.epoch + 1}, which other trainers share, although it did not on its first block. "
                "Return new tensors, or write on every block: then it gets copies."
            )
        self._writes.setdefault(split, wrote)
        _check_rows(outputs, block)
        if parts:
            self._check_parts(on_device, parts, outputs, tree)
            self._tried.add(split)
        return block.with_leaves(tuple(map(_plain, outputs)), tree)

    def _check_parts(
        self, on_device: Callable[[Any], Any], parts: Iterable[Any], outputs: list[Tensor], tree: Structure
    ) -> None:
        """Raise StudyError unless `on_device` returns the same for these parts as for the whole block, and draws no random numbers."""
        before = self._generators()
        (first, as_first), (others, as_others) = (flatten(on_device(part)) for part in parts)
        if self._generators() != before:
            raise StudyError(
                "Data.on_device draws random numbers but has no seed, so its results would depend on the devices "
                "and on where a run was interrupted. Draw in the dataset or in Member.augment, and call eval() on "
                "networks."
            )
        if not (as_first == as_others == tree and all(map(_parts_match, outputs, first, others))):
            raise StudyError(
                f"Data.on_device returns different values for a block in two parts (its first {CHECK_SAMPLES} samples and "
                "the rest) than for the whole block, so results would depend on the block size. Process each "
                "sample independently: use, for example, the mean of all training samples instead of the mean of "
                "the input, and call eval() on networks."
            )

    def _generators(self) -> tuple[Any, ...]:
        state = self.backend.random_state()
        return (*generator_states(), None if state is None else state.numpy().tobytes())


def _plain(leaf: Tensor) -> Tensor:
    """Return the leaf contiguous, like batches that span several blocks, because the memory layout affects how kernels round.

    The leaf is flattened in between, because torch also considers the strides of dimensions of size 1, which are arbitrary.
    """
    return leaf.resolve_conj().resolve_neg().reshape(-1).view(leaf.shape)


def _parts(block: Block) -> tuple[Any, Any]:
    """Return copies of the block's first `CHECK_SAMPLES` samples, and of the remaining ones."""
    few, others = (
        unflatten([leaf[rows].clone() for leaf in block.leaves], block.tree)
        for rows in (slice(CHECK_SAMPLES), slice(CHECK_SAMPLES, None))
    )
    return few, others


def _parts_match(whole: Tensor, *parts: Any) -> bool:
    """Return whether `parts` equal the first `CHECK_SAMPLES` rows of `whole` and the remaining ones, up to rounding."""
    whole = whole.detach()
    expected = whole[:CHECK_SAMPLES], whole[CHECK_SAMPLES:]
    if any(
        not isinstance(part, Tensor) or (part.dtype, part.shape) != (rows.dtype, rows.shape)
        for part, rows in zip(parts, expected, strict=True)
    ):
        return False
    if not (whole.is_floating_point() or whole.is_complex()):
        return all(map(torch.equal, parts, expected))
    finite = whole.abs().nan_to_num(0.0, 0.0, 0.0)
    size, share = float(finite.max()) if whole.numel() else 0.0, max(UNMOVED, 4 * torch.finfo(whole.dtype).eps)
    pairs = [ComparedPair("", rows, part, lambda: size) for rows, part in zip(expected, parts, strict=True)]
    return difference(pairs, share) is None


def _check_rows(leaves: list[Any], block: Block) -> None:
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != block.place.rows:
            described = f"a tensor {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
            raise StudyError(
                f"Data.on_device returned {described} for a block of {block.place.rows} samples; it must return "
                "tensors with one row per sample, in the same order."
            )
