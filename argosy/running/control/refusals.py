"""Checks before members start: whether the data can feed them."""

from collections.abc import Iterable, Mapping

import numpy as np

from argosy.errors import PlanError, StudyError
from argosy.protocol.trainer import Measured
from argosy.stream.order import Indices, Selection
from argosy.study import Member

__all__ = ["batch_sizes", "check_batch_norm", "check_batches", "smallest_micro_batch"]


def check_batches(members: Iterable[Member], lengths: Mapping[str, int]) -> None:
    """Raise StudyError for a subset beyond its split, or a batch larger than the data, which would be dropped."""
    for member in members:
        for split, subset in (("train", member.subset), ("val", member.val_subset)):
            if subset is not None:
                _check_subset(f"member {member.name!r}: its {split} subset", np.asarray(subset), lengths.get(split, 0))
        samples = Selection.of(member.subset, lengths["train"]).length
        if member.drop_last and member.batch_size > samples:
            raise StudyError(
                f"member {member.name!r}: batch_size {member.batch_size} is larger than its {samples} training "
                "samples, so drop_last leaves no batch at all. Lower batch_size, or omit drop_last."
            )


def _check_subset(what: str, subset: Indices, length: int) -> None:
    least, most = int(subset.min()), int(subset.max())
    if not 0 <= least <= most < length:
        raise StudyError(f"{what} has indices {least} to {most}; they must be between 0 and {length - 1}.")
    if most <= 1 and len(subset) == length > 2:
        raise StudyError(
            f"{what} has a value of 0 or 1 for each of the {length} samples, like a mask, but it must hold "
            "indices. Pass mask.nonzero()[0] of an array, or mask.nonzero().flatten() of a tensor."
        )


def check_batch_norm(members: Iterable[Member], lengths: Mapping[str, int], measured: Mapping[str, Measured]) -> None:
    """Raise PlanError for a network with BatchNorm whose last batch, or a micro-batch, would hold one sample."""
    for member in members:
        if not measured[member.name].batch_norm:
            continue
        batches = batch_sizes(member, lengths["train"])
        if batches[-1] == 1 < member.batch_size:
            raise PlanError(
                f"member {member.name!r} has BatchNorm, but the last batch of each epoch would hold 1 sample, on "
                "which BatchNorm cannot train. Set drop_last=True or another batch_size."
            )
        for rows in batches:
            if member.accumulate > 1 and smallest_micro_batch(rows, member.accumulate) == 1:
                raise PlanError(
                    f"member {member.name!r} has BatchNorm, but some of the {member.accumulate} micro-batches of "
                    f"a batch of {rows} would hold 1 sample, on which BatchNorm cannot train. Choose another "
                    "accumulate or batch_size, or drop the last batch with drop_last=True."
                )


def batch_sizes(member: Member, length: int) -> tuple[int, ...]:
    """Return the sizes of a member's batches in a split of this length: the usual one, and that of a smaller last batch."""
    rest = 0 if member.drop_last else Selection.of(member.subset, length).length % member.batch_size
    return (member.batch_size, rest) if rest else (member.batch_size,)


def smallest_micro_batch(rows: int, parts: int) -> int:
    """Return the size of the smallest micro-batch of `rows` samples in `parts` parts."""
    size = -(-rows // parts)
    return rows % size or size
