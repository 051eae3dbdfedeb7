"""Samples as trees: tuples, lists, dicts and named tuples of leaves, taken apart and put together again.

Torch has the same in a private module whose structures change between versions; ours cross process borders.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

__all__ = ["Structure", "described", "flatten", "map_leaves", "unflatten"]

Structure = Any
"""None for a leaf; else (type, keys or None, structures of the children)."""


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves from left to right, and what is needed to put them back."""
    if isinstance(tree, Mapping):
        keys: tuple[Any, ...] | None = tuple(tree)
        children = list(tree.values())
    elif isinstance(tree, tuple | list):
        keys, children = None, list(tree)
    else:
        return [tree], None
    parts = [flatten(child) for child in children]
    return [leaf for leaves, _ in parts for leaf in leaves], (type(tree), keys, tuple(part for _, part in parts))


def unflatten(leaves: Iterable[Any], structure: Structure) -> Any:
    """The tree of this structure with these leaves."""
    if structure is not None and structure[0] is tuple and not any(structure[2]):
        return tuple(leaves)  # the usual (inputs, target), for every batch of every member
    return _build(iter(leaves), structure)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with the function applied to every leaf."""
    leaves, structure = flatten(tree)
    return unflatten([function(leaf) for leaf in leaves], structure)


def described(structure: Structure) -> str:
    """For people, with a dot for each leaf: ``(·, {'mask': ·})``."""
    if structure is None:
        return "·"
    kind, keys, parts = structure
    inside = [described(part) for part in parts]
    if keys is not None:
        inside = [f"{key!r}: {part}" for key, part in zip(keys, inside, strict=True)]
    before, after = {tuple: ("(", ")"), list: ("[", "]"), dict: ("{", "}")}.get(kind, (f"{kind.__name__}(", ")"))
    return f"{before}{', '.join(inside)}{after}"


def _build(leaves: Iterator[Any], structure: Structure) -> Any:
    if structure is None:
        return next(leaves)
    kind, keys, parts = structure
    children = [_build(leaves, part) for part in parts]
    if keys is not None:
        return kind(zip(keys, children, strict=True))
    if hasattr(kind, "_fields"):
        return kind(*children)
    return kind(children)
