"""Declaration of the tensors of a sample that vary in length."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.described import document_fields
from argosy.errors import StudyError
from argosy.errors.checks import check_number, check_whole, describe_value
from argosy.errors.spelling import known_keywords

__all__ = ["Ragged", "check_ragged"]


@known_keywords("argosy.Ragged")
@document_fields
@dataclass(frozen=True, kw_only=True, slots=True)
class Ragged:
    """A tensor whose first dimension differs between samples, such as tokens ``[length]`` or boxes ``[length, 4]``.

    In `Data.ragged` it takes the place that the tensor has in a sample. In a batch it is one padded tensor, ``[batch, longest, …]``.

    >>> {"input_ids": Ragged(512, mask="attention_mask"), "labels": Ragged(512, pad=-100)}["labels"].pad
    -100
    """

    max_length: int = field(kw_only=False)
    """Largest length that a sample may have; a longer sample is an error."""
    pad: float = 0
    """Value that pads shorter samples to the longest of their batch."""
    mask: str | None = None
    """For samples that are dicts: name of a mask that is added to each batch, int64 ``[batch, longest]``, with 1 for values and 0 for
    padding."""

    def __post_init__(self) -> None:
        check_whole("Ragged.max_length", self.max_length, least=1)
        check_number("Ragged.pad", self.pad)
        if self.mask is not None and not isinstance(self.mask, str):
            raise StudyError(
                f"Ragged.mask is {describe_value(self.mask)}; it must be the name of an entry, for example 'attention_mask'."
            )


def check_ragged(ragged: Any) -> int:
    """Return the largest length that `ragged` allows; raises StudyError unless it is a tree shaped like a sample."""
    declared = list(_ragged_in(ragged, named=False))
    if not declared:
        raise StudyError(
            "Data.ragged has no argosy.Ragged. Give it the structure of a sample, with argosy.Ragged(max_length) for each tensor of varying length, "
            "or remove it."
        )
    return max(one.max_length for one in declared)


def _ragged_in(ragged: Any, *, named: bool) -> Iterator[Ragged]:
    """Yield each Ragged of a tree; `named` says whether the tree is an entry of a dict."""
    if isinstance(ragged, Mapping):
        for one in ragged.values():
            if isinstance(one, Ragged) and one.mask in ragged:
                raise StudyError(
                    f"Data.ragged: {one.mask!r} is declared as a mask and also has its own entry. Remove one of them."
                )
            yield from _ragged_in(one, named=True)
    elif isinstance(ragged, tuple | list):
        for one in ragged:
            yield from _ragged_in(one, named=False)
    elif isinstance(ragged, Ragged):
        if ragged.mask is not None and not named:
            raise StudyError(
                f"Data.ragged: the mask {ragged.mask!r} is added as an entry of a dict, but the sample is not a dict there. Return dicts as samples, "
                "or remove mask= and let the network compare with the padding."
            )
        yield ragged
    elif ragged is not None:
        raise StudyError(
            f"Data.ragged contains {describe_value(ragged)}. Use argosy.Ragged(max_length) for tensors of varying length, "
            "or None."
        )
