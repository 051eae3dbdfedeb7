"""Words that are not known get the near ones, in one way everywhere."""

import dataclasses
import inspect
import pickle
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
from argosy.planning import policy_called
from argosy.settings import Settings

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
    "clip": (member, {"clip": 1.0}, "argosy.Member 'mlp' has no keyword clip=: give clip_grad_norm=."),
    "max_grad_norm": (member, {"max_grad_norm": 1.0}, "has no keyword max_grad_norm=: give clip_grad_norm=."),
    "misspelt": (
        member,
        {"clip_gradnorm": 1.0},
        "clip_gradnorm= (did you mean 'clip_grad_norm'?); give one of name, model,",
    ),
    "lr": (member, {"lr": 1.0}, "lr=: give optimizer=, as in optimizer=functools.partial(SGD, lr=0.1)."),
    "epochs": (member, {"epochs": 3}, "epochs=: give stop=, as in stop=argosy.MaxEpochs(10)."),
    "criterion": (member, {"criterion": len}, "criterion=: give loss=."),
    "net": (member, {"net": len}, "net=: give model=."),
    "optim": (member, {"optim": len}, "optim=: give optimizer=, as in"),
    "scheduler": (member, {"scheduler": len}, "scheduler=: give schedule=."),
    "bs": (member, {"bs": 3}, "bs=: give batch_size=."),
    "callbacks": (member, {"callbacks": []}, "callbacks=: rules of argosy.stopping end a member"),
    "of train": (member, {"devices": "cpu"}, "devices=: give devices= to argosy.train."),
    "of train, otherwise": (member, {"num_workers": 2}, "num_workers=: give loader_workers= to argosy.train."),
    "of data": (member, {"train": ARRAYS}, "train=: give train= to argosy.Data."),
    "collate_fn": (
        argosy.Data,
        {"collate_fn": len},
        "argosy.Data has no keyword collate_fn=: samples are stacked as they are",
    ),
    "shuffle": (argosy.Data, {"shuffle": True}, "shuffle=: every epoch is drawn anew from Study.seed. Leave it out."),
    "valid": (argosy.Data, {"valid": ARRAYS}, "valid=: give val=."),
    "validation_data": (argosy.Data, {"validation_data": ARRAYS}, "validation_data=: give val=."),
    "batch_size of data": (argosy.Data, {"batch_size": 3}, "batch_size=: give batch_size= to argosy.Member."),
    "workers of data": (argosy.Data, {"num_workers": 3}, "num_workers=: give loader_workers= to argosy.train."),
    "transform": (argosy.Data, {"transform": len}, "transform=: give on_device=."),
    "epochs of a study": (study, {"max_epochs": 3}, "argosy.Study has no keyword max_epochs=: give stop=, as in"),
    "monitor": (study, {"monitor": "val_loss"}, "monitor=: give objective=."),
    "random_state": (study, {"random_state": 3}, "random_state=: give seed=."),
    "epochs of train": (train, {"epochs": 3}, "argosy.train has no keyword epochs=: give stop= to argosy.Study."),
    "gpus": (train, {"gpus": 2}, "gpus=: give devices=."),
    "output_dir": (train, {"output_dir": "x"}, "output_dir=: give directory=."),
    "resume": (
        train,
        {"resume": True},
        "resume=: the same call on the same directory goes on where it was. Leave it out.",
    ),
    "misspelt setting": (
        train,
        {"loaderworkers": 2},
        "loaderworkers= (did you mean 'loader_workers'?); give one of study,",
    ),
    "nothing near": (train, {"xyzzy": 2}, "has no keyword xyzzy=; give one of study, directory"),
    "trials": (tune, {"num_trials": 2}, "argosy.tune has no keyword num_trials=: give n_trials=."),
    "epochs of tune": (tune, {"epochs": 2}, "epochs=: give max_epochs=."),
    "setting of tune": (tune, {"num_workers": 2}, "num_workers=: give loader_workers=."),
    "pruner": (tune, {"pruner": 2}, "pruner=: give scheduler=."),
    "replicate": (
        partial(argosy.replicate, member()),
        {"n_seeds": 3},
        "argosy.replicate has no keyword n_seeds=: give seeds=",
    ),
    "kfold": (partial(argosy.kfold, member()), {"n_splits": 3}, "argosy.kfold has no keyword n_splits=: give folds=."),
    "kfold, misspelt": (partial(argosy.kfold, member()), {"stratified": []}, "stratified= (did you mean 'stratify'?)"),
    "bootstrap": (partial(argosy.bootstrap, member()), {"sample": 3}, "sample= (did you mean 'samples'?)"),
    "grid": (
        partial(argosy.grid, by),
        {"lrs": [0.1]},
        "argosy.grid: lrs (did you mean 'lr'?) is no parameter of build, which has",
    ),
    "fit": (
        partial(argosy.fit, *ARRAYS, member()),
        {"epochs": 3},
        "argosy.fit has no keyword epochs=: give stop=, as in",
    ),
    "setting of fit": (partial(argosy.fit, *ARRAYS, member()), {"n_jobs": 3}, "n_jobs=: give cores=."),
    "settings": (Settings, {"pack": "auto"}, "argosy.Settings has no keyword pack= (did you mean 'packing'?)"),
    "replace": (partial(dataclasses.replace, member()), {"clip": 3}, "clip=: give clip_grad_norm=."),
    "precision": (member, {"precision": "bf16"}, "precision is 'bf16' (did you mean 'bfloat16'?); it can be"),
    "numerics": (Settings, {"numerics": "equal"}, "numerics is 'equal' (did you mean 'equivalent'?); it can be"),
    "sharing": (Settings, {"sharing": "all_shared"}, "sharing is 'all_shared' (did you mean 'all-shared'?); it can be"),
    "launcher": (train, {"launcher": "proceses"}, "no launcher 'proceses' (did you mean 'processes'?); choose"),
    "tracker": (
        train,
        {"trackers": ["tensorbord"], "launcher": "inline"},
        "'tensorbord' (did you mean 'tensorboard'?)",
    ),
    "scheduler of tune": (tune, {"scheduler": "hyper"}, "'hyper' (did you mean 'hyperband'?)"),
    "policy": (policy_called, {"name": "balance"}, "unknown policy 'balance' (did you mean 'balanced'?); choose"),
    "objective": (
        study,
        {"data": argosy.Data(arrays=ARRAYS, val_arrays=ARRAYS), "objective": "val_acc", "mode": "max"}
        | {"members": [member(metrics={"accuracy": argosy.accuracy})]},
        "does not report the objective 'val_acc' (did you mean 'val_accuracy'?); it reports",
    ),
    "watched": (
        study,
        {"stop": argosy.Plateau("trainloss", 3, mode="min")},
        "its stopping rule watches 'trainloss' (did you mean 'train_loss'?), and it reports",
    ),
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
    ],
)
def test_an_unknown_name_of_the_package_gets_the_near_one(word: str, says: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"^module 'argosy' has no attribute '{word}' \(did you mean '{says}'\?\)$"
    ):
        getattr(argosy, word)
    assert not hasattr(argosy, "__wrapped__")
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'$"):
        _ = argosy.xyzzy


def test_members_of_a_report_are_named(tmp_path: Path) -> None:
    report = argosy.train(study(stop=argosy.MaxEpochs(1)), directory=tmp_path, launcher="inline")
    for ask in (report.member, lambda name: report.ensemble(members=[name])):
        with pytest.raises(ArgosyError, match=r"no member 'mpl' \(did you mean 'mlp'\?\)"):
            ask("mpl")


def test_signatures_help_and_copies_are_what_they_were() -> None:
    for kind in (argosy.Data, argosy.Member, argosy.Study, Settings):
        fields = [one.name for one in dataclasses.fields(kind) if one.init]
        assert sorted(inspect.signature(kind).parameters) == sorted(fields)
        assert kind.__init__.__name__ == "__init__"
    assert str(inspect.signature(argosy.train)).startswith("(study: argosy.study.Study, *, directory: str | ")
    assert "Train every member of a study" in (argosy.train.__doc__ or "")
    one = member(optimizer=SGD)
    assert pickle.loads(pickle.dumps(one)) == one
    assert dataclasses.replace(one, batch_size=3).batch_size == 3
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'batch_size'"):
        argosy.Member("mlp", model=studies.Mlp)  # type: ignore[call-arg]


def test_every_word_that_is_suggested_is_a_keyword() -> None:
    classes = (argosy.Data, argosy.Member, argosy.Study, Settings, argosy.train, argosy.tune)
    functions = (argosy.replicate, argosy.kfold, argosy.fit)
    known = {name for one in (*classes, *functions) for name in inspect.signature(one).parameters}
    assert spelling.ELSEWHERE.keys() <= known
    for owner, names in spelling.OWNERS.items():
        assert {*names.split()} <= {*inspect.signature(getattr(argosy, owner.removeprefix("argosy."))).parameters}
    with pytest.raises(StudyError):
        member(clip=1)
