"""Check that what members and data use from the user's modules is the same in all processes, because each process imports it itself."""

import contextlib
import functools
import importlib.metadata
import itertools
import math
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from argosy.errors import StudyError
from argosy.readings import PLAIN, closure_variables, instructions_of, is_own
from argosy.stream.code_digest import CodeReader
from argosy.stream.value_text import Global, Part, part_name
from argosy.study import FACTORIES, Data, Member

__all__ = ["ImportDigests", "check_imports", "digest_imports"]

ImportDigests = Mapping[str, Sequence[str | tuple[float, float]]]
"""Digests of functions, classes and constants, versions of installed packages, and sketches of arrays and networks, by name."""
MOST_NAMED = 3
SAMPLED = 4096
"""About the most elements of an array that its sketch is computed from."""
HUGE = 1e100
"""Larger elements and NaN, which marks of missing values are, are left out."""
TOLERANCE = 1e-3
"""Difference between two sketches, relative to the norm, that rounding may cause, as with other numbers of threads."""


def digest_imports(values: Iterable[Any], *, arrays: bool = True) -> ImportDigests:
    """Return the digests of what these members, data and functions use from modules of the user, and the versions of packages."""
    code = CodeReader()
    for value in values:
        for read in _read_of(value):
            code.read(read)
    digests: dict[str, list[str | tuple[float, float]]] = {}
    for part, digest in code.parts_read():
        module = part.module if isinstance(part, Global) else part.__module__
        if module not in sys.modules or module == "__main__" or _is_state(part):
            continue
        name = f"{module}.{part_name(part)}"
        if _is_as_imported(part):
            digests.setdefault(name, []).append(digest)
        for key, value in _held_by(part).items() if arrays else ():
            if (sketch := _sketch(value)) is not None:
                digests.setdefault(f"{name}{key}", []).append(sketch)
    for package in code.packages:
        if sys.modules.get(package) and (version := _version_of(package)):
            digests[f"the version of {package}"] = [version]
    return digests


def _version_of(package: str) -> str:
    """Return the version of an imported package; empty if it gives none."""
    version = vars(sys.modules[package]).get("__version__")
    if version is None:  # some packages compute it, and warn; transformers has it elsewhere
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
    return str(version or "")


def _read_of(value: Any) -> Iterable[Any]:
    if isinstance(value, Member):
        return *(getattr(value, name) for name in FACTORIES), *value.metrics.values()
    if isinstance(value, Data):
        # For a Dataset only its class: its content may be large, and is sent with it.
        functions, code = (value.train, value.val, value.then), (types.FunctionType, functools.partial)
        return [one if isinstance(one, code) else type(one) for one in functions]
    return [value]


def check_imports(values: Iterable[Any], wanted: ImportDigests) -> None:
    """Raise StudyError if this process has imported something that differs from `wanted`, the digests of another process."""
    digests = digest_imports(values)
    others = [name for name in wanted if not all(_is_among(one, wanted[name]) for one in digests.get(name, ()))]
    named = ", ".join(others[:MOST_NAMED]) + (" and others" if len(others) > MOST_NAMED else "")
    if others and not any(isinstance(wanted[name][0], str) for name in others):
        raise StudyError(
            f"{named}: values that a module holds are not the same in all processes of the run, because each process imports "
            "modules itself. If they are drawn at random, draw them in the network and keep them in a buffer: "
            'self.register_buffer("B", torch.randn(2, 16)), or give their generator a seed: '
            "torch.randn(2, 16, generator=torch.Generator().manual_seed(0)). If the script changes them, change them in the "
            "module, or bind them to the function that reads them: functools.partial(Net, B=B)."
        )
    if others:
        raise StudyError(
            f"{named}: not the same in all processes of the run, because each process imports modules itself. If a "
            "file was changed since the run or a notebook's kernel began, restore it, or start the run or the kernel "
            "again. Give all nodes the same files and packages. If the script sets it, set it in the module, or bind it "
            "to the function that reads it: functools.partial(loss, scale=2.0)."
        )


def _is_among(found: str | tuple[float, float], wanted: Sequence[str | tuple[float, float]]) -> bool:
    """Return whether a digest is one of these, or a sketch is nearly one of these."""
    if isinstance(found, str):
        return found in wanted
    return any(not isinstance(one, str) and math.dist(found, one) <= TOLERANCE * one[0] for one in wanted)


def _held_by(part: Part) -> dict[str, Any]:
    """Return the values that a part holds: by "" that of a global, by name the attributes of a class or the closure of a function."""
    if isinstance(part, Global):
        return {"": part.value}
    held = vars(part) if isinstance(part, type) else closure_variables(part)
    return {f".{key}": value for key, value in held.items()}


def _sketch(value: Any) -> tuple[float, float] | None:
    """Return the norm and a projection of an array, or of a network's tensors. Draws of random values differ in them.

    None for anything else, and if all elements are equal, as in a cache that calls fill.
    """
    network = torch.nn.Module  # its own functions: a subclass may have other attributes of these names
    of_network = [*network.parameters(value), *network.buffers(value)] if isinstance(value, network) else []
    arrays = [value] if isinstance(value, torch.Tensor | np.ndarray) else of_network
    samples = np.concatenate([_sample(one) for one in arrays] or [[]])
    samples = samples[np.abs(samples) < HUGE]
    if not len(samples) or np.ptp(samples) == 0:
        return None
    return float(np.linalg.norm(samples)), float(samples @ np.cos(np.arange(len(samples))))


def _sample(array: Any) -> Any:
    """Return elements of an array at equal distances, as float64; none of an array without numbers."""
    if isinstance(array, torch.Tensor):
        if is_lazy(array) or array.layout is not torch.strided or array.is_meta or array.is_quantized:
            return []
        return (
            array.detach()
            .reshape(-1)[:: array.numel() // SAMPLED + 1]
            .real.to("cpu", torch.float64)
            .resolve_neg()
            .numpy()
        )
    flat = np.asarray(array).reshape(-1)[:: array.size // SAMPLED + 1]
    return flat.real.astype(np.float64) if flat.dtype.kind in "biufc" else []


def _is_as_imported(part: Part) -> bool:
    """Return whether importing the module recreates this part, unless a script sets it.

    It must be no cache or counter that calls change, and no path that may differ between nodes.
    """
    if isinstance(part, Global):
        return _is_constant(part.value)
    if isinstance(part, type):
        return all(name.startswith("__") or hasattr(type(value), "__get__") for name, value in vars(part).items())
    held = closure_variables(part).values()
    return all(
        (isinstance(value, types.FunctionType | type) and is_own(value)) or _is_constant(value) for value in held
    )


def _is_state(part: Part) -> bool:
    """Return whether a part is state and not a setting: functions of its module other than `__init__` set the attribute or key that it names."""
    if not isinstance(part, Global) or "." not in part.name:
        return False
    held = vars(sys.modules[part.module]).values()
    own = [one for one in held if isinstance(one, types.FunctionType | type) and is_own(one)]
    methods = [one for kind in own if isinstance(kind, type) for name, one in vars(kind).items() if name != "__init__"]
    functions = [one for one in (*own, *methods) if isinstance(one, types.FunctionType)]
    return any(part.name.rpartition(".")[2] in _names_set_by(function.__code__) for function in functions)


@functools.lru_cache(maxsize=1000)
def _names_set_by(code: types.CodeType) -> frozenset[Any]:
    """Return the attributes and constant keys that the code sets."""
    instructions = instructions_of(code)
    attributes = {one.argval for one in instructions if one.opname == "STORE_ATTR"}
    pairs = itertools.pairwise(instructions)
    keys = {key.argval for key, one in pairs if one.opname == "STORE_SUBSCR" and key.opname == "LOAD_CONST"}
    return frozenset(attributes | keys)


def _is_constant(value: Any) -> bool:
    """Return whether a value is plain and immutable, and is no absolute path, which may differ between nodes."""
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return type(value) in PLAIN and not (isinstance(value, str) and Path(value).is_absolute())
