"""What is refused before it starts: members that the data cannot feed."""

from collections.abc import Iterable, Mapping

from argosy.commands import Measured
from argosy.errors import PlanError, StudyError
from argosy.stream.order import Selection
from argosy.study import Member

__all__ = ["check_batch_norm", "check_batches"]


def check_batches(members: Iterable[Member], lengths: Mapping[str, int]) -> None:
    """Raise StudyError for a subset beyond its split, or a batch larger than what it is cut from."""
    for member in members:
        for split, subset in (("train", member.subset), ("val", member.val_subset)):
            length = lengths.get(split, 0)
            if subset is not None and not 0 <= min(subset) <= max(subset) < length:
                raise StudyError(
                    f"member {member.name!r}: its {split} subset has indices {min(subset)} to {max(subset)}; the split "
                    f"has {length} samples."
                )
        samples = Selection.of(member.subset, lengths["train"]).length
        if member.batch_size > samples:
            raise StudyError(
                f"member {member.name!r}: batch_size {member.batch_size} is larger than its {samples} training samples. "
                "Lower it."
            )


def check_batch_norm(members: Iterable[Member], lengths: Mapping[str, int], measured: Mapping[str, Measured]) -> None:
    """Raise PlanError for a network with BatchNorm whose last batch, or a micro-batch, would hold one sample."""
    for member in members:
        rest = Selection.of(member.subset, lengths["train"]).length % member.batch_size
        last = 0 if member.drop_last else rest
        if measured[member.name].batch_norm and last == 1:
            raise PlanError(
                f"member {member.name!r} has BatchNorm, and its last batch of each epoch would hold 1 sample, which "
                "BatchNorm cannot train on. Set drop_last=True or another batch_size."
            )
        for rows in (member.batch_size, last):
            if measured[member.name].batch_norm and member.accumulate > 1 and _least_part(rows, member.accumulate) == 1:
                raise PlanError(
                    f"member {member.name!r} has BatchNorm, and of {member.accumulate} micro-batches of a batch of {rows} one "
                    "would hold 1 sample, which BatchNorm cannot train on. Choose another accumulate or batch_size, or leave "
                    "the last batch out with drop_last=True."
                )


def _least_part(rows: int, parts: int) -> int:
    """Samples of the smallest of so many micro-batches."""
    size = max(-(-rows // parts), 1)
    return rows % size or size
