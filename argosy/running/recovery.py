"""A fault, and the way out of it: *regroup*. Every trainer saves its members and lets them go; then the policy is asked anew.

Pure bookkeeping: whom the driver has asked, who is still to answer, and whether more was lost than a run may lose.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Regrouping"]


@dataclass(slots=True)
class Regrouping:
    """One of them, from its cause to the moment when nobody carries a member."""

    waiting_for: set[str] = field(default_factory=set)
    """Trainers that were told to save and let go, and have not said so."""
    under_way: bool = False

    def begin(self, trainers: Iterable[str]) -> None:
        """These carry members."""
        self.waiting_for, self.under_way = set(trainers), True

    def let_go(self, trainer: str) -> None:
        """It carries nobody any more, by its own word or because it is gone."""
        self.waiting_for.discard(trainer)

    @property
    def over(self) -> bool:
        """Whether all that were asked have let go."""
        return self.under_way and not self.waiting_for

    def end(self) -> None:
        """Members start again."""
        self.under_way = False
