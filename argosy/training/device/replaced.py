"""What a script has put in the place of torch's own functions, and the operators that it has registered.

Torch keeps no list of the first, so they are found by where each function was defined: whatever name it took over, its globals are
those of its module.
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

__all__ = ["SCRIPT", "operators_of_the_script", "replaced"]

SCRIPT = "__main__"
COMPUTES = re.compile(
    r"torch(\.(nn|optim|autograd|functional|linalg|fft|special|distributions|func|sparse|nested|signal|amp)(\.|$)|$)"
)
"""Modules of torch that are searched: those whose functions members compute with."""
HARMLESS = {"torch.compile"}
"""What libraries replace as they are imported (lightning does), and no value depends on."""
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


def replaced() -> dict[str, str]:
    """Return torch's functions, methods, classes and kernels that are not its own, each with the module that they are from.

    What the script has defined, or a file that travels by value, is from `SCRIPT`.
    """
    # What a library adds to torch, torch itself never calls. Sources are read for the few names alone that are not torch's.
    found = {name: home for name, home in _not_of_torch() if name not in HARMLESS and _names(name)}
    for key in torch.library._impls:
        # The kernel of an operator of torch's own that may decide a value, as aten/relu/CPU.
        if key.startswith("aten/") and not key.endswith(NO_VALUES) and not _is_torchs(home := _kernel(key)):
            found[f"torch.ops.{key.replace('/', '.')}"] = home
    return {name: _travelling(home) for name, home in found.items()}


def operators_of_the_script() -> list[str]:
    """Return operators that the script has registered, as ``library::name``."""
    names = ("".join(name.split()) for name in torch.library._defs)  # torch has one with a line break
    homes = {
        name: _home(OPDEFS[name]._init_fn) if name in OPDEFS else _registrar(torch._C._dispatch_dump(name))
        for name in names
    }
    return [name for name, home in homes.items() if _travelling(home) == SCRIPT]


def _not_of_torch() -> Iterator[tuple[str, str]]:
    """Yield names in torch under which another module's functions or classes are, each with that module."""
    for name, module in list(sys.modules.items()):
        if not COMPUTES.match(name):
            continue
        own = vars(module)
        yield from ((f"{name}.{key}", home) for key, home in _foreign(own, own))
        for key, value in list(own.items()):
            if isinstance(value, type) and value.__module__ == name:
                yield from ((f"{name}.{key}.{inner}", home) for inner, home in _foreign(vars(value), own))


def _foreign(names: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names in a module of torch, with globals `own`, whose values are not torch's, each with its module."""
    for key, value in list(names.items()):
        if type(value) is FunctionType and value.__globals__ is own:
            continue
        if not _is_torchs(home := _home(value)):
            yield key, home


def _names(path: str) -> bool:
    """Whether torch's own code has this name: in the source of its module, or compiled."""
    module = path
    while module not in sys.modules:
        module = module.rpartition(".")[0]
    name = path.rpartition(".")[2]
    try:
        own = re.search(rf"\b{re.escape(name)}\b", inspect.getsource(sys.modules[module])) is not None
    except (OSError, TypeError):
        return True
    return own or hasattr(torch._C._VariableFunctions, name) or hasattr(torch._C.TensorBase, name)


def _home(value: Any) -> str:
    """Return the module that a function or class is from; of another callable, the module of its class."""
    kind = type(value)
    if kind is FunctionType:
        home: str = value.__globals__.get("__name__", "torch")
        return home
    if kind in WRAPPERS:
        return _home(getattr(value, WRAPPERS[kind]))
    if isinstance(value, type):
        return value.__module__
    return kind.__module__ if callable(value) else "torch"


def _travelling(home: str) -> str:
    """Return the module, or the script where it travels by value."""
    by_value = cloudpickle.list_registry_pickle_by_value()
    return SCRIPT if any(home == one or home.startswith(f"{one}.") for one in by_value) else home


@functools.cache
def _is_torchs(home: str) -> bool:
    # A namedtuple's methods are compiled in a module of no such name.
    return home.partition(".")[0] in TORCHS or home.startswith("namedtuple_")


def _kernel(key: str) -> str:
    """Return the module that has registered a kernel; the script where it was by a function of torch's, which does not tell."""
    library, operator, dispatch = key.split("/")
    lines = torch._C._dispatch_dump(f"{library}::{operator}").splitlines()
    found = _registrar(next(line for line in lines if line.startswith((f"{dispatch}:", f"{dispatch}["))))
    return SCRIPT if found == "torch.library" else found


def _registrar(line: str) -> str:
    """Return the module of the file that torch says it was registered in; the script where no module has that file."""
    found = REGISTERED.search(line)
    if found is None:
        return "torch"  # it has been taken back
    if found[1].startswith(str(Path(torch.__file__).parent)):
        return "torch.library" if found[1] == torch.library.__file__ else "torch"
    homes = (name for name, module in list(sys.modules.items()) if vars(module).get("__file__") == found[1])
    return next(homes, SCRIPT)
