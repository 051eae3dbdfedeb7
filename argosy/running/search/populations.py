"""The population of a search: from which trial's weights a clone continues, and which parameters it may change."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from argosy.bindings import unwrap_partials
from argosy.errors import StudyError
from argosy.protocol.events import Checkpoint, Cloned
from argosy.results.fold import MemberState
from argosy.running.directory.clone import LOADED, newest_checkpoint
from argosy.running.search.trials import Trial
from argosy.study import Member
from argosy.tuning.pbt import Pbt
from argosy.tuning.sampling import Sampling

__all__ = ["Population", "changed_parameters"]

PARTS = ("model", "optimizer", "loss", "schedule", "augment", "step")
"""Fields in which a clone may differ from its source by bound values only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """The population of one search."""

    scheduler: Pbt
    sampling: Sampling
    build: Callable[[Mapping[str, Any]], Member]
    """Builds a member from parameters."""
    sections: int
    """Sections of an epoch."""

    def source(self, number: int) -> int | None:
        """Return the number of the trial that this one clones; None if it clones none."""
        return self.scheduler.sources.get(number)

    def is_saved(self, source: Trial, here: MemberState) -> bool:
        """Return whether the trial has saved the state from which a clone would begin."""
        newest = newest_checkpoint(here)
        return newest is not None and newest.epoch * self.sections >= source.reported_sections

    def explored(self, source: Trial) -> dict[str, Any]:
        """Return parameters for the next trial as a clone of `source`."""
        return self.sampling.explored(source.parameters, self.changeable_parameters(source.parameters))

    def cloned(self, clone: Trial, source: Trial, file: Checkpoint | None) -> Cloned:
        """Return the event to journal for a clone."""
        differing = changed_parameters(source.member, clone.member) or {}
        return Cloned(member=clone.member.name, source=source.member.name, changes=differing, checkpoint=file)

    def changeable_parameters(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return the parameters whose change only affects numbers that a clone may change; raises StudyError if there are none.

        They are found by building the member with a different value for each parameter in turn.
        """
        built = self.build(parameters)
        others = {name: self.build(self.sampling.explored(parameters, [name])) for name in parameters}
        changeable = [name for name, other in others.items() if changed_parameters(built, other)]
        if not changeable:
            raise StudyError(
                "scheduler 'pbt' changes numbers of optimizer, loss or augment while trials train, but none of "
                f"{dict(parameters)} is bound there by name. Bind one in the member, for example partial(SGD, "
                "lr=parameters['lr'])."
            )
        return changeable


def changed_parameters(source: Member, clone: Member) -> dict[str, tuple[Any, Any]] | None:
    """Return the hyper-parameters that a clone changes, as (before, after); None if it cannot use its source's weights."""
    before, after = source.hyperparameters, clone.hyperparameters
    if before.keys() != after.keys() or any(_kind(source, part) != _kind(clone, part) for part in PARTS):
        return None
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    return changed if all(name.partition(".")[0] in LOADED for name in changed) else None


def _kind(member: Member, name: str) -> Any:
    """Return a key that is equal for parts that differ only in bound values."""
    part = unwrap_partials(getattr(member, name))
    return part if isinstance(part, type) else getattr(part, "__code__", type(part))
