"""What holds in the process that asks for a run and cannot hold in others, and files that are not what they were."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from argosy.stream.mapped import MappedFile
from argosy.training.device.process_state import SETTINGS, ProcessState, kept_by, refuse_what_stays

__all__ = ["CASES"]


class Counting(TorchFunctionMode):
    """A mode of the script's own."""


def on_meta() -> None:
    """A default device of no use to others."""
    torch.set_default_device("meta")
    try:
        refuse_what_stays()
    finally:
        torch.set_default_device(None)


def within(context: Any) -> None:
    """A run is started inside of it."""
    with context:
        refuse_what_stays()


def hooked() -> None:
    """A hook of every module."""
    with contextlib.ExitStack() as last:
        last.callback(register_module_forward_hook(lambda module, inputs, output: output).remove)
        refuse_what_stays()


def typed(code: str) -> dict[str, Any]:
    """Run code as a script of a person's own."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "<cell>", "exec"), names)
    return names


def replacing() -> None:
    """A function of torch's is the script's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "relu", typed("def relu(x): return x")["relu"])
        ProcessState.here()


def registering() -> None:
    """An operator of the script's."""
    library = typed("from torch.library import Library; library = Library('ours', 'DEF')")["library"]
    library.define("twice(Tensor x) -> Tensor")
    try:
        ProcessState.here()
    finally:
        library._destroy()


def replaced_by(module: str) -> None:
    """A worker is to have what the import of a module replaces."""
    replace(ProcessState.here(), replaced={"torch.nn.functional.relu": module}).apply()


def setting_up() -> None:
    """A member leaves another default to its neighbours."""
    with kept_by("mlp"):
        torch.set_default_dtype(torch.float64)
        nn.Linear(3, 2)


def elsewhere(name: str, value: Any) -> None:
    """A worker of another node, which has something less."""
    next(setting for setting in SETTINGS if setting.name == name).hold(value)


def mapped() -> Any:
    """An array on disk, as a study holds it."""
    np.save("x.npy", np.zeros(1000))
    return np.load("x.npy", mmap_mode="r")


def cut() -> None:
    """Its file is cut."""
    array = mapped()
    os.truncate("x.npy", 500)
    MappedFile.of(array)


def changed() -> None:
    """Its file is gone in the middle of a run."""
    found = MappedFile.of(mapped())
    assert found is not None
    Path("x.npy").unlink()
    found[0].check()


CASES = {
    "a default device that is none of the run's": on_meta,
    "a run inside of autocast": lambda: within(torch.autocast("cpu")),
    "a hook of all modules": hooked,
    "a function of torch's that the script replaces": replacing,
    "an operator that the script registers": registering,
    "a module that replaces torch's functions, and that a worker lacks": lambda: replaced_by("of_the_script"),
    "a module that replaces torch's functions later than by its import": lambda: replaced_by("json"),
    "a run inside of hooks for saved tensors": lambda: within(
        torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept)
    ),
    "a run inside of a mode of torch": lambda: within(Counting()),
    "a member that changes a setting of its process": setting_up,
    "a setting that another node cannot have": lambda: elsewhere("locale.setlocale", {"LC_NUMERIC": "tlh_QO"}),
    "a file that was cut after it was mapped": cut,
    "a mapped file that changes in the middle of a run": changed,
}
