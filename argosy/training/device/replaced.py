"""Functions of torch that a script has replaced, and operators that it has registered.

Torch keeps no list of replaced functions. They are found by the module in which each function was defined: whatever name a function is
assigned to, its globals are those of its own module.
"""

import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import cloudpickle
import torch
from torch._library.custom_ops import OPDEFS

__all__ = ["SCRIPT", "script_operators", "find_replaced"]

SCRIPT = "__main__"
COMPUTES = re.compile(
    r"torch(\.(nn|optim|autograd|functional|linalg|fft|special|distributions|func|sparse|nested|signal|amp)(\.|$)|$)"
)
"""Modules of torch that are searched: members compute with their functions."""
HARMLESS = {"torch.compile"}
"""Functions that libraries replace at import (for example lightning), and that affect no value."""
TORCHS = {"torch", "functorch", "typing_extensions", *sys.stdlib_module_names}
REGISTERED = re.compile(r"registered at (.+):\d+")
WRAPPERS: dict[type, str] = {
    staticmethod: "__func__",
    classmethod: "__func__",
    MethodType: "__func__",
    property: "fget",
    functools.partial: "func",
}
NO_VALUES = ("Meta", "CUDA", "MPS", "XPU")
"""Dispatch keys under which torch itself registers kernels of its operators from Python."""


def find_replaced() -> dict[str, str]:
    """Return the replaced functions, methods, classes and kernels of torch, each with the module that replaces it.

    For replacements defined in the script, or in a module that is pickled by value, the module is `SCRIPT`.
    """
    # Names that a library adds to torch are skipped, because torch never calls them. Sources are read only for the few foreign names.
    homes = {name: home for name, home in _foreign_in_torch() if name not in HARMLESS and _names(name)}
    for key in torch.library._impls:
        # A kernel of one of torch's operators that may affect a value, for example aten/relu/CPU.
        if key.startswith("aten/") and not key.endswith(NO_VALUES) and not _is_torchs(home := _kernel(key)):
            homes[f"torch.ops.{key.replace('/', '.')}"] = home
    return {name: _module_or_script(home) for name, home in homes.items()}


def script_operators() -> list[str]:
    """Return operators that the script has registered, as ``library::name``."""
    names = ("".join(name.split()) for name in torch.library._defs)  # torch has one with a line break
    homes = {
        name: _defining_module(OPDEFS[name]._init_fn)
        if name in OPDEFS
        else _registering_module(torch._C._dispatch_dump(name))
        for name in names
    }
    return [name for name, home in homes.items() if _module_or_script(home) == SCRIPT]


def _foreign_in_torch() -> Iterator[tuple[str, str]]:
    """Yield names in torch that refer to functions or classes of other modules, each with its module."""
    for name, module in list(sys.modules.items()):
        if not COMPUTES.match(name):
            continue
        own = vars(module)
        yield from ((f"{name}.{key}", home) for key, home in _foreign(own))
        for key, value in list(own.items()):
            if isinstance(value, type) and value.__module__ == name:
                yield from ((f"{name}.{key}.{inner}", home) for inner, home in _foreign(vars(value)))


def _foreign(names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield those of `names` whose values are not torch's, each with its module."""
    for key, value in list(names.items()):
        if not _is_torchs(home := _defining_module(value)):
            yield key, home


def _names(path: str) -> bool:
    """Return whether torch itself defines or uses this name, in the source of its module or in compiled code."""
    module = path
    while module not in sys.modules:
        module = module.rpartition(".")[0]
    name = path.rpartition(".")[2]
    try:
        own = re.search(rf"\b{re.escape(name)}\b", inspect.getsource(sys.modules[module])) is not None
    except (OSError, TypeError):
        return True
    return own or hasattr(torch._C._VariableFunctions, name) or hasattr(torch._C.TensorBase, name)


def _defining_module(value: Any) -> str:
    """Return the module that defines a function or class; for another callable, the module of its class."""
    kind = type(value)
    if kind is FunctionType:
        home: str = value.__globals__.get("__name__", "torch")
        return home
    if kind in WRAPPERS:
        return _defining_module(getattr(value, WRAPPERS[kind]))
    if isinstance(value, type):
        return value.__module__
    return kind.__module__ if callable(value) else "torch"


def _module_or_script(home: str) -> str:
    """Return the module, or `SCRIPT` if it is pickled by value."""
    by_value = cloudpickle.list_registry_pickle_by_value()
    return SCRIPT if any(home == one or home.startswith(f"{one}.") for one in by_value) else home


@functools.cache
def _is_torchs(home: str) -> bool:
    # The methods of a namedtuple have globals of their own, named namedtuple_ and its name.
    return home.partition(".")[0] in TORCHS or home.startswith("namedtuple_")


def _kernel(key: str) -> str:
    """Return the module that has registered a kernel; `SCRIPT` if torch only reports its own function that registered it."""
    library, operator, dispatch = key.split("/")
    lines = torch._C._dispatch_dump(f"{library}::{operator}").splitlines()
    home = _registering_module(next(line for line in lines if line.startswith((f"{dispatch}:", f"{dispatch}["))))
    return SCRIPT if home == "torch.library" else home


def _registering_module(line: str) -> str:
    """Return the module of the file in which torch says it was registered; `SCRIPT` if no module has that file."""
    match = REGISTERED.search(line)
    if match is None:
        return "torch"  # it has been taken back
    if match[1].startswith(str(Path(torch.__file__).parent)):
        return "torch.library" if match[1] == torch.library.__file__ else "torch"
    homes = (name for name, module in list(sys.modules.items()) if vars(module).get("__file__") == match[1])
    return next(homes, SCRIPT)
