"""Process-wide settings that a script makes, applied in every process of its run.

`docs/internals/process_state.md` lists for each setting whether it is carried, refused, or has no effect.
"""

import contextlib
import importlib
import locale
import os
import random
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import overrides
from torch.distributions import Distribution
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils import _python_dispatch as dispatch
from torch.utils._device import DeviceContext

from argosy.errors import MemberError, StudyError
from argosy.training.device.replaced import SCRIPT, find_replaced, script_operators

__all__ = [
    "SETTINGS",
    "ProcessState",
    "Setting",
    "preserve_process_state",
    "check_settings_kept",
    "preserve_random_states",
    "check_portable_state",
]

RANDOM_LOCK = threading.RLock()
"""Held by the thread that uses the process's random generators; draws of another thread that trains or predicts would interleave."""
# A forked child has none of its parent's threads but the one that forked.
os.register_at_fork(after_in_child=lambda: RANDOM_LOCK._is_owned() or RANDOM_LOCK._at_fork_reinit())  # type: ignore[attr-defined]
ATTRIBUTES = (
    "backends.cudnn.allow_tf32",
    "backends.fp32_precision",
    "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.mkldnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.benchmark_limit",
    "backends.cudnn.deterministic",
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "backends.opt_einsum.enabled",
    "backends.opt_einsum.strategy",
    "utils.deterministic.fill_uninitialized_memory",
)
"""Attributes of torch. If one setting has several names, the older comes first, because writing it may set the others."""
FUNCTIONS = {
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "backends.cuda.flash_sdp_enabled": "backends.cuda.enable_flash_sdp",
    "backends.cuda.mem_efficient_sdp_enabled": "backends.cuda.enable_mem_efficient_sdp",
    "backends.cuda.math_sdp_enabled": "backends.cuda.enable_math_sdp",
    "backends.cuda.cudnn_sdp_enabled": "backends.cuda.enable_cudnn_sdp",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed": "backends.cuda.allow_fp16_bf16_reduction_math_sdp",
    "backends.mha.get_fastpath_enabled": "backends.mha.set_fastpath_enabled",
    "get_deterministic_debug_mode": "set_deterministic_debug_mode",
    "is_autocast_cache_enabled": "set_autocast_cache_enabled",
    "__future__.get_swap_module_params_on_conversion": "__future__.set_swap_module_params_on_conversion",
}
"""Functions of torch that read settings, each with the function that writes the setting."""
LOCALES = ("LC_COLLATE", "LC_MONETARY", "LC_NUMERIC", "LC_TIME")
"""Categories that Python leaves at ``C`` until a script calls ``setlocale``."""
NODES_OWN = ("ARGOSY_", "RAY_", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Prefixes of environment variables that each node sets for itself, like those for visible devices."""
HOOKS = re.compile("_global_.+_hooks")
"""Names under which torch keeps the hooks of all modules and of all optimizers."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a process. Its values are plain JSON values."""

    name: str
    read: Callable[[], Any]
    """Returns None, or raises RuntimeError, if the setting has no value or was made under another name."""
    write: Callable[[Any], object]
    _: KW_ONLY
    decides: bool = True
    """Whether weights and metrics may depend on it."""

    def value(self) -> Any:
        """Return the value in this process; None if it cannot be read."""
        try:
            return self.read()
        except RuntimeError:
            return None

    def hold(self, value: Any) -> None:
        """Set the value in this process; raises StudyError if that fails."""
        if value is None or self.value() == value:
            return
        try:
            self.write(value)
        except (RuntimeError, ValueError, locale.Error) as error:
            raise StudyError(
                f"{self.name} is {value!r} where the run was started, but a worker cannot set it: {error}. Leave "
                "it at its default, or train on a machine that supports it."
            ) from error


def _attribute(path: str, *, decides: bool = True) -> Setting:
    owner, _, last = path.rpartition(".")

    def write(value: Any) -> None:
        setattr(attrgetter(owner)(torch), last, value)

    return Setting(f"torch.{path}", partial(attrgetter(path), torch), write, decides=decides)


def _library(name: str) -> Setting:
    """Return the setting of a GPU library. Without a preference the machine decides, so a resumed run may have another value."""
    preferred = getattr(torch.backends.cuda, name)
    return Setting(f"torch.backends.cuda.{name}", lambda: preferred().name.lower(), preferred, decides=False)


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype


def _flushes_denormals() -> bool:
    """Return whether denormals are flushed. Torch has no getter, but it sets a processor flag that Python's floats obey as well."""
    return sys.float_info.min / float(2) == 0.0


def _set_autocast_dtypes(dtypes: Mapping[str, str]) -> None:
    for kind, name in dtypes.items():
        torch.set_autocast_dtype(kind, _dtype(name))


def _set_locales(names: Mapping[str, str]) -> None:
    for category, name in names.items():
        locale.setlocale(getattr(locale, category), name)


SETTINGS = (
    Setting(
        "torch.get_default_dtype",
        lambda: str(torch.get_default_dtype()),
        lambda name: torch.set_default_dtype(_dtype(name)),
    ),
    *(Setting(f"torch.{get}", attrgetter(get)(torch), attrgetter(write)(torch)) for get, write in FUNCTIONS.items()),
    *map(_attribute, ATTRIBUTES),
    *map(_library, ("preferred_linalg_library", "preferred_blas_library")),
    _attribute("backends.quantized.engine", decides=False),  # the default depends on the processor
    Setting("torch.set_flush_denormal", _flushes_denormals, torch.set_flush_denormal),
    Setting(
        "torch.get_autocast_dtype",
        lambda: {kind: str(torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")},
        _set_autocast_dtypes,
    ),
    Setting(
        "torch.is_anomaly_enabled",
        lambda: [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()],
        lambda value: torch.autograd.set_detect_anomaly(*value),
        decides=False,
    ),
    Setting(
        "torch.distributions.Distribution.set_default_validate_args",
        lambda: Distribution._validate_args,
        Distribution.set_default_validate_args,
        decides=False,
    ),
    Setting("torch.is_warn_always_enabled", torch.is_warn_always_enabled, torch.set_warn_always, decides=False),
    Setting("numpy.geterr", np.geterr, lambda value: np.seterr(**value), decides=False),
    Setting("sys.getrecursionlimit", sys.getrecursionlimit, sys.setrecursionlimit, decides=False),
    Setting(
        "locale.setlocale",
        lambda: {category: locale.setlocale(getattr(locale, category)) for category in LOCALES},
        _set_locales,
        decides=False,
    ),
)
"""Settings that are carried, each named after its getter, or after its setter if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessState:
    """Process-wide state of one process."""

    settings: Mapping[str, Any]
    """Values by setting."""
    filters: tuple[tuple[Any, ...], ...]
    """Warning filters, as arguments of ``warnings.filterwarnings``."""
    environment: Mapping[str, str | None]
    """Environment variables that changed since the process began; None for removed ones."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Functions of torch that an imported module has replaced, with the name of the module."""

    @classmethod
    def here(cls) -> "ProcessState":
        """Return this process's state; raises StudyError for settings that cannot be carried."""
        with RANDOM_LOCK:  # a run in another thread may have other settings and hooks
            check_portable_state()
            return replace(cls._found(), replaced=_replaced_by_modules())

    @classmethod
    def _found(cls) -> "ProcessState":
        return cls(
            settings={setting.name: setting.value() for setting in SETTINGS},
            filters=tuple(plain for rule in warnings.filters for plain in _plain_filters(rule)),
            environment=_changed_environment(),
        )

    @property
    def decisive_settings(self) -> dict[str, Any]:
        """The settings that a member's result may depend on."""
        settings = {setting.name: self.settings[setting.name] for setting in SETTINGS if setting.decides}
        return {**settings, "functions of torch": dict(self.replaced)}

    def apply(self) -> None:
        """Apply this state; raises StudyError if a setting cannot be made."""
        for name, value in self.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if "TZ" in self.environment:
            # The C library reads the variable only then.
            time.tzset()
        self._replace()
        self._hold()

    def _replace(self) -> None:
        """Import the modules that replace functions of torch; raises StudyError if that does not replace them here."""
        for module in sorted(set(self.replaced.values())):
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise StudyError(
                    f"{module} replaces functions of torch where the run was started, but a worker cannot import "
                    f"it: {error}. Install it on all nodes, or remove the replacement."
                ) from error
        # The same function may also be an attribute of torch modules that only the script has imported.
        replaced_here = (
            {(name.rpartition(".")[2], module) for name, module in find_replaced().items()} if self.replaced else ()
        )
        for name, module in self.replaced.items():
            if (name.rpartition(".")[2], module) not in replaced_here:
                raise StudyError(
                    f"{name} comes from {module} where the run was started, but is torch's own in a worker, which "
                    f"has imported {module}. Let {module} replace it at import, or call your own function in the "
                    "network."
                )

    def _hold(self) -> None:
        for setting in SETTINGS:
            setting.hold(self.settings[setting.name])
        # Appended in their order, because `filterwarnings` puts a filter before all others.
        warnings.resetwarnings()
        for action, message, category, module, line in self.filters:
            warnings.filterwarnings(action, message, category, module, line, append=True)


@contextlib.contextmanager
def preserve_process_state() -> Iterator[None]:
    """Allow training in this process, with gradients; restore its settings and random states afterwards."""
    with preserve_random_states():
        before, threads = ProcessState._found(), torch.get_num_threads()
        try:
            # The script may have started the run inside no_grad() or inference_mode().
            with torch.inference_mode(False), torch.enable_grad():
                yield
        finally:
            torch.set_num_threads(threads)
            before._hold()


@contextlib.contextmanager
def preserve_random_states() -> Iterator[None]:
    """Save the random states of the process, which belong to other code, and restore them at the end. Threads take turns."""
    with RANDOM_LOCK:
        before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.default_generator.set_state(before[2])


@contextlib.contextmanager
def check_settings_kept(member: str) -> Iterator[None]:
    """Run a member's code inside. If it leaves a setting changed, restore the setting and raise MemberError."""
    before = {setting: setting.value() for setting in SETTINGS if setting.decides}
    try:
        yield
    finally:
        changed = {setting: now for setting, was in before.items() if (now := setting.value()) != was}
        for setting in changed:
            setting.hold(before[setting])
    if changed:
        setting, now = next(iter(changed.items()))
        raise MemberError(
            f"member {member!r} changes {setting.name} from {before[setting]!r} to {now!r}, which affects all "
            "members of its process. Set it in the script, before the run, or restore it at the end of the "
            "member's code."
        )


def check_portable_state() -> None:
    """Raise StudyError for settings of this process that affect results and cannot be carried to another process."""
    of_functions, of_kernels = overrides._get_current_function_mode_stack, dispatch._get_current_dispatch_mode_stack
    modes: list[Any] = [*of_functions(), *of_kernels()]  # type: ignore[no-untyped-call]
    foreign = [mode for mode in modes if not isinstance(mode, DeviceContext)]
    if foreign:
        raise StudyError(
            f"the run was started inside a torch mode, {type(foreign[0]).__name__!r}, which workers do not have. "
            "Start it outside, and enter the mode in the member's step."
        )
    kind = torch.empty(0).device  # finds a default set by set_default_tensor_type too
    if kind.type != "cpu":
        raise StudyError(
            f"torch's default device is {kind}, but members are built on the CPU and moved to --devices. Remove "
            "torch.set_default_device, or reset it before the run: torch.set_default_device('cpu')."
        )
    casting = [kind for kind in ("cpu", "cuda", "xpu") if torch.is_autocast_enabled(kind)]
    if casting:
        raise StudyError(
            f"torch.autocast is on for {casting[0]} where the run was started, but each member has its own "
            "precision. Start the run outside autocast, and set precision='bfloat16' or 'float16' on members."
        )
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise StudyError(
            "the run was started inside hooks for saved tensors (torch.autograd.graph), which workers do not "
            "have. Start it outside, and enter them in the member's step."
        )
    hooks = {
        name: held for of in (modules, optimizers) for name, held in vars(of).items() if HOOKS.fullmatch(name) and held
    }
    registered = hooks.get("_global_buffer_registration_hooks", {})
    if all(hook.__module__.startswith("torch.") for hook in registered.values()):
        # Left behind by a torch.export that failed (torch 2.11); it does nothing.
        hooks.pop("_global_buffer_registration_hooks", None)
    if hooks:
        raise StudyError(
            f"torch has a hook for all modules or optimizers ({next(iter(hooks)).removeprefix('_global_')}), which workers "
            "do not have. Register it on the member's network, in the function that builds it."
        )


def _replaced_by_modules() -> dict[str, str]:
    """Return `find_replaced`; raises StudyError if the script itself has replaced functions or registered operators."""
    replaced = find_replaced()
    own = [name for name, home in replaced.items() if home == SCRIPT]
    if own:
        raise StudyError(
            f"{own[0]} was replaced by a function of the script, which workers do not have. Call that function "
            "directly in the network or the member's step, or put it into a module that replaces torch's at "
            "import."
        )
    if operators := script_operators():
        raise StudyError(
            f"the operator {operators[0]!r} is registered by the script, so workers do not have it. Register it in "
            "a module next to the script that the network's code imports."
        )
    return replaced


def _plain_filters(rule: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return a filter as arguments of `warnings.filterwarnings`, one tuple per category, because that function accepts only one."""
    action, message, categories, module, line = rule
    message, module = getattr(message, "pattern", message) or "", getattr(module, "pattern", module) or ""
    each = categories if isinstance(categories, tuple) else (categories,)
    return [(action, message, category, module, line) for category in each]


def _changed_environment() -> dict[str, str | None]:
    """Return environment variables changed since the process began, except those that nodes set for themselves."""
    if sys.platform != "linux":
        return {}  # only processes of workers need them
    try:  # the kernel keeps the environment with which the process was started
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    except PermissionError:  # after os.setuid(); all variables travel then
        lines = []
    began = dict(os.fsdecode(line).split("=", 1) for line in lines if b"=" in line)
    changed = [name for name in {**began, **os.environ} if began.get(name) != os.environ.get(name)]
    return {
        name: os.environ.get(name)
        for name in sorted(changed)
        if not name.startswith(NODES_OWN) and not name.endswith("VISIBLE_DEVICES")
    }
