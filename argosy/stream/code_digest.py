"""Digests of what the user's functions and classes compute, which show whether code has changed since a run began.

The user's code counts by its bytecode with constants and names, its defaults, its closure, and recursively all that it refers to in
the user's files; line numbers, comments and docstrings do not count. Installed code counts by its name. Numbers, texts, containers, arrays,
networks and instances of the user's classes count by their content; other objects by their `repr`. Digests are comparable only under the same
versions of Python and torch (`CodeReader.VERSION`).
"""

import contextlib
import dis
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from argosy.errors.traces import USER_ERRORS
from argosy.readings import (
    PLAIN,
    closure_variables,
    instructions_of,
    is_installed,
    is_own,
    is_own_module,
    readings_of,
    setting_of,
    without_hooks,
)
from argosy.stream.value_text import Content, Global, Part, UnreadableContent, ValueText, hash_of, part_key, part_name

__all__ = ["CodeReader", "ValueDigest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueDigest:
    """The digests of a value."""

    digest: str
    parts: tuple[tuple[str, str], ...]
    """Name and digest of each function, class and global in the user's files that the value refers to."""
    said: str = ""
    """Digest of the value without these parts."""


class CodeReader:
    """Computes digests of code. Results are cached, because members share most of their code."""

    VERSION = f"2 {sys.implementation.cache_tag} torch-{torch.__version__}"
    """Begins with the version of the text that digests are computed from."""

    def __init__(self, whole: Content | None = None) -> None:
        self.whole = whole
        """If given, all values count in full."""
        self.packages: set[str] = set()
        """Top-level names of installed packages that code or values refer to."""
        self._read: dict[Hashable, tuple[Part, str, tuple[Part, ...]]] = {}
        """Each part with its digest and the parts that it refers to.

        Holding the part prevents another object from getting its identity.
        """

    def read(self, value: Any) -> "ValueDigest":
        """Digest a value and all parts that it refers to."""
        text = ValueText(self.whole, self.packages)
        content = text.of(value)
        parts = tuple(sorted(self._reach(text.parts)))
        return ValueDigest(
            digest=hash_of("\n".join([content, *map(" ".join, parts)])), parts=parts, said=hash_of(content)
        )

    def parts_read(self) -> Iterator[tuple[Part, str]]:
        """Yield all parts read so far, each with its digest."""
        for part, digest, _ in self._read.values():
            yield part, digest

    def _reach(self, parts: list[Part]) -> Iterator[tuple[str, str]]:
        seen: set[Hashable] = set()
        while parts:
            part = parts.pop()
            key = part_key(part)
            if key in seen:
                continue
            seen.add(key)
            if key not in self._read:
                writer = _PartWriter(self.whole, self.packages)
                self._read[key] = (part, hash_of(writer.write(part)), tuple(writer.text.parts))
            _, digest, further = self._read[key]
            yield part_name(part) if self.whole is None else self.whole.name(part), digest
            parts.extend(further)


class _PartWriter:
    """Writes the content of a part of the user's code, and collects what it refers to."""

    def __init__(self, whole: Content | None, packages: set[str]) -> None:
        self.text = ValueText(whole, packages)

    def write(self, part: Part) -> str:
        """Return the content of a part, in which further parts are given by name."""
        if isinstance(part, Global):
            return self.text.of(part.value)
        return self._function(part) if isinstance(part, types.FunctionType) else self._class(part)

    def _class(self, kind: type) -> str:
        counts = _is_method if self.text.whole is None else _may_matter
        attributes = {name: value for name, value in _class_attributes(kind).items() if counts(name, value)}
        above = [*kind.__bases__, *filter(is_own, [type(kind)])]
        return f"{self.text.join(above)} {self.text.attributes(attributes)}"

    def _function(self, function: types.FunctionType) -> str:
        instructions = instructions_of(function.__code__)
        # What a function sets itself changes with its calls, so it is no part of its code.
        set_globals = {i.argval for i in instructions if i.opname == "STORE_GLOBAL"}
        set_cells = {i.argval for i in instructions if i.opname == "STORE_DEREF"}
        stored = set_globals | set_cells
        attributes = {i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD")}
        names = {i.argval for i in instructions if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")} - stored
        for name in sorted(names & function.__globals__.keys()):
            # The module's name and file may differ.
            if not name.startswith("__"):
                read = readings_of(instructions, name, function.__globals__[name], ValueText.HOLDERS)
                for path, value in read.items():
                    self._global(path, value, function.__globals__, attributes)
        closure = closure_variables(function)
        cells = {name: held for name, held in closure.items() if name not in stored}
        enclosed = {
            path: value
            for name, held in cells.items()
            for path, value in readings_of(instructions, name, held, ValueText.HOLDERS).items()
        }
        content = [function.__code__, function.__defaults__, function.__kwdefaults__, enclosed]
        self._imports(instructions, function.__globals__, attributes)
        if self.text.whole is not None:
            content.append({name: value for name, value in vars(function).items() if name != "__wrapped__"})
            # A cell may have the name of a global, as a local variable that a comprehension reads.
            content += self._set_earlier({name: function.__globals__.get(name) for name in set_globals})
            content += self._set_earlier({name: closure.get(name) for name in set_cells})
        return self.text.join(content)

    def _set_earlier(self, variables: dict[str, Any]) -> Iterator[Any]:
        """Yield what functions have set these variables to, such as a table read from a file before the first sample, if it can be read."""
        for name, value in sorted(variables.items()):
            if value is not None:
                # In a text of its own: what the value refers to may be unreadable too.
                with contextlib.suppress(*USER_ERRORS):
                    yield name, ValueText(self.text.whole, self.text.packages).of(value)

    def _global(self, name: str, value: Any, namespace: dict[str, Any], attributes: set[str]) -> None:
        self._add_global(name, value, namespace)
        if isinstance(value, types.ModuleType) and is_own_module(value.__name__):
            self._inside(value, attributes)

    def _add_global(self, name: str, value: Any, namespace: dict[str, Any]) -> None:
        number = 0 if self.text.whole is None else id(namespace)
        self.text.parts.append(Global(name, value, number, namespace.get("__name__", "")))

    def _inside(self, module: types.ModuleType, attributes: set[str]) -> None:
        """Collect what a function reaches by these attributes in a module of the user, and in modules inside it."""
        values = {name: getattr(module, name) for name in sorted(attributes) if getattr(module, name, None) is not None}
        for name, value in values.items():
            if not isinstance(value, types.ModuleType):
                settings = {f"{name}.{key}": setting_of(value, key, ValueText.HOLDERS) for key in sorted(attributes)}
                for path, part in {name: value, **{p: v for p, v in settings.items() if type(v) in PLAIN}}.items():
                    self._add_global(path, part, vars(module))
            else:
                self._global(name, value, vars(module), attributes - {name})

    def _imports(self, instructions: Sequence[dis.Instruction], names: dict[str, Any], attributes: set[str]) -> None:
        """Collect what a function imports: packages by name, and what it takes from modules of the user by content."""
        attributes = attributes | {i.argval for i in instructions if i.opname == "IMPORT_FROM"}
        for number, instruction in enumerate(instructions):
            if instruction.opname == "IMPORT_NAME":
                level, taken = (i.argval for i in instructions[number - 2 : number])
                self._import("." * (level or 0) + instruction.argval, taken, names, attributes)

    def _import(self, name: str, taken: Any, names: dict[str, Any], attributes: set[str]) -> None:
        try:
            module = _import_module(name, names.get("__package__"))
        except UnreadableContent:
            if self.text.whole is not None:
                raise
            module = None  # the import raises again when the function is called
        if module is None:
            self.text.packages.add(name.partition(".")[0])
        elif is_own_module(module.__name__):
            # `import a.b` binds a in the function.
            self._inside(module if taken else sys.modules[module.__name__.partition(".")[0]], attributes)
        else:
            self.text.note_installed(module.__name__)


def _class_attributes(kind: type) -> dict[str, Any]:
    """Return the attributes of a class as written.

    A wrapper of an optimizer's `step` is left out; that of an inherited one is set in the class, too.
    """
    attributes = dict(vars(kind))
    if without_hooks(attributes.get("step")) is not attributes.get("step"):
        attributes["step"] = without_hooks(attributes["step"])
        if attributes["step"] is without_hooks(getattr(super(kind, kind), "step", None)):
            del attributes["step"]
    return attributes


def _is_method(name: str, value: Any) -> bool:
    return not name.startswith("__") or isinstance(value, types.FunctionType | staticmethod | classmethod)


def _may_matter(name: str, value: Any) -> bool:
    """Return whether an attribute of a class may affect its instances; annotations and slots do not."""
    if name.startswith("__"):
        return name not in ("__annotate__", "__annotate_func__", "__dict__", "__weakref__") and (
            callable(value) or hasattr(type(value), "__get__")
        )
    return name != "_abc_impl"


def _import_module(name: str, package: str | None) -> types.ModuleType | None:
    """Return a module that a function imports; None if it is missing or not needed yet. Raises UnreadableContent if importing it fails."""
    try:
        name = importlib.util.resolve_name(name, package or "")
        spec = importlib.util.find_spec(name.partition(".")[0]) if name not in sys.modules else None
        file = Path((spec and spec.origin) or os.devnull)
        if file.is_file() and not is_installed(file):
            importlib.import_module(name)
    except (ImportError, ValueError):  # for example an optional dependency
        return None
    except Exception as error:  # the user's module may raise anything
        raise UnreadableContent(f"the module {name}, which cannot be imported") from error
    return sys.modules.get(name)
