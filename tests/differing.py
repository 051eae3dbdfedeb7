"""Descriptions of the first difference between two runs: which member, which section, which figures and weights, and by how much.

`pytest_assertrepr_compare` in `conftest.py` puts `explained` into the error of a failed ``assert found == wanted`` in a test
module if `evidence` made both operands. Assertions in other modules give `first_difference` as their message.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from evidence import Bits, fingerprint

__all__ = ["assert_equals_loop", "explained", "figure", "first_difference"]


def explained(found: Any, wanted: Any) -> str:
    """Describe how two results of `evidence` differ: members by name, one member, or a part of its state; empty for other values."""
    if isinstance(found, Bits) and isinstance(wanted, Bits):
        return f"the state differs first in {_states(found, wanted)}"
    if not (isinstance(found, Mapping) and isinstance(wanted, Mapping)):
        return ""
    if _is_member(found) and _is_member(wanted):
        return f"the member differs first in {_members(found, wanted)}"
    both = [*found.values(), *wanted.values()]
    return first_difference(found, wanted) if both and all(map(_is_member, both)) else ""


def first_difference(found: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe the first member that differs between two results of `evidence.results`; empty if none does.

    Epochs and sections count from 0, as in the journal.
    """
    for name in dict.fromkeys([*wanted, *found]):
        if name not in found or name not in wanted:
            return f"member {name!r} is {'missing' if name in wanted else 'there, and should not be'}"
        if words := _members(found[name], wanted[name]):
            return f"member {name!r} differs first in {words}"
    return ""


def assert_equals_loop(name: str, found: Mapping[str, Any], weights: Bits, losses: Sequence[float]) -> None:
    """Assert that a member equals what `reference` returned: the bits of its last weights, and the loss after each section."""
    mine = [(*place, {"val_loss": metrics["val_loss"]}) for *place, metrics in (row[:3] for row in found["epochs"])]
    alone = [(*row[:2], {"val_loss": loss}) for row, loss in zip(mine, losses, strict=False)]
    alone += [(None, None, {"val_loss": loss}) for loss in losses[len(mine) :]]
    members = {"epochs": mine, "weights": found["weights"]}, {"epochs": alone, "weights": weights}
    assert members[0] == members[1], first_difference({name: members[0]}, {name: members[1]})


def figure(name: str, found: Any, wanted: Any) -> str:
    """Describe a figure that is wrong, with its absolute and relative difference if it is a number."""
    words = f"{name} {found!r} instead of {wanted!r}"
    if not (isinstance(found, int | float) and isinstance(wanted, int | float)):
        return words
    by = abs(found - wanted)
    return f"{words} (by {by:.1e}, {by / abs(wanted):.1e} of it)" if wanted else f"{words} (by {by:.1e})"


def _is_member(value: Any) -> bool:
    return isinstance(value, Mapping) and {"epochs", "weights"} <= value.keys()


def _members(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    words = [_sections(found["epochs"], wanted["epochs"])]
    for part in dict.fromkeys([*wanted, *found]):
        mine, other = found.get(part), wanted.get(part)
        if part != "epochs" and mine != other:
            if isinstance(mine, Bits) and isinstance(other, Bits):
                words.append(f"{part}: {_states(mine, other)}")
            else:
                words.append(figure(part, mine, other))
    return "; ".join(filter(None, words))


def _sections(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    epochs: list[int] = []
    for mine, other in zip(found, wanted, strict=False):
        here, there = _figures(mine), _figures(other)
        names = [name for name in dict.fromkeys([*there, *here]) if here.get(name) != there.get(name)]
        if names:
            figures = ", ".join(figure(name, here.get(name), there.get(name)) for name in names)
            return f"epoch {mine[0]}, section {epochs.count(mine[0])}: {figures}"
        epochs.append(mine[0])
    return "" if len(found) == len(wanted) else f"its number of sections: {len(found)} instead of {len(wanted)}"


def _figures(row: Sequence[Any]) -> dict[str, Any]:
    epoch, stream_epoch, metrics, *counts = row
    names = ("digest", "val_digest", "steps", "samples")
    return {"epoch": epoch, "stream_epoch": stream_epoch, **metrics, **dict(zip(names, counts, strict=False))}


def _states(found: Bits, wanted: Bits) -> str:
    mine, other = dict(_leaves(found.state)), dict(_leaves(wanted.state))
    names = [name for name in dict.fromkeys([*other, *mine]) if _bits(mine, name) != _bits(other, name)]
    if not names:
        return "the names of its parts"
    first, rest = names[0], f" (and {len(names) - 1} more)" if names[1:] else ""
    return f"{first!r} {_amount(mine.get(first), other.get(first))}{rest}"


def _leaves(state: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping | list | tuple):
        for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from _leaves(value, (*path, str(key)))
    else:
        yield ".".join(path), state


def _bits(leaves: Mapping[str, Any], name: str) -> str:
    return fingerprint(leaves[name]) if name in leaves else ""


def _amount(found: Any, wanted: Any) -> str:
    if not (isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor)):
        return figure("is", found, wanted)
    kinds = [f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in (found, wanted)]
    if kinds[0] != kinds[1]:
        return f"is {kinds[0]} instead of {kinds[1]}"
    return f"by at most {float((found.to(torch.complex128) - wanted.to(torch.complex128)).abs().max()):.1e}"
