"""Errors of process state that workers cannot share, and of files that have changed."""

import contextlib
import os
import sys
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

from argosy.running.launch.worker import refuse_breakpoint
from argosy.stream.mapped import MappedFile
from argosy.training.device.process_state import SETTINGS, ProcessState, check_portable_state, check_settings_kept

__all__ = ["CASES"]


class Counting(TorchFunctionMode):
    """A mode that the script defines."""


def on_meta() -> None:
    """Set a default device that workers cannot use."""
    torch.set_default_device("meta")
    try:
        check_portable_state()
    finally:
        torch.set_default_device(None)


def within(context: Any) -> None:
    """Start a run inside a context."""
    with context:
        check_portable_state()


def hooked() -> None:
    """Register a global module hook."""
    with contextlib.ExitStack() as last:
        last.callback(register_module_forward_hook(lambda module, inputs, output: output).remove)
        check_portable_state()


def typed(code: str) -> dict[str, Any]:
    """Run code as a user's script."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "<cell>", "exec"), names)
    return names


def stopped() -> None:
    """Call a debugger in a worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "breakpointhook", refuse_breakpoint)
        typed("breakpoint()")


def replacing() -> None:
    """Replace a function of torch in the script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "relu", typed("def relu(x): return x")["relu"])
        ProcessState.here()


def registering() -> None:
    """Register an operator in the script."""
    library = typed("from torch.library import Library; library = Library('ours', 'DEF')")["library"]
    library.define("twice(Tensor x) -> Tensor")
    try:
        ProcessState.here()
    finally:
        library._destroy()


def replaced_by(module: str) -> None:
    """Start a worker in which this module's import must replace a function of torch."""
    replace(ProcessState.here(), replaced={"torch.nn.functional.relu": module}).apply()


def setting_up() -> None:
    """Change a process-wide default from a member."""
    with check_settings_kept("mlp"):
        torch.set_default_dtype(torch.float64)
        nn.Linear(3, 2)


def elsewhere(name: str, value: Any) -> None:
    """Apply a setting on a node that lacks support for it."""
    next(setting for setting in SETTINGS if setting.name == name).hold(value)


def mapped() -> Any:
    """Return an array mapped from disk, as a study holds it."""
    np.save("x.npy", np.zeros(1000))
    return np.load("x.npy", mmap_mode="r")


def cut() -> None:
    """Truncate a mapped file."""
    array = mapped()
    os.truncate("x.npy", 500)
    MappedFile.of(array)


def changed() -> None:
    """Delete a mapped file during a run."""
    found = MappedFile.of(mapped())
    assert found is not None
    Path("x.npy").unlink()
    found[0].check()


CASES = {
    "a breakpoint in a process without a terminal": stopped,
    "a default device other than the CPU": on_meta,
    "a run inside autocast": lambda: within(torch.autocast("cpu")),
    "a global module hook": hooked,
    "a torch function that the script replaces": replacing,
    "an operator registered by the script": registering,
    "a module that replaces torch functions and is missing in a worker": lambda: replaced_by("of_the_script"),
    "a module that replaces torch functions after its import": lambda: replaced_by("json"),
    "a run inside hooks for saved tensors": lambda: within(
        torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept)
    ),
    "a run inside a torch mode": lambda: within(Counting()),
    "a member that changes a setting of its process": setting_up,
    "a setting that another node does not support": lambda: elsewhere("locale.setlocale", {"LC_NUMERIC": "tlh_QO"}),
    "a file that was truncated after it was mapped": cut,
    "a mapped file that changes during a run": changed,
}
