"""Random generators that a Dataset has of its own: no seed is set for what it draws from them."""

import pickle
import random
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

__all__ = ["states_of_own"]

MOST = 2000
"""Objects that are looked at."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
SEEDED = (random._inst, np.random.mtrand._rand, torch.default_generator)
"""The generators that are seeded for every sample."""
CLOSED = (ModuleType, FunctionType, type, torch.Tensor, np.ndarray)
"""Whose attributes are no part of a Dataset."""


def states_of_own(*parts: Any) -> list[bytes]:
    """Return the states of the generators that are found among attributes of these, theirs, and in lists and dicts of these."""
    return [_state(found) for found in _found(parts) if not any(found is one for one in SEEDED)]


def _found(parts: tuple[Any, ...]) -> Iterator[Any]:
    todo, seen = list(parts), set[int]()
    while todo and len(seen) < MOST:
        one = todo.pop()
        if id(one) in seen or isinstance(one, CLOSED):
            continue
        seen.add(id(one))
        if isinstance(one, GENERATORS):
            if not isinstance(one, random.SystemRandom):  # which has no state
                yield one
        elif isinstance(one, list | tuple | dict):
            inside = [*one.values()] if isinstance(one, dict) else one
            todo += [part for part in inside[:MOST] if not isinstance(part, int | float | str | bytes)]
        else:
            todo += getattr(one, "__dict__", {}).values()
            todo += [part for base in type(one).__mro__ for part in vars(base).values() if isinstance(part, GENERATORS)]


def _state(generator: Any) -> bytes:
    match generator:
        case np.random.Generator():
            return pickle.dumps(generator.bit_generator.state)
        case np.random.RandomState():
            return pickle.dumps(generator.get_state())
        case random.Random():
            return pickle.dumps(generator.getstate())
        case _:
            found: bytes = generator.get_state().numpy().tobytes()
            return found
