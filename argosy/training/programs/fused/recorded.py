"""Steps and validations of all members of a program, collected and recorded in each member later, many at once.

Recording each lockstep for each member would take as long as a step of many small networks. Argosy's accuracy, a per-sample metric, is
called once for all members: with many small networks, a call for each member and its sums would take longer than the pass itself.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.stream.batches import Batch
from argosy.stream.order import Digest
from argosy.study import accuracy
from argosy.training.device.devices import Backend, DeviceEvent
from argosy.training.member.live import LiveMember
from argosy.training.member.tally import batch_totals
from argosy.training.member.validation import Validation
from argosy.training.programs.fused.lockstep import Lockstep

__all__ = ["UnrecordedSteps", "UnrecordedValidation"]

Sums = tuple[Tensor, ...]
"""Sums over one batch per member, each float64 ``[members]``."""


class UnrecordedSteps:
    """Steps of these members, by row. Positions move at once; step counts, samples, digests and losses with `record`."""

    def __init__(self, lives: Sequence[LiveMember]) -> None:
        self._lives = lives
        self._unrecorded: list[tuple[Any, Sums]] = []
        """Locksteps in which no batch is None, with their loss sums."""

    def add(self, lockstep: Lockstep, totals: Tensor) -> int:
        """Add a lockstep with a batch for each member, and its loss sums, float64 ``[members]``; returns its number of samples."""
        self._unrecorded.append((lockstep, (totals,)))
        samples = 0
        for live, batch in zip(self._lives, lockstep, strict=True):
            assert batch is not None and live.cutter is not None
            samples += batch.rows
            if live.cutter.position < batch.stop:  # members may share a cutter
                live.cutter.commit(batch)
        return samples

    def record(self) -> None:
        """Record in the members the steps added since the last call."""
        unrecorded, self._unrecorded = self._unrecorded, []
        if unrecorded:
            fetched = _fetch_sums(unrecorded, self._lives[0].backend)
            for live, (count, rows, digest, (totals,), event) in zip(self._lives, fetched, strict=True):
                live.commit_several(count, rows, digest, totals, event)


class UnrecordedValidation:
    """Validation sums that are not recorded in the members' validations yet."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._unrecorded: dict[tuple[int, ...], tuple[Sequence[Validation], list[tuple[Sequence[Batch], Sums]]]] = {}
        """Sums of losses and right answers by batch, with their validations, by the ids of these."""

    def add(self, into: Sequence[Validation], batches: Sequence[Batch], losses: Tensor, output: object) -> bool:
        """Add one batch of equal length to each validation. Returns False, with nothing added, if each validation must add its own.

        Losses are ``[validations, samples, …]`` or means, outputs ``[validations, samples, classes, …]``.
        """
        if losses.dim() > 2 or not all(one.adds_up for one in into):
            return False
        correct = None
        if any(one.member.metrics for one in into):
            try:
                correct = _right(batches, output)
            except Exception:  # boundary to a member's output: the member's own call then words the error
                return False
            if correct is None:
                return False
        totals = batch_totals(losses, batches[0].rows)
        right = totals if correct is None else batch_totals(correct, batches[0].rows)  # a placeholder without a metric
        self._unrecorded.setdefault(tuple(map(id, into)), (into, []))[1].append((batches, (totals, right)))
        return True

    def record(self) -> None:
        """Record in the validations the sums added since the last call."""
        unrecorded, self._unrecorded = self._unrecorded, {}
        for into, several in unrecorded.values():
            fetched = _fetch_sums(several, self._backend)
            for one, (_, rows, digest, (losses, right), event) in zip(into, fetched, strict=True):
                one.bring(rows, digest, losses, right, event)


def _fetch_sums(
    unrecorded: Sequence[tuple[Sequence[Batch], Sums]], backend: Backend
) -> Iterator[tuple[int, int, Digest, Sums, DeviceEvent]]:
    """Yield each member's number of batches, their samples and digest, its sums, each ``[batches]``, and the event of their copy to the host.

    Samples and digest are computed once for all members that share their batches.
    """
    columns = [torch.stack(column, 1) for column in zip(*(sums for _, sums in unrecorded), strict=True)]
    fetched, event = backend.fetch(torch.stack(columns))
    by_member = zip(*map(Tensor.unbind, fetched.unbind()), strict=True)
    known: dict[tuple[int, ...], tuple[int, Digest]] = {}
    for own, sums in zip(zip(*(batches for batches, _ in unrecorded), strict=True), by_member, strict=True):
        key = tuple(map(id, own))
        if key not in known:
            digest = Digest()
            for batch in own:
                digest = digest.plus(batch.digest)
            known[key] = sum(batch.rows for batch in own), digest
        yield len(own), *known[key], sums, event


def _right(batches: Sequence[Batch], output: object) -> Tensor | None:
    """Return whether each answer is right ``[validations, samples]``; None if samples have several answers or are no pairs of tensors."""
    targets = [batch.data[1] for batch in batches]
    if not isinstance(output, Tensor) or not all(isinstance(own, Tensor) and own.dim() == 1 for own in targets):
        return None
    first = targets[0]
    shared = all(own is first for own in targets)
    target = first.expand(len(targets), *first.shape) if shared else torch.stack(targets)
    correct: Tensor = accuracy(output.flatten(0, 1), target.flatten())
    return correct.view(len(targets), -1)
