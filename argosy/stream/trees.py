"""Flatten samples and outputs, and rebuild them: trees of tuples, lists, dicts, named tuples and dataclasses.

torch has the same in a private module, but its structures change between versions, and these are sent between processes.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from argosy.ragged import Ragged

__all__ = ["Structure", "copied", "format_structure", "flatten", "map_leaves", "rebuilt", "unflatten"]

Structure = Any
"""None for a leaf; else (type, keys or None, structures of the children)."""
PLAIN = (tuple, list, dict)
LEAVES = frozenset((Tensor, np.ndarray, int, float))
"""Types of most leaves, known at once because the other checks are slower and run for every sample and batch."""
PAIR: Structure = (tuple, None, (None, None))
"""Structure of the usual (inputs, target)."""


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Return the leaves from left to right, and the structure needed to rebuild the tree."""
    if type(tree) is tuple and len(tree) == 2 and type(tree[0]) in LEAVES and type(tree[1]) in LEAVES:
        return [*tree], PAIR
    node = _parts(tree)
    if node is None:
        return [tree], None
    keys, children = node
    parts = [flatten(child) for child in children]
    kind: Any = type(tree)
    if kind not in PLAIN:
        kind = _container_type(kind, keys, len(children))
    return [leaf for leaves, _ in parts for leaf in leaves], (kind, keys, tuple(part for _, part in parts))


def unflatten(leaves: Iterable[Any], structure: Structure) -> Any:
    """Return the tree of this structure with these leaves."""
    if structure is not None and structure[0] is tuple and not any(structure[2]):
        return tuple(leaves)
    return _build(iter(leaves), structure)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with the function applied to every leaf."""
    leaves, structure = flatten(tree)
    return unflatten([function(leaf) for leaf in leaves], structure)


def rebuilt(tree: Any) -> Any:
    """Return the tree in containers of its own, with the same leaves: a member's code may change a dict or list that it is given."""
    return unflatten(*flatten(tree))


def copied(tree: Any) -> Any:
    """Return a tree with copies of its tensors, in containers of the same types, also those that cannot be built from their leaves alone."""
    leaves = flatten(tree)[0]
    return copy.deepcopy(tree, {id(leaf): leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves})


def format_structure(structure: Structure) -> str:
    """Return a structure as text, with a dot for each leaf: ``(·, {'mask': ·})``."""
    if structure is None:
        return "·"
    kind, keys, parts = structure
    inside = [format_structure(part) for part in parts]
    if keys is not None:
        inside = [f"{key!r}: {part}" for key, part in zip(keys, inside, strict=True)]
    before, after = {tuple: ("(", ")"), list: ("[", "]"), dict: ("{", "}")}.get(kind, (f"{kind.__name__}(", ")"))
    return f"{before}{', '.join(inside)}{after}"


def _parts(tree: Any) -> tuple[tuple[Any, ...] | None, list[Any]] | None:
    """Return the keys, if any, and the children of a tree; None for a leaf."""
    if type(tree) in LEAVES:
        return None
    if isinstance(tree, tuple | list):
        return None, list(tree)
    if isinstance(tree, Mapping):
        return tuple(tree), list(tree.values())
    if is_dataclass(tree) and not isinstance(tree, type | Ragged):  # a Ragged is a leaf
        keys = tuple(one.name for one in fields(tree))
        return keys, [getattr(tree, key) for key in keys]
    return None


def _build(leaves: Iterator[Any], structure: Structure) -> Any:
    if structure is None:
        return next(leaves)
    kind, keys, parts = structure
    return _make_container(kind, keys, [_build(leaves, part) for part in parts])


def _make_container(kind: Any, keys: tuple[Any, ...] | None, children: list[Any]) -> Any:
    if keys is not None:
        content, by_name = dict(zip(keys, children, strict=True)), is_dataclass(kind)
        return content if kind is dict else kind(**content) if by_name else kind(content)
    return kind(*children) if hasattr(kind, "_fields") else kind(children)


@functools.cache
def _container_type(kind: Any, keys: tuple[Any, ...] | None, count: int) -> Any:
    """Return a type that accepts so many arbitrary leaves: `kind`, or the type that torch's default_collate would use.

    For example, a torch.Size accepts only numbers, and a defaultdict needs a factory.
    """
    children = [object() for _ in range(count)]
    try:
        container = _make_container(kind, keys, children)
        if (parts := _parts(container)) is not None and parts[1] == children:
            return kind
    except (TypeError, ValueError, AttributeError):  # a user's class may check its arguments
        pass
    if keys is not None:
        return dict
    return tuple if issubclass(kind, tuple) else list
