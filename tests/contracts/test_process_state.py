"""Tests that process-wide settings of a script apply in every worker: each row of `docs/internals/process_state.md`, and all together."""

import contextlib
import copyreg
import hashlib
import importlib
import itertools
import json
import locale
import logging
import os
import pickle
import random
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import evidence
import forked
import jobs
import numpy as np
import pytest
import studies
import torch
from test_pipelines import Dealt
from torch import Tensor, nn
from torch._functorch._aot_autograd.utils import register_buffer_assignment_hook
from torch._library.custom_ops import OPDEFS
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset
from torch.utils.module_tracker import ModuleTracker

import argosy
from argosy.errors import MemberFailed, RunError, StudyError
from argosy.planning import POLICIES
from argosy.running.launch.forkserver import ForkServer
from argosy.running.launch.launcher import Launcher
from argosy.settings import Settings
from argosy.training.device.process_state import SETTINGS, ProcessState, preserve_process_state

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "process_state.md").read_text()
TABLE = {
    name: (becomes, how) for name, becomes, how in re.findall(r"(?m)^\| `([^`]+)`[^|]* \| (.*?) \| (.*?) ?\|$", PAGE)
}
LAUNCHERS = ("inline", "processes", "two nodes")
VARIABLE = "A_VARIABLE_OF_THE_SCRIPT"

SCRIPT: dict[str, Callable[[], Any]] = {
    "torch.get_default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch.get_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "torch.backends.cudnn.allow_tf32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "torch.backends.fp32_precision": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "torch.backends.cudnn.fp32_precision": lambda: setattr(torch.backends.cudnn, "fp32_precision", "tf32"),
    "torch.backends.cudnn.conv.fp32_precision": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "torch.backends.cudnn.rnn.fp32_precision": lambda: setattr(torch.backends.cudnn.rnn, "fp32_precision", "ieee"),
    "torch.backends.cuda.matmul.fp32_precision": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "torch.backends.mkldnn.fp32_precision": lambda: setattr(torch.backends.mkldnn, "fp32_precision", "bf16"),
    "torch.backends.mkldnn.matmul.fp32_precision": lambda: setattr(
        torch.backends.mkldnn.matmul, "fp32_precision", "bf16"
    ),
    "torch.backends.mkldnn.conv.fp32_precision": lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),
    "torch.backends.mkldnn.rnn.fp32_precision": lambda: setattr(torch.backends.mkldnn.rnn, "fp32_precision", "bf16"),
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": lambda: setattr(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": lambda: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": lambda: setattr(
        torch.backends.cuda.matmul, "allow_fp16_accumulation", True
    ),
    "torch.backends.cudnn.enabled": lambda: setattr(torch.backends.cudnn, "enabled", False),
    "torch.backends.cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "torch.backends.cudnn.deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "torch.backends.mkldnn.enabled": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "torch.backends.mkldnn.deterministic": lambda: setattr(torch.backends.mkldnn, "deterministic", True),
    "torch.utils.deterministic.fill_uninitialized_memory": lambda: setattr(
        torch.utils.deterministic, "fill_uninitialized_memory", False
    ),
    "torch.backends.cuda.flash_sdp_enabled": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "torch.backends.cuda.mem_efficient_sdp_enabled": lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
    "torch.backends.cuda.math_sdp_enabled": lambda: torch.backends.cuda.enable_math_sdp(False),
    "torch.backends.cuda.cudnn_sdp_enabled": lambda: torch.backends.cuda.enable_cudnn_sdp(False),
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed": lambda: (
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    ),
    "torch.backends.mha.get_fastpath_enabled": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "torch.backends.quantized.engine": lambda: setattr(torch.backends.quantized, "engine", _other_engine()),
    "torch.get_deterministic_debug_mode": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "torch.set_flush_denormal": lambda: torch.set_flush_denormal(True),
    "torch.get_autocast_dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "torch.is_autocast_cache_enabled": lambda: torch.set_autocast_cache_enabled(False),
    "torch.__future__.get_swap_module_params_on_conversion": lambda: (
        torch.__future__.set_swap_module_params_on_conversion(True)
    ),
    "torch.is_anomaly_enabled": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "torch.distributions.Distribution.set_default_validate_args": lambda: (
        torch.distributions.Distribution.set_default_validate_args(False)
    ),
    "torch.is_warn_always_enabled": lambda: torch.set_warn_always(True),
    "numpy.geterr": lambda: np.seterr(divide="raise", invalid="ignore"),
    "sys.getrecursionlimit": lambda: sys.setrecursionlimit(2345),
    "locale.setlocale": lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"),
    "warnings.filters": lambda: warnings.filterwarnings("error", "of the script's own", UserWarning),
    "os.environ": lambda: (os.environ.__setitem__(VARIABLE, "set"), os.environ.__delitem__("HOME")),
    "copyreg.pickle": lambda: copyreg.pickle(Sent, lambda sent: (Sent, (sent.words,))),
    "torch.nn.functional": lambda: importlib.import_module("replacing"),
}
"""How a script changes each setting that the table marks as "travels"."""
NOT_HERE = {
    "torch.backends.cudnn.benchmark_limit",
    "torch.backends.opt_einsum.enabled",
    "torch.backends.opt_einsum.strategy",
    "torch.backends.cuda.preferred_linalg_library",
    "torch.backends.cuda.preferred_blas_library",
}
"""Settings that cannot be changed without CUDA or the package opt_einsum, so that no test here sets them."""
LINES = (*SCRIPT, *sorted(NOT_HERE))


class Doubled(TorchFunctionMode):
    """A torch function mode that is active when the run starts; a mode could change every operation."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def hooked() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * 2)
    with contextlib.closing(contextlib.ExitStack()) as last:
        last.callback(handle.remove)
        yield


@contextlib.contextmanager
def on_meta() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def replacing() -> Iterator[None]:
    original = functional.relu
    functional.relu = typed("def relu(x): return x + 1")["relu"]
    try:
        yield
    finally:
        functional.relu = original


@contextlib.contextmanager
def registering(*arguments: str) -> Iterator[None]:
    library = typed(f"from torch.library import Library; library = Library({arguments[0]})")["library"]
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns that a kernel is overridden
            for argument in arguments[1:]:
                library.define(argument) if "(" in argument else library.impl(argument, lambda x: x + 1, "CPU")
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def defining() -> Iterator[None]:
    name = f"more{next(NUMBERS)}"  # a new name: torch removes an earlier operator at an unpredictable time
    typed(
        f"import torch\n@torch.library.custom_op('ours::{name}', mutates_args=())\n"
        f"def {name}(x: torch.Tensor) -> torch.Tensor: return x + 1"
    )
    try:
        yield
    finally:  # torch would keep the operator otherwise
        del OPDEFS[f"ours::{name}"]
        torch.library._defs.discard(f"ours::{name}")


NUMBERS = itertools.count()


def typed(code: str) -> dict[str, Any]:
    """Run code as `__main__`, like a user's script or notebook, and return its globals."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "<cell>", "exec"), names)
    return names


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "torch.set_default_device": (on_meta, "torch's default device is meta, but members are built on the CPU"),
    "torch.autocast": (partial(torch.autocast, "cpu"), "torch.autocast is on for cpu where the run was started"),
    "torch.nn.modules.module.register_module_forward_hook": (hooked, r"a hook for all modules or optimizers \(forward"),
    "torch.autograd.graph.saved_tensors_hooks": (
        partial(torch.autograd.graph.saved_tensors_hooks, lambda kept: kept, lambda kept: kept),
        "inside hooks for saved tensors",
    ),
    "torch.nn.functional.relu = mine": (
        replacing,
        r"torch.nn.functional.relu was replaced by a function of the script",
    ),
    'torch.library.Library("aten", "IMPL")': (
        partial(registering, "'aten', 'IMPL'", "relu"),
        r"torch.ops.aten.relu.CPU was replaced by a function of the script",
    ),
    "torch.library.custom_op": (defining, r"operator 'ours::more\d' is registered by the script"),
    'torch.library.Library("ours", "DEF")': (
        partial(registering, "'ours', 'DEF'", "less(Tensor x) -> Tensor"),
        "operator 'ours::less' is registered by the script",
    ),
    "torch.overrides.TorchFunctionMode": (Doubled, r"inside a torch mode, 'Doubled'"),
}
NO_EFFECT: dict[str, Callable[[], Any]] = {
    "torch.manual_seed": lambda: (torch.manual_seed(7), np.random.seed(7), random.seed(7)),
    "torch.set_num_threads": lambda: torch.set_num_threads(2),
    "torch.no_grad": lambda: torch.set_grad_enabled(False),
    "torch.set_printoptions": lambda: (torch.set_printoptions(precision=2), np.set_printoptions(precision=2)),
    "torch.multiprocessing.set_sharing_strategy": lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
    "logging.basicConfig": lambda: logging.getLogger().setLevel(logging.DEBUG),
}


def _other_engine() -> str:
    engines = torch.backends.quantized.supported_engines
    return next(engine for engine in engines if engine not in ("none", torch.backends.quantized.engine))


class Sent:
    """An object that pickles only with the reducer that the script registers: it holds a lock."""

    def __init__(self, words: str) -> None:
        self.words, self.lock = words, threading.Lock()


def told(sent: Sent | None) -> dict[str, Any]:
    """Return the settings of this process by the names in the table."""
    found = ProcessState._found()
    filters = [
        [action, text, category.__name__, module, line] for action, text, category, module, line in found.filters
    ]
    return {
        **found.settings,
        "warnings.filters": filters,
        "os.environ": [os.environ.get(VARIABLE), os.environ.get("HOME")],
        "copyreg.pickle": sent and sent.words,
        "torch.nn.functional": functional.softsign.__module__,
    }


def seen(sent: Sent) -> list[int]:
    """Return the settings of this process as 32 numbers, a SHA-256 digest, for each name in `LINES`."""
    found = told(sent)
    lines = [hashlib.sha256(json.dumps(found[name], sort_keys=True).encode()).digest() for name in LINES]
    return [number for line in lines for number in line]


class Seeing(Dataset[tuple[Tensor, int]]):
    """Samples of the default dtype whose values encode the settings of the process that prepares them."""

    def __init__(self, sent: Sent) -> None:
        self.sent = sent

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([number / 255 for number in seen(self.sent)]) + torch.randn(32 * len(LINES)), index % 10


class Sees(nn.Module):
    """A network whose checkpoint records the settings of the process that built it."""

    def __init__(self, sent: Sent) -> None:
        super().__init__()
        self.layer = nn.Linear(32 * len(LINES), 10)
        self.register_buffer("seen", torch.tensor(seen(sent), dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(functional.softsign(x))


def study(sent: Sent) -> argosy.Study:
    fleet = [studies.member(name, model=partial(Sees, sent), lr=lr) for name, lr in {"a": 0.1, "b": 0.2}.items()]
    return studies.study(data=argosy.Data(train=Seeing(sent), val=Seeing(sent)), fleet=fleet, epochs=2)


def launcher_of(name: str, folder: Path) -> Launcher | str:
    """Return the launcher; for two nodes, start the other node's agent now, before the script changes a setting."""
    if name != "two nodes":
        return name
    launcher = jobs.TwoNodes(folder / "board")
    launcher.start_agent(Settings())
    return launcher


def train(launcher: Launcher | str, directory: Path) -> dict[str, Any]:
    two = isinstance(launcher, jobs.TwoNodes)
    rest: dict[str, Any] = {"policy": "dealt", "nodes": 2} if two else {}
    report = argosy.train(
        study(Sent("sent")),
        directory=directory,
        launcher=launcher,
        devices="cpu:1",
        numerics="exact",
        loader_workers=1,
        **rest,
    )
    assert report.status == "done", [member.reason for member in report.members]
    return evidence.results(directory)


@pytest.fixture(autouse=True)
def _dealt() -> Iterator[None]:
    with own_process():
        yield


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Restore the process's settings after a test that acts as a script."""
    with pytest.MonkeyPatch.context() as patch, preserve_process_state():
        patch.setitem(POLICIES, "dealt", Dealt())
        patch.setattr(functional, "softsign", functional.softsign)
        for name in ("HOME", VARIABLE):
            patch.setenv(name, os.environ.get(name, ""))
        patch.delenv(VARIABLE)
        yield
    copyreg.dispatch_table.pop(Sent, None)
    sys.modules.pop("replacing", None)


def test_the_page_names_what_travels_and_what_is_compared() -> None:
    assert {name for name, (becomes, _) in TABLE.items() if becomes == "travels"} == {*SCRIPT, *NOT_HERE}
    assert {name for name, (becomes, _) in TABLE.items() if becomes == "refused"} == {*REFUSED}
    assert {name for name, (becomes, _) in TABLE.items() if becomes == "no effect"} == {*NO_EFFECT}
    compared = {name for name, (_, how) in TABLE.items() if how.startswith("compared")}
    assert compared == {setting.name for setting in SETTINGS if setting.decides}
    assert {setting.name for setting in SETTINGS} == {*SCRIPT, *NOT_HERE} - {
        "warnings.filters",
        "os.environ",
        "copyreg.pickle",
        "torch.nn.functional",
    }


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS if setting.name not in NOT_HERE])
def test_each_setting_holds_where_it_is_applied_and_is_given_back(name: str) -> None:
    before = ProcessState.here()
    with preserve_process_state():
        SCRIPT[name]()
        asked = ProcessState.here()
    assert asked.settings[name] != before.settings[name]
    assert ProcessState.here() == before
    with preserve_process_state():
        asked.apply()
        assert ProcessState.here() == asked
    assert ProcessState.here() == before


def test_a_filter_of_several_warnings_holds_for_each() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (FutureWarning, UserWarning))
        with preserve_process_state():
            pass
        warnings.warn("hidden", UserWarning, stacklevel=1)
        warnings.warn("hidden", FutureWarning, stacklevel=1)
        with pytest.raises(DeprecationWarning):
            warnings.warn("seen", DeprecationWarning, stacklevel=1)


def answer(line: Connection) -> None:
    """Send the settings of this process before and after applying the state that is received."""
    line.send(told(None))
    line.recv().apply()
    line.send(told(pickle.loads(line.recv())))


@pytest.mark.parametrize("name", SCRIPT)
def test_each_line_by_itself_holds_in_a_process_that_was_there_before(name: str) -> None:
    ours, theirs = Pipe()
    other = forked.fork(partial(answer, theirs), keep=[theirs.fileno()])
    theirs.close()
    before = ours.recv()
    SCRIPT[name]()
    sent = Sent("sent") if name == "copyreg.pickle" else None
    ours.send(ProcessState.here())
    ours.send(cloudpickle.dumps(sent))
    there = ours.recv()
    assert other.wait(30) == 0
    assert there == told(sent)
    assert there[name] != before[name]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], dict[str, dict[str, Tensor]], list[Any]]:
    """Train under each launcher with all settings changed; return the script's settings, the checkpoints and the results."""
    folder = tmp_path_factory.mktemp("together")
    with own_process(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "start", forked.start_server)  # as conftest.py does for every test
        launchers = {name: launcher_of(name, folder) for name in LAUNCHERS}
        for act in SCRIPT.values():
            act()
        reached = [train(launcher, folder / name) for name, launcher in launchers.items()]
        saved = {name: torch.load(folder / name / "members" / "a" / "last.pt")["model"] for name in LAUNCHERS}
        return seen(Sent("sent")), saved, reached


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_line_holds_where_members_are_built(launcher: str, name: str, together: Any) -> None:
    expected, saved, _ = together
    line = slice(32 * LINES.index(name), 32 * LINES.index(name) + 32)
    assert saved[launcher]["seen"][line].tolist() == expected[line]


def test_all_of_them_together_give_the_same_under_each_launcher(together: Any) -> None:
    _, saved, reached = together
    assert {found["layer.weight"].dtype for found in saved.values()} == {torch.float64}
    assert reached[0] == reached[1] == reached[2]


@pytest.mark.parametrize("launcher", ["inline", "processes"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_travel_is_refused(name: str, launcher: str, tmp_path: Path) -> None:
    within, words = REFUSED[name]
    with within(), pytest.raises(StudyError, match=words):
        argosy.train(studies.study(), directory=tmp_path, launcher=launcher)


def test_a_hook_that_torch_itself_has_left_is_no_obstacle() -> None:
    """A torch.export that fails leaves this one under torch 2.11; a counter that the user has entered is not left behind."""
    handle = register_buffer_assignment_hook(nn.Linear(1, 1), {})
    with contextlib.closing(contextlib.ExitStack()) as last:
        last.callback(handle.remove)
        assert ProcessState.here()
        with ModuleTracker(), pytest.raises(StudyError, match=r"torch has a hook for all modules .*forward_pre_hooks"):
            ProcessState.here()


def test_what_an_import_replaces_in_one_process_alone_is_named() -> None:
    state = replace(ProcessState.here(), replaced={"torch.nn.functional.celu": "replacing"})
    with pytest.raises(
        StudyError, match=r"functional.celu comes from replacing where the run was started, but is torch's own"
    ):
        state.apply()
    state = replace(state, replaced={"torch.nn.functional.celu": "there_is_no_such_module"})
    with pytest.raises(StudyError, match=r"a worker cannot import it: No module named 'there_is_no_such_module'"):
        state.apply()


def test_what_a_library_adds_to_torch_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An added method of `Module` is not reported as replaced: transformers adds one when it loads its first network."""
    for name in ("added_by_a_library", "apply"):
        monkeypatch.setattr(nn.Module, name, studies.study, raising=False)
    assert set(ProcessState.here().replaced) == {"torch.nn.modules.module.Module.apply"}


def test_what_has_no_effect_has_none(tmp_path: Path) -> None:
    plain = train("inline", tmp_path / "plain")
    copyreg.pickle(Sent, lambda sent: (Sent, (sent.words,)))
    launchers = {name: launcher_of(name, tmp_path) for name in LAUNCHERS}
    for act in NO_EFFECT.values():
        act()
    try:
        for name, launcher in launchers.items():
            assert train(launcher, tmp_path / name) == plain, name
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
        torch.multiprocessing.set_sharing_strategy("file_descriptor")
        torch.set_printoptions(profile="default")
        np.set_printoptions(precision=8)
        logging.getLogger().setLevel(logging.WARNING)


class Meddles(studies.Mlp):
    """A network that changes the default dtype of its process, when it is built or in a step, and so affects its neighbours."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.set_up("built")

    def forward(self, x: Tensor) -> Tensor:
        self.set_up("stepped")
        return super().forward(x)

    def set_up(self, where: str) -> None:
        if where == self.where:
            torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("where", ["built", "stepped"])
@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_a_member_that_changes_it_ends_alone(where: str, launcher: str, tmp_path: Path) -> None:
    alone = studies.study(fleet=[studies.member("plain")])
    argosy.train(alone, directory=tmp_path / "alone", launcher="inline")
    meddling = studies.member("meddling", model=partial(Meddles, where))
    beside = studies.study(fleet=[meddling, studies.member("plain")])
    with pytest.warns(MemberFailed, match="changes torch.get_default_dtype"):
        report = argosy.train(beside, directory=tmp_path / "beside", launcher=launcher, devices="cpu:1")
    assert (
        "'meddling' changes torch.get_default_dtype from 'torch.float32' to 'torch.float64'"
        in report.member("meddling").reason
    )
    assert evidence.results_of(tmp_path / "beside", "plain") == evidence.results(tmp_path / "alone")["plain"]


def test_inline_leaves_the_process_as_it_was_found(tmp_path: Path) -> None:
    def meddles() -> nn.Module:
        torch.autograd.set_detect_anomaly(True)
        sys.setrecursionlimit(2000)
        warnings.simplefilter("ignore")
        return studies.Mlp()

    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    before, drawn = ProcessState.here(), (torch.rand(3), np.random.rand(3), random.random())
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    argosy.train(studies.study(fleet=[studies.member(model=meddles)]), directory=tmp_path, launcher="inline")
    assert ProcessState.here() == before
    assert torch.equal(torch.rand(3), drawn[0])
    assert (np.random.rand(3) == drawn[1]).all()
    assert random.random() == drawn[2]


def test_a_run_goes_on_under_what_it_began_with(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    asked = partial(argosy.train, directory=tmp_path, launcher="inline")
    asked(studies.study(data=argosy.Data(train=Seeing(Sent("")), val=None), fleet=[seeing()], epochs=1))
    torch.set_default_dtype(torch.float32)
    longer = studies.study(data=argosy.Data(train=Seeing(Sent("")), val=None), fleet=[seeing()], epochs=2)
    with pytest.raises(RunError, match=r"torch.get_default_dtype: was torch.float64, is now torch.float32"):
        asked(longer)
    torch.set_default_dtype(torch.float64)
    assert asked(longer).status == "done"


def seeing() -> argosy.Member:
    return studies.member(model=partial(nn.Linear, 32 * len(LINES), 10), metrics={})


STUDY = """
import torch
from torch import nn
import argosy
torch.set_default_dtype(torch.float64)
study = argosy.Study(
    data=argosy.Data(arrays=(torch.randn(90, 6), torch.arange(90) % 3)),
    members=[argosy.Member("a", model=lambda: nn.Linear(6, 3), optimizer=torch.optim.Adam, batch_size=10)],
    stop=argosy.MaxEpochs(1),
)
"""


def test_what_a_study_file_sets_up_holds_for_its_run(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(STUDY)
    ran = forked.command(tmp_path, ["run", "study.py", "--dir", "run", "--devices", "cpu:1"])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    saved = torch.load(tmp_path / "run" / "members" / "a" / "last.pt", weights_only=True)["model"]
    assert {tensor.dtype for tensor in saved.values()} == {torch.float64}
