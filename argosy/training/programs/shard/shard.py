"""The program of one rank of a split member: it steps on its share of every batch.

Contract. All ranks cut the same batches, the member's own, and each takes its share of the elements. The gradient of a share is
weighted by its part of the batch's sound samples. A batch with targets that the loss ignores is no mean over its samples, so the
first rank takes all of it. `begin` computes it and starts the sum over the ranks, without waiting for another
device. `finish` is called when the sum is complete (`waits`), so it never waits either. Meanwhile the trainer makes other steps, in
the order of `argosy.training.trainer.merged`, which proves that no deadlock is possible.

Every rank takes the same step along the same gradient, and holds the whole member, equal to the bit: weights, optimizer, schedule,
sums and digests over all ranks. So any rank could save it; the first rank does, and it also evaluates and reports. A batch begun and
not finished is not part of the member's state, so the member may be saved or dropped at any moment, as of its last finished step.
If the group breaks, the driver decides what happens.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from argosy.stream.batches import Batch
from argosy.stream.blocks import Block
from argosy.stream.trees import flatten, map_leaves
from argosy.study import ignored_class, is_torchs, own_loss
from argosy.training.member.live import LiveMember
from argosy.training.programs.shard.flat import FlatGradient
from argosy.training.programs.shard.parallel import Group, Sum
from argosy.training.programs.solo import Solo, pair_of

__all__ = ["Shard"]


class Shard:
    """The `argosy.training.programs.program.Program` of one rank; `argosy.training.trainer.merged` orders the halves of its steps.

    A batch may stay begun while other programs step, also across blocks. Each half runs once it need not wait.
    """

    def __init__(self, live: LiveMember, group: Group, shares: Sequence[float], *, number: int) -> None:
        self.live = live
        self.members: tuple[LiveMember, ...] = (live,)
        self.group = group
        self.number = number
        """Number of the member in the study."""
        bounds = [*itertools.accumulate(shares[:-1], initial=0.0), 1.0]
        self._low, self._high = bounds[group.rank], bounds[group.rank + 1]
        self._solo = Solo(live)
        self._flat = FlatGradient(live.model.parameters(), group.on, rank=group.rank, size=group.size)
        self._batch: Batch | None = None
        """The batch begun and not finished."""
        self._part_rows = 0
        """Number of that batch's samples in this rank's share."""
        self._sum: Sum | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the rank that evaluates, saves and reports."""
        return self.group.rank == 0

    @property
    def under_way(self) -> bool:
        """Whether a batch is begun and not finished."""
        return self._batch is not None

    @property
    def waits(self) -> bool:
        """Whether the next half must wait for other devices, or for the driver's decision if one of them is lost."""
        if self._batch is None:
            return bool(self.group.broken) or not self.group.formed
        return self._sum is not None and not self._sum.done

    def active(self, *, keep: bool = False) -> AbstractContextManager[None]:
        """Implement `Program.active` as `Solo` does."""
        return self._solo.active(keep=keep)

    def ahead(self, block: Block) -> list[int]:
        """Return, for each batch that the block completes and that is not begun, the element of the epoch's order up to which it reads."""
        assert self.live.cutter is not None
        return self.live.cutter.completions(block, self._batch)

    def cut(self, block: Block) -> Iterator[Batch]:
        """Implement `Program.cut`, after the batch begun, if any."""
        return self._solo.cut(block, after=self._batch)

    def begin(self, batch: Batch) -> None:
        """Compute the share's gradient and start to sum it. The block is not needed afterwards."""
        # Without samples, whose block would otherwise keep its slot until the finish.
        self._batch, self._part_rows = batch._replace(data=None), 0
        if not batch.rows:
            return
        live = self.live
        assert live.cutter is not None
        bounds = (0.0, float(self.leads)) if self._ignores(batch.data) else (self._low, self._high)
        part = live.cutter.part(batch, *bounds, live.cutting.order)
        with self._solo.modes_kept():
            losses = self._solo.gradients(part.data, part.rows, of=batch.rows) if part.rows else None
        self._flat.fill(losses, part.digest)
        for parameter in self._flat.parameters:
            parameter.grad = None  # an optimizer's own zero_grad would zero them in place, and so what is summed
        self._part_rows, self._sum = part.rows, self.group.add_up(self._flat.values)

    def finish(self) -> int:
        """Step along the summed gradient and commit; returns this rank's number of samples."""
        batch, self._batch = self._batch, None
        assert batch is not None
        mean = None
        if self._sum is not None:
            self._sum = None
            losses, digest = self._flat.take()
            # Shares that overlap, or leave something out, would train silently.
            assert digest == batch.digest, "the ranks have not stepped on the batch together"
            mean = torch.tensor(losses / batch.rows, dtype=torch.float64)
            self._solo.step()
        self.live.commit(batch, mean)
        return self._part_rows

    def evaluate(self, block: Block) -> Iterator[None]:
        """Evaluate on the first rank; do nothing on the others."""
        return self._solo.evaluate(block) if self.leads else iter(())

    def release(self) -> None:
        """Leave the group."""
        self.group.leave()
        self._batch = self._sum = None
        self._solo.release()

    def _ignores(self, data: Any) -> bool:
        """Return whether the loss of a batch may be a mean over some of its targets only, as without unlabelled pixels; waits for the device.

        Steps and losses that are not torch's are not asked: those of split members return losses per sample.
        """
        member = self.live.member
        loss = own_loss(member.loss)
        bound = loss.keywords if isinstance(loss, partial) else {}
        reduction = bound.get("reduction", getattr(loss, "reduction", "mean"))
        if member.step is not None or loss is None or reduction == "none" or not is_torchs(loss):
            return False
        if member.augment is not None:  # it may make the targets, and may write into what it gets
            data = self._solo.augmented(map_leaves(torch.clone, data))
        leaves = flatten(pair_of(member, data)[1])[0]
        ignored = ignored_class(loss)
        # Torch compares bytes with -100 as with 156.
        kinds = [torch.int64, torch.int32, torch.int16, torch.int8, *([torch.uint8] if ignored >= 0 else [])]
        return any(bool((leaf == ignored).any()) for leaf in leaves if leaf.dtype in kinds)
