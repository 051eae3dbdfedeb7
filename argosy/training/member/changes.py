"""Applies the hyper-parameters of a clone that continues from its source's checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from argosy.bindings import rebind
from argosy.errors import StudyError
from argosy.training.member.copied import schedules_of
from argosy.training.member.live import LiveMember

__all__ = ["apply_changes"]


def apply_changes(live: LiveMember, changes: Mapping[str, tuple[Any, Any]], built: Sequence[Mapping[str, Any]]) -> None:
    """Replace hyper-parameters loaded from the source's checkpoint by the member's own; `changes` maps names to (source's, own).

    Own values come from the parameter groups of the optimizer as it was `built`; they may differ between groups. Learning rates
    are scaled by own / source's, even if a schedule has changed them. Raises StudyError for a value that the optimizer does not keep
    in its groups. Hyper-parameters of the loss need no change, because no checkpoint contains them.
    """
    for name, (before, value) in changes.items():
        part, _, key = name.partition(".")
        for group, own in zip(live.optimizer.param_groups, built, strict=True) if part == "optimizer" else ():
            if key not in own:
                raise StudyError(
                    f"member {live.member.name!r}: its optimizer keeps {key!r} outside its parameter groups, "
                    "so a clone cannot change it. Clone it without --warm."
                )
            if key != "lr":
                group[key] = own[key]
        if name == "optimizer.lr":
            _scale_rates(live, before, value)


def _scale_rates(live: LiveMember, before: float, value: float) -> None:
    """Scale the rate of each group by what the change makes of it when the optimizer is built: groups with a rate of their own keep it."""
    factory: Any = live.member.optimizer
    changes = [_built_rates(live, rebind(factory, "lr", lr)) for lr in (before, value)]
    for group, *change in zip(live.optimizer.param_groups, *changes, strict=True):
        for key in [key for key in group if key == "lr" or key.endswith("_lr")]:
            group[key] = _scaled(group[key], *change)
    for schedule in schedules_of(live.schedule):
        for rates in ("base_lrs", "max_lrs", "_last_lr"):
            values = getattr(schedule, rates, None)
            if values is not None:
                setattr(schedule, rates, list(map(_scaled, values, *changes)))


def _built_rates(live: LiveMember, factory: Any) -> list[float]:
    built = factory(list(live.model.parameters()))
    return [
        float(group["lr"])
        for part in (built if isinstance(built, list | tuple) else [built])
        for group in part.param_groups
    ]


def _scaled(rate: Any, before: float, value: float) -> Any:
    """Scale a rate, so that a rate of exactly `before` becomes exactly `value`."""
    if isinstance(rate, torch.Tensor):
        return torch.full_like(rate, _scaled(rate.item(), before, value))
    return value if rate == before or not before else rate if before == value else rate / before * value
