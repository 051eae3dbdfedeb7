"""Batches of validations of which the sums were computed for all members at once, recorded in each member's validation later.

A metric is called once for all members where it is Argosy's accuracy, which is of each sample by itself: called for each member, the
sums of a batch take many small networks longer than their pass.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from argosy.errors import StudyError
from argosy.stream.batches import Batch
from argosy.stream.order import Digest
from argosy.study import accuracy
from argosy.training.device.devices import Backend
from argosy.training.member.tally import totals_of
from argosy.training.member.validation import Validation

__all__ = ["Validated"]


class Sums(NamedTuple):
    """Of one batch of each of some validations."""

    into: tuple[Validation, ...]
    batches: Sequence[Batch]
    losses: Tensor
    """float64 ``[validations]``, as `right`, which is zero where no metric needs it."""
    right: Tensor


class Validated:
    """Sums that no validation knows of yet."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._untold: list[Sums] = []

    def add(self, into: tuple[Validation, ...], batches: Sequence[Batch], losses: Tensor, output: object) -> bool:
        """Add a batch of each, equally long; False, with nothing added, where each has to add its own.

        Losses are ``[validations, samples, …]`` or means, the output ``[validations, samples, classes, …]``.
        """
        if not all(one.adds_up for one in into):
            return False
        totals = totals_of(losses, batches[0].rows)
        right = torch.zeros_like(totals)
        if any(one.member.metrics for one in into):
            if not isinstance(output, Tensor) or not all(isinstance(batch.data[1], Tensor) for batch in batches):
                return False
            first = batches[0].data[1]
            shared = all(batch.data[1] is first for batch in batches)
            target = first.expand(len(into), *first.shape) if shared else torch.stack([b.data[1] for b in batches])
            try:
                found = accuracy(output.flatten(0, 1), target.flatten(0, 1))
            except StudyError:  # which a member's own call words for that member
                return False
            right = totals_of(found.view(len(into), -1), batches[0].rows)
        self._untold.append(Sums(into, batches, totals, right))
        return True

    def tell(self) -> None:
        """Record in the validations what was added since the last call."""
        untold, self._untold = self._untold, []
        by_validations: dict[tuple[int, ...], list[Sums]] = {}
        for sums in untold:
            by_validations.setdefault(tuple(map(id, sums.into)), []).append(sums)
        for several in by_validations.values():
            stacked = torch.stack(
                [torch.stack([one.losses for one in several], 1), torch.stack([one.right for one in several], 1)]
            )
            (losses, right), event = self._backend.fetch(stacked)
            known: dict[tuple[int, ...], tuple[int, Digest]] = {}
            for row, validation in enumerate(several[0].into):
                batches = [one.batches[row] for one in several]
                key = tuple(map(id, batches))
                if key not in known:
                    digest = Digest()
                    for batch in batches:
                        digest = digest.plus(batch.digest)
                    known[key] = sum(batch.rows for batch in batches), digest
                validation.bring(*known[key], losses[row], right[row], event)
