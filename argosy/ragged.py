"""What of a sample is of unlike length: declared once, for all samples of a study."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.described import described
from argosy.errors import StudyError
from argosy.errors.checks import check_number, check_whole, shown
from argosy.errors.spelling import known_keywords

__all__ = ["Ragged", "check_ragged"]


@known_keywords("argosy.Ragged")
@described
@dataclass(frozen=True, kw_only=True, slots=True)
class Ragged:
    """A tensor of each sample, of which the first dimension is another in each: tokens ``[length]``, boxes ``[length, 4]``.

    It stands in `Data.ragged` where that tensor stands in a sample. A batch has it as one tensor, ``[batch, longest, …]``.

    >>> {"input_ids": Ragged(512, mask="attention_mask"), "labels": Ragged(512, pad=-100)}["labels"].pad
    -100
    """

    max_length: int = field(kw_only=False)
    """Most that a sample may have; a longer one is an error."""
    pad: float = 0
    """What fills a shorter sample up to the longest of its batch."""
    mask: str | None = None
    """In samples that are dicts: the name of another entry, int64 ``[batch, longest]``, that is 1 where a sample is and 0 where it was
    filled up."""

    def __post_init__(self) -> None:
        check_whole("Ragged.max_length", self.max_length, least=1)
        check_number("Ragged.pad", self.pad)
        if self.mask is not None and not isinstance(self.mask, str):
            raise StudyError(
                f"Ragged.mask is {shown(self.mask)}; it must be the name of an entry, as 'attention_mask'."
            )


def check_ragged(ragged: Any) -> int:
    """Return the length of the longest sample that these allow; raises StudyError unless they are a tree like a sample."""
    found = list(_ragged_in(ragged, named=False))
    if not found:
        raise StudyError(
            "Data.ragged has no argosy.Ragged. Build it as a sample is, with argosy.Ragged(max_length) in place of what is of unlike length, "
            "or leave it out."
        )
    return max(one.max_length for one in found)


def _ragged_in(ragged: Any, *, named: bool) -> Iterator[Ragged]:
    """Yield each Ragged of a tree; `named` ones stand in a dict."""
    if isinstance(ragged, Mapping):
        for one in ragged.values():
            if isinstance(one, Ragged) and one.mask in ragged:
                raise StudyError(
                    f"Data.ragged: {one.mask!r} is to be a mask, and is given by itself as well. Leave one of them out."
                )
            yield from _ragged_in(one, named=True)
    elif isinstance(ragged, tuple | list):
        for one in ragged:
            yield from _ragged_in(one, named=False)
    elif isinstance(ragged, Ragged):
        if ragged.mask is not None and not named:
            raise StudyError(
                f"Data.ragged: the mask {ragged.mask!r} is another entry of a dict, and the sample has no names there. Let samples be dicts, "
                "or leave out mask= and let the network compare with the padding."
            )
        yield ragged
    elif ragged is not None:
        raise StudyError(
            f"Data.ragged has {shown(ragged)} in it. Give argosy.Ragged(max_length) for what is of unlike length, "
            "or None."
        )
