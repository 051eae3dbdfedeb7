"""Batches of validations of which the sums were computed for all members at once, recorded in each member's validation later.

A metric is called once for all members where it is Argosy's accuracy, which is of each sample by itself: called for each member, the
sums of a batch take many small networks longer than their pass.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from argosy.stream.batches import Batch
from argosy.study import accuracy
from argosy.training.device.devices import Backend
from argosy.training.member.tally import totals_of
from argosy.training.member.validation import Validation
from argosy.training.programs.fused.made import counts_of

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
        if losses.dim() > 2 or not all(one.adds_up for one in into):
            return False
        found = None
        if any(one.member.metrics for one in into):
            try:
                found = _right(batches, output)
            except Exception:  # boundary to a member's output: its own call words the error for that member
                return False
            if found is None:
                return False
        totals = totals_of(losses, batches[0].rows)
        right = torch.zeros_like(totals) if found is None else totals_of(found, batches[0].rows)
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
            batches = list(zip(*(one.batches for one in several), strict=True))
            for row, counted in enumerate(counts_of(batches)):
                several[0].into[row].bring(*counted, losses[row], right[row], event)


def _right(batches: Sequence[Batch], output: object) -> Tensor | None:
    """Return whether each answer is right ``[validations, samples]``; None where a sample has several, or is no pair of tensors."""
    targets = [batch.data[1] for batch in batches]
    if not isinstance(output, Tensor) or not all(isinstance(own, Tensor) and own.dim() == 1 for own in targets):
        return None
    first = targets[0]
    shared = all(own is first for own in targets)
    target = first.expand(len(targets), *first.shape) if shared else torch.stack(targets)
    found: Tensor = accuracy(output.flatten(0, 1), target.flatten())
    return found.view(len(targets), -1)
