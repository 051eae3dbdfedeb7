"""Find random generators that a Dataset or a function of a member owns. No seed is set for numbers drawn from them."""

import functools
import pickle
import random
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from argosy.readings import closure_variables, instructions_of, is_own_module

__all__ = [
    "generators_of",
    "outside_parts",
    "own_generator_states",
    "own_generators",
    "states_of",
    "uses_random_modules",
    "variables_of",
    "writes_in_place",
]

MAX_OBJECTS = 2000
"""Most objects that are searched for each part."""
MANY = 100
"""Items from which a list or dict is searched last: it is a table rather than a pipeline of transforms."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
SEEDED = (random._inst, np.random.mtrand._rand, torch.default_generator)
"""The generators that are seeded for every sample."""
METHODS = (MethodType, BuiltinMethodType)
CALLED_NAMES = ("LOAD_METHOD", "LOAD_ATTR")
CLOSED = (ModuleType, FunctionType, type, torch.Tensor, np.ndarray)
"""Objects whose attributes are not part of a Dataset."""


def own_generators(*parts: Any) -> list[Any]:
    """Return the generators among the attributes of these objects, at any depth, and in their lists and dicts."""
    found = (generator for part in parts for generator in _find_generators(part))
    return [generator for generator in found if not any(generator is one for one in SEEDED)]


def own_generator_states(*parts: Any) -> list[bytes]:
    """Return the states of the generators of these objects."""
    return states_of(own_generators(*parts))


def states_of(generators: Iterable[Any]) -> list[bytes]:
    """Return the states of these generators."""
    return [_state(generator) for generator in generators]


def outside_parts(dataset: Any) -> list[Any]:
    """Return what may hold generators outside of a Dataset: the variables that its code reads, and the code of objects and functions that it holds.

    A pipeline of transforms, for example of Albumentations, is often a global variable.
    """
    held = [one if isinstance(one, FunctionType) else type(one) for one in _objects_in(dataset)]
    code = dict.fromkeys(one for one in held if is_own_module(one.__module__))
    parts = (part for one in code for part in (*generators_of(one), *variables_of(one).values()))
    return [*{id(part): part for part in parts}.values()]


def generators_of(function: Any) -> list[Any]:
    """Return the generators that a function, a class or a callable object may draw from, except the seeded ones.

    They are searched for in its attributes, in the arguments bound by partials, and in the globals and enclosing variables that its code names.
    """
    generators: list[Any] = []
    for one in _reachable_code(function):
        named = _named(one) if isinstance(one, FunctionType) else [one]
        owners = (value.__self__ if isinstance(value, METHODS) else value for value in named)
        generators += [owner for owner in owners if isinstance(owner, GENERATORS)]
    return [one for one in generators if not any(one is seeded for seeded in SEEDED)]


def uses_random_modules(function: Any) -> bool:
    """Return whether the code reached by a call names `random`, `numpy.random`, or one of their functions."""
    for one in _reachable_code(function):
        for value in _named(one) if isinstance(one, FunctionType) else ():
            of_numpy = value is np.random or (value is np and "random" in _names_in(one.__code__, CALLED_NAMES))
            if value is random or of_numpy or any(getattr(value, "__self__", None) is seeded for seeded in SEEDED):
                return True
    return False


def variables_of(function: Any) -> dict[str, Any]:
    """Return by name the variables that the code reached by a call reads: globals, enclosing variables, and attributes of functions."""
    variables: dict[str, Any] = {}
    for one in _reachable_code(function):
        variables |= {**_enclosing_variables(one), **vars(one)} if isinstance(one, FunctionType) else {}
    return variables


def writes_in_place(function: Any) -> bool:
    """Return whether the code reached by a call has a statement like `batch[:, 2:5] = …`, or calls a method like `batch.mul_(…)`."""
    codes = (one.__code__ for one in _reachable_code(function) if isinstance(one, FunctionType))
    return any(
        "STORE_S" in one.opname or (one.opname in CALLED_NAMES and re.fullmatch("[a-z]\\w*_", one.argval))
        for code in codes
        for one in instructions_of(code)
    )


def _reachable_code(function: Any) -> Iterator[Any]:
    """Yield the user's functions that a call reaches by their names or within a class, and the generators that it holds."""
    todo, seen = [function], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, functools.partial):
            todo.append(one.func)
            yield from (value for value in (*one.args, *one.keywords.values()) if isinstance(value, GENERATORS))
        elif isinstance(one, MethodType):
            todo += [one.__func__, one.__self__]
        elif isinstance(one, FunctionType):
            if is_own_module(one.__module__):  # a library may have thousands of functions
                yield one
                todo += [other for other in _named(one) if isinstance(other, FunctionType)]
        else:
            kind = one if isinstance(one, type) else type(one)
            yield from [] if kind is one else _find_generators(one)
            own = [base for base in kind.__mro__ if is_own_module(base.__module__)]
            todo += [code for base in own for code in vars(base).values() if isinstance(code, FunctionType)]


def _named(function: FunctionType) -> Collection[Any]:
    """Return the values that the code of a function, and of functions defined in it, reads from outside, and of the user's modules among them
    the attributes that it names."""
    by_id = {id(value): value for value in _enclosing_variables(function).values()}
    todo = list(by_id.values())
    for module in todo:
        if isinstance(module, ModuleType) and is_own_module(module.__name__):
            inside = [vars(module)[name] for name in _names_in(function.__code__, CALLED_NAMES) & vars(module).keys()]
            todo += [value for value in inside if id(value) not in by_id]
            by_id |= {id(value): value for value in inside}
    return by_id.values()


def _enclosing_variables(function: FunctionType) -> dict[str, Any]:
    names = _names_in(function.__code__, ("LOAD_GLOBAL",))
    return {
        **{name: function.__globals__[name] for name in names & function.__globals__.keys()},
        **closure_variables(function),
    }


@functools.lru_cache(maxsize=2000)
def _names_in(code: CodeType, operations: tuple[str, ...]) -> frozenset[str]:
    """Return the names that these operations of code read, including functions defined in it."""
    return frozenset(one.argval for one in instructions_of(code) if one.opname in operations)


def _find_generators(part: Any) -> Iterator[Any]:
    # SystemRandom has no state.
    return (
        one for one in _objects_in(part) if isinstance(one, GENERATORS) and not isinstance(one, random.SystemRandom)
    )


def _objects_in(part: Any) -> Iterator[Any]:
    """Yield an object and those inside it: attributes, items of lists and dicts, and what partials and methods bind."""
    todo, seen = deque([part]), set[int]()
    while todo and len(seen) < MAX_OBJECTS:
        one = todo.pop()
        if id(one) in seen or (isinstance(one, CLOSED) and not isinstance(one, FunctionType)):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, (*GENERATORS, FunctionType)):
            continue
        if isinstance(one, functools.partial):
            todo += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, METHODS):
            todo += [getattr(one, "__func__", None), one.__self__]
        elif isinstance(one, list | tuple | dict):
            inside = [*one.values()] if isinstance(one, dict) else one
            add = todo.extend if len(inside) < MANY else todo.extendleft
            add(item for item in inside[:MAX_OBJECTS] if not isinstance(item, int | float | str | bytes))
        else:
            todo += getattr(one, "__dict__", {}).values()
            own = [base for base in type(one).__mro__ if is_own_module(base.__module__)]
            todo += [value for base in own for value in vars(base).values() if isinstance(value, GENERATORS)]


def _state(generator: Any) -> bytes:
    match generator:
        case np.random.Generator():
            return pickle.dumps(generator.bit_generator.state)
        case np.random.RandomState():
            return pickle.dumps(generator.get_state())
        case random.Random():
            return pickle.dumps(generator.getstate())
        case _:
            state: bytes = generator.get_state().numpy().tobytes()
            return state
