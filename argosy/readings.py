"""Which outside variables a function reads, by the names in its bytecode: `lr`, `args.lr`, `CFG["lr"]`."""

import argparse
import collections
import contextlib
import dataclasses
import dis
import functools
import inspect
import re
import reprlib
import sys
import sysconfig
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from argosy.bindings import bound_arguments, unwrap_partials

__all__ = [
    "Outside",
    "PLAIN",
    "attributes_of",
    "closure_variables",
    "instructions_of",
    "is_installed",
    "is_own",
    "is_own_module",
    "readings_of",
    "setting_of",
    "without_hooks",
]

Holders = tuple[type, ...]
PLAIN = (bool, int, float, complex, str, bytes, range, slice, types.NoneType, types.EllipsisType)
"""Types whose values cannot be changed."""
SCALARS = (bool, int, float, str)
"""Types of outside values that are noted and compared."""
READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
"""Instructions that read a global or enclosed variable."""
BOUND = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
"""Instructions that read an argument."""
FAST = re.compile("(?:LOAD|STORE)_FAST(?:_BORROW)?")
"""Instructions that read or set a local variable, of which one may be two in one."""
TEXTS = reprlib.Repr()
"""Writes values, but only the first thousand items of each list."""
vars(TEXTS).update({limit: 1000 for limit, value in vars(TEXTS).items() if isinstance(value, int)})
HOLDERS = (argparse.Namespace, types.SimpleNamespace, types.ModuleType)
"""Installed classes whose instances hold settings."""
INSTALLED = tuple(
    Path(path).resolve()
    for path in (
        *(sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parent),
    )
)


class OutsideValue(NamedTuple):
    """What a variable holds."""

    identity: int
    text: str
    """Its content, or where it is in memory if that would take long to compare, as that of a network."""

    @classmethod
    def by(cls, value: Any) -> "OutsideValue":
        """Return what a variable with this value holds."""
        if isinstance(value, types.FunctionType):
            text = f"{value.__qualname__} ({hash(value.__code__) & 0xFFFF:04x})"  # equal after a notebook's cell has run again
        elif isinstance(value, type):
            text = value.__qualname__
        elif isinstance(value, (*PLAIN, list, tuple, dict, set)):
            text = TEXTS.repr(value)
        else:
            text = f"{type(value).__qualname__} at {id(value):#x}"
        return cls(id(value), text)

    def is_replaced(self, now: "OutsideValue") -> bool:
        """Return whether the variable was set to another value; its object may have changed, as a cache does."""
        return self.identity != now.identity and self.text != now.text


class Outside(NamedTuple):
    """Outside values that a factory reads when it is called, and that may have changed since it was created."""

    variables: Mapping[str, OutsideValue]
    """Outside variables, such as those that a lambda in a loop reads, and scalars of settings objects, outside or bound, by name. Variables
    that the factory sets itself are left out."""
    settings: Mapping[str, tuple[int, Mapping[str, Any]]]
    """By name: identities of settings objects, outside or bound, that are used as a whole, each with the scalars that it holds."""

    @classmethod
    def of(cls, factory: Any) -> "Outside":
        """Return what a factory reads, with the present values.

        >>> settings = argparse.Namespace(lr=0.1)
        >>> Outside.of(lambda weights: settings.lr * len(weights)).variables["settings.lr"].text
        '0.1'
        >>> Outside.of(functools.partial(lambda given: dict(**given), {"width": 8})).settings["given"][1]
        {'width': 8}
        """
        function = unwrap_partials(factory)
        arguments = _defaults(function) | (bound_arguments(factory) if isinstance(factory, functools.partial) else {})
        read = _read_by(function, arguments)
        return cls(
            {name: OutsideValue.by(value) for name, value in read.items() if name not in arguments},
            {
                name: (id(value), held)
                for name, value in read.items()
                if (name in arguments or not isinstance(value, type)) and (held := _scalars_in(value)) is not None
            },
        )


def _read_by(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a factory reads from outside variables and from these arguments, by `readings_of`."""
    function = getattr(function, "__func__", function)  # that of a bound method
    kind = function if isinstance(function, type) else type(function)
    functions = [without_hooks(one) for one in vars(kind).values()] if is_own(kind) else [function]
    readings: dict[str, Any] = {}
    for one in functions:
        if not isinstance(one, types.FunctionType):
            continue
        instructions = instructions_of(one.__code__)
        enclosed = closure_variables(one)
        variables = collections.ChainMap(enclosed, one.__globals__)
        for name in _names_read(one.__code__) & variables.keys():
            readings |= readings_of(instructions, name, variables[name], HOLDERS)
        for name in arguments.keys() & {*one.__code__.co_varnames, *one.__code__.co_cellvars}:
            if type(arguments[name]) not in PLAIN:
                readings |= readings_of(instructions, name, arguments[name], HOLDERS, (*READS, *BOUND))
    return readings


def without_hooks(step: Any) -> Any:
    """Return the `step` of an optimizer class as written; torch wraps it when the first instance of the class is created."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _defaults(function: Any) -> dict[str, Any]:
    """Return the default arguments of a Python function by name; nothing for other callables."""
    if not isinstance(function, types.FunctionType):
        return {}
    positional, defaults = function.__code__.co_varnames[: function.__code__.co_argcount], function.__defaults__ or ()
    return {
        **dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True)),
        **(function.__kwdefaults__ or {}),
    }


def closure_variables(function: Any) -> dict[str, Any]:
    """Return the variables of a Python function's closure by name, without empty cells; nothing for other callables."""
    cells, variables = getattr(function, "__closure__", None) or (), {}
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells, strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            variables[name] = cell.cell_contents
    return variables


@functools.lru_cache(maxsize=1000)
def _names_read(code: types.CodeType) -> frozenset[str]:
    """Return the outside variables that code reads and does not set."""
    instructions = instructions_of(code)
    stored = {i.argval for i in instructions if i.opname in ("STORE_GLOBAL", "STORE_DEREF")}
    return frozenset({i.argval for i in instructions if i.opname in READS} - stored)


def _scalars_in(value: Any) -> dict[str, Any] | None:
    """Return the scalars of a settings object: a dict, a namespace, a dataclass or a class of the user; None for anything else."""
    is_class = isinstance(value, type) and is_own(value)
    if isinstance(value, dict):
        attributes: Any = value
    elif is_class or isinstance(value, argparse.Namespace | types.SimpleNamespace) or dataclasses.is_dataclass(value):
        attributes = getattr(value, "__dict__", {})
    else:
        return None
    return {key: one for key, one in attributes.items() if isinstance(one, SCALARS)}


@functools.lru_cache(maxsize=1000)
def instructions_of(code: types.CodeType) -> Sequence[dis.Instruction]:
    """Return the instructions of a function and of the functions defined in it."""
    instructions = list[dis.Instruction]()
    for instruction in dis.get_instructions(code):
        opname, argval = instruction.opname, instruction.argval
        # From Python 3.13 on, LOAD_FAST_LOAD_FAST reads two variables, and LOAD_FAST also takes a variable's cell to a function defined here.
        if isinstance(argval, tuple) and "FAST" in opname:
            pair = zip(FAST.findall(opname), argval, strict=True)
            instructions.extend(instruction._replace(opname=one, argval=name) for one, name in pair)
        elif opname != "EXTENDED_ARG" and not (opname in BOUND and argval in (*code.co_cellvars, *code.co_freevars)):
            instructions.append(instruction)
        if isinstance(instruction.argval, types.CodeType):
            instructions.extend(instructions_of(instruction.argval))
    return instructions


def readings_of(
    instructions: Sequence[dis.Instruction], name: str, value: Any, holders: Holders, reads: Sequence[str] = READS
) -> dict[str, Any]:
    """Return what a function reads from a variable.

    If the variable is a settings object (see `setting_of`) and the function only reads plain values from it, such as `args.lr` or
    `CFG["lr"]`, return these values, so that others may change; otherwise return the whole variable.
    """
    readings = {}
    for n in (n for n, i in enumerate(instructions) if i.opname in reads and i.argval == name):
        path, reading, rest = name, value, instructions[n + 1 :]
        while type(reading) not in PLAIN:
            key, *rest = rest
            # From Python 3.14 on, a subscript is a BINARY_OP that is shown as [].
            if key.opname == "LOAD_CONST" and (rest[0].opname == "BINARY_SUBSCR" or rest[0].argrepr == "[]"):
                rest = rest[1:]
            elif key.opname != "LOAD_ATTR":
                return {name: value}
            path, reading = f"{path}.{key.argval}", setting_of(reading, key.argval, holders)
        readings[path] = reading
    return readings or {name: value}


def setting_of(held: Any, key: Any, holders: Holders) -> Any:
    """Return an item of a dict, or an attribute of a user's class or of an instance of one or of a holder; else NotImplemented."""
    if isinstance(held, Mapping) and key in held:
        return held[key]
    is_settings = isinstance(held, holders) or is_own(held if isinstance(held, type) else type(held))
    return inspect.getattr_static(held, key, NotImplemented) if is_settings else NotImplemented


def is_own(value: Any) -> bool:
    """Return whether a function or class is defined by the user."""
    return is_own_module(value.__module__)


@functools.cache
def is_own_module(name: str | None) -> bool:
    """Return whether a module is the user's (a file, script or notebook), not part of Python, an installed package or Argosy."""
    name = name or ""
    # Of `__main__` the file may be a package's that calls the script, as joblib, submitit and cProfile do.
    if name == "__main__":
        return True
    package = name.partition(".")[0]
    file = getattr(sys.modules.get(name, sys.modules.get(package)), "__file__", None)
    if file is None:
        return package not in sys.stdlib_module_names
    return not is_installed(Path(file))


def is_installed(file: Path) -> bool:
    """Return whether a file belongs to Python, an installed package or Argosy."""
    path = file.resolve()
    return any(map(path.is_relative_to, INSTALLED)) or bool({"site-packages", "dist-packages"} & set(path.parts))


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an instance's attributes, including slots."""
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    in_slots = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return {**in_slots, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
