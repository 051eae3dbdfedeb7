"""What is wrong with a search, or with what it finds in its directory and its storage."""

import importlib
import math
import sys
import warnings
from functools import partial
from typing import Any

import optuna
import pytest
import studies
from optuna.distributions import CategoricalDistribution, FloatDistribution
from torch import nn

import argosy
from argosy.running.directory.loading import load, search_of
from messages.of_studies import VALIDATED, study

__all__ = ["CASES"]

SPACE = {"lr": CategoricalDistribution([0.1])}


def build(parameters: dict[str, Any]) -> argosy.Member:
    """A trial."""
    return studies.member("mlp", model=partial(nn.Linear, 12, 10), lr=parameters.get("lr", 0.1))


def tune(space: Any = SPACE, build: Any = build, **rest: Any) -> Any:
    """One trial of one epoch, in this process."""
    given = {
        "data": VALIDATED,
        "max_epochs": 1,
        "n_trials": 1,
        "scheduler": "random",
        "directory": "runs/search",
        **rest,
    }
    return argosy.tune(build, space, launcher="inline", devices="cpu:1", **given)


def beside_a_run() -> None:
    """A directory in which no search has begun."""
    argosy.train(study(stop=argosy.MaxEpochs(1)), directory="runs/search", launcher="inline", devices="cpu:1")
    tune()


def in_another_search() -> None:
    """A directory with another search."""
    tune()
    tune(seed=4)


def in_another_space(space: Any) -> None:
    """The space was changed since."""
    tune()
    tune(space, n_trials=2)


def enqueued_too_late() -> None:
    """More is known than trials are to come."""
    tune()
    tune({"lr": FloatDistribution(0.1, 0.2)}, enqueue=[{"lr": 0.2}])


def another_owner() -> None:
    """A database that has another search of this name."""
    tune(storage="sqlite:///search.db", study_name="nets")
    tune(storage="sqlite:///search.db", study_name="nets", directory="runs/other")


def locked_storage(patch: pytest.MonkeyPatch) -> None:
    """What trials have reached cannot be written."""
    from argosy.tuning.sampling import Copy

    def refuse(*_: Any) -> None:
        raise OSError("database is locked")

    begin = Copy.settle
    patch.setattr(Copy, "settle", lambda *given: (begin(*given), patch.setattr(Copy, "_write", refuse)))
    tune()


def of_networks() -> None:
    """A space whose values are no plain ones, of which Optuna warns as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tune({"net": CategoricalDistribution([nn.ReLU()])})


def failed() -> None:
    """The only trial diverges."""
    tune({"lr": CategoricalDistribution([math.inf])}).best()


def without_optuna(patch: pytest.MonkeyPatch) -> None:
    """The extra of searches is missing."""
    for name in ("argosy.running.search.tuner", "argosy.tuning.sampling"):
        patch.delitem(sys.modules, name, raising=False)
    patch.setitem(sys.modules, "optuna", None)
    tune()


def without_a_samplers_package() -> None:
    """A sampler of Optuna's needs a package that Optuna does not bring."""

    class CmaEsSampler(optuna.samplers.CmaEsSampler):
        def sample_relative(self, *_: Any) -> Any:
            raise ModuleNotFoundError("No module named 'cmaes'", name="cmaes")

    tune(sampler=CmaEsSampler, n_trials=6)


def plots_of_a_directory() -> None:
    """A report that was read without Optuna."""
    tune()
    found = search_of(load("runs/search"))
    assert found is not None
    found.write_plots("plots.html")


def without_plotly(patch: pytest.MonkeyPatch) -> None:
    """The extra of plots is missing."""
    patch.setattr(importlib.import_module("optuna.visualization"), "is_available", lambda: False)
    tune().write_plots("plots.html")


CASES = {
    "a trial that is enqueued and none": lambda: tune(enqueue=0.1),
    "a trial that is enqueued for a parameter that is misspelt": lambda: tune(enqueue=[{"lt": 0.1}]),
    "a trial that is enqueued with a value that the space does not have": lambda: tune(enqueue=[{"lr": 0.3}]),
    "a trial that is enqueued for a parameter that the space does not ask for": lambda: tune(
        lambda trial: {"lr": trial.suggest_float("lr", 0.1, 0.2)}, enqueue=[{"depth": 2}]
    ),
    "more trials that are enqueued than are tried": lambda: tune(enqueue=[{"lr": 0.1}, {"lr": 0.1}]),
    "an enqueued trial when no trials remain": enqueued_too_late,
    "a trial that is enqueued beside a grid": lambda: tune(scheduler="grid", enqueue=[{"lr": 0.1}]),
    "a search without its extra": without_optuna,
    "plots without their extra": without_plotly,
    "a search that was read without what builds its networks": lambda: (
        tune(),
        argosy.load("runs/search").best().load(),
    ),
    "plots of a search that was read from its directory": plots_of_a_directory,
    "a sampler without its package": without_a_samplers_package,
    "build is no function": lambda: tune(build=3),
    "build takes each parameter by its name": lambda: tune(build=lambda lr, width: "mlp"),
    "build raises": lambda: tune(build=lambda parameters: parameters["depth"]),
    "a space that raises": lambda: tune(lambda trial: trial.suggest_integer("depth", 1, 3)),
    "build does not return a member": lambda: tune(build=lambda parameters: "mlp"),
    "build returns members that are not repetitions of one": lambda: tune(build=lambda parameters: [build(parameters)]),
    "a population of means": lambda: tune(scheduler="pbt", build=lambda p: argosy.replicate(build(p), 2)),
    "the network of a mean": lambda: tune(build=lambda p: argosy.replicate(build(p), 2)).best(),
    "the best of a search whose trials all failed": failed,
    "a space that is none": lambda: tune([0.1, 0.01]),
    "a search on arrays": lambda: tune(data=VALIDATED.arrays),
    "a search by a function": lambda: tune(objective=argosy.accuracy),
    "a search by nothing": lambda: tune(objective={}),
    "several objectives and a mode": lambda: tune(objective={"val_loss": "min", "seconds": "min"}, mode="min"),
    "objectives of which one has no mode": lambda: tune(objective={"val_loss": "min", "seconds": "less"}),
    "objectives that begin with time": lambda: tune(objective={"seconds": "min", "val_loss": "min"}),
    "an objective that no trial reports": lambda: tune(objective={"val_loss": "min", "second": "min"}),
    "a population under several objectives": lambda: tune(
        scheduler="pbt", objective={"val_loss": "min", "seconds": "min"}
    ),
    "medians under constraints": lambda: tune(scheduler="median", constraints=lambda reached: [0.0]),
    "a sampler of one objective for several": lambda: tune(
        objective={"val_loss": "min", "seconds": "min"}, sampler=optuna.samplers.CmaEsSampler
    ),
    "a sampler with a seed of its own": lambda: tune(sampler=partial(optuna.samplers.RandomSampler, seed=1)),
    "a trial that is to begin anew": lambda: tune(fresh=["mlp-1"]),
    "a sampler that is a grid": lambda: tune(
        sampler=partial(optuna.samplers.GridSampler, {"lr": [0.1, 0.2]}), n_trials=2
    ),
    "constraints that are no function": lambda: tune(constraints={"seconds": 60}),
    "constraints of two arguments": lambda: tune(constraints=lambda reached, parameters: [0.0]),
    "constraints that return no list": lambda: tune(constraints=lambda reached: reached["parameters"] - 100),
    "constraints of a metric that there is not": lambda: tune(constraints=lambda reached: [reached["latency"] - 1]),
    "the best where each trial breaks a constraint": lambda: tune(constraints=lambda reached: [1.0]).best(),
    "a space of numbers": lambda: tune({"lr": (0.1, 0.01)}),
    "a space of networks": of_networks,
    "a population over a function": lambda: tune(lambda trial: None, scheduler="pbt"),
    "a population without a value that can change": lambda: tune(
        {"width": CategoricalDistribution([1, 2])}, scheduler="pbt"
    ),
    "generations where there are none": lambda: tune(epochs_per_generation=2),
    "a grid over a function": lambda: tune(lambda trial: None, scheduler="grid"),
    "a grid over all numbers between two": lambda: tune({"lr": FloatDistribution(0.01, 1.0)}, scheduler="grid"),
    "an unknown scheduler": lambda: tune(scheduler="best"),
    "a search of 0 trials": lambda: tune(n_trials=0),
    "a search of 0 epochs": lambda: tune(max_epochs=0),
    "a sampler instead of its class": lambda: tune(sampler=optuna.samplers.TPESampler()),
    "a scheduler without a number of trials": lambda: tune(n_trials=None),
    "a search in the directory of a run": beside_a_run,
    "a search in the directory of another search": in_another_search,
    "a search whose space has another parameter": lambda: in_another_space({"rate": FloatDistribution(0.01, 1.0)}),
    "a search whose space has another range": lambda: in_another_space({"lr": FloatDistribution(2.0, 3.0)}),
    "an unknown way of packing": lambda: tune(packs="knn"),
    "packs and a policy": lambda: tune(packs="knn(2)", policy="rounds"),
    "trials that begin anew where there are no rungs": lambda: tune(warm=False),
    "a search that is to retry failed trials": lambda: tune(retry_failed=True),
    "a storage that cannot be opened": lambda: tune(storage="search.db"),
    "a storage that cannot be written": locked_storage,
    "a storage with another search of the name": another_owner,
}
