"""Digests of what the user's functions and classes compute, to tell whether code is still what a run began with.

The user's code counts by its bytecode with constants and names, its defaults, its closure, and all that it refers to in
the user's files, recursively; lines, comments and docstrings do not count. Installed code counts by its name. Values
count by their content: numbers, texts, containers, arrays, networks, instances of the user's classes; other objects by
their `repr`. Digests are comparable only under the same Python and torch (`Code.VERSION`).
"""

import argparse
import dis
import functools
import hashlib
import re
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["Code", "Reading", "is_installed"]

DIGITS = 12
MOST_ELEMENTS = 2**22
"""Elements of an array that are read; the first ones distinguish arrays that were not made to deceive."""
MOST_ITEMS = 10_000
"""Items of a container that are read; a larger one counts by its length."""
PLAIN = (bool, int, float, complex, str, bytes, range, slice, types.NoneType, types.EllipsisType)
HOLDERS = (torch.nn.Module, argparse.Namespace, types.SimpleNamespace)
"""Installed classes with instances that count by their content."""
PACKAGE = Path(__file__).parents[1]
INSTALLED = tuple(
    Path(path).resolve()
    for path in (*(sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")), str(PACKAGE))
)


@dataclass(frozen=True, slots=True)
class _Global:
    """A global name that a function of the user reads from its module."""

    name: str
    value: Any


Part = types.FunctionType | type | _Global
"""A thing that the user's files define, with a digest of its own."""
Key = tuple[str | None, int]
"""Key of a part: its global name, if it is one, and its identity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What was found about a value."""

    digest: str
    parts: tuple[tuple[str, str], ...]
    """Name and digest of each thing in the user's files that the value refers to."""


class Code:
    """Computes digests of code. Results are kept, because members share most of their code."""

    VERSION = f"{sys.implementation.cache_tag} torch-{torch.__version__}"

    def __init__(self) -> None:
        self._read: dict[Key, tuple[Part, str, tuple[Part, ...]]] = {}
        """Each part with its digest and what it refers to.

        It is referenced so that no other object gets its identity.
        """

    def read(self, value: Any) -> "Reading":
        """Digest a value, and all parts that it refers to."""
        text = _Text()
        said = text.of(value)
        parts = tuple(sorted(self._reach(text.parts)))
        return Reading(digest=_hash("\n".join([said, *map(" ".join, parts)])), parts=parts)

    def _reach(self, parts: list[Part]) -> Iterator[tuple[str, str]]:
        seen: set[Key] = set()
        while parts:
            part = parts.pop()
            key = _key(part)
            if key in seen:
                continue
            seen.add(key)
            if key not in self._read:
                text = _Text()
                self._read[key] = (part, _hash(text.of_part(part)), tuple(text.parts))
            _, digest, further = self._read[key]
            yield _name(part), digest
            parts.extend(further)


class _Text:
    """Writes a value as text, equal in every process, and collects the parts of the user's files that it names."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._within: set[int] = set()
        """Identities of the objects being written, which may contain themselves."""

    def of_part(self, part: Part) -> str:
        """Return the content of a part; further parts only by their names."""
        if isinstance(part, _Global):
            return self.of(part.value)
        return self._function(part) if isinstance(part, types.FunctionType) else self._class(part)

    def of(self, value: Any) -> str:
        """Return the text of any value."""
        if isinstance(value, types.FunctionType | type):
            return self._defined(value)
        if type(value) in PLAIN:
            return repr(value)
        if id(value) in self._within:
            return "itself"
        self._within.add(id(value))
        try:
            return f"{type(value).__qualname__} {self._content(value)}"
        finally:
            self._within.discard(id(value))

    def _defined(self, value: Any) -> str:
        if _is_own(value):
            self.parts.append(value)
            return _name(value)
        enclosed = [self.of(cell.cell_contents) for cell in _cells(value).values()]
        return f"{value.__module__}:{value.__qualname__} {enclosed}"

    def _content(self, value: Any) -> str:
        match value:
            case functools.partial():
                return self._several([value.func, value.args, value.keywords])
            case types.MethodType():
                return self._several([value.__func__, value.__self__])
            case staticmethod() | classmethod():
                return self.of(value.__func__)
            case property():
                return self._several([value.fget, value.fset, value.fdel])
            case functools.cached_property():
                return self.of(value.func)
            case functools._lru_cache_wrapper():
                return self.of(value.__wrapped__)
            case types.ModuleType():
                return value.__name__
            case types.CodeType():
                return self._code(value)
            case list() | tuple() | set() | frozenset() | Mapping() if len(value) > MOST_ITEMS:
                return f"{len(value)} items"
            case list() | tuple():
                return self._several(value)
            case set() | frozenset():
                return f"[{', '.join(sorted(map(self.of, value)))}]"
            case Mapping():
                return f"[{', '.join(sorted(f'{self.of(k)}: {self.of(v)}' for k, v in value.items()))}]"
            case np.ndarray() | torch.Tensor():
                return _array(value)
        if isinstance(value, HOLDERS) or _is_own(type(value)):
            return f"{self.of(type(value))} {self.of(_attributes(value))}"
        # A run may continue elsewhere, and on other devices.
        return "" if isinstance(value, torch.device) else re.sub(r"0x[0-9a-f]+", "", repr(value))

    def _several(self, values: Any) -> str:
        return f"[{', '.join(map(self.of, values))}]"

    # ---- the user's code

    def _class(self, kind: type) -> str:
        attributes = {
            name: value
            for name, value in vars(kind).items()
            if not name.startswith("__") or isinstance(value, types.FunctionType | staticmethod | classmethod)
        }
        return f"{self._several(kind.__bases__)} {self.of(attributes)}"

    def _function(self, function: types.FunctionType) -> str:
        instructions = list(_instructions(function.__code__))
        stored = {i.argval for i in instructions if i.opname in ("STORE_GLOBAL", "STORE_DEREF")}
        attributes = {i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD")}
        names = {i.argval for i in instructions if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")} - stored
        for name in sorted(names & function.__globals__.keys()):
            # The module's own name and file may differ.
            if not name.startswith("__"):
                self._global(name, function.__globals__[name], attributes)
        enclosed = {name: cell.cell_contents for name, cell in _cells(function).items() if name not in stored}
        return self._several([function.__code__, function.__defaults__, function.__kwdefaults__, enclosed])

    def _global(self, name: str, value: Any, attributes: set[str]) -> None:
        self.parts.append(_Global(name, value))
        if isinstance(value, types.ModuleType) and _is_own_module(value.__name__):
            found = ((attribute, getattr(value, attribute, None)) for attribute in sorted(attributes))
            self.parts += [_Global(n, v) for n, v in found if v is not None and not isinstance(v, types.ModuleType)]

    def _code(self, code: types.CodeType) -> str:
        head = (
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_flags,
            code.co_exceptiontable,
        )
        instructions = list(dis.get_instructions(code))
        # From Python 3.13 on, the body of a class stores the number of its first line.
        lines = {n - 1 for n, i in enumerate(instructions) if i.argval == "__firstlineno__"}
        body = (f"{i.opname} {self._argument(i)}" for n, i in enumerate(instructions) if n not in lines)
        return "\n".join([repr(head), *body])

    def _argument(self, instruction: dis.Instruction) -> str:
        return self.of(instruction.argval) if instruction.opcode in dis.hasconst else repr(instruction.argval)


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function and of those that it defines."""
    for instruction in dis.get_instructions(code):
        yield instruction
        if isinstance(instruction.argval, types.CodeType):
            yield from _instructions(instruction.argval)


def _key(part: Part) -> Key:
    return (part.name, id(part.value)) if isinstance(part, _Global) else (None, id(part))


def _name(part: Part) -> str:
    return part.name if isinstance(part, _Global) else part.__qualname__.replace("<locals>.", "")


def _cells(value: Any) -> dict[str, Any]:
    """Return a function's closure by name; names without a value yet are left out."""
    closure = getattr(value, "__closure__", None) or ()
    cells = dict(zip(value.__code__.co_freevars, closure, strict=True)) if closure else {}
    return {name: cell for name, cell in cells.items() if _is_filled(cell)}


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _attributes(value: Any) -> dict[str, Any]:
    """Return an instance's attributes, including those in slots."""
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    found = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _array(value: Any) -> str:
    """Return dtype, shape and a hash of the first elements."""
    head = f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta:
            return head
        first = value.detach().reshape(-1)[:MOST_ELEMENTS].cpu().contiguous()
        return f"{head} {_hash_bytes(first.view(torch.uint8).numpy().tobytes())}"
    first = value.reshape(-1)[:MOST_ELEMENTS]
    return f"{head} {first.tolist()!r}" if value.dtype.hasobject else f"{head} {_hash_bytes(first.tobytes())}"


def _is_own(value: Any) -> bool:
    return _is_own_module(value.__module__)


@functools.cache
def _is_own_module(name: str | None) -> bool:
    """Whether a module is the user's (file, script or notebook): not of Python, an installed package or Argosy."""
    name = name or ""
    package = name.partition(".")[0]
    file = getattr(sys.modules.get(name, sys.modules.get(package)), "__file__", None)
    if file is None:
        return package not in sys.stdlib_module_names
    return not is_installed(Path(file))


def is_installed(file: Path) -> bool:
    """Whether a file is of Python, an installed package or Argosy."""
    path = file.resolve()
    return any(map(path.is_relative_to, INSTALLED)) or bool({"site-packages", "dist-packages"} & set(path.parts))


def _hash(text: str) -> str:
    return _hash_bytes(text.encode(errors="surrogatepass"))


def _hash_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
