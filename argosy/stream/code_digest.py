"""Digests of what the user's functions and classes compute, which show whether code has changed since a run began.

The user's code counts by its bytecode with constants and names, its defaults, its closure, and recursively all that it refers to in
the user's files; line numbers, comments and docstrings do not count. Installed code counts by its name. Numbers, texts, containers, arrays,
networks and instances of the user's classes count by their content; other objects by their `repr`. Digests are comparable only under the same
versions of Python and torch (`CodeReader.VERSION`).

With `Code(whole=...)`, which keys prepared samples, values are hashed completely: every element of arrays and containers, and the pickled state of
objects of installed classes. Objects without such a state, for example open files, raise `UnreadableContent`.
"""

import argparse
import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.util
import io
import itertools
import mmap
import os
import re
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from argosy.readings import (
    PLAIN,
    closure_variables,
    instructions_of,
    is_installed,
    is_own,
    is_own_module,
    readings_of,
    setting_of,
)
from argosy.stream.blocks import host_bytes
from argosy.stream.mapped import MappedFile

__all__ = ["CodeReader", "Content", "Global", "Part", "UnreadableContent", "ValueDigest", "attributes_of", "part_name"]

DIGITS = 12
MAX_ELEMENTS = 2**22
"""Most elements of an array that are hashed. The first ones are enough to distinguish arrays that were not made to deceive."""
MAX_ITEMS = 10_000
"""Most items of a container that are read; a larger one counts by its length."""
ATOMS = frozenset({bool, int, float, str, bytes, types.NoneType})
NAMED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    np.ufunc,
    torch.dtype,
    torch.device,
)
"""Types of objects written in C, which count by their names."""
PATHS = frozenset({type(Path()), type(PurePath())})
ATOMIC = (str, bytes, bool, int, float, complex)
"""Types whose subclasses hold a value besides their attributes."""
CONTAINERS = (
    list,
    tuple,
    set,
    frozenset,
    Mapping,
    np.ndarray,
    torch.Tensor,
    functools.partial,
    property,
    functools.cached_property,
)
"""Types whose subclasses hold methods and attributes besides their items."""
MAX_PATHS = 1000
"""Most paths in one list that are checked for being files."""
LOCKS = (type(threading.Lock()), type(threading.RLock()))
HOLDERS = (torch.nn.Module, argparse.Namespace, types.SimpleNamespace)
"""Installed classes whose instances count by their content."""


@dataclass(frozen=True, slots=True)
class Global:
    """A global name that a function of the user reads from its module."""

    name: str
    value: Any
    namespace: int
    """Identity of the module's namespace if values are read in full, to distinguish constants with the same name."""
    module: str
    """Name of the module."""


Part = types.FunctionType | type | Global
"""A function, class or global of the user's files, with a digest of its own."""
Key = tuple[str | None, int, int]
"""Key of a part: its global name and namespace (None and 0 for others), and its identity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueDigest:
    """The digests of a value."""

    digest: str
    parts: tuple[tuple[str, str], ...]
    """Name and digest of each function, class and global in the user's files that the value refers to."""
    said: str = ""
    """Digest of the value without these parts."""


class UnreadableContent(Exception):  # noqa: N818  # a clause about a value, not a sentence
    """Says why the content of a value cannot be read."""


@dataclass(frozen=True, slots=True)
class Content:
    """What is noted while values are read in full."""

    roots: tuple[str, ...] = ()
    """Folders whose names do not count, because their files may be moved as a whole."""
    paths: dict[str, None] = field(default_factory=dict)
    """Absolute paths among the values, or the common folder of several, in the order in which they were found."""
    packages: set[str] = field(default_factory=set)
    """Top-level names of installed packages that code or values refer to."""
    files: list[MappedFile] = field(default_factory=list)
    """Files that arrays map; their content was not read."""
    named: dict[str, None] = field(default_factory=dict)
    """Files that values name by absolute paths, except those in long lists."""
    parts: dict[str, Part] = field(default_factory=dict)
    """Parts by their names; equal names are numbered in the order in which they were found."""
    names: dict[Key, str] = field(default_factory=dict)
    hashes: dict[int, tuple[Any, str]] = field(default_factory=dict)
    """Arrays and their hashes by identity, because values are read a second time if there are roots."""

    def text(self, value: Any) -> str:
        """Return plain values as text, with the names of the roots replaced."""
        text = repr(value)
        for number, root in enumerate(self.roots):
            text = re.sub(rf"{re.escape(root)}(?=[/'\"])", f"<folder {number}>", text)
        return text

    def name(self, part: Part) -> str:
        """Return a unique name for a part, so that two functions of one name that change places are noticed."""
        key = _key(part)
        if key not in self.names:
            name = part_name(part)
            names = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
            self.names[key] = next(name for name in names if name not in self.parts)
            self.parts[self.names[key]] = part
        return self.names[key]


class CodeReader:
    """Computes digests of code. Results are cached, because members share most of their code."""

    VERSION = f"{sys.implementation.cache_tag} torch-{torch.__version__}"

    def __init__(self, whole: Content | None = None) -> None:
        self.whole = whole
        """If given, all values count in full."""
        self._read: dict[Key, tuple[Part, str, tuple[Part, ...]]] = {}
        """Each part with its digest and the parts that it refers to.

        Holding the part prevents another object from getting its identity.
        """

    def read(self, value: Any) -> "ValueDigest":
        """Digest a value and all parts that it refers to."""
        text = _TextWriter(self.whole)
        said = text.of(value)
        parts = tuple(sorted(self._reach(text.parts)))
        return ValueDigest(digest=_hash("\n".join([said, *map(" ".join, parts)])), parts=parts, said=_hash(said))

    def parts_read(self) -> Iterator[tuple[Part, str]]:
        """Yield all parts read so far, each with its digest."""
        for part, digest, _ in self._read.values():
            yield part, digest

    def _reach(self, parts: list[Part]) -> Iterator[tuple[str, str]]:
        seen: set[Key] = set()
        while parts:
            part = parts.pop()
            key = _key(part)
            if key in seen:
                continue
            seen.add(key)
            if key not in self._read:
                text = _TextWriter(self.whole)
                self._read[key] = (part, _hash(text.write_part(part)), tuple(text.parts))
            _, digest, further = self._read[key]
            yield part_name(part) if self.whole is None else self.whole.name(part), digest
            parts.extend(further)


class _TextWriter:
    """Writes a value as text that is equal in every process, and collects the parts of the user's files that it refers to."""

    def __init__(self, whole: Content | None) -> None:
        self.whole = whole
        self.parts: list[Part] = []
        self._within: set[int] = set()
        """Identities of the objects being written, because objects may contain themselves."""

    def write_part(self, part: Part) -> str:
        """Return the content of a part, in which further parts are given by name."""
        if isinstance(part, Global):
            return self.of(part.value)
        return self._function(part) if isinstance(part, types.FunctionType) else self._class(part)

    def of(self, value: Any) -> str:
        """Return the text of any value."""
        if type(value) in PLAIN:
            return repr(value) if self.whole is None else self._plain(value, [value])
        if id(value) in self._within:
            return "itself"
        self._within.add(id(value))
        try:
            if isinstance(value, types.FunctionType | type):
                return self._definition(value)
            return f"{type(value).__qualname__} {self._content(value)}{self._extra_content(value)}"
        finally:
            self._within.discard(id(value))

    def _definition(self, value: Any) -> str:
        if is_own(value):
            self.parts.append(value)
            return part_name(value) if self.whole is None else self.whole.name(value)
        self._installed(value.__module__)
        enclosed = [self.of(held) for held in closure_variables(value).values()]
        return f"{value.__module__}:{value.__qualname__} {enclosed}"

    def _content(self, value: Any) -> str:
        match value:
            case functools.partial():
                return self._join([value.func, value.args, value.keywords])
            case types.MethodType():
                return self._join([value.__func__, value.__self__])
            case staticmethod() | classmethod():
                return self.of(value.__func__)
            case property():
                return self._join([value.fget, value.fset, value.fdel])
            case functools.cached_property():
                return self.of(value.func)
            case functools._lru_cache_wrapper():
                return self.of(value.__wrapped__)
            case types.ModuleType():
                self._installed(value.__name__)
                return value.__name__
            case types.CodeType():
                return self._code(value)
            case list() | tuple() | set() | frozenset() | Mapping() if self.whole is None and len(value) > MAX_ITEMS:
                return f"{len(value)} items"
            case list() | tuple():
                return self._list_text(value)
            case set() | frozenset():
                return f"[{', '.join(sorted(map(self.of, value)))}]"
            case Mapping():
                entries = (f"{self.of(k)}: {self.of(v)}" for k, v in value.items())
                return f"[{', '.join(sorted(entries) if self.whole is None else entries)}]"
            case np.ndarray() | torch.Tensor():
                return _array(value) if self.whole is None else self._whole_array(value)
        own = is_own(type(value)) and (self.whole is None or not _has_hidden_data(type(value)))
        if own or isinstance(value, HOLDERS):
            return f"{self.of(type(value))} {self._attributes(attributes_of(value))}"
        if self.whole is not None:
            return self._pickled(value)
        # A run may continue on another machine, and on other devices.
        return "" if isinstance(value, torch.device) else re.sub(r"0x[0-9a-f]+", "", repr(value))

    def _join(self, values: Any) -> str:
        return f"[{', '.join(map(self.of, values))}]"

    def _attributes(self, named: dict[str, Any]) -> str:
        """Return attributes as text, independent of the order in which they were set."""
        return self.of(named if self.whole is None else dict(sorted(named.items())))

    # ---- values in full

    def _extra_content(self, value: Any) -> str:
        """Return what an instance of a subclass holds besides its `_content`."""
        if self.whole is None:
            return ""
        if isinstance(value, defaultdict):
            return f" {self.of(value.default_factory)}"
        if not is_own(type(value)):
            return ""
        if isinstance(value, CONTAINERS):
            return f" {self.of(type(value))} {self._attributes(attributes_of(value))}"
        return next((f" {kind.__repr__(value)}" for kind in ATOMIC if isinstance(value, kind)), "")

    def _plain(self, values: Any, atoms: Iterable[Any]) -> str:
        """Return plain values as text; note the paths among them."""
        assert self.whole is not None
        paths = [atom for atom in atoms if type(atom) is str and atom.startswith(os.sep)]
        if len(paths) <= MAX_PATHS:
            self.whole.named.update(dict.fromkeys(path for path in paths if os.path.isfile(path)))  # noqa: PTH113
        if paths:
            self.whole.paths.setdefault(os.path.commonpath([min(paths), max(paths)]))
        return self.whole.text(values)

    def _list_text(self, values: Any) -> str:
        """Return a list as text. Plain values, or tuples of them, are written at once, because there may be millions."""
        if self.whole is None:
            return self._join(values)
        kinds = set(map(type, values))
        if kinds <= ATOMS:
            return self._plain(values, values)
        if kinds <= PATHS:
            return f"paths {self._list_text([*map(str, values)])}"
        if kinds <= {tuple, list} and ATOMS.issuperset(map(type, itertools.chain.from_iterable(values))):
            return self._plain(values, itertools.chain.from_iterable(values))
        return self._join(values)

    def _whole_array(self, value: Any) -> str:
        assert self.whole is not None
        head = f"{value.dtype} {tuple(value.shape)}"
        mapped = MappedFile.of(value) if isinstance(value, np.ndarray) and _is_memory_mapped(value) else None
        if mapped is not None:
            file, start = mapped
            self.whole.files.append(file)
            return f"{head} from byte {start} of {self._plain(file.path, [file.path])} on, {value.strides}"
        if id(value) not in self.whole.hashes:
            self.whole.hashes[id(value)] = (value, self._hashed_array(head, value))
        return self.whole.hashes[id(value)][1]

    def _hashed_array(self, head: str, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_meta:
                raise UnreadableContent(f"a tensor of layout {value.layout} on {value.device}")
            return f"{head} {_hash_bytes(host_bytes(value.detach().resolve_conj().resolve_neg()))}"
        if value.dtype.hasobject:
            return f"{head} {self._list_text(value.ravel().tolist())}"
        return f"{head} {_hash_bytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)}"

    def _pickled(self, value: Any) -> str:
        """Return the pickled state of an object of an installed class."""
        self._installed(type(value).__module__)
        match value:
            case _ if isinstance(value, NAMED):
                self._installed(_module_of(value))
                return re.sub(r"0x[0-9a-f]+", "", repr(value))
            case PurePath():
                return self.of(str(value))
            case torch.Generator():
                return self.of(value.get_state())
            case _ if isinstance(value, LOCKS):
                return ""
            case io.IOBase() | types.GeneratorType():
                raise UnreadableContent(f"{value!r:.80}")
        try:
            found = value.__reduce_ex__(4)
        except Exception as error:  # an object that cannot be pickled may raise anything
            raise UnreadableContent(
                f"{type(value).__module__}.{type(value).__qualname__}, whose content cannot be read"
            ) from error
        if isinstance(found, str):
            return found
        made, arguments, *rest = found
        return self._join([made, arguments, *(list(part) if isinstance(part, Iterator) else part for part in rest)])

    def _installed(self, module: str | None) -> None:
        """Note the package of an installed module."""
        package = (module or "").partition(".")[0]
        if self.whole is not None and package not in sys.stdlib_module_names and not is_own_module(module):
            self.whole.packages.add(package)

    # ---- the user's code

    def _class(self, kind: type) -> str:
        counts = _is_method if self.whole is None else _may_matter
        attributes = {name: value for name, value in _class_attributes(kind).items() if counts(name, value)}
        return f"{self._join(kind.__bases__)} {self._attributes(attributes)}"

    def _function(self, function: types.FunctionType) -> str:
        instructions = instructions_of(function.__code__)
        # What a function sets itself changes with its calls, so it is no part of its code.
        stored = {i.argval for i in instructions if i.opname in ("STORE_GLOBAL", "STORE_DEREF")}
        attributes = {i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD")}
        names = {i.argval for i in instructions if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")} - stored
        for name in sorted(names & function.__globals__.keys()):
            # The module's name and file may differ.
            if not name.startswith("__"):
                for path, value in readings_of(instructions, name, function.__globals__[name], HOLDERS).items():
                    self._global(path, value, function.__globals__, attributes)
        cells = {name: held for name, held in closure_variables(function).items() if name not in stored}
        enclosed = {
            path: read
            for name, held in cells.items()
            for path, read in readings_of(instructions, name, held, HOLDERS).items()
        }
        content = [function.__code__, function.__defaults__, function.__kwdefaults__, enclosed]
        self._imports(instructions, function.__globals__, attributes)
        if self.whole is not None:
            content.append({name: value for name, value in vars(function).items() if name != "__wrapped__"})
        return self._join(content)

    def _global(self, name: str, value: Any, namespace: dict[str, Any], attributes: set[str]) -> None:
        self._add_global(name, value, namespace)
        if isinstance(value, types.ModuleType) and is_own_module(value.__name__):
            self._inside(value, attributes)

    def _add_global(self, name: str, value: Any, namespace: dict[str, Any]) -> None:
        number = 0 if self.whole is None else id(namespace)
        self.parts.append(Global(name, value, number, namespace.get("__name__", "")))

    def _inside(self, module: types.ModuleType, attributes: set[str]) -> None:
        """Collect what a function reaches by these attributes in a module of the user, and in modules inside it."""
        found = {name: getattr(module, name) for name in sorted(attributes) if getattr(module, name, None) is not None}
        for name, value in found.items():
            if not isinstance(value, types.ModuleType):
                settings = {f"{name}.{key}": setting_of(value, key, HOLDERS) for key in sorted(attributes)}
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
            if self.whole is not None:
                raise
            module = None  # the import raises again when the function is called
        if module is None:
            if self.whole is not None:
                self.whole.packages.add(name.partition(".")[0])
        elif is_own_module(module.__name__):
            # `import a.b` binds a in the function.
            self._inside(module if taken else sys.modules[module.__name__.partition(".")[0]], attributes)
        else:
            self._installed(module.__name__)

    def _code(self, code: types.CodeType) -> str:
        arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        head = (*arguments, code.co_flags, code.co_exceptiontable)
        instructions = list(dis.get_instructions(code))
        # From Python 3.13 on, the body of a class stores its first line number.
        lines = {n - 1 for n, i in enumerate(instructions) if i.argval == "__firstlineno__"}
        body = (f"{i.opname} {self._argument(i)}" for n, i in enumerate(instructions) if n not in lines)
        return "\n".join([repr(head), *body])

    def _argument(self, instruction: dis.Instruction) -> str:
        return self.of(instruction.argval) if instruction.opcode in dis.hasconst else repr(instruction.argval)


def _key(part: Part) -> Key:
    return (part.name, part.namespace, id(part.value)) if isinstance(part, Global) else (None, 0, id(part))


def _class_attributes(kind: type) -> dict[str, Any]:
    """Return the attributes of a class as written.

    When the first instance of an optimizer class is created, torch wraps its `step`, own or inherited; the wrapper is left out.
    """
    found = dict(vars(kind))
    if _without_hooks(found.get("step")) is not found.get("step"):
        found["step"] = _without_hooks(found["step"])
        if found["step"] is _without_hooks(getattr(super(kind, kind), "step", None)):
            del found["step"]
    return found


def _without_hooks(step: Any) -> Any:
    return step.__wrapped__ if getattr(step, "hooked", False) else step


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


def _module_of(value: Any) -> str | None:
    """Return the module of an object written in C."""
    holder = getattr(value, "__objclass__", value)
    found: str | None = getattr(holder, "__module__", None)
    return found


def part_name(part: Part) -> str:
    """Return the name of a part within its module."""
    return part.name if isinstance(part, Global) else part.__qualname__.replace("<locals>.", "")


def _has_hidden_data(kind: type) -> bool:
    """Return whether objects of a class hold data outside their attributes, as those of classes written in C do, such as file readers or deques."""
    pointers = len(copyreg._slotnames(kind)) + bool(kind.__dictoffset__) + bool(kind.__weakrefoffset__)  # type: ignore[attr-defined]
    return kind.__basicsize__ > object.__basicsize__ + pointers * tuple.__itemsize__


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an instance's attributes, including slots."""
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
        first = value.detach().reshape(-1)[:MAX_ELEMENTS].cpu().contiguous()
        return f"{head} {_hash_bytes(first.view(torch.uint8).numpy().tobytes())}"
    first = value.reshape(-1)[:MAX_ELEMENTS]
    return f"{head} {first.tolist()!r}" if value.dtype.hasobject else f"{head} {_hash_bytes(first.tobytes())}"


def _is_memory_mapped(array: Any) -> bool:
    """Return whether an array is a view of a memory map."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array is not None


def _hash(text: str) -> str:
    return _hash_bytes(text.encode(errors="surrogatepass"))


def _hash_bytes(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
