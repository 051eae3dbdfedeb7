"""The population of a search: whose weights a trial goes on from, and which parameters it may change for that."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from argosy.errors import StudyError
from argosy.protocol.events import Checkpoint, Cloned
from argosy.results.fold import MemberState
from argosy.running.control.clone import LOADED, newest_file
from argosy.running.search.trials import Trial
from argosy.study import Member
from argosy.tuning.pbt import Pbt
from argosy.tuning.sampling import Sampling

__all__ = ["Population", "changes"]

PARTS = ("model", "optimizer", "loss", "schedule", "augment", "step")


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Of one search."""

    scheduler: Pbt
    sampling: Sampling
    build: Callable[[Mapping[str, Any]], Member]
    """From parameters."""
    sections: int
    """Of an epoch."""

    def source(self, number: int) -> int | None:
        """The trial whose clone this one is."""
        return self.scheduler.sources.get(number)

    def is_saved(self, source: Trial, here: MemberState) -> bool:
        """Whether a clone could begin where a trial is."""
        newest = newest_file(here)
        return newest is not None and newest.epoch * self.sections >= source.told

    def explored(self, source: Trial) -> dict[str, Any]:
        """Parameters of the next trial, as a clone of this one."""
        return self.sampling.explored(source.parameters, self.movable(source.parameters))

    def cloned(self, clone: Trial, source: Trial, file: Checkpoint | None) -> Cloned:
        """What is journaled of it."""
        differing = changes(source.member, clone.member) or {}
        return Cloned(member=clone.member.name, source=source.member.name, changes=differing, checkpoint=file)

    def movable(self, parameters: Mapping[str, Any]) -> list[str]:
        """Those that are nothing but numbers of what a clone may change; raises StudyError where there are none.

        It shows by members that are built with another value of each.
        """
        here = self.build(parameters)
        others = {name: self.build(self.sampling.explored(parameters, [name])) for name in parameters}
        found = [name for name, other in others.items() if changes(here, other)]
        if not found:
            raise StudyError(
                "scheduler 'pbt' changes numbers of optimizer, loss or augment while trials train, and of "
                f"{dict(parameters)} none is bound there by name; give the member one, as partial(SGD, lr=parameters['lr'])."
            )
        return found


def changes(source: Member, clone: Member) -> dict[str, tuple[Any, Any]] | None:
    """Hyper-parameters in which a clone differs, there and here; None where it cannot go on from the weights of its source."""
    before, after = source.hyperparameters, clone.hyperparameters
    if before.keys() != after.keys() or any(_kind(source, part) != _kind(clone, part) for part in PARTS):
        return None
    found = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    return found if all(name.partition(".")[0] in LOADED for name in found) else None


def _kind(member: Member, name: str) -> Any:
    """Equal for what differs in bound values only."""
    part = getattr(member, name)
    while isinstance(part, functools.partial):
        part = part.func
    return part if isinstance(part, type) else getattr(part, "__code__", type(part))
