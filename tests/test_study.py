"""Tests that invalid members, data, studies and grids are refused in one sentence when they are made."""

import pickle
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import living
import numpy as np
import pytest
import studies
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import IterableDataset

import argosy
from argosy.errors import StudyError
from argosy.running.directory.studyfile import load_study
from argosy.study import IGNORED, ignored_class, sharing_warnings


def sgd_like(lr: float, parameters: Iterator[nn.Parameter], *more: float) -> SGD:
    """An optimizer factory whose parameters come before the network's weights."""
    return SGD(parameters, lr)


class Lines(IterableDataset):
    """An iterable dataset."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


class Paired:
    """As a metric of Ignite, it takes outputs and targets as one pair."""

    def update(self, output: tuple[torch.Tensor, torch.Tensor]) -> None: ...

    def compute(self) -> float:
        return 0.0


def given(**fields: Any) -> Callable[[], object]:
    """Return a function that makes a member with these fields."""
    return lambda: studies.member("a", **fields)


def asked(**fields: Any) -> Callable[[], object]:
    """Return a function that makes a study with these fields."""
    return lambda: argosy.Study(**{"data": arrays(), "members": [studies.member("a", metrics={})], **fields})


def holding(**fields: Any) -> Callable[[], object]:
    """Return a function that makes Data with these fields."""
    return lambda: argosy.Data(**fields)


def arrays(val: bool = False) -> argosy.Data:
    """Return Data of ten samples."""
    rows = (torch.zeros(10, 12), torch.zeros(10, dtype=torch.long))
    return argosy.Data(arrays=rows, val_arrays=rows if val else None)


MASK = "is a mask of True and False, which would be read as samples 1 and 0. Pass the indices that it selects: mask.nonzero()"
MEMBERS = {
    "list as mask": (given(subset=[True, False, True]), f"member 'a': subset {MASK}"),
    "array as mask": (given(subset=np.arange(9) > 4), MASK),
    "tensor as mask": (given(val_subset=torch.arange(9) > 4), f"member 'a': val_subset {MASK}"),
    "list of floats": (given(subset=[0, 1.0]), "subset holds values of type float; indices must be ints"),
    "array of floats": (given(subset=np.zeros(3)), "subset holds values of type float64"),
    "no samples": (given(subset=[]), "subset is empty. Pass the indices of at least one sample."),
    "negative": (given(subset=torch.tensor([3, -1])), "subset has the index -1; indices must be at least 0"),
    "nested": (given(subset=np.zeros((2, 2), int)), "subset has shape (2, 2); indices must be one-dimensional"),
    "set": (given(subset={1, 2}), "subset is an instance of set; it must be a list, an array or a tensor of indices."),
    "long name": (
        lambda: studies.member("ä" * 128),
        "has 256 bytes; as a folder name it can have at most 250. Shorten it",
    ),
    "no name": (lambda: studies.member(3), "member name 3 cannot be used as a folder name"),
    "a network": (given(model=nn.Linear(12, 10)), "model must be a factory (a class, a function, a functools.partial)"),
    "an optimizer": (
        given(optimizer=SGD([torch.zeros(1)], 0.1)),
        "optimizer of the parameters that it is given; found an",
    ),
    "rule": (given(stop=10), "member 'a': stop is 10; it must be a stopping rule, such as MaxEpochs(10)."),
    "true": (given(batch_size=True), "batch_size is True; it must be an int of at least 1."),
    "none": (given(batch_size=None), "batch_size is None; it must be an int of at least 1."),
    "loss": (given(loss=0.5), "loss is 0.5; it must be a function: (output, target) -> losses"),
    "class": (
        given(loss=nn.CrossEntropyLoss),
        "loss is the class CrossEntropyLoss; it must be an instance",
    ),
    "schedule": (
        given(schedule=StepLR(SGD([torch.zeros(1)], 0.1), 2)),
        "schedule is an instance of StepLR; it must be a factory: optimizer -> scheduler",
    ),
    "augment": (given(augment="flip"), "augment is 'flip'; it must be a function: batch -> batch."),
    "step": (given(metrics={}, step=3), "step is 3; it must be a function: (model, batch) -> loss."),
    "no norm": (given(clip_grad_norm=0.0), "clip_grad_norm is 0.0; it must be a finite number greater than 0."),
    "norm": (given(clip_grad_norm=float("nan")), "clip_grad_norm is nan; it must be a finite number greater than 0."),
    "negative seed": (given(seed=-1), "seed is -1; it must be an int of at least 0."),
    "seed": (given(seed=1.5), "seed is 1.5; it must be an int"),
    "large seed": (given(seed=2**64), "it must be less than 2**63."),
    "drop_last": (given(drop_last="no"), "drop_last is 'no'; it must be True or False."),
    "precision": (
        given(precision="float8"),
        "precision is 'float8' (did you mean 'float32'?); it must be 'float32', 'bfloat16' or 'float16'.",
    ),
    "per": (given(schedule_per="batch"), "schedule_per is 'batch'; it must be 'epoch' or 'step'."),
    "metrics": (given(metrics=[argosy.accuracy]), "metrics is an instance of list; it must be a dict"),
    "metric": (
        given(metrics={"f1": 0.3}),
        "the metric 'f1' is 0.3; it must be a function: (outputs, targets) -> values.",
    ),
    "metric of Ignite": (
        given(metrics={"f1": Paired()}),
        "update of the metric 'f1' is Paired.update, which cannot be called with 2 arguments (too many positional arguments); it must be "
        "update(outputs, targets). Wrap a metric of Ignite in an object whose update calls update((outputs, targets)).",
    ),
    "called loss": (
        given(metrics={"loss": argosy.accuracy}),
        "a metric is named 'loss', but the column val_loss holds",
    ),
    "called a list": (
        given(metrics={"f1,f2": argosy.accuracy}),
        "the metric name 'f1,f2' cannot be part of a column name",
    ),
}
DATA = {
    "needs arguments": (
        holding(train=studies.Vectors),
        "Data.train is Vectors, which cannot be called with no arguments",
    ),
    "function": (holding(train=lambda path: path), "(missing a required argument: 'path')"),
    "no dataset": (
        holding(train=3),
        "Data.train is 3; it must be a Dataset, with __len__ and __getitem__ or with __iter__, or a function that returns one.",
    ),
    "one tensor": (
        holding(arrays=torch.zeros(9, 2)),
        "Data.arrays is an instance of Tensor; it must be a tuple of tensors",
    ),
    "one array": (holding(train=[1], val_arrays=np.zeros(9)), "Data.val_arrays is an instance of ndarray"),
    "strings": (holding(arrays=(np.array(["a", "b"]),)), "Data.arrays[0] has dtype <U1, but samples must be numbers"),
    "objects": (holding(arrays=(np.array([[], None], object),)), "has dtype object, but samples must be numbers"),
    "a number": (
        holding(arrays=(torch.tensor(3),)),
        "Data.arrays[0] is tensor(3); it must be a tensor or an array with one row per sample.",
    ),
    "lengths": (
        holding(arrays=(torch.zeros(9), [1, 2])),
        "Data.arrays: its arrays have 9, 2 rows; all must have the same",
    ),
    "by name": (
        holding(arrays=(torch.zeros(9), {"a": torch.zeros(9), "b": torch.zeros(9)})),
        "Data.arrays[1] is a dict of 2 arrays, but a sample is one row of each array. Pass the arrays one after another",
    ),
    "nothing": (holding(arrays=()), "Data.arrays: its arrays have no rows"),
    "on_device": (
        holding(train=[1], on_device=nn.Flatten),
        "Data.on_device is the class Flatten; it must be an instance",
    ),
    "on_error": (holding(train=[1], on_error=None), "Data.on_error is None; it must be 'raise' or 'skip'."),
}
WATCH = "it reports epochs, lr, samples, seconds, steps, train_loss. Choose one of these"
STUDIES = {
    "data": (asked(data=[1, 2]), "Study.data is an instance of list; it must be an argosy.Data"),
    "one member": (
        asked(members=studies.member()),
        "Study.members is an instance of Member; it must be a list of members.",
    ),
    "factories": (
        asked(members=[studies.member]),
        "Study.members[0] is an instance of function; it must be an argosy.Member.",
    ),
    "nobody": (asked(members=[]), "Study.members is empty. Add at least one member."),
    "stop": (asked(stop=10), "Study.stop is 10; it must be a stopping rule, such as MaxEpochs(10)."),
    "seed": (asked(seed=True), "Study.seed is True; it must be an int of at least 0."),
    "parts": (asked(validations_per_epoch=0.5), "Study.validations_per_epoch is 0.5; it must be an int"),
    "objective": (asked(objective=3), "Study.objective is 3; it must be the name of a metric."),
    "mode": (asked(mode="low"), "Study: mode is 'low'; it must be 'min' or 'max'."),
    "direction": (
        asked(data=arrays(val=True), members=[given(metrics={"score": argosy.accuracy})()], objective="val_score"),
        "Study: the name 'val_score' does not show whether lower or higher is better; set mode='min' or mode='max'.",
    ),
    "val_subset": (
        asked(members=[given(val_subset=[1])()]),
        "member 'a' has a val_subset, but Data has no validation data",
    ),
    "rule of the study": (
        asked(data=arrays(val=True), stop=argosy.MaxEpochs(3) | argosy.Target("val_f1", 0.5)),
        "member 'a': its stopping rule watches 'val_f1', but it reports epochs, lr, samples, seconds, steps, train_loss, ",
    ),
    "rule of a member": (
        asked(members=[given(stop=argosy.Plateau("val_loss", 2))()]),
        f"watches 'val_loss', but {WATCH}",
    ),
}
GRIDS = {
    "grid of a member": (
        lambda: argosy.grid(studies.member(), lr=[0.1]),
        "argosy.grid: build is an instance of Member; it must be a function that takes a value of each axis and returns an argosy.Member.",
    ),
    "axis of one number": (lambda: argosy.grid(studies.member, lr=0.1), "argosy.grid: lr is 0.1; it must be a list"),
    "axis of one word": (
        lambda: argosy.grid(studies.member, precision="float16"),
        "precision is 'float16'; it must be",
    ),
    "axis of nothing": (lambda: argosy.grid(studies.member, lr=[0.1], hidden=()), "argosy.grid: hidden has no values"),
    "grid of networks": (lambda: argosy.grid(studies.Mlp, hidden=[4]), "build returned an instance of Mlp; it must"),
    "axis of pairs": (
        lambda: argosy.grid(lambda sizes: studies.member(), sizes=[(4, 4)]),
        "argosy.grid: sizes has an instance of tuple among its values, which cannot be part of a member's name",
    ),
}
REFUSED = {**MEMBERS, **DATA, **STUDIES, **GRIDS}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_sentence_when_it_is_said(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(StudyError) as error:
        make()
    assert message in str(error.value)


def test_what_is_meant_is_taken() -> None:
    for subset in ([3, 3, 5], range(4), np.array([1, 2], np.int32), list(np.arange(3)), torch.tensor([0, 4])):
        studies.member(subset=subset)
    studies.member(loss=nn.CrossEntropyLoss(), schedule=partial(StepLR, step_size=1), seed=0, clip_grad_norm=1)
    argosy.Data(train=partial(studies.Vectors, 10), val=lambda length=3: studies.Vectors(length))
    tried = studies.member(metrics={"top-5 %": argosy.accuracy}, stop=argosy.Target("lr", 1e-4, mode="min"))
    study = argosy.Study(data=arrays(val=True), members=iter([tried]), objective="val_top-5 %", mode="max")
    assert study.names == {"mlp"}


def test_a_list_of_the_class_of_each_sample_is_no_list_of_classes() -> None:
    def labelled(length: int) -> studies.Vectors:
        dataset = studies.Vectors(length)
        dataset.classes = [number % 3 for number in range(length)]  # type: ignore[attr-defined]
        return dataset

    argosy.Data(train=labelled(10), val=labelled(6))


def test_functions_and_classes_of_a_grid_stand_in_names_as_they_are_called() -> None:
    def build(loss: Any, lr: float) -> argosy.Member:
        return studies.member(loss=loss() if isinstance(loss, type) else loss, lr=lr)

    axes = {"loss": [nn.CrossEntropyLoss, nn.functional.cross_entropy], "lr": np.array([0.1, 1e-5])}
    assert [member.name for member in argosy.grid(build, **axes)] == [
        "mlp-loss=CrossEntropyLoss-lr=0.1",
        "mlp-loss=CrossEntropyLoss-lr=1e-05",
        "mlp-loss=cross_entropy-lr=0.1",
        "mlp-loss=cross_entropy-lr=1e-05",
    ]


def test_masks_become_subsets_as_the_tutorial_says() -> None:
    tutorial = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text()
    said = re.search(r"use `(.+?)`\sfor an array and `(.+?)`\sfor a tensor", tutorial)
    assert said is not None
    for words, mask in zip(said.groups(), (np.arange(9) > 4, torch.arange(9) > 4), strict=True):
        assert list(studies.member(subset=eval(words, {"mask": mask})).subset) == [5, 6, 7, 8]


def test_positional_arguments_are_hyperparameters_by_the_names_of_their_parameters() -> None:
    found = studies.member(
        model=partial(studies.Mlp, 24), optimizer=partial(sgd_like, 0.1, None, 0.5), schedule=partial(min, 3)
    ).hyperparameters
    assert found == {
        "batch_size": 20,
        "model.hidden": 24,
        "optimizer.lr": 0.1,
        "optimizer.2": 0.5,
        "schedule.0": 3,
    }


class FortyVectors(studies.Vectors):
    """A dataset whose class itself serves as the factory of Data."""

    def __init__(self) -> None:
        super().__init__(40)


def constant(output: torch.Tensor, target: torch.Tensor, value: float) -> torch.Tensor:
    """A metric with a given value."""
    return torch.full((len(target),), value)


def test_budgets_end_with_a_section_and_nan_is_neither_best_nor_a_target(tmp_path: Path) -> None:
    def member(name: str, score: float, stop: argosy.MaxSteps, **fields: Any) -> argosy.Member:
        return studies.member(name, metrics={"score": partial(constant, value=score)}, stop=stop, **fields)

    study = argosy.Study(
        data=argosy.Data(train=FortyVectors, val=lambda: studies.Vectors(8)),
        members=[
            member("nan", float("nan"), argosy.Target("val_score", 2.0, "min") | argosy.MaxEpochs(1)),
            member("steps", 0.7, argosy.MaxSteps(7), batch_size=8),
            member("samples", 0.5, argosy.MaxSamples(37), batch_size=9, drop_last=True),
        ],
        objective="val_score",
        mode="min",
        validations_per_epoch=2,
    )
    how = {"launcher": "inline", "devices": "cpu:1", "block_size": 16, "numerics": "exact"}
    report = argosy.train(study, directory=tmp_path, **how)
    assert [(row.name, row.epochs, row.reason) for row in report.rows] == [
        ("samples", 1.5, "37 samples"),
        ("steps", 1.5, "7 steps"),
        ("nan", 1, "1 epochs"),
    ]
    histories = {name: state.history for name, state in living.state_of(tmp_path).members.items()}
    assert [(row["steps"], row["samples"]) for row in histories["steps"]] == [(2, 16), (5, 40), (7, 56)]
    assert [(row["steps"], row["samples"]) for row in histories["samples"]] == [(2, 18), (4, 36), (6, 54)]
    living.equal_alone(replace(study, data=argosy.Data(train=FortyVectors(), val=studies.Vectors(8))), tmp_path)


def test_a_subset_that_its_split_cannot_have_is_refused_before_training(tmp_path: Path) -> None:
    for fields, message in {
        "beyond": ({"subset": [3, 40]}, "its train subset has indices 3 to 40; they must be between 0 and 39."),
        "mask": (
            {"subset": torch.arange(40) % 2},
            "its train subset has a value of 0 or 1 for each of the 40 samples, like a",
        ),
        "batch": (
            {"subset": range(9), "drop_last": True},
            "batch_size 20 is larger than its 9 training samples, so drop_last leaves no batch at all. Lower batch_size, or omit drop_last.",
        ),
    }.values():
        study = studies.study(40, val=8, fleet=[studies.member("a", **fields)])
        with pytest.raises(StudyError) as error:
            argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
        assert f"member 'a': {message}" in str(error.value)
        assert not (tmp_path / "study.json").exists()


def test_a_study_file_with_the_name_of_a_module_is_refused_and_hides_nothing(tmp_path: Path) -> None:
    for name in ("random", "turtledemo", "torch", "argosy"):
        (tmp_path / f"{name}.py").write_text("import argosy\n")
        known, path = sys.modules.get(name), [*sys.path]
        with pytest.raises(
            StudyError, match=rf"has the same name as the module '{name}', .* Rename it, for example to {name}_"
        ):
            load_study(tmp_path / f"{name}.py")
        assert sys.modules.get(name) is known
        assert sys.path == path


def test_functions_of_a_study_file_are_sent_by_value_also_while_it_is_read(tmp_path: Path) -> None:
    """As by a file that calls `argosy.train` itself: workers that imported it would train too."""
    lines = (
        "import argosy, studies, cloudpickle",
        "def mine(): return 3",
        "sent = cloudpickle.dumps(mine)",
        "study = studies.study()",
    )
    (tmp_path / "trains_itself.py").write_text("\n".join(lines))
    load_study(tmp_path / "trains_itself.py")
    sent = sys.modules.pop("trains_itself").sent
    assert pickle.loads(sent)() == 3


def test_members_that_read_the_variable_of_a_loop_are_refused_and_one_that_stays_is_taken() -> None:
    rates, steady = (0.1, 0.2), float("nan")
    member = partial(argosy.Member, model=partial(nn.Linear, 4, 3), batch_size=8)
    late = [member(f"{lr}", optimizer=lambda p: SGD(p, lr=lr)) for lr in rates]  # noqa: B023, what is refused
    with pytest.raises(
        StudyError, match=r"member '0.1': its optimizer reads the variable lr .* was 0.1 when .* is 0.2 now"
    ):
        argosy.Study(data=arrays(), members=late)
    bound = [member(f"{lr}", optimizer=lambda p, lr=lr: SGD(p, lr=lr)) for lr in rates]
    same = [member(f"same-{lr}", optimizer=lambda p: SGD(p, lr=steady)) for lr in rates]
    argosy.Study(data=arrays(), members=[*bound, *same])


class OwnSgd(torch.optim.Optimizer):
    """A user-defined optimizer; torch wraps its class's `step` when the first instance is created."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None: ...


def test_an_optimizer_class_reads_the_same_before_and_after_its_first_instance() -> None:
    member = argosy.Member("m", model=partial(nn.Linear, 4, 3), optimizer=OwnSgd, batch_size=8)
    OwnSgd([nn.Parameter(torch.zeros(1))])
    argosy.Study(data=arrays(), members=[member])


def of_loop(values: Any) -> list[argosy.Member]:
    """Return a member for each value, as a script's loop makes them, all of which read its variable."""
    member = partial(argosy.Member, optimizer=partial(SGD, lr=0.1), batch_size=8)
    return [member(f"m{number}", model=lambda: dict(value)) for number, value in enumerate(values)]  # noqa: B023, what is refused


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((nn.Flatten, nn.Identity), "value was Flatten when .* is Identity now"),
        (({"width": 4}, {"width": 8}), "value was {'width': 4} when .* is {'width': 8} now"),
        (([4], [4, 4]), r"value was \[4\] when .* is \[4, 4\] now"),
        ((torch.ones(3), torch.zeros(3)), "value was Tensor at 0x.* is Tensor at 0x"),
        ((nn.ReLU(), nn.Tanh()), "value was ReLU at 0x.* is Tanh at 0x"),
        ((lambda x: x, lambda x: -x), "value was <lambda> .* is <lambda> "),
    ],
    ids=["classes", "dicts", "lists", "tensors", "layers", "functions"],
)
def test_a_loop_over_anything_is_refused_as_one_over_numbers_is(values: Any, words: str) -> None:
    with pytest.raises(StudyError, match=f"member 'm0': its model reads the variable value .* {words}"):
        argosy.Study(data=arrays(), members=of_loop(values))


def test_a_loop_that_makes_equal_values_is_taken() -> None:
    argosy.Study(data=arrays(), members=of_loop([{"width": 4}, {"width": 4}]))


@pytest.mark.parametrize("default", [True, False])
def test_members_whose_common_settings_a_loop_changes_are_warned_of(*, default: bool) -> None:
    """They are read as a whole, from outside or as a default argument."""
    member = partial(argosy.Member, model=partial(nn.Linear, 4, 3), batch_size=8)
    settings, members = {"lr": 1.0}, []
    for lr in (0.1, 0.2):
        settings["lr"] = lr
        by_default = lambda p, settings=settings: SGD(p, **settings)  # noqa: E731
        members.append(member(f"{lr}", optimizer=by_default if default else lambda p: SGD(p, **settings)))
    (warning,) = sharing_warnings(argosy.Study(data=arrays(), members=members).members)
    assert "members '0.1' and '0.2' share one settings object (settings of optimizer). lr was 0.1 when" in warning


class Config:
    """Settings as class attributes, which a script's loop changes."""

    width, rate, made = 4, 0.1, 0


OPTIONS = {"width": 4, "rate": 0.1}


class Wide(nn.Module):
    """A network that reads the settings when it is built."""

    def __init__(self) -> None:
        super().__init__()
        width = Config.width
        self.width = nn.Linear(4, width)


class Smoothed:
    """A loss that reads the settings when it is called."""

    def __call__(self, output: Any, target: Any) -> Any:
        return nn.functional.cross_entropy(output, target, label_smoothing=Config.rate)


def counting(output: Any, target: Any) -> Any:
    Config.made += 1
    return nn.functional.cross_entropy(output, target, label_smoothing=0.1 * (Config.made > 0))


def by_options(parameters: Any) -> SGD:
    return SGD(parameters, lr=OPTIONS["rate"])


def of_settings(settings: Any) -> nn.Module:
    return nn.Linear(4, settings.width)


def of_all(settings: Any) -> nn.Module:
    return of_settings(settings)


READING: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "a class, by a network": lambda: (
        "its model reads the variable Config.width .* was 1 when .* is 2 now",
        {"model": Wide},
    ),
    "a class, by a loss": lambda: (
        "its loss reads the variable Config.rate .* was 0.1 when .* is 0.2 now",
        {"loss": Smoothed()},
    ),
    "a dict": lambda: (
        "its optimizer reads the variable OPTIONS.rate .* was 0.1 when .* is 0.2 now",
        {"optimizer": by_options},
    ),
    "a bound argument": lambda: (
        "its model reads the variable settings.width .* or a copy",
        {"model": partial(of_settings, Config)},
    ),
}


@dataclass
class Sizes:
    width: int = 3


@pytest.mark.parametrize("kind", READING)
def test_members_that_read_settings_which_a_loop_sets_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that read settings which differed when they were made are refused: all would train with the last values."""
    made = []
    for number in (1, 2):
        monkeypatch.setattr(Config, "width", number)
        monkeypatch.setattr(Config, "rate", number / 10)
        monkeypatch.setitem(OPTIONS, "rate", number / 10)
        words, fields = READING[kind]()
        usual = {"model": partial(nn.Linear, 4, 3), "optimizer": partial(SGD, lr=0.1), "batch_size": 8}
        made.append(argosy.Member(f"m{number}", **{**usual, **fields}))
    with pytest.raises(StudyError, match=f"member 'm1': {words}"):
        argosy.Study(data=arrays(), members=made)


def test_settings_that_are_given_as_a_whole_and_set_between_members_are_warned_of(tmp_path: Path) -> None:
    """A settings object that members share and that changed between them causes a warning only, because the change may not matter."""
    settings = {"out_features": 3, "in_features": 12, "name": "a"}
    fields: dict[str, Any] = {"optimizer": partial(SGD, lr=0.1), "batch_size": 8}
    made = []
    for name in "ab":
        settings["name"] = name
        made.append(argosy.Member(name, model=partial(of_dict, settings), **fields))
    study = argosy.Study(data=arrays(), members=made, stop=argosy.MaxEpochs(1))
    words = r"'a' and 'b' share one settings object \(settings of model\). name was 'a' when .* 'b' for the second"
    with pytest.warns(UserWarning, match=words):
        argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1", quiet=True)
    settings["name"] = "c"  # no other member below has this object
    own = [argosy.Member(name, model=partial(of_dict, {**settings, "name": name}), **fields) for name in "de"]
    assert not sharing_warnings([made[1], *own])


@pytest.mark.parametrize("settings", [SimpleNamespace(), Sizes(), type("Own", (), {})])
def test_settings_given_as_a_whole_may_be_of_any_kind(settings: Any) -> None:
    made = []
    for width in (1, 2):
        settings.width = width
        fields: dict[str, Any] = {"optimizer": partial(SGD, lr=0.1), "batch_size": 8}
        made.append(argosy.Member(f"m{width}", model=partial(of_any, settings), **fields))
    (warning,) = sharing_warnings(made)
    assert "width was 1 when the first was created and 2 for the second" in warning


@pytest.mark.parametrize(("model", "warned"), [("passes_two", True), ("reads_in_a_lambda", False)])
def test_settings_are_read_from_the_code_of_every_python(model: str, warned: bool) -> None:
    """From Python 3.13 on, one instruction reads two variables, and the one that reads a variable also hands its cell to a function."""
    made, settings = [], SimpleNamespace(bias=True, width=3)
    for number in (1, 2):
        settings.number = number
        fields: dict[str, Any] = {"optimizer": partial(SGD, lr=0.1), "batch_size": 8}
        made.append(argosy.Member(f"m{number}", model=partial(globals()[model], inputs=4, settings=settings), **fields))
    assert len(sharing_warnings(made)) == warned


def passes_two(inputs: int, settings: Any) -> nn.Module:
    return made_by(inputs, settings) if settings.bias else nn.Linear(inputs, 1)


def made_by(inputs: int, settings: Any) -> nn.Module:
    return nn.Linear(inputs, settings.number)


def reads_in_a_lambda(inputs: int, settings: Any) -> nn.Module:
    return nn.Linear(inputs, (lambda: settings.width)())


def of_any(settings: Any) -> nn.Module:
    return nn.Linear(4, vars(settings)["width"])


def of_dict(settings: dict[str, Any]) -> nn.Module:
    return nn.Linear(**{key: value for key, value in settings.items() if key != "name"})


def test_settings_that_members_do_not_name_or_have_of_their_own_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for number in (1, 2):
        monkeypatch.setattr(Config, "width", number)
        monkeypatch.setattr(Config, "made", number)
        own = SimpleNamespace(width=number)
        fields: dict[str, Any] = {"optimizer": partial(SGD, lr=0.1), "batch_size": 8, "loss": counting}
        for name, model in (("named", partial(of_settings, own)), ("whole", partial(of_all, own))):
            made.append(argosy.Member(f"{name}{number}", model=model, **fields))
    argosy.Study(data=arrays(), members=made)


def test_a_member_beside_its_own_repetitions_is_refused() -> None:
    mlp = studies.member("mlp")
    with pytest.raises(StudyError, match="a member 'mlp' and members that repeat 'mlp'"):
        studies.study(60, fleet=[mlp, *argosy.replicate(mlp, seeds=2)], val=20)


@pytest.mark.parametrize(("index", "ignored"), [(0, 0), (np.int64(0), 0), (None, IGNORED), ([0, 1], IGNORED)])
def test_the_class_that_a_loss_ignores_is_a_number_of_python_or_numpy(index: Any, ignored: int) -> None:
    loss = nn.Module()
    loss.ignore_index = index
    assert ignored_class(loss) == ignored_class(partial(studies.member, ignore_index=index)) == ignored


def test_an_attribute_with_the_name_of_a_variable_is_another_thing() -> None:
    global rate
    rate = 0.1
    settings = SimpleNamespace(rate=0.3)
    member = argosy.Member(
        "a", model=partial(nn.Linear, 4, 3), batch_size=8, optimizer=lambda p: SGD(p, lr=settings.rate)
    )
    rate = 0.2
    argosy.Study(data=studies.data("drawn", 40), members=[member])


rate = 0.0


def test_what_a_notebook_shows_of_a_study_is_short() -> None:
    arrays = torch.zeros(40, 12), torch.zeros(40)
    net = argosy.Member("net", model=partial(nn.Linear, 12, 1), optimizer=SGD, batch_size=8, subset=range(40))
    study = argosy.Study(data=argosy.Data(arrays=arrays), members=[net, replace(net, name="other")])
    assert (
        repr(net)
        == "Member(name='net', model=partial(Linear, 12, 1), optimizer=SGD, batch_size=8, subset=range(0, 40), metrics={})"
    )
    assert repr(study).startswith("Study(data=Data(arrays=(Tensor[40, 12], Tensor[40])), members=(net, other), stop=")
    for rate in (np.float64(0.25), torch.tensor(0.25)):
        assert "0.25" in repr(replace(net, optimizer=partial(SGD, lr=rate)))
