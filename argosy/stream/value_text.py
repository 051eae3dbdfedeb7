"""Values of the user as text that is equal in every process, from which digests are computed (`argosy.stream.code_digest`).

With a `Content`, which keys prepared samples, values are written completely: every element of arrays and containers, and the pickled state of
objects of installed classes. Objects without such a state, for example open files, raise `UnreadableContent`.
"""

import argparse
import bisect
import contextlib
import copyreg
import dis
import functools
import hashlib
import inspect
import io
import itertools
import mmap
import os
import random
import re
import sys
import threading
import types
from collections import UserDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from argosy.readings import PLAIN, attributes_of, closure_variables, is_own, is_own_module
from argosy.stream.blocks import host_bytes
from argosy.stream.mapped import MappedFile

__all__ = ["Content", "Global", "Part", "UnreadableContent", "ValueText", "hash_of", "part_key", "part_name"]

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
OWNERS = (types.NoneType, types.ModuleType, type, random.Random, torch.Generator)
"""Types of objects whose methods written in C count by their names. Generators are seeded for every sample."""
DOCSTRING: int = getattr(inspect, "CO_HAS_DOCSTRING", 0)
"""Flag of code that has a docstring, which Python sets from 3.14 on."""
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
ITEMS = (list, tuple, set, frozenset, Mapping, np.ndarray, torch.Tensor)
"""Those whose instances may hold attributes of their own, such as the mask of an array, its unit, or the attributes of a Dataset of xarray."""
MAX_PATHS = 1000
"""Most paths in one list that are checked for being files, and most entries of a folder."""
MAX_FOLDERS = 100
"""Most paths in one list of which folders are read. Longer lists are mostly of the folders of classes, with a thousand images each."""
READ_IN_C = (".h5", ".hdf5", ".nc", ".mdb", ".parquet", ".arrow")
"""Endings of files that libraries in C open, mostly by a folder and a name, so that Python does not see it."""
JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
LOCKS = (type(threading.Lock()), type(threading.RLock()))


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


class UnreadableContent(Exception):  # noqa: N818  # a clause about a value, not a sentence
    """Says why the content of a value cannot be read."""


@dataclass(frozen=True, slots=True)
class Content:
    """What is noted while values are read in full."""

    roots: tuple[str, ...] = ()
    """Folders whose names do not count, because their files may be moved as a whole."""
    paths: dict[str, None] = field(default_factory=dict)
    """Absolute paths among the values, or the common folder of several, in the order in which they were found."""
    files: list[MappedFile] = field(default_factory=list)
    """Files that arrays map; their content was not read."""
    named: dict[str, None] = field(default_factory=dict)
    """Files that values name, except those in long lists."""
    parts: dict[str, Part] = field(default_factory=dict)
    """Parts by their names; equal names are numbered in the order in which they were found."""
    names: dict[Hashable, str] = field(default_factory=dict)
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
        key = part_key(part)
        if key not in self.names:
            name = part_name(part)
            names = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
            self.names[key] = next(name for name in names if name not in self.parts)
            self.parts[self.names[key]] = part
        return self.names[key]


class ValueText:
    """Writes a value as text that is equal in every process, and collects the parts of the user's files that it refers to."""

    HOLDERS = (torch.nn.Module, argparse.Namespace, types.SimpleNamespace)
    """Installed classes whose instances count by their content."""

    def __init__(self, whole: Content | None, packages: set[str]) -> None:
        self.whole = whole
        self.packages = packages
        """Top-level names of the installed packages that were found."""
        self.parts: list[Part] = []
        self._within: set[int] = set()
        """Identities of the objects being written, because objects may contain themselves."""

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
        self.note_installed(value.__module__)
        enclosed = [self.of(held) for held in closure_variables(value).values()]
        return f"{value.__module__}:{value.__qualname__} {enclosed}"

    def _content(self, value: Any) -> str:
        # `isinstance` with a Mapping raises for the attribute `f` of an NpzFile.
        if self.whole is not None and not hasattr(value, "__class__"):
            raise UnreadableContent(f"{type(value).__module__}.{type(value).__qualname__}")
        match value:
            case functools.partial():
                return self.join([value.func, value.args, value.keywords])
            case types.MethodType():
                return self.join([value.__func__, value.__self__])
            case types.BuiltinMethodType() | types.MethodWrapperType() if not isinstance(value.__self__, OWNERS):
                return self.join([value.__name__, value.__self__])  # such as the `get` of a dict
            case staticmethod() | classmethod():
                return self.of(value.__func__)
            case property():
                return self.join([value.fget, value.fset, value.fdel])
            case functools.cached_property():
                return self.of(value.func)
            case functools._lru_cache_wrapper():
                return self.of(value.__wrapped__)
            case types.ModuleType():
                self.note_installed(value.__name__)
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
            case torch.Tensor() if is_lazy(value):
                return "a lazy tensor"
            case np.ndarray() | torch.Tensor():
                return _array(value) if self.whole is None else self._whole_array(value)
        own = is_own(type(value)) and (self.whole is None or not _has_hidden_data(type(value)))
        if own or isinstance(value, self.HOLDERS):
            return f"{self.of(type(value))} {self.attributes(attributes_of(value))}"
        if self.whole is not None:
            return self._pickled(value)
        # A run may continue on another machine, and on other devices.
        return "" if isinstance(value, torch.device) else re.sub(r"0x[0-9a-f]+", "", repr(value))

    def join(self, values: Any) -> str:
        """Return the texts of some values as one."""
        return f"[{', '.join(map(self.of, values))}]"

    def attributes(self, named: dict[str, Any]) -> str:
        """Return attributes as text, independent of the order in which they were set."""
        return self.of(named if self.whole is None else dict(sorted(named.items())))

    # ---- values in full

    def _extra_content(self, value: Any) -> str:
        """Return what an instance of a subclass holds besides its `_content`."""
        if self.whole is None:
            return ""
        if isinstance(value, defaultdict):
            return f" {self.of(value.default_factory)}"
        # Encoded texts of transformers hold each text a second time, as an object that takes twenty times as long to read.
        others = isinstance(value, np.memmap | UserDict) or _is_standard(type(value).__module__)
        holds_more = isinstance(value, ITEMS) and not others
        if not is_own(type(value)) and not (holds_more and attributes_of(value)):
            return ""
        if isinstance(value, CONTAINERS):
            return f" {self.of(type(value))} {self.attributes(attributes_of(value))}"
        return next((f" {kind.__repr__(value)}" for kind in ATOMIC if isinstance(value, kind)), "")

    def _plain(self, values: Any, atoms: Iterable[Any]) -> str:
        """Return plain values as text; note the paths among them."""
        assert self.whole is not None
        # Another name without a folder is mostly that of a file in a folder that another value names.
        texts = [atom for atom in atoms if type(atom) is str and (os.sep in atom or atom.endswith(READ_IN_C))]
        paths = [text for text in texts if text.startswith(os.sep)]
        for some in (paths, [text for text in texts if not text.startswith(os.sep)]):
            if len(some) <= MAX_PATHS:
                few = len(some) <= MAX_FOLDERS
                named = (file for path in some for file in _files_named(path, and_in_folders=few))
                self.whole.named.update(dict.fromkeys(named))
        if paths:
            self.whole.paths.setdefault(os.path.commonpath([min(paths), max(paths)]))
        return self.whole.text(values)

    def _list_text(self, values: Any) -> str:
        """Return a list as text. Plain values, or tuples of them, are written at once, because there may be millions."""
        if self.whole is None:
            return self.join(values)
        kinds = set(map(type, values))
        if kinds <= ATOMS:
            return self._plain(values, values)
        if kinds <= PATHS:
            return f"paths {self._list_text([*map(str, values)])}"
        if kinds <= {tuple, list} and ATOMS.issuperset(map(type, itertools.chain.from_iterable(values))):
            return self._plain(values, itertools.chain.from_iterable(values))
        return self.join(values)

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
        self.note_installed(type(value).__module__)
        match value:
            case _ if isinstance(value, NAMED):
                self.note_installed(getattr(getattr(value, "__objclass__", value), "__module__", None))
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
            registered = copyreg.dispatch_table.get(type(value))  # for example of regular expressions
            reduced = value.__reduce_ex__(4) if registered is None else registered(value)
        except Exception as error:  # an object that cannot be pickled may raise anything
            raise UnreadableContent(
                f"{type(value).__module__}.{type(value).__qualname__}, whose content cannot be read"
            ) from error
        if isinstance(reduced, str):
            return reduced
        constructor, arguments, *rest = reduced
        return self.join(
            [constructor, arguments, *(list(part) if isinstance(part, Iterator) else part for part in rest)]
        )

    def note_installed(self, module: str | None) -> None:
        """Note the package of an installed module, or the content of a compiled one of the user."""
        if not is_own_module(module):
            if not _is_standard(module or ""):
                self.packages.add((module or "").partition(".")[0])
        elif self.whole is not None and (content := _compiled_content(module or "")):
            self.parts.append(Global(f"{module} (compiled)", content, 0, module or ""))

    def _code(self, code: types.CodeType) -> str:
        """Return code as text, which is the same whether the modules that it names are imported in its own file or cell, or in another."""
        instructions = list(dis.get_instructions(code))
        # From Python 3.13 on, the body of a class stores its first line number.
        lines = {n - 1 for n, i in enumerate(instructions) if i.argval == "__firstlineno__"}
        # Python calls `module.function` as a method unless it sees the import, and how far a jump goes depends on that.
        shown = [
            i for n, i in enumerate(instructions) if n not in lines and i.opname not in ("PUSH_NULL", "EXTENDED_ARG")
        ]
        place = functools.partial(bisect.bisect_left, [i.offset for i in shown])
        arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        handlers = [
            (place(e.start), place(e.end), place(e.target), e.depth, e.lasti)
            for e in dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
        ]
        body = (f"{i.opname.replace('METHOD', 'ATTR')} {self._argument(i, code, place)}" for i in shown)
        flags = code.co_flags & ~DOCSTRING
        return "\n".join([repr((*arguments, flags, handlers)), *body])

    def _argument(self, instruction: dis.Instruction, code: types.CodeType, place: Callable[[int], int]) -> str:
        if instruction.opname == "KW_NAMES":  # of which dis does not show the constant
            return self.of(code.co_consts[instruction.arg or 0])
        if instruction.opcode in dis.hasconst:
            return self.of(instruction.argval)
        return repr(place(instruction.argval) if instruction.opcode in JUMPS else instruction.argval)


@functools.cache
def _compiled_content(module: str) -> str:
    """Return the digest of the file of a module written in C; empty for others. Cached, because the module that was loaded does not change."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return _hash_bytes(Path(file).read_bytes()) if file.endswith(tuple(EXTENSION_SUFFIXES)) else ""


def part_key(part: Part) -> Hashable:
    """Return a part's key: its global name and namespace (None and 0 for others), and its identity."""
    return (part.name, part.namespace, id(part.value)) if isinstance(part, Global) else (None, 0, id(part))


def part_name(part: Part) -> str:
    """Return the name of a part within its module."""
    return part.name if isinstance(part, Global) else part.__qualname__.replace("<locals>.", "")


def _has_hidden_data(kind: type) -> bool:
    """Return whether objects of a class hold data outside their attributes, as those of classes written in C do, such as file readers or deques."""
    # Where an offset is negative, as those of Python classes from Python 3.12 on, the pointer lies before the object, outside of its size.
    pointers = len(copyreg._slotnames(kind)) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)  # type: ignore[attr-defined]
    return kind.__basicsize__ > object.__basicsize__ + pointers * tuple.__itemsize__


def _is_standard(module: str) -> bool:
    """Return whether a module is of Python's standard library."""
    return module.partition(".")[0] in sys.stdlib_module_names


def _files_named(path: str, *, and_in_folders: bool) -> list[str]:
    """Return a path if it is that of a file; of a folder the files in it that libraries in C open."""
    if os.path.isfile(path):  # noqa: PTH113
        return [path]
    if not (and_in_folders and os.path.isdir(path)):  # noqa: PTH112
        return []
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        names = [one.name for one in itertools.islice(entries, MAX_PATHS)]
        # LMDB writes to its lock.mdb when it is opened.
        return [os.path.join(path, one) for one in names if one.endswith(READ_IN_C) and one != "lock.mdb"]  # noqa: PTH118
    return []


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


def hash_of(text: str) -> str:
    """Return the digest of a text."""
    return _hash_bytes(text.encode(errors="surrogatepass"))


def _hash_bytes(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
