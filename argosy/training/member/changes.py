"""A member that goes on from another one's file, with hyper-parameters of its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from argosy.errors import StudyError
from argosy.training.member.live import LiveMember

__all__ = ["change"]


def change(live: LiveMember, changes: Mapping[str, tuple[Any, Any]], built: Sequence[Mapping[str, Any]]) -> None:
    """Put numbers of the member's own in the place of those that its file has brought; (there, here) by name.

    They are those of the groups of its optimizer as it was `built`, which need not all have the same. A learning rate
    changes in proportion, also where a schedule has moved it. Raises StudyError for a number that the optimizer keeps
    elsewhere. What belongs to the loss is in no file.
    """
    for name, (before, value) in changes.items():
        part, _, key = name.partition(".")
        if part == "optimizer" and key == "lr":
            _scale_rates(live, before, value)
        elif part == "optimizer":
            for group, own in zip(live.optimizer.param_groups, built, strict=True):
                if key not in own:
                    raise StudyError(
                        f"member {live.member.name!r}: its optimizer keeps {key!r} in no parameter group, where a clone could "
                        "change it; clone it without --warm."
                    )
                group[key] = own[key]


def _scale_rates(live: LiveMember, before: float, value: float) -> None:
    for group in live.optimizer.param_groups:
        for key in [key for key in group if key == "lr" or key.endswith("_lr")]:
            group[key] = _scaled(group[key], before, value)
    for schedule in _with_parts(live.schedule):
        for rates in ("base_lrs", "_last_lr"):
            found = getattr(schedule, rates, None)
            if found is not None:
                setattr(schedule, rates, [_scaled(rate, before, value) for rate in found])


def _with_parts(schedule: Any) -> Iterator[Any]:
    """A schedule, and those that it is made of."""
    yield schedule
    for part in getattr(schedule, "_schedulers", ()):
        yield from _with_parts(part)


def _scaled(rate: Any, before: float, value: float) -> Any:
    """Exactly the new one where it was exactly the old one."""
    if isinstance(rate, torch.Tensor):
        return torch.full_like(rate, _scaled(rate.item(), before, value))
    return value if rate == before or not before else rate / before * value
