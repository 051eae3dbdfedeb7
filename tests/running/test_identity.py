"""Tests that a run directory belongs to one study: each change to what determines a member's result is found and reported."""

import importlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pytest
import studies
import torch
from optuna.distributions import CategoricalDistribution
from torch.utils.data import Subset

import argosy
from argosy.errors import MemberFailed, RunError, StudyError
from argosy.protocol.events import MemberStarted, Proposed, SearchBegan
from argosy.readings import is_own_module
from argosy.running.directory.journal import read_journal
from argosy.running.directory.studyfile import load_study
from argosy.stream.code_digest import CodeReader
from argosy.stream.imported import check_imports, digest_imports
from argosy.stream.value_text import ValueText

FILE = """
import argparse
from functools import partial
import torch
from torch import nn
import argosy
import beside
from beside import last

HIDDEN = 8
SETTINGS = {"scale": 1.0, "epochs": 1}
args = argparse.Namespace(gamma=0.5, epochs=1)
class CFG:
    decay, seeds = 0.8, 3

def scaled(output, target):
    return nn.functional.cross_entropy(output, target, reduction="none") * SETTINGS["scale"] * beside.further.WEIGHT

def stepped(cfg):
    return lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=cfg.step, gamma=args.gamma * CFG.decay)

class Net(nn.Module):
    slope = 0.1
    def __init__(self, inputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.LeakyReLU(self.slope), last(HIDDEN))
    def forward(self, x):
        return self.layers(x)

def turned(x):
    return x if x in {"a", "b", "c"} else x.flip(0)

def share(output, target):
    from beside import factor
    return argosy.accuracy(output, target) * factor()

x = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
study = argosy.Study(
    data=argosy.Data(arrays=(x, torch.arange(30) % 3), on_device=lambda batch: (batch[0] * 1.0, batch[1])),
    members=[
        argosy.Member("a", model=partial(Net, 6), optimizer=lambda p: torch.optim.SGD(p, 0.1), batch_size=10, loss=scaled),
        argosy.Member("b", model=lambda: Net(6), optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=10,
                      schedule=stepped(argparse.Namespace(step=5, rounds=2)),
                      loss=nn.CrossEntropyLoss(label_smoothing=0.1), metrics={"share": share},
                      augment=lambda batch: (batch[0] + 0.0, batch[1])),
    ],
    stop=argosy.MaxEpochs(1),
)
"""
BESIDE = """
import further
from torch import nn
def last(hidden):
    return nn.Linear(hidden, 3)
def factor():
    return 1.0
"""
FURTHER = """
WEIGHT = 1.5
"""
MODULE = """
import torch
SCALE = 1.0

def loss(output, target):
    return torch.nn.functional.cross_entropy(output, target) * SCALE

def on_device(batch):
    return batch[0] * SCALE, batch[1]

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return torch.full((12,), index * SCALE), index % 10
"""
CODE = {
    "a constant": (("HIDDEN = 8", "HIDDEN = 9"), "members 'a', 'b', model: HIDDEN changed since the run began"),
    "a dict": (('"scale": 1.0', '"scale": 2.0'), "member 'a', loss: SETTINGS.scale changed since the run began"),
    "an argument": (("gamma=0.5", "gamma=0.6"), "member 'b', schedule: args.gamma changed since the run began"),
    "a class of settings": (
        ("seeds = 0.8", "seeds = 0.7"),
        "member 'b', schedule: CFG.decay changed since the run began",
    ),
    "a setting enclosed": (("step=5", "step=6"), "member 'b', schedule: stepped.<lambda> changed since the run began"),
    "an attribute": (("slope = 0.1", "slope = 0.2"), "members 'a', 'b', model: Net changed since the run began"),
    "an instance": (("smoothing=0.1", "smoothing=0.2"), "member 'b', loss: its content changed since the run began"),
    "an augmentation": (("[0] + 0.0", "[0] + 0.1"), "member 'b', augment: <lambda> changed since the run began"),
    "an optimizer": (("SGD(p, 0.1)", "SGD(p, 0.2)"), "member 'a', optimizer: <lambda> changed since the run began"),
    "a method": (
        ("self.layers(x)", "self.layers(turned(x))"),
        "model: Net.forward, turned changed since the run began",
    ),
    "another file": (
        ("(hidden, 3)", "(hidden, 3, bias=False)"),
        "members 'a', 'b', model: last changed since the run",
    ),
    "what a function imports": (
        ("return 1.0", "return 2.0"),
        "member 'b', metrics.share: factor changed since the run",
    ),
    "a module's module": (("WEIGHT = 1.5", "WEIGHT = 2.5"), "member 'a', loss: WEIGHT changed since the run began"),
    "a metric": (
        ("accuracy(output, target)", "accuracy(output, target * 0)"),
        "'b', metrics.share: share changed since",
    ),
    "on_device": (("[0] * 1.0", "[0] * 2.0"), "Data.on_device: <lambda> changed since the run began"),
}
SAME = {
    "as it was": ("", ""),
    "comments and lines": ("return self.layers(x)", "# the layers\n\n        return self.layers(x)  # all of them"),
    "a docstring": ("return self.layers(x)", '"""Scores."""\n        return self.layers(x)'),
    "a key that is not read": ('"epochs": 1', '"epochs": 2'),
    "an argument that is not read": ("gamma=0.5, epochs=1", "gamma=0.5, epochs=2"),
    "an attribute that is not read": ("seeds = 0.8, 3", "seeds = 0.8, 4"),
    "a setting enclosed that is not read": ("rounds=2", "rounds=3"),
    "what nobody uses": ("def turned(x):\n", "def turned(x, y=3):\n"),
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., argosy.Study]:
    """Return a function that loads the study file, with a change or without, as a new process of the command would."""

    def load(old: str = "", new: str = "", *, name: str = "study") -> argosy.Study:
        assert old in FILE + BESIDE + FURTHER
        folder = tmp_path / f"files{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for file, text in ((f"{name}.py", FILE), ("beside.py", BESIDE), ("further.py", FURTHER)):
            (folder / file).write_text(text.replace(old, new) if old else text)
        monkeypatch.setattr(sys, "path", [*sys.path])
        for module in (name, "beside", "further"):
            monkeypatch.setitem(sys.modules, module, sys)  # so that monkeypatch removes the module after the test
            monkeypatch.delitem(sys.modules, module)
        return load_study(folder / f"{name}.py")

    return load


@pytest.fixture
def finished(load: Callable[..., argosy.Study], tmp_path: Path) -> Path:
    """Return the directory of a finished run of the unchanged file."""
    assert train(load(), tmp_path / "run").status == "done"
    return tmp_path / "run"


def train(study: argosy.Study, directory: Path, **settings: Any) -> argosy.Report:
    """Train the study in this process."""
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", **settings)


def refused(study: argosy.Study, directory: Path, **settings: Any) -> str:
    """Check that the study is refused and the directory left unchanged, and return the message."""
    files = [directory / "journal.jsonl", directory / "study.json"]
    before = [file.read_bytes() for file in files]
    with pytest.raises(RunError) as error:
        train(study, directory, **settings)
    assert [file.read_bytes() for file in files] == before
    assert str(error.value).startswith(f"{directory} holds the run of a different study:\n")
    assert "\nUndo the change, or choose another directory. Or " in str(error.value)
    assert "fresh=True (--fresh) trains everything again" in str(error.value)
    return str(error.value)


def test_code_that_changed_is_found_and_what_does_not_matter_is_not(
    finished: Path, load: Callable[..., argosy.Study]
) -> None:
    for name, (change, message) in CODE.items():
        assert message in refused(load(*change), finished), name
    for name, change in SAME.items():
        assert train(load(*change), finished).status == "done", name
    # With another file name or a later stop, it is still the same study.
    assert train(load("MaxEpochs(1)", "MaxEpochs(2)", name="longer"), finished).member("a").epochs == 2


def test_settings_that_a_build_of_torch_lacks_are_not_compared(
    finished: Path, load: Callable[..., argosy.Study]
) -> None:
    found = json.loads((finished / "study.json").read_text())
    process = found["process"]
    process["torch.backends.cudnn.benchmark_limit"] = 10 if torch.backends.cudnn.benchmark_limit is None else None
    (finished / "study.json").write_text(json.dumps(found))
    assert train(load("MaxEpochs(1)", "MaxEpochs(2)"), finished).member("a").epochs == 2
    found["process"] = {**process, "torch.get_default_dtype": "torch.float64"}
    (finished / "study.json").write_text(json.dumps(found))
    expected = "\n  torch.get_default_dtype: was torch.float64, is now torch.float32\nUndo"
    assert expected in refused(load("MaxEpochs(1)", "MaxEpochs(3)"), finished)


def test_digests_of_another_python_are_not_compared(finished: Path, load: Callable[..., argosy.Study]) -> None:
    found = json.loads((finished / "study.json").read_text())
    other = {**found, "code": {**found["code"], "version": "cpython-39"}}
    (finished / "study.json").write_text(json.dumps(other))
    assert train(load(*CODE["an augmentation"][0]), finished).status == "done"
    assert "optimizer.lr: was 0.1, is now 0.2" in refused(load("lr=0.1", "lr=0.2"), finished)
    message = refused(load("partial(torch.optim.SGD, lr=0.1)", "torch.optim.Adam"), finished)
    assert "member 'b', optimizer: was torch.optim.sgd:SGD(lr=0.1), is now torch.optim.adam:Adam" in message


def test_code_that_was_not_compared_is_said_and_not_refused_later(
    finished: Path, load: Callable[..., argosy.Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load("MaxEpochs(1)", "MaxEpochs(2)")
    monkeypatch.setattr(CodeReader, "VERSION", "2 cpython-399 torch-9")
    monkeypatch.setattr(ValueText, "join", lambda text, values: f"({', '.join(map(text.of, values))})")
    unchecked = ".*, so it was not checked whether functions or classes"
    with pytest.warns(UserWarning, match=f"'2 cpython-399 torch-9'{unchecked}") as caught:
        train(replace(whole, members=whole.members[:1]), finished)
    assert len(caught) == 1
    assert train(whole, finished).member("b").epochs == 2
    # Nothing is left to train, but study.json is written, since a member is missing.
    monkeypatch.setattr(CodeReader, "VERSION", "2 cpython-400 torch-9")
    with pytest.warns(UserWarning, match=f"'2 cpython-400 torch-9'{unchecked}"):
        train(replace(whole, members=whole.members[:1]), finished)


def test_a_digest_is_the_same_in_every_process() -> None:
    program = "import studies; from argosy.stream.code_digest import CodeReader; print(CodeReader().read(studies.study).digest)"
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"}
    there = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == CodeReader().read(studies.study).digest


class Own(torch.optim.Optimizer):
    """A user-defined optimizer; torch wraps its class's `step` when the first instance is created."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            weight -= self.param_groups[0]["lr"] * weight.grad


class Heir(Own):
    """An optimizer that inherits its `step`."""


@pytest.mark.parametrize("first", [Own, Heir])
def test_a_digest_is_the_same_when_optimizers_of_the_class_were_made(
    first: type[Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Own, Heir):
        monkeypatch.setattr(kind, "step", Own.step, raising=False)
    monkeypatch.delattr(Heir, "step")
    unmade = [CodeReader().read(kind).digest for kind in (Own, Heir)]
    for kind in (first, Own, Heir):
        kind([torch.nn.Parameter(torch.zeros(1))])
        assert [CodeReader().read(kind).digest for kind in (Own, Heir)] == unmade


IMPORTS = "from torch import nn, optim\nimport torch.nn.functional as F\n"
FUNCTION = """
def used(network, x):
    for layer in nn.ModuleList(network):
        if F.relu(x, inplace=False).sum() > 0:
            continue
        try:
            with F.lock(layer) as x:
                F.gelu(x)
        except ValueError:
            break
    return optim.SGD(network.parameters(), lr=0.1, momentum=F.relu(x))
"""


def used(text: str, **modules: Any) -> Any:
    """Return the function `used` that a file or a cell of a notebook with this text defines, beside these modules."""
    exec(text, modules)
    return modules["used"]


def test_a_function_has_the_same_digest_wherever_its_modules_are_imported() -> None:
    """Calls of functions of modules have another bytecode below the imports than in another cell of a notebook, or as %autoreload compiles them."""
    modules = {"nn": torch.nn, "optim": torch.optim, "F": torch.nn.functional}
    below, apart = used(IMPORTS + FUNCTION), used(FUNCTION, **modules)
    assert below.__code__.co_code != apart.__code__.co_code
    assert CodeReader().read(below).digest == CodeReader().read(apart).digest
    for change in (("continue", "return"), ("break", "pass"), ("lr=0.1", "lr=0.2"), ("momentum=", "weight_decay=")):
        assert CodeReader().read(used(FUNCTION.replace(*change), **modules)).digest != CodeReader().read(apart).digest


def test_functions_of_a_script_count_where_a_package_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker of joblib or submitit, and under ``python -m cProfile``, the file of ``__main__`` is theirs."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", torch.__file__, raising=False)
    is_own_module.cache_clear()
    one, other = (used(FUNCTION.replace("lr=0.1", lr), __name__="__main__") for lr in ("lr=0.1", "lr=0.2"))
    assert CodeReader().read(one).digest != CodeReader().read(other).digest


def test_a_function_of_a_package_may_enclose_itself() -> None:
    """A function whose closure contains itself, as `torch.jit.script_method` leaves in classes, has a digest."""

    def lowered(number: int) -> int:
        return lowered(number - 1) if number else 0

    lowered.__module__ = "torch._jit_internal"
    assert CodeReader().read(lowered).digest == CodeReader().read(lowered).digest


def scaled(output: torch.Tensor, target: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    """A custom loss."""
    return torch.nn.functional.cross_entropy(output, target, reduction="none") * by


def own_step(model: torch.nn.Module, batch: Any) -> Any:
    """A custom training step."""
    return scaled(model(batch[0]), batch[1])


FIELDS: dict[str, tuple[Any, str]] = {
    "batch_size": (21, "batch_size: was 20, is now 21"),
    "eval_batch_size": (7, "eval_batch_size: was none, is now 7"),
    "drop_last": (True, "drop_last: was False, is now True"),
    "schedule_per": ("step", "schedule_per: was epoch, is now step"),
    "precision": ("bfloat16", "precision: was float32, is now bfloat16"),
    "average": (argosy.EMA(0.9), "average: was none, is now EMA(decay=0.9)"),
    "clip_grad_norm": (1.0, "clip_grad_norm: was none, is now 1.0"),
    "accumulate": (2, "accumulate: was 1, is now 2"),
    "seed": (3, "seed: was none, is now 3"),
    "subset": ([1, 2], "subset: was none, is now 1-2"),
    "val_subset": (range(3), "val_subset: was none, is now 0-2"),
    "model": (partial(studies.Mlp, 24), "model.hidden: was 16, is now 24"),
    "loss": (scaled, "loss: was none, is now test_identity:scaled"),
    "schedule": (
        partial(torch.optim.lr_scheduler.StepLR, step_size=1),
        "schedule: was none, is now torch.optim.lr_scheduler:",
    ),
    "step": (own_step, "step: was none, is now test_identity:own_step"),
    "augment": (studies.dawdle, "augment: was none, is now studies:dawdle"),
    "metrics": ({"accuracy": scaled}, "metrics.accuracy: was argosy.study:accuracy, is now test_identity:scaled"),
}
OF_STUDY = {
    "seed": (1, "seed: was 0, is now 1"),
    "objective": ("train_loss", "objective: was val_loss, is now train_loss"),
    "mode": ("max", "mode: was min, is now max"),
    "validations_per_epoch": (2, "validations_per_epoch: was 1, is now 2"),
    "fleet": ([studies.member("other")], "members 'one', 'two': no longer in the study"),
}


def interrupting(batch: Any) -> Any:
    """An augmentation that ends the run in the folder $INTERRUPT once, after a member has started: measuring calls it before that."""
    folder = os.environ.get("INTERRUPT")
    if folder and any(isinstance(event, MemberStarted) for event in read_journal(Path(folder))):
        del os.environ["INTERRUPT"]
        signal.raise_signal(signal.SIGTERM)  # not SIGINT, which background jobs of a shell may ignore
    return batch


@pytest.mark.parametrize("paused", [False, True])
def test_a_field_that_decides_a_result_is_found_and_said(
    tmp_path: Path, paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(change: dict[str, Any] | None = None, **fields: Any) -> argosy.Study:
        fleet = [studies.member("one", **(change or {})), studies.member("two", augment=interrupting)]
        return studies.study(60, val=9, **{"fleet": fleet, "epochs": 1, **fields})

    if paused:
        monkeypatch.setenv("INTERRUPT", str(tmp_path))
    assert train(asked(epochs=99 if paused else 1), tmp_path).status == ("paused" if paused else "done")
    for field, (value, message) in FIELDS.items():
        assert f"member 'one', {message}" in refused(asked({field: value}), tmp_path), field
    for field, (value, message) in OF_STUDY.items():
        assert message in refused(asked(**{field: value}), tmp_path), field
    long = asked({"subset": [*range(0, 59, 2)]})
    assert "subset: was none, is now 0 2 4 6 " in refused(long, tmp_path)
    # Stopping rules and devices may change, and members may be added.
    new = studies.member("new")
    more = [new, studies.member("one", stop=argosy.MaxSteps(3)), studies.member("two", augment=interrupting)]
    assert train(asked(fleet=more), tmp_path).status == "done"


def test_other_samples_of_either_split_are_found_as_soon_as_the_data_is_open(tmp_path: Path) -> None:
    def asked(*, epochs: int = 2, train: float = 0.0, val: float = 0.0) -> argosy.Study:
        labels = torch.arange(40) % 10
        arrays, val_arrays = ((torch.full((40, 12), value), labels) for value in (train, val))
        data = argosy.Data(arrays=arrays, val_arrays=val_arrays)
        return studies.study(data=data, fleet=[studies.member()], epochs=epochs)

    train(asked(epochs=1), tmp_path)
    assert "Data.train: its samples or labels have changed" in refused(asked(train=1.0), tmp_path)
    assert "Data.val: its samples or labels have changed" in refused(asked(val=1.0), tmp_path)


class Labelled(studies.Vectors):
    """A dataset with its labels in a list."""

    def __init__(self, labels: list[int]) -> None:
        super().__init__(len(labels), noise=0.0)
        self.labels = labels

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(index)[0], self.labels[index]


class Rows(studies.Vectors):
    """A dataset with its labels in a DataFrame."""

    def __init__(self, labels: list[int]) -> None:
        super().__init__(len(labels), noise=0.0)
        self.frame = pandas.DataFrame({"path": [f"{row}.jpg" for row in range(len(labels))], "label": labels})

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(index)[0], int(self.frame.label[index])


@pytest.mark.parametrize("kind", ["arrays", "Dataset", "Subset", "DataFrame"])
def test_one_other_label_is_found(tmp_path: Path, kind: str) -> None:
    """A changed label is found although its sample is neither first nor last nor probed."""

    def asked(label: int, epochs: int) -> argosy.Study:
        labels = [index % 10 for index in range(40)]
        labels[7] = label
        if kind == "arrays":
            data = argosy.Data(arrays=(torch.zeros(40, 12), torch.tensor(labels)))
        else:
            whole = Rows(labels) if kind == "DataFrame" else Labelled(labels)
            data = argosy.Data(train=Subset(whole, range(1, 39)) if kind == "Subset" else whole)
        return studies.study(data=data, fleet=[studies.member()], epochs=epochs, objective="train_loss")

    train(asked(7, 1), tmp_path)
    assert "Data.train: its samples or labels have changed" in refused(asked(3, 2), tmp_path)
    assert train(asked(7, 2), tmp_path).status == "done"
    if kind == "arrays":  # other datasets are not opened if nothing is left to train
        assert "Data.train: its samples or labels have changed" in refused(asked(3, 2), tmp_path)


@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_validation_on_training_samples_is_told(tmp_path: Path, launcher: str) -> None:
    whole = Labelled([index % 10 for index in range(40)])
    fleet = [studies.member()]
    halves = argosy.Data(train=Subset(whole, range(25)), val=Subset(whole, range(20, 40)))
    with pytest.warns(UserWarning, match=r"Data\.val: 5 of its 20 samples are also training samples") as told:
        argosy.train(studies.study(data=halves, fleet=fleet, epochs=1), directory=tmp_path / "a", launcher=launcher)
    assert [Path(one.filename).name for one in told] == [Path(__file__).name]
    noisy = studies.Vectors(40)
    augmented = argosy.Data(train=noisy, val=noisy)
    with pytest.warns(UserWarning, match="members are validated on augmented samples"):
        argosy.train(studies.study(data=augmented, fleet=fleet, epochs=1), directory=tmp_path / "b", launcher=launcher)


@pytest.mark.fresh
@pytest.mark.parametrize(
    ("reader", "how"),
    [("loss", "set by the script"), ("Dataset", "changed meanwhile"), ("on_device", "set by the script")],
)
def test_a_module_that_is_another_in_a_worker_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, how: str
) -> None:
    file = tmp_path / "of_workers.py"
    file.write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "of_workers", sys)  # so that monkeypatch removes the module after the test
    monkeypatch.delitem(sys.modules, "of_workers")
    module: Any = importlib.import_module("of_workers")
    member = studies.member(**({"loss": module.loss} if reader == "loss" else {}))
    on_device = module.on_device if reader == "on_device" else None
    data = argosy.Data(train=module.Rows() if reader == "Dataset" else studies.Vectors(30), on_device=on_device)
    study = studies.study(data=data, fleet=[member], epochs=1, objective="train_loss")
    if how == "set by the script":
        module.SCALE = 20.0
    else:
        file.write_text(MODULE.replace("SCALE = 1.0", "SCALE = 20.0"))
    with pytest.raises(StudyError, match=r"^of_workers\.SCALE: not the same in all processes"):
        argosy.train(study, directory=tmp_path / "run", devices="cpu:1")


HOLDING = """
import numpy as np, torch
from torch import nn
{held}

class Net(nn.Module):
    B = {attribute}

    def __init__(self):
        super().__init__()
        self.answer = nn.Linear(12, 3)

    def forward(self, x):
        return self.answer(x * {read})

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return torch.full((12,), index / 30) * {read}, index % 3
"""


def holding(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, held: str = "", attribute: str = "None", read: str = "B"
) -> Any:
    """Import a module that holds such values, and return it."""
    (folder / "of_draws.py").write_text(HOLDING.format(held=held, attribute=attribute, read=read))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "of_draws", sys)  # so that monkeypatch removes the module after the test
    monkeypatch.delitem(sys.modules, "of_draws")
    return importlib.import_module("of_draws")


@pytest.mark.fresh
@pytest.mark.parametrize("reader", ["model", "Dataset"])
def test_values_that_a_module_draws_anew_in_each_process_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    module = holding(tmp_path, monkeypatch, held="B = torch.randn(12)")
    data = argosy.Data(train=module.Rows() if reader == "Dataset" else studies.Vectors(30))
    fleet = [studies.member(**({"model": module.Net} if reader == "model" else {}))]
    study = studies.study(data=data, fleet=fleet, epochs=1, objective="train_loss")
    with pytest.raises(StudyError, match=r"^of_draws\.B: values that a module holds are not the same in all processes"):
        argosy.train(study, directory=tmp_path / "run", devices="cpu:1")


@pytest.mark.parametrize(
    ("held", "attribute", "read"),
    [
        ("B = torch.randn(12)", "None", "B"),
        ("B = np.random.default_rng().permutation(12)", "None", "torch.tensor(B)"),
        ("B = nn.Linear(12, 12)", "None", "B(x)"),
        ("", "torch.randn(12)", "self.B"),
        ("def scaled(by):\n    return lambda x: x * by\nB = scaled(torch.randn(12))", "None", "B(x)"),
    ],
)
def test_values_that_differ_in_another_process_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str, attribute: str, read: str
) -> None:
    module = holding(tmp_path, monkeypatch, held=held, attribute=attribute, read=read)
    wanted = digest_imports([studies.member(model=module.Net)])
    check_imports([studies.member(model=module.Net)], wanted)
    module = importlib.reload(module)
    with pytest.raises(StudyError, match=r"^of_draws\.\S+: values that a module holds are not the same"):
        check_imports([studies.member(model=module.Net)], wanted)


@pytest.mark.parametrize(
    ("held", "changed"),
    [
        ("B = torch.zeros(12)", "B[3:5] = 7.0"),  # a cache
        ("B = np.full(12, np.nan)", "B[:] = range(12)"),
        ("B = torch.ones(())", "B += 1"),  # a counter
        ("B = torch.linspace(0, 1, 12)", "B *= 1.00001"),  # rounded in another way
        ("B = np.array(['x', 'y'])", "B[0] = 'z'"),
        ("B = nn.LazyLinear(12)", "B.in_place = True"),
        ("B = nn.Identity()\nB.parameters = {'width': 12}", "B.parameters['width'] = 13"),
        ("B = torch.tensor([1j, 2j], dtype=torch.complex128).conj().imag", "B *= 1.00001"),
    ],
)
def test_values_that_may_differ_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str, changed: str
) -> None:
    module = holding(tmp_path, monkeypatch, held=held)
    fresh = digest_imports([studies.member(model=module.Net)])
    exec(changed, vars(module))
    check_imports([studies.member(model=module.Net)], fresh)
    in_driver = digest_imports([studies.member(model=module.Net)])
    check_imports([studies.member(model=importlib.reload(module).Net)], in_driver)


@pytest.mark.parametrize(
    "read", ["CFG.scale", "args.scale", "SETTINGS['scale']", "SETTINGS['of']['scale']", "owner.CFG.scale"]
)
def test_settings_that_a_script_sets_in_a_module_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    (tmp_path / "of_settings.py").write_text(
        "import argparse, sys\nclass CFG:\n    scale = epochs = 1.0\nargs = argparse.Namespace(scale=1.0, epochs=1.0)\n"
        "SETTINGS = {'scale': 1.0, 'epochs': 1.0, 'of': {'scale': 1.0}}\nowner = sys.modules[__name__]\n"
        f"def loss(output, target):\n    return output.mean() * {read}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "of_settings", sys)  # so that monkeypatch removes the module after the test
    monkeypatch.delitem(sys.modules, "of_settings")
    module: Any = importlib.import_module("of_settings")
    wanted = digest_imports([studies.member(loss=module.loss)])
    module.CFG.epochs = module.args.epochs = module.SETTINGS["epochs"] = 2.0
    check_imports([studies.member(loss=module.loss)], wanted)
    module.CFG.scale = module.args.scale = module.SETTINGS["scale"] = module.SETTINGS["of"]["scale"] = 2.0
    with pytest.raises(StudyError, match=r"^of_settings\.(CFG|args|SETTINGS|SETTINGS\.of)\.scale: not the same"):
        check_imports([studies.member(loss=module.loss)], wanted)


def test_a_folder_may_be_another_one_on_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_nodes.py").write_text(
        "ROOT, SCALE = '/scratch/1', 1.0\ndef loss(output, target):\n    return output.mean() * SCALE * len(ROOT)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "of_nodes", sys)  # so that monkeypatch removes the module after the test
    monkeypatch.delitem(sys.modules, "of_nodes")
    module: Any = importlib.import_module("of_nodes")
    wanted = digest_imports([studies.member(loss=module.loss)])
    module.ROOT = "/scratch/2"
    check_imports([studies.member(loss=module.loss)], wanted)
    module.SCALE = 2.0
    with pytest.raises(StudyError, match=r"^of_nodes\.SCALE: not the same"):
        check_imports([studies.member(loss=module.loss)], wanted)


def test_a_node_with_another_version_of_a_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "of_packages.py"
    package.parent.mkdir()
    package.write_text("__version__ = '1.0'\ndef loss(output, target):\n    return output.mean()\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setitem(sys.modules, "of_packages", sys)  # so that monkeypatch removes the module after the test
    monkeypatch.delitem(sys.modules, "of_packages")
    module: Any = importlib.import_module("of_packages")
    wanted = digest_imports([studies.member(loss=module.loss)])
    check_imports([studies.member(loss=module.loss)], wanted)
    module.__version__ = "2.0"
    with pytest.raises(StudyError, match=r"^the version of of_packages: not the same in all"):
        check_imports([studies.member(loss=module.loss)], wanted)
    # As click has it, whose __getattr__ warns, so that it raises under `python -W error`.
    monkeypatch.delattr(module, "__version__")
    module.__getattr__ = lambda name: warnings.warn(f"{name} is deprecated", DeprecationWarning, stacklevel=2)
    assert "the version of of_packages" not in digest_imports([studies.member(loss=module.loss)])
    metadata = package.parent / "of_packages-3.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: of_packages\nVersion: 3.0\n")
    importlib.invalidate_caches()
    assert digest_imports([studies.member(loss=module.loss)])["the version of of_packages"] == ["3.0"]


def broken(batch: Any) -> Any:
    """An augmentation that always raises."""
    raise ValueError("broken")


def test_a_member_that_failed_may_be_mended(tmp_path: Path) -> None:
    def asked(**fields: Any) -> argosy.Study:
        return studies.study(60, val=9, fleet=[studies.member("good"), studies.member("bad", **fields)], epochs=1)

    with pytest.warns(MemberFailed, match="'bad' failed: ValueError: broken"):
        assert train(asked(augment=broken), tmp_path).member("bad").status == "failed"
    with pytest.warns(MemberFailed, match="'bad' failed: ValueError: broken"):
        assert train(asked(augment=studies.dawdle, hidden=24), tmp_path).member("good").status == "done"


def test_a_member_that_diverged_at_once_does_not_seem_to_diverge_with_other_settings(tmp_path: Path) -> None:
    def asked(lr: float) -> argosy.Study:
        return studies.study(60, val=9, fleet=[studies.member("good"), studies.member("wild", lr=lr)], epochs=1)

    with pytest.warns(MemberFailed, match="'wild' diverged"):
        assert not train(asked(1e30), tmp_path).member("wild").epochs
    with pytest.raises(RunError, match=r"'wild', optimizer.lr: was 1e\+30, is now 0\.01\n(.|\n)*fresh=\['wild'\]"):
        train(asked(0.01), tmp_path)
    assert train(asked(0.01), tmp_path, fresh="wild").member("wild").status == "done"


def test_a_search_that_is_refused_journals_nothing_of_it(tmp_path: Path) -> None:
    space = {"lr": CategoricalDistribution([0.1])}
    search = partial(argosy.tune, space=space, data=studies.study(val=0).data, max_epochs=1, scheduler="random")
    search = partial(search, directory=tmp_path, launcher="inline", devices="cpu:1")
    search(lambda parameters: studies.member(lr=parameters["lr"]), n_trials=1)
    begun = [event for event in read_journal(tmp_path) if isinstance(event, SearchBegan | Proposed)]
    with pytest.raises(RunError, match="a different study"):
        search(lambda parameters: studies.member(lr=parameters["lr"], hidden=9), n_trials=2)
    assert [event for event in read_journal(tmp_path) if isinstance(event, SearchBegan | Proposed)] == begun
    # Undoing the change, as the message advises, resumes the search.
    assert len(search(lambda parameters: studies.member(lr=parameters["lr"]), n_trials=1).table()) == 1
