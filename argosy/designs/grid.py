"""Several members from one: the points of a grid, the same network under several seeds."""

import inspect
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from argosy.errors import StudyError
from argosy.errors.checks import check_callable, check_whole, describe_value
from argosy.errors.spelling import did_you_mean, known_keywords
from argosy.study import Member, Repetition

__all__ = ["grid", "repeated", "replicate"]


def grid(build: Callable[..., Member], **axes: Sequence[Any]) -> list[Member]:
    """Return one member per point of a grid, named after the point; functions and classes among the values appear by name.

    >>> from functools import partial
    >>> def mlp(lr, hidden):
    ...     return Member("mlp", model=partial(dict, hidden=hidden), optimizer=partial(dict, lr=lr), batch_size=32)
    >>> [m.name for m in grid(mlp, lr=[0.1, 0.01], hidden=[64])]
    ['mlp-lr=0.1-hidden=64', 'mlp-lr=0.01-hidden=64']
    """
    check_callable(
        "argosy.grid: build", build, "a function that takes a value of each axis and returns an argosy.Member"
    )
    _check_axes(build, axes)
    points = itertools.product(*(_axis(axis, values) for axis, values in axes.items()))
    return [_at(build, dict(zip(axes, point, strict=True))) for point in points]


@known_keywords("argosy.replicate")
def replicate(member: Member, seeds: int | Sequence[int] = 8) -> list[Member]:
    """Return the same network under several seeds, 0 to `seeds` - 1 or those given: one member for each.

    A seed determines a member's initial weights and its random numbers; the order of samples is that of the study for all. Replicates of
    two networks with the same seed therefore differ only in the networks, and the report compares them in pairs.

    >>> from functools import partial
    >>> mlp = Member("mlp", model=dict, optimizer=dict, batch_size=32)
    >>> [(m.name, m.seed) for m in replicate(mlp, seeds=2)]
    [('mlp-seed=0', 0), ('mlp-seed=1', 1)]
    """
    if not isinstance(member, Member):
        raise StudyError(
            f"argosy.replicate was given {describe_value(member)}; it must be an argosy.Member. For several members, call it "
            "once for each."
        )
    if member.seed is not None:
        raise StudyError(
            f"member {member.name!r} has the seed {member.seed}, but each replicate has its own. Remove the member's "
            f"seed, or pass it to argosy.replicate, for example seeds=[{member.seed}, {member.seed + 1}]."
        )
    return [repeated(member, f"seed={seed}", seed=seed) for seed in _seeds(seeds)]


def repeated(member: Member, what: str, *, overlap: float = 0.0, **changes: Any) -> Member:
    """Return the member, changed, as a repetition of itself; a member that is a repetition already repeats in both ways."""
    of, under = member.name, what
    if member.repetition is not None:
        of, under = member.repetition.of, f"{member.repetition.under}-{what}"
        overlap = max(overlap, member.repetition.overlap)
    repetition = Repetition(of=of, under=under, overlap=overlap)
    return replace(member, name=f"{member.name}-{what}", repetition=repetition, **changes)


def _axis(axis: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise StudyError(
            f"argosy.grid: {axis} is {describe_value(values)}; it must be a list of the values to try, for example [0.1, 0.01]."
        )
    options = list(values)
    if not options:
        raise StudyError(f"argosy.grid: {axis} has no values, so the grid is empty. Pass at least one value.")
    return options


def _check_axes(build: Callable[..., Member], axes: Collection[str]) -> None:
    """Raise StudyError for an axis that the function has no parameter for."""
    parameters = inspect.signature(build).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for axis in axes:
        if axis not in parameters and not takes_all:
            raise StudyError(
                f"argosy.grid: build has no parameter {axis}{did_you_mean(axis, parameters)}; choose one of "
                f"{', '.join(parameters)}, or add the parameter to build."
            )


def _at(build: Callable[..., Member], point: dict[str, Any]) -> Member:
    """Return the member at a point."""
    member = build(**point)
    if not isinstance(member, Member):
        raise StudyError(f"argosy.grid: build returned {describe_value(member)}; it must return an argosy.Member.")
    at = "".join(f"-{axis}={_in_a_name(axis, value)}" for axis, value in point.items())
    repetition = member.repetition and replace(member.repetition, of=f"{member.repetition.of}{at}")
    return replace(member, name=f"{member.name}{at}", repetition=repetition)


def _in_a_name(axis: str, value: Any) -> str:
    word = f"{getattr(value, '__name__', value)}"
    if not re.fullmatch(r"[\w.=+-]+", word):
        raise StudyError(
            f"argosy.grid: {axis} has {describe_value(value)} among its values, which cannot be part of a member's name, "
            "because the name becomes a folder. Pass words or numbers, and create the object from them in build."
        )
    return word


def _seeds(seeds: Any) -> Sequence[int]:
    if not hasattr(seeds, "__len__") or isinstance(seeds, str):
        check_whole("argosy.replicate: seeds", seeds, least=1)
        return range(seeds)
    for number, seed in enumerate(seeds):
        check_whole(f"argosy.replicate: seeds[{number}]", seed, least=0)
    if not len(seeds) or len(set(seeds)) < len(seeds):
        raise StudyError(
            f"argosy.replicate: seeds is {list(seeds)!r:.60}. Pass at least one seed, and each only once, for example "
            "seeds=[0, 1, 2]."
        )
    return list(seeds)
