"""Samples of unequal length in transit: padded to one shape, with their lengths, until batches are cut.

In the stream a ragged leaf is a `Padded`, so blocks, kept rows and exchanges treat it as any two tensors. In a batch
it is one tensor again, as long as the longest sample of the batch (`make_stacked_batch`).
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from argosy.errors.checks import is_map_style
from argosy.ragged import Ragged
from argosy.stream.blocks import UnfitSample, sample_leaves, select_rows
from argosy.stream.trees import Structure, flatten, format_structure, unflatten

__all__ = [
    "BatchForm",
    "Padded",
    "PaddedThen",
    "make_batch",
    "make_stacked_batch",
    "batch_form",
    "unwrap_padding",
    "lengths_of",
    "max_lengths",
    "pad_sample",
    "pad_dataset",
    "unpad_sample",
]


class Padded(NamedTuple):
    """A leaf of unequal length in the stream."""

    values: Any
    """``[max_length, …]``, in a block ``[rows, max_length, …]``."""
    length: Any
    """Length of the sample's own values, int64 ``[]``, in a block ``[rows]``."""


class Mask(NamedTuple):
    """Placeholder for a mask in the stream."""

    length: Any
    """As `Padded.length`."""


# ---- samples


def pad_sample(sample: Any, ragged: Any) -> Any:
    """Return a sample with a `Padded` wherever `ragged` has a Ragged, and with its masks. Raises UnfitSample if its structure differs."""
    if ragged is None:
        return sample
    if isinstance(ragged, Ragged):
        return _padded_leaf(sample, ragged)
    if isinstance(ragged, Mapping):
        if not isinstance(sample, Mapping) or not ragged.keys() <= sample.keys():
            raise _misfit(sample, ragged)
        padded = {key: pad_sample(value, ragged.get(key)) for key, value in sample.items()}
        lengths = {key: one for key, one in ragged.items() if isinstance(one, Ragged)}
        masks = {one.mask: Mask(padded[key].length) for key, one in lengths.items() if one.mask is not None}
        if twice := sorted(masks.keys() & padded.keys()):
            raise UnfitSample(
                f"has {twice[0]!r}, which is also a mask= of Data.ragged. Remove the mask=, and add {twice[0]!r} "
                "to Data.ragged with its own argosy.Ragged."
            )
        return padded | masks
    if not isinstance(sample, tuple | list) or isinstance(sample, Padded) or len(sample) != len(ragged):
        raise _misfit(sample, ragged)
    parts = [pad_sample(value, one) for value, one in zip(sample, ragged, strict=True)]
    return type(sample)(*parts) if hasattr(sample, "_fields") else type(sample)(parts)


def unpad_sample(sample: Any) -> Any:
    """Return a sample as it was before `pad_sample`."""
    if isinstance(sample, Padded):
        return sample.values[: int(sample.length)]
    if isinstance(sample, Mapping):
        return {key: unpad_sample(value) for key, value in sample.items() if not isinstance(value, Mask)}
    if isinstance(sample, tuple | list):
        parts = [unpad_sample(value) for value in sample]
        return type(sample)(*parts) if hasattr(sample, "_fields") else type(sample)(parts)
    return sample


def _padded_leaf(leaf: Any, ragged: Ragged) -> Padded:
    values = _tensor(leaf)
    length = len(values)
    if length > ragged.max_length:
        raise UnfitSample(
            f"has length {length}; Data.ragged allows at most {ragged.max_length}. Shorten it in the dataset, or "
            "raise max_length."
        )
    whole = torch.full((ragged.max_length, *values.shape[1:]), ragged.pad, dtype=values.dtype)
    if whole.numel() > values.numel() and float(whole.view(-1)[-1]) != ragged.pad:
        raise UnfitSample(
            f"has {values.dtype}, which cannot represent pad={ragged.pad} of Data.ragged. Choose another pad=."
        )
    whole[:length] = values
    return Padded(whole, length)


def _tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, list) and leaf and all(isinstance(one, int | float) for one in leaf):
        leaf = np.array(leaf)  # as tokenizers return them
    leaves, tree = sample_leaves(leaf)
    if tree is not None or not leaves[0].dim():
        described = format_structure(tree) if tree is not None else "a single number"
        raise UnfitSample(
            f"has {described} where Data.ragged has an argosy.Ragged; it must be a tensor of at least one dimension. "
            "Return one."
        )
    return leaves[0]


def _misfit(sample: Any, ragged: Any) -> UnfitSample:
    return UnfitSample(
        f"has the structure {format_structure(flatten(sample)[1])}, Data.ragged {format_structure(flatten(ragged)[1])}. Give "
        "Data.ragged the structure of a sample, with None for parts of fixed shape."
    )


# ---- padded Datasets and streams


@dataclass(frozen=True)
class PaddedSamples:
    """A Dataset with padded samples."""

    dataset: Any
    ragged: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return pad_sample(self.dataset[index], self.ragged)


class PaddedLists(PaddedSamples):
    """A Dataset with padded samples that can return several at once."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [pad_sample(sample, self.ragged) for sample in self.dataset.__getitems__(indices)]


@dataclass(frozen=True)
class PaddedStream:
    """A stream with padded samples."""

    dataset: Any
    ragged: Any

    def padded(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Pad samples of the original stream."""
        return (pad_sample(sample, self.ragged) for sample in samples)


def pad_dataset(dataset: Any, ragged: Any) -> Any:
    """Return a Dataset or stream with padded samples."""
    if not is_map_style(dataset):
        return PaddedStream(dataset, ragged)
    return (PaddedLists if hasattr(dataset, "__getitems__") else PaddedSamples)(dataset, ragged)


@dataclass(frozen=True, slots=True)
class PaddedThen:
    """`Data.then` for padded samples. It receives them unpadded, and may change their lengths."""

    then: Callable[[Any], Any]
    ragged: Any

    def __call__(self, sample: Any) -> Any:
        return pad_sample(self.then(unpad_sample(sample)), self.ragged)


def unwrap_padding(given: Any) -> Any:
    """Return a Dataset or `Data.then` as it was given, without the wrapper that pads samples."""
    if isinstance(given, PaddedThen):
        return given.then
    return given.dataset if isinstance(given, PaddedSamples | PaddedStream) else given


# ---- batches


@dataclass(frozen=True, slots=True)
class BatchForm:
    """How the leaves of padded samples become the leaves of a batch."""

    parts: tuple[tuple[int | None, int | None], ...]
    """For each leaf of the batch, the numbers of its values and its lengths. A mask has no values, and other leaves have no lengths."""
    tree: Structure

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of the leaves that are lengths."""
        return tuple(dict.fromkeys(length for _, length in self.parts if length is not None))

    def batch(
        self, leaves: Sequence[torch.Tensor], longest: Mapping[int, int], rows: torch.Tensor | None = None
    ) -> Any:
        """Return the batch of these leaves, each ``[rows, …]``, or of some of their rows. `longest` is the maximum of each leaf of lengths.

        Values that are cut are copied, so that a network gets the same memory layout whichever block its batch came in.
        """

        def chosen(leaf: torch.Tensor) -> torch.Tensor:
            return leaf if rows is None else select_rows(leaf, rows)

        batch_leaves = []
        for values, length in self.parts:
            if length is None:
                assert values is not None
                batch_leaves.append(chosen(leaves[values]))
            elif values is None:
                numbers = torch.arange(longest[length], device=leaves[length].device)
                batch_leaves.append((numbers < chosen(leaves[length])[:, None]).long())
            else:
                shortened = chosen(leaves[values][:, : longest[length]])
                batch_leaves.append(
                    shortened.clone(memory_format=torch.contiguous_format) if rows is None else shortened
                )
        return unflatten(batch_leaves, self.tree)


@functools.lru_cache(maxsize=1024)
def batch_form(tree: Structure) -> BatchForm | None:
    """Return the form of batches of such samples; None if nothing is padded."""
    numbers = iter(range(_leaves_in(tree)))
    parts: list[tuple[int | None, int | None]] = []
    batch = _batch_tree(tree, numbers, parts)
    return None if all(length is None for _, length in parts) else BatchForm(tuple(parts), batch)


def _batch_tree(tree: Structure, numbers: Iterator[int], parts: list[tuple[int | None, int | None]]) -> Structure:
    if tree is None:
        parts.append((next(numbers), None))
        return None
    kind, keys, children = tree
    if kind in (Padded, Mask):
        values = next(numbers) if kind is Padded else None
        parts.append((values, next(numbers)))
        return None
    return kind, keys, tuple(_batch_tree(child, numbers, parts) for child in children)


def _leaves_in(tree: Structure) -> int:
    return 1 if tree is None else sum(map(_leaves_in, tree[2]))


def lengths_of(leaves: Sequence[torch.Tensor], form: BatchForm) -> dict[int, npt.NDArray[np.int64]]:
    """Return each leaf of lengths, in host memory. Waits for the device."""
    return {number: leaves[number].cpu().numpy() for number in form.lengths}


def max_lengths(lengths: Mapping[int, npt.NDArray[np.int64]]) -> dict[int, int]:
    """Return the maximum of each leaf of lengths, at least 1 because networks need one element."""
    return {number: max(int(of_leaf.max(initial=0)), 1) for number, of_leaf in lengths.items()}


def make_batch(leaves: Sequence[torch.Tensor], tree: Structure) -> Any:
    """Return the batch made of these leaves of samples, each ``[rows, …]``."""
    form = batch_form(tree)
    return unflatten(leaves, tree) if form is None else form.batch(leaves, max_lengths(lengths_of(leaves, form)))


def make_stacked_batch(samples: Any) -> Any:
    """Return the batch made of samples that are already stacked."""
    return make_batch(*flatten(samples))
