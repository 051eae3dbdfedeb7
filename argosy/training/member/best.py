"""The weights of a member's best section, from the judgement of that section until a file holds them.

Contract. They stay in the network as long as it does not step, and programs call `keep` before it does. A section is the best one only once its
objective is known, so weights are never copied in advance, and often not at all: a checkpoint that is written in time contains them.
"""

from dataclasses import dataclass
from typing import Any

from argosy.stopping import Mode, is_better
from argosy.training.member.weights import NetworkWeights

__all__ = ["Best", "BestWeights"]


@dataclass(frozen=True, slots=True)
class Best:
    """The section with the best objective; the earliest one if several are equal."""

    epoch: int
    section: int
    """Number within the epoch, from 0."""
    value: float
    averaged: bool = False
    """Whether the value is that of the averaged weights, not of the raw ones."""


@dataclass(slots=True)
class BestWeights:
    """A member's best section so far, and its weights while no file holds them."""

    network: NetworkWeights
    section: Best | None = None
    _in_network: bool = False
    """Whether the network still has the weights of that section."""
    _copied: dict[str, Any] | None = None
    """Copies of them, if the network has stepped since."""

    def offer(self, section: Best, mode: Mode) -> bool:
        """Judge the section that has just ended; returns whether it is the best one so far. NaN is never better, and worse than any other value."""
        if self.section is not None and not is_better(section.value, self.section.value, mode):
            return False
        self.section, self._in_network, self._copied = section, True, None
        return True

    @property
    def is_current(self) -> bool:
        """Whether the raw weights are the best ones and in no file yet; a checkpoint of the state would then contain them."""
        return self._in_network and self.section is not None and not self.section.averaged

    def keep(self) -> None:
        """Copy the weights if only the network has them; called before it steps."""
        if self._in_network:
            self._copied = self.network.copied(averaged=self.section is not None and self.section.averaged)
            self._in_network = False

    def state(self) -> dict[str, Any] | None:
        """Return the state for a file of the best section; None if there is none, or if a file holds its weights."""
        best = self.section
        if best is None or not (self._in_network or self._copied is not None):
            return None
        weights = self.network.read(averaged=best.averaged) if self._copied is None else self._copied
        late = self.network.late(weights)
        state = {"model": weights, "epoch": best.epoch, "section": best.section, "value": best.value}
        return state | ({"late": late} if late else {})

    def note_saved(self) -> None:
        """Note that a file holds the weights, and drop the copy."""
        self._in_network, self._copied = False, None

    def load(self, section: Best | None) -> None:
        """Continue after this best section, whose weights are in a file; None if no section counts."""
        self.section = section
        self.note_saved()
