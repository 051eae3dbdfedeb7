"""Blocks: consecutive samples of the stream, stacked leaf by leaf, with their indices, from which digests are computed."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from argosy.protocol.feeder import ShardMark
from argosy.stream.order import Hashes, Indices, running_sums
from argosy.stream.trees import Structure, flatten, format_structure, unflatten

__all__ = [
    "ALIGNMENT",
    "Block",
    "Layout",
    "Place",
    "UnfitSample",
    "byte_view",
    "host_bytes",
    "same_bits",
    "sample_leaves",
    "select_rows",
    "signed",
]

ALIGNMENT = 64
"""Alignment of every leaf, in bytes.

Vectorised kernels may round differently on memory of another alignment, so batches that start elsewhere are copied. A batch then gives the same
results whichever block it came in.
"""

SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Dtypes in which torch can neither select nor copy numbers by their indices, and those of the same size in which it can."""


class UnfitSample(Exception):  # noqa: N818  # a clause about a sample, not a sentence
    """Says why a sample cannot enter the stream. Callers that know its index turn it into a StudyError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The part of the stream that a block holds."""

    leg: int
    """Number of the leg for which it was prepared."""
    split: str
    epoch: int
    section: int
    """Number of the section, counted over the whole stream."""
    start: int
    """Element of the epoch's order at which the block begins."""
    rows: int
    last: bool
    """Whether this block is the last of its split in the section."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Structure, dtypes and shapes of every sample, which determine where leaves are placed in a block's memory."""

    tree: Structure
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, sample: Any) -> "Layout":
        """Return the layout of this sample. Raises UnfitSample if no block can hold it."""
        leaves, tree = sample_leaves(sample)
        if not leaves:
            raise UnfitSample(
                f"is {sample!r}, without any tensor or number. Return (input, target), or the values that your "
                "step takes."
            )
        for leaf in leaves:
            _check_dense(leaf)
        if any(leaf.is_quantized for leaf in leaves):
            raise UnfitSample("has a quantized tensor, whose numbers no block can hold. Return tensor.dequantize().")
        return cls(tree, tuple(leaf.dtype for leaf in leaves), tuple(tuple(leaf.shape) for leaf in leaves))

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return sum(d.itemsize * math.prod(s) for d, s in zip(self.dtypes, self.shapes, strict=True))

    def block_bytes(self, rows: int) -> int:
        """Return the bytes of a block: its columns and its leaves, each aligned."""
        return sum(_aligned(size) for size in self._sizes(rows))

    def memory(self, rows: int) -> npt.NDArray[np.uint8]:
        """Return aligned memory for a block outside any ring."""
        memory = np.empty(self.block_bytes(rows) + ALIGNMENT, np.uint8)
        return memory[-memory.ctypes.data % ALIGNMENT :]

    def _sizes(self, rows: int) -> list[int]:
        leaves = [rows * d.itemsize * math.prod(s) for d, s in zip(self.dtypes, self.shapes, strict=True)]
        # The columns of indices (int64) and of sound rows (bool) come before the leaves.
        return [rows * 8, rows, *leaves]

    def offsets(self, rows: int) -> list[int]:
        """Return the offset of each leaf in the memory of a block."""
        starts = list(itertools.accumulate(map(_aligned, self._sizes(rows)), initial=0))
        return starts[2:-1]  # without the two columns, and without the end

    def block(self, place: Place, memory: npt.NDArray[np.uint8]) -> "Block":
        """Return the block in this memory, without a copy. Each of its tensors keeps the memory alive."""
        pieces, offset = [], 0
        for size in self._sizes(place.rows):
            pieces.append(memory[offset : offset + size])
            offset += _aligned(size)
        leaves = tuple(
            torch.from_numpy(piece).view(dtype).view(place.rows, *shape)
            for piece, dtype, shape in zip(pieces[2:], self.dtypes, self.shapes, strict=True)
        )
        return Block(place, self.tree, leaves, pieces[0].view(np.int64), pieces[1].view(np.bool_))

    def check(self, leaves: Sequence[torch.Tensor], tree: Structure) -> None:
        """Raise UnfitSample unless a sample has this layout."""
        if tree != self.tree:
            raise UnfitSample(
                f"has the structure {format_structure(tree)}, the first sample {format_structure(self.tree)}. Return the same "
                "structure for all samples, and lists of varying length as tensors with Data(ragged=...)."
            )
        for number, (leaf, dtype, shape) in enumerate(zip(leaves, self.dtypes, self.shapes, strict=True)):
            _check_dense(leaf)
            if leaf.dtype != dtype:
                raise UnfitSample(
                    f"has {leaf.dtype} in its element {number}, the first sample {dtype}. All samples must have "
                    "the same dtype: convert them in the dataset."
                )
            if tuple(leaf.shape) != shape:
                raise UnfitSample(
                    f"has shape {tuple(leaf.shape)} in its element {number}, the first sample {shape}. All samples "
                    "must have the same shape: resize them in the dataset, or pad them with Data(ragged=...)."
                )


def _check_dense(leaf: torch.Tensor) -> None:
    if leaf.is_nested:
        raise UnfitSample("has a nested tensor, but samples must have dense ones. Return tensor.to_padded_tensor(0.0).")
    if leaf.layout != torch.strided:
        raise UnfitSample("has a sparse tensor, but samples must have dense ones. Return tensor.to_dense().")


@dataclass(slots=False)
class Block:
    """Some rows of the stream, on one device."""

    place: Place
    tree: Structure
    leaves: tuple[torch.Tensor, ...]
    indices: Indices
    """Index of each row's sample, int64 ``[rows]``, written by the process that prepared it."""
    sound: npt.NDArray[np.bool_]
    """Whether each row holds a sample; False marks the hole of a sample that raised."""
    labels: Indices | None = None
    """Class numbers of the rows, in host memory, once it is on the device; None if samples are no pairs with class numbers second."""
    fixed: bool = False
    """Whether its rows depend on their indices alone, so are the same in every epoch."""
    marks: tuple[ShardMark, ...] = ()
    """Marks from which the shards that are open at its beginning can be read on."""
    versions: tuple[int, ...] = field(init=False)
    """Version counters of the leaves at creation. A member that writes into its input changes them."""

    def __post_init__(self) -> None:
        self.versions = tuple(leaf._version for leaf in self.leaves)

    @cached_property
    def whole(self) -> bool:
        """Whether no row is a hole."""
        return bool(self.sound.all())

    @cached_property
    def sums(self) -> tuple[Hashes, Hashes]:
        """`running_sums` of the rows for members that see the whole stream, cached for all of them."""
        positions = np.arange(self.place.start, self.place.start + self.place.rows, dtype=np.int64)
        return running_sums(self.indices, positions, self.sound)

    @property
    def touched(self) -> bool:
        """Whether the leaves were written into."""
        return any(leaf._version != version for leaf, version in zip(self.leaves, self.versions, strict=True))

    def with_leaves(self, leaves: tuple[torch.Tensor, ...], tree: Structure) -> "Block":
        """Return the same rows with other leaves, whose versions are recorded anew."""
        return Block(self.place, tree, leaves, self.indices, self.sound)

    def with_copies(self, leaves: tuple[torch.Tensor, ...]) -> "Block":
        """Return the block with these copies of its leaves, independent of its original memory."""
        return Block(self.place, self.tree, leaves, self.indices.copy(), self.sound.copy(), self.class_numbers())

    def class_numbers(self) -> Indices | None:
        """Return the class numbers of the rows, in memory of their own; None if samples are no pairs with a class number second."""
        sample = unflatten(list(self.leaves), self.tree)
        target = sample[1] if isinstance(sample, tuple | list) and len(sample) == 2 else None
        if not isinstance(target, torch.Tensor) or target.dim() != 1 or target.dtype not in (torch.int64, torch.uint8):
            return None
        return np.array(target.numpy(), dtype=np.int64)

    def private(self) -> "Block":
        """Return a copy that may be written into."""
        leaves = tuple(leaf.clone() for leaf in self.leaves)
        return Block(self.place, self.tree, leaves, self.indices, self.sound, self.labels)


def sample_leaves(sample: Any) -> tuple[list[torch.Tensor], Structure]:
    """Return a sample's tensors and its structure; numbers and arrays become tensors as in torch's default_collate."""
    leaves, tree = flatten(sample)
    return [_tensor(leaf) for leaf in leaves], tree


def select_rows(leaf: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return these rows of a leaf of any dtype, written to `out` if given."""
    return torch.index_select(signed(leaf), 0, index, out=None if out is None else signed(out)).view(leaf.dtype)


def signed(leaf: torch.Tensor) -> torch.Tensor:
    """Return a leaf, or a view of it in a dtype whose numbers torch selects and copies by their indices."""
    return leaf.view(SIGNED[leaf.dtype]) if leaf.dtype in SIGNED else leaf


def byte_view(leaf: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes, uint8 ``[bytes]``, on its device."""
    return leaf.detach().contiguous().reshape(-1).view(torch.uint8)


def host_bytes(leaf: torch.Tensor) -> memoryview:
    """Return a tensor's bytes in host memory."""
    data: memoryview = byte_view(leaf).cpu().numpy().data
    return data


def same_bits(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Return whether both contain equally many tensors that are equal bit by bit, NaN included."""
    some, others = list(some), list(others)
    return len(some) == len(others) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(byte_view(a), byte_view(b))
        for a, b in zip(some, others, strict=True)
    )


def _tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        tensor = leaf.detach() if leaf.requires_grad else leaf
        return tensor.resolve_conj().resolve_neg()  # a lazy view holds other bits
    if isinstance(leaf, bool | int):
        return torch.as_tensor(leaf)
    if isinstance(leaf, float):
        return torch.tensor(leaf, dtype=torch.float64)
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biufc":
        if type(leaf) is not np.ndarray and np.ma.is_masked(leaf):
            raise UnfitSample(
                "has a masked array with masked values. Tensors have no masks, so they would be trained on: return "
                "array.filled(value), or the mask beside the values."
            )
        # torch warns about read-only memory (a row of a memory map), and supports neither negative strides (a flipped image) nor
        # foreign byte orders.
        taken = leaf.flags.writeable and leaf.dtype.isnative and min(leaf.strides, default=0) >= 0
        return torch.as_tensor(leaf if taken else np.array(leaf, dtype=leaf.dtype.newbyteorder("=")))
    raise UnfitSample(
        f"contains {leaf!r:.60} of type {_kind(leaf)}; a sample may contain only tensors, arrays and numbers. "
        "Convert it in the dataset (a word to its number, an image to an array, a graph to its nodes and edges), or "
        "remove it there."
    )


def _kind(leaf: Any) -> str:
    kind = f"{type(leaf).__module__}.{type(leaf).__name__}".removeprefix("builtins.")
    return f"{kind} with dtype {leaf.dtype}" if isinstance(leaf, np.ndarray) else kind


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
