"""Tests that messages about unknown words suggest similar ones, in the same way everywhere."""

import dataclasses
import doctest
import inspect
import pickle
import pydoc
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies
from torch.optim import SGD

import argosy
from argosy.errors import ArgosyError, StudyError, spelling
from argosy.planning import policy_by_name
from argosy.running.launch.processes import Processes
from argosy.settings import Settings
from argosy.tuning.report import SearchReport

ARRAYS = (np.zeros((20, 12), np.float32), np.zeros(20, np.int64))
DATA = argosy.Data(arrays=ARRAYS)


def member(**fields: Any) -> argosy.Member:
    return argosy.Member("mlp", **{"model": studies.Mlp, "optimizer": partial(SGD, lr=0.1), "batch_size": 10, **fields})


def study(**fields: Any) -> argosy.Study:
    return argosy.Study(**{"data": DATA, "members": [member()], **fields})


def train(**fields: Any) -> argosy.Report:
    return argosy.train(study(), directory="/nowhere", **fields)


def tune(**fields: Any) -> Any:
    return argosy.tune(lambda lr: member(), {"lr": [0.1]}, data=DATA, **{"max_epochs": 1, **fields})


def by(lr: float, hidden: int = 3) -> argosy.Member:
    return member()


UNKNOWN: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "clip": (member, {"clip": 1.0}, "argosy.Member 'mlp' has no keyword clip=. Use clip_grad_norm=."),
    "max_grad_norm": (member, {"max_grad_norm": 1.0}, "has no keyword max_grad_norm=. Use clip_grad_norm=."),
    "misspelt": (
        member,
        {"clip_gradnorm": 1.0},
        "clip_gradnorm= (did you mean 'clip_grad_norm'?); choose one of name, model,",
    ),
    "lr": (member, {"lr": 1.0}, "lr=. Use optimizer=, for example optimizer=functools.partial(SGD, lr=0.1)."),
    "epochs": (member, {"epochs": 3}, "epochs=. Use stop=, for example stop=argosy.MaxEpochs(10)."),
    "criterion": (member, {"criterion": len}, "criterion=. Use loss=."),
    "net": (member, {"net": len}, "net=. Use model=."),
    "optim": (member, {"optim": len}, "optim=. Use optimizer=, for example"),
    "scheduler": (member, {"scheduler": len}, "scheduler=. Use schedule=."),
    "bs": (member, {"bs": 3}, "bs=. Use batch_size=."),
    "callbacks": (member, {"callbacks": []}, "callbacks=: stopping rules end a member"),
    "of train": (member, {"devices": "cpu"}, "devices=. Pass devices= to argosy.train."),
    "of train, otherwise": (member, {"num_workers": 2}, "num_workers=. Pass loader_workers= to argosy.train."),
    "of data": (member, {"train": ARRAYS}, "train=. Pass train= to argosy.Data."),
    "collate_fn": (
        argosy.Data,
        {"collate_fn": len},
        "argosy.Data has no keyword collate_fn=: samples are stacked, and Data(ragged=",
    ),
    "shuffle": (
        argosy.Data,
        {"shuffle": True},
        "shuffle=: the order of every epoch is drawn from Study.seed. Remove it.",
    ),
    "valid": (argosy.Data, {"valid": ARRAYS}, "valid=. Use val=."),
    "validation_data": (argosy.Data, {"validation_data": ARRAYS}, "validation_data=. Use val=."),
    "batch_size of data": (argosy.Data, {"batch_size": 3}, "batch_size=. Pass batch_size= to argosy.Member."),
    "workers of data": (argosy.Data, {"num_workers": 3}, "num_workers=. Pass loader_workers= to argosy.train."),
    "transform": (argosy.Data, {"transform": len}, "transform=. Use on_device=."),
    "epochs of a study": (study, {"max_epochs": 3}, "argosy.Study has no keyword max_epochs=. Use stop=, for example"),
    "monitor": (study, {"monitor": "val_loss"}, "monitor=. Use objective=."),
    "random_state": (study, {"random_state": 3}, "random_state=. Use seed=."),
    "epochs of train": (train, {"epochs": 3}, "argosy.train has no keyword epochs=. Pass stop= to argosy.Study."),
    "gpus": (train, {"gpus": 2}, "gpus=. Use devices=."),
    "output_dir": (train, {"output_dir": "x"}, "output_dir=. Use directory=."),
    "resume": (
        train,
        {"resume": True},
        "resume=: the same call on the same directory resumes the run. Remove it.",
    ),
    "misspelt setting": (
        train,
        {"loaderworkers": 2},
        "loaderworkers= (did you mean 'loader_workers'?); choose one of study,",
    ),
    "nothing near": (train, {"xyzzy": 2}, "has no keyword xyzzy=; choose one of study, directory"),
    "trials": (tune, {"num_trials": 2}, "argosy.tune has no keyword num_trials=. Use n_trials=."),
    "epochs of tune": (tune, {"epochs": 2}, "epochs=. Use max_epochs=."),
    "rule of tune": (tune, {"stop": 2}, "stop=. Use max_epochs=."),
    "setting of tune": (tune, {"num_workers": 2}, "num_workers=. Use loader_workers=."),
    "pruner": (tune, {"pruner": 2}, "pruner=. Use scheduler=."),
    "metric of tune": (tune, {"metric": "val_loss"}, "metric=. Use objective=."),
    "trials at once": (tune, {"max_concurrent_trials": 2}, "max_concurrent_trials=. Use at_once=."),
    "replicate": (
        partial(argosy.replicate, member()),
        {"n_seeds": 3},
        "argosy.replicate has no keyword n_seeds=. Use seeds=",
    ),
    "kfold": (partial(argosy.kfold, member()), {"n_splits": 3}, "argosy.kfold has no keyword n_splits=. Use folds=."),
    "kfold, misspelt": (partial(argosy.kfold, member()), {"stratified": []}, "stratified= (did you mean 'stratify'?)"),
    "bootstrap": (partial(argosy.bootstrap, member()), {"sample": 3}, "sample= (did you mean 'samples'?)"),
    "grid": (
        partial(argosy.grid, by),
        {"lrs": [0.1]},
        "argosy.grid: build has no parameter lrs (did you mean 'lr'?); choose one of",
    ),
    "fit": (
        partial(argosy.fit, *ARRAYS, member()),
        {"epochs": 3},
        "argosy.fit has no keyword epochs=. Use stop=, for example",
    ),
    "setting of fit": (partial(argosy.fit, *ARRAYS, member()), {"n_jobs": 3}, "n_jobs=. Use cores=."),
    "settings": (Settings, {"pack": "auto"}, "argosy.Settings has no keyword pack= (did you mean 'packing'?)"),
    "replace": (partial(dataclasses.replace, member()), {"clip": 3}, "clip=. Use clip_grad_norm=."),
    "precision": (member, {"precision": "bf16"}, "precision is 'bf16' (did you mean 'bfloat16'?); it must be"),
    "numerics": (Settings, {"numerics": "equal"}, "numerics is 'equal' (did you mean 'equivalent'?); it must be"),
    "sharing": (
        Settings,
        {"sharing": "all_shared"},
        "sharing is 'all_shared' (did you mean 'all-shared'?); it must be",
    ),
    "launcher": (train, {"launcher": "proceses"}, "unknown launcher 'proceses' (did you mean 'processes'?); choose"),
    "a class as launcher": (
        train,
        {"launcher": Processes},
        "or pass an object of your own with discover, open and close.",
    ),
    "no launcher": (
        train,
        {"launcher": 3},
        "unknown launcher 3; choose one of processes, inline, ray, or pass an object",
    ),
    "no tracker": (train, {"trackers": 3, "launcher": "inline"}, "trackers has 3; it must be one of 'tensorboard',"),
    "tracker": (
        train,
        {"trackers": ["tensorbord"], "launcher": "inline"},
        "'tensorbord' (did you mean 'tensorboard'?)",
    ),
    "scheduler of tune": (tune, {"scheduler": "hyper"}, "'hyper' (did you mean 'hyperband'?)"),
    "policy": (policy_by_name, {"name": "balance"}, "unknown policy 'balance' (did you mean 'balanced'?); choose"),
    "objective": (
        study,
        {"data": argosy.Data(arrays=ARRAYS, val_arrays=ARRAYS), "objective": "val_acc", "mode": "max"}
        | {"members": [member(metrics={"accuracy": argosy.accuracy})]},
        "does not report the objective 'val_acc' (did you mean 'val_accuracy'?); it reports",
    ),
    "watched": (
        study,
        {"stop": argosy.Plateau("trainloss", 3, mode="min")},
        "its stopping rule watches 'trainloss' (did you mean 'train_loss'?), but it reports",
    ),
    "objective that does not tell its mode": (
        study,
        {"data": argosy.Data(arrays=ARRAYS, val_arrays=ARRAYS), "objective": "val_los"},
        "does not report the objective 'val_los' (did you mean 'val_loss'?); it reports",
    ),
    "watched metric": (
        argosy.Plateau,
        {"metric": "val_los", "patience": 3},
        "fix the name (did you mean 'val_loss'?).",
    ),
    "watched metric of a target": (
        argosy.Target,
        {"metric": "val_acuracy", "value": 3},
        "fix the name (did you mean 'val_accuracy'?).",
    ),
    "objective of tune": (tune, {"objective": "val_los"}, "fix the name (did you mean 'val_loss'?)."),
    "plateau": (argosy.Plateau, {"patiense": 3}, "argosy.Plateau has no keyword patiense= (did you mean 'patience'?)"),
    "plateau, otherwise": (argosy.Plateau, {"monitor": "val_loss"}, "monitor=. Use metric=."),
    "delta": (partial(argosy.Plateau, "val_loss", 3), {"delta": 0.1}, "delta=. Use min_delta=."),
    "max epochs": (argosy.MaxEpochs, {"epoch": 3}, "epoch= (did you mean 'epochs'?); choose one of epochs."),
    "max epochs, otherwise": (argosy.MaxEpochs, {"max_epochs": 3}, "max_epochs=. Use epochs=."),
    "max steps": (argosy.MaxSteps, {"step": 3}, "argosy.MaxSteps has no keyword step= (did you mean 'steps'?)"),
    "max samples": (argosy.MaxSamples, {"sample": 3}, "sample= (did you mean 'samples'?)"),
    "max seconds": (argosy.MaxSeconds, {"second": 3}, "second= (did you mean 'seconds'?)"),
    "target": (partial(argosy.Target, "val_loss"), {"valu": 3}, "valu= (did you mean 'value'?)"),
    "max_epochs of train": (train, {"max_epochs": 3}, "max_epochs=. Pass stop= to argosy.Study."),
    "load": (argosy.load, {"dir": "run"}, "argosy.load has no keyword dir=. Use directory=."),
    "plan": (argosy.plan, {"device": 3}, "argosy.plan has no keyword device=. Use devices=."),
    "fit, misspelt": (
        partial(argosy.fit, *ARRAYS, member()),
        {"xyzzy": 3},
        "xyzzy=; choose one of X, y, members, stop, validation, seed, directory, fresh, devices, launcher, policy, nodes,",
    ),
    "one epoch of fit": (partial(argosy.fit, *ARRAYS, member()), {"epoch": 3}, "epoch=. Use stop=, for example"),
    "values without keywords": (
        partial(argosy.Study, 1, 2),
        {},
        "argosy.Study was given 2 values without keywords, but takes 0. Pass the others by keyword, such as data=.",
    ),
    "keyword that is passed already": (
        partial(argosy.Study, 1),
        {"data": 2},
        "Pass the others by keyword, such as members=.",
    ),
    "member of a study": (study().member, {"name": "mpl"}, "the study has no member 'mpl' (did you mean 'mlp'?)"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_word_gets_the_near_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function, fields, says = UNKNOWN[name]
    if function is train:
        function = partial(argosy.train, study(), directory=tmp_path / "run")
    with pytest.raises(ArgosyError, match=re.escape(says)):
        function(**fields)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("MaxEpoch", "MaxEpochs"),
        ("maxepochs", "MaxEpochs"),
        ("EarlyStopping", "Plateau"),
        ("Kfold", "kfold"),
        ("replicates", "replicate"),
        ("from_hugging_face", "from_huggingface"),
        ("Trainer", "train"),
        ("ray", "Ray"),
        ("StratifiedKFold", "kfold"),
        ("StudyError", "errors.StudyError"),
        ("MemberFailed", "errors.MemberFailed"),
    ],
)
def test_an_unknown_name_of_the_package_gets_the_near_one(word: str, says: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"^module 'argosy' has no attribute '{word}' \(did you mean '{says}'\?\)$"
    ):
        getattr(argosy, word)
    assert not hasattr(argosy, "__wrapped__")
    assert "errors" in dir(argosy)
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'$"):
        _ = argosy.xyzzy


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> argosy.Report:
    """Return the report of a single member and of two networks with two repetitions each."""
    fleet = [member(), *(one for name in ("cnn", "vit") for one in argosy.replicate(named(name), seeds=[1, 2]))]
    asked = study(members=fleet, stop=argosy.MaxEpochs(1))
    return argosy.train(asked, directory=tmp_path_factory.mktemp("run"), launcher="inline")


def named(name: str) -> argosy.Member:
    return dataclasses.replace(member(), name=name)


def test_members_of_a_report_are_named(report: argosy.Report) -> None:
    for ask in (report.member, lambda name: report.ensemble(members=[name])):
        with pytest.raises(ArgosyError, match=r"no member 'mpl' \(did you mean 'mlp'\?\)"):
            ask("mpl")
    with pytest.raises(ArgosyError, match=r"no member 'vt' \(did you mean 'vit-seed=1'\?\)"):
        report.member("vt")


def test_configurations_of_a_report_are_named(report: argosy.Report) -> None:
    asks: list[Callable[[str], Any]] = [
        lambda name: report.compare("cnn", name),
        lambda name: report.compare(name, "cnn"),
        report.out_of_fold,
        lambda name: report.ensemble(members=[name]),
    ]
    for ask in asks:
        with pytest.raises(ArgosyError, match=r"no (configuration|member) 'vt' \(did you mean 'vit'\?\)"):
            ask("vt")


def test_the_examples_hold() -> None:
    found = doctest.testmod(spelling)
    assert (found.failed, found.attempted) == (0, 4)


def test_signatures_help_and_copies_are_what_they_were() -> None:
    for kind in (argosy.Data, argosy.Member, argosy.Study, Settings):
        fields = [one.name for one in dataclasses.fields(kind) if one.init]
        assert sorted(inspect.signature(kind).parameters) == sorted(fields)
        assert kind.__init__.__name__ == "__init__"
    assert str(inspect.signature(argosy.train)).startswith("(study: argosy.study.Study, *, directory: str | ")
    assert "Train every member of a study" in (argosy.train.__doc__ or "")
    assert [*inspect.signature(argosy.Report.compare).parameters] == ["self", "first", "second", "metric"]
    assert "in pairs of the same seed or fold" in pydoc.render_doc(argosy.Report.compare)
    assert [*inspect.signature(argosy.Plateau).parameters] == ["metric", "patience", "min_delta", "mode"]
    one = member(optimizer=SGD)
    assert pickle.loads(pickle.dumps(one)) == one
    assert dataclasses.replace(one, batch_size=3).batch_size == 3
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'batch_size'"):
        argosy.Member("mlp", model=studies.Mlp)  # type: ignore[call-arg]


def test_every_word_that_is_suggested_is_a_keyword() -> None:
    classes = (argosy.Data, argosy.Member, argosy.Study, Settings, argosy.train, argosy.tune, argosy.Classifier)
    functions = (argosy.replicate, argosy.kfold, argosy.fit, argosy.Plateau, argosy.MaxEpochs, argosy.Report.predict)
    known = {name for one in (*classes, *functions) for name in inspect.signature(one).parameters}
    assert spelling.ELSEWHERE.keys() <= {*known, *dir(argosy.Report), *dir(SearchReport)}
    for owner, names in spelling.OWNERS.items():
        assert {*names.split()} <= {*inspect.signature(getattr(argosy, owner.removeprefix("argosy."))).parameters}
    with pytest.raises(StudyError):
        member(clip=1)


def test_of_thousands_of_members_a_message_names_the_first() -> None:
    fleet = studies.study(fleet=[studies.member(f"m{number:04}") for number in range(3000)])
    with pytest.raises(StudyError) as told:
        fleet.member("mlp")
    assert str(told.value).endswith("m0018, m0019 and 2,980 more.")
    assert len(str(told.value)) < 300
