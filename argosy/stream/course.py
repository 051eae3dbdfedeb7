"""Decide what a feeder prepares next, how far it may announce, and to which readers, in the same way for every kind of feeder.

Contract (credit). The driver says up to which section blocks may be announced, to which readers, and how far blocks may
be needed at all (the horizon). Blocks are prepared ahead of the credit, but never beyond the horizon. Prepared blocks can be announced to any
trainers, so assignments may change at the end of any section without preparing a sample again. After a `Hold`, the section that has
begun is announced to its end, and nothing more until there is credit again.
"""

from collections.abc import Iterator, Mapping

from argosy.errors import StudyError
from argosy.protocol.events import Fed
from argosy.protocol.feeder import Credit, Held, Hold, Leg
from argosy.stream.blocks import Place
from argosy.stream.schedule import places

__all__ = ["FeedSchedule"]


class FeedSchedule:
    """Bookkeeping of a feeder, one leg after another. Pure."""

    def __init__(self, lengths: Mapping[str, int], *, per_epoch: int, block_size: int) -> None:
        if lengths and lengths["train"] < per_epoch:
            raise StudyError(
                f"validations_per_epoch is {per_epoch}, but Data.train has {lengths['train']} samples, so nothing "
                "would be trained between some validations. Set it to at most the number of samples."
            )
        self.lengths = lengths
        self.per_epoch = per_epoch
        self.block_size = block_size
        self.leg: Leg = Leg.empty()
        self.assignments: Mapping[str, int] = {}
        """Readers of the announced blocks, with the numbers of their assignments."""
        self.until: int = 0
        """First section without credit."""
        self.horizon: int | None = 0
        self._preparing = 0
        """Section whose blocks are being prepared."""
        self._places: Iterator[Place] = iter(())
        self._next: Place | None = None
        self._announcing = 0
        """Section of the next block to announce."""
        self._begun = False
        """Whether a block of that section was announced."""
        self._fed: dict[tuple[str, int], int] = {}

    def begin(self, leg: Leg) -> list[Fed]:
        """Begin another leg. Returns what was fed of unfinished sections. Nothing is prepared before there is credit."""
        fed = [self._report(split, section) for split, section in list(self._fed)]
        self.leg, self.assignments, self.until, self.horizon = leg, {}, leg.section, leg.section
        self._preparing, self._places, self._next = leg.section - 1, iter(()), None
        self._announcing, self._begun = leg.section, False
        return fed

    def allow(self, credit: Credit) -> None:
        """Apply the driver's credit to blocks that are not announced yet."""
        if credit.leg == self.leg.number:
            self.until, self.horizon, self.assignments = credit.until, credit.horizon, credit.assignments

    def hold(self, hold: Hold) -> Held:
        """Limit the credit to the sections that have begun, rounded up to a multiple of `hold.multiple`."""
        until = -(-(self._announcing + self._begun) // hold.multiple) * hold.multiple
        self.until = min(self.until, until)
        return Held(leg=hold.leg, until=until)

    def next(self) -> Place | None:
        """Return the next block to prepare; None at the horizon."""
        place = self.peek()
        if place is not None:
            self._next = None
        return place

    def peek(self) -> Place | None:
        """Return the next block to prepare without taking it; None at the horizon."""
        while self._next is None:
            self._next = next(self._places, None)
            if self._next is None:
                if self.horizon is not None and self._preparing + 1 >= self.horizon:
                    return None
                self._preparing += 1
                self._places = places(self.leg, self._preparing, self.lengths, self.per_epoch, self.block_size)
        # The horizon may have moved closer since the section began.
        return None if self.horizon is not None and self._next.section >= self.horizon else self._next

    def may_announce(self, place: Place) -> bool:
        """Return whether there is credit for a block."""
        return place.section < self.until

    def note_announced(self, place: Place, samples: int) -> Fed | None:
        """Note that a block was announced, for which this node prepared so many samples. Returns what to report at the end of a section."""
        self._begun = True
        key = (place.split, place.section)
        self._fed[key] = self._fed.get(key, 0) + samples
        if not place.last:
            return None
        if place.split == list(self.lengths)[-1]:
            self._announcing, self._begun = place.section + 1, False
        return self._report(*key)

    def _report(self, split: str, section: int) -> Fed:
        epoch, number = divmod(section, self.per_epoch)
        samples = self._fed.pop((split, section))
        return Fed(leg=self.leg.number, split=split, epoch=epoch, section=number, samples=samples)
