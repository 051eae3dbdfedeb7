"""One trial of a search: which member trains for it, and what it is worth."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from argosy.stopping import History, Mode, better
from argosy.study import Member

__all__ = ["Trial"]


@dataclass(kw_only=True, slots=True)
class Trial:
    """How far it is."""

    number: int
    parameters: Mapping[str, Any]
    built_from: dict[str, Any]
    """What `Search.build` gets: the parameters, or what a space that is a function makes of them."""
    mode: Mode
    member: Member
    """That trains for it, or was the last to do so."""
    sections: int | None
    """For which the member trains; None where that is for the scheduler to say, and grows."""
    best: float = math.nan
    """What the member is worth so far."""
    told: int = 0
    """Sections up to which the worth of the trial is known; a later member says nothing of those again."""
    _heard: int = 0
    """Sections of the member."""

    @property
    def worthless(self) -> bool:
        """Whether there is nothing to compare it by."""
        return math.isnan(self.best)

    def begin_anew(self, member: Member, sections: int) -> None:
        """Another member trains for it from here on."""
        self.member, self.sections = member, sections
        self.best, self._heard = math.nan, 0

    def hear(self, history: History, objective: str) -> Iterator[tuple[int, float, float]]:
        """(sections, value, best so far) of what is to be told of the member's history, for each section that is new."""
        while self._heard < len(history):
            value = history[self._heard].get(objective, math.nan)
            if better(value, self.best, self.mode):
                self.best = value
            self._heard += 1
            if self._heard > self.told:
                self.told = self._heard
                yield self._heard, value, self.best
