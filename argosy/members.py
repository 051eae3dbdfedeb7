"""Several members from one: the points of a grid, the same network under several seeds."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from argosy.errors import StudyError
from argosy.requirements import check_whole, shown
from argosy.study import Member, Repetition

__all__ = ["grid", "repeated", "replicate"]


def grid(build: Callable[..., Member], **axes: Sequence[Any]) -> list[Member]:
    """One member per point of a grid, named after it.

    >>> from functools import partial
    >>> def mlp(lr, hidden):
    ...     return Member("mlp", model=partial(dict, hidden=hidden), optimizer=partial(dict, lr=lr), batch_size=32)
    >>> [m.name for m in grid(mlp, lr=[0.1, 0.01], hidden=[64])]
    ['mlp-lr=0.1-hidden=64', 'mlp-lr=0.01-hidden=64']
    """
    members = []
    for point in itertools.product(*axes.values()):
        values = dict(zip(axes, point, strict=True))
        member = build(**values)
        suffix = "-".join(f"{key}={value}" for key, value in values.items())
        members.append(replace(member, name=f"{member.name}-{suffix}"))
    return members


def replicate(member: Member, seeds: int | Sequence[int] = 8) -> list[Member]:
    """The same network under several seeds, 0 to `seeds` - 1 or those given: one member for each.

    A seed decides initial weights and whatever the member draws; the order of samples is the study's, for all the same. So
    replicates of two networks with the same seed differ by the networks alone, and the report compares them in pairs.

    >>> from functools import partial
    >>> mlp = Member("mlp", model=dict, optimizer=dict, batch_size=32)
    >>> [(m.name, m.seed) for m in replicate(mlp, seeds=2)]
    [('mlp-seed=0', 0), ('mlp-seed=1', 1)]
    """
    if not isinstance(member, Member):
        raise StudyError(
            f"argosy.replicate was given {shown(member)}; it must be an argosy.Member. Of several, call it for each."
        )
    if member.seed is not None:
        raise StudyError(
            f"member {member.name!r} has a seed, {member.seed}, and each of its replicates has one of its own. Leave it out, "
            f"or give it to argosy.replicate, as in seeds=[{member.seed}, {member.seed + 1}]."
        )
    return [repeated(member, f"seed={seed}", seed=seed) for seed in _seeds(seeds)]


def repeated(member: Member, what: str, *, overlap: float = 0.0, **changes: Any) -> Member:
    """The member as a repetition of itself with these changes; one that is a repetition already is one in two ways."""
    of, under = member.name, what
    if member.repetition is not None:
        of, under = member.repetition.of, f"{member.repetition.under}-{what}"
        overlap = max(overlap, member.repetition.overlap)
    repetition = Repetition(of=of, under=under, overlap=overlap)
    return replace(member, name=f"{member.name}-{what}", repetition=repetition, **changes)


def _seeds(seeds: Any) -> Sequence[int]:
    if not hasattr(seeds, "__len__") or isinstance(seeds, str):
        check_whole("argosy.replicate: seeds", seeds, least=1)
        return range(seeds)
    for number, seed in enumerate(seeds):
        check_whole(f"argosy.replicate: seeds[{number}]", seed, least=0)
    if not len(seeds) or len(set(seeds)) < len(seeds):
        raise StudyError(
            f"argosy.replicate: seeds is {list(seeds)!r:.60}; give at least one seed, and each once, as in seeds=[0, 1, 2]."
        )
    return list(seeds)
