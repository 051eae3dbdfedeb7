"""How a member's batches are cut: out of its own samples of each split, in the order of a stream epoch."""

from dataclasses import dataclass, field

from argosy.stream.batches import Cutter, InOrderCutter, PartialBatch
from argosy.stream.by_length import ByLengthCutter
from argosy.stream.order import Indices, Selection
from argosy.stream.schedule import Orders
from argosy.study import Member

__all__ = ["Cutting"]


@dataclass(slots=True)
class Cutting:
    """Makes the cutters of one member."""

    member: Member
    """Its subsets and batch sizes are used."""
    order: Indices = field(init=False)
    """Order of the current epoch. Kept here, because `Orders` keeps only that of the epoch requested last, by any member."""
    _orders: Orders = field(init=False)
    _epoch: int = field(init=False)
    _selections: dict[str, Selection] = field(default_factory=dict)

    def begin_epoch(self, orders: Orders, stream_epoch: int) -> None:
        """Make cutters of this stream epoch from now on."""
        self._orders, self._epoch, self.order = orders, stream_epoch, orders.epoch("train", stream_epoch)

    def train(self, position: int, carried: PartialBatch | None) -> Cutter:
        """Return the cutter of the training batches after the first `position` elements, of which some of the next batch may be carried."""
        return self._cutter("train", self.member.batch_size, position, carried)

    def val(self) -> Cutter | None:
        """Return the cutter of the validation batches; None without validation samples."""
        size = self.member.eval_batch_size or self.member.batch_size
        return self._cutter("val", size) if "val" in self._orders.lengths else None

    @property
    def val_lengths(self) -> tuple[int, ...]:
        """Numbers of samples in the validation batches: in all but the last, and in the last."""
        selection = self._selections.get("val")
        if selection is None:
            return ()
        size = min(self.member.eval_batch_size or self.member.batch_size, selection.length)
        return size, selection.length % max(size, 1)

    def _cutter(self, split: str, size: int, position: int = 0, carried: PartialBatch | None = None) -> Cutter:
        member, orders, epoch, trains = self.member, self._orders, self._epoch, split == "train"
        if split not in self._selections:
            subset = member.subset if trains else member.val_subset
            self._selections[split] = Selection.of(subset, orders.lengths[split])
        selection, order, drop_last = self._selections[split], orders.epoch(split, epoch), trains and member.drop_last
        if not orders.by_length:
            return InOrderCutter(
                selection=selection,
                order=order,
                batch_size=size,
                drop_last=drop_last,
                position=position,
                carried=carried,
            )
        # Members that see the same samples share the windows, which hold 64 batches each.
        alike = selection.multiplicity is None
        return ByLengthCutter(
            selection=selection,
            order=order,
            batch_size=size,
            drop_last=drop_last,
            tokens=member.batch_tokens,
            drawn=(orders.seed, epoch) if trains else None,
            position=position,
            windows=orders.windows(split, epoch, size, member.batch_tokens, drop_last) if alike else None,
        )
