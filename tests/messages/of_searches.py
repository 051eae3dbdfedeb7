"""Mistakes in searches, and in their directories and storages."""

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
from messages.of_studies import VALIDATED, study

__all__ = ["CASES"]

SPACE = {"lr": CategoricalDistribution([0.1])}


def build(parameters: dict[str, Any]) -> argosy.Member:
    """Build the member of a trial."""
    return studies.member("mlp", model=partial(nn.Linear, 12, 10), lr=parameters.get("lr", 0.1))


def tune(space: Any = SPACE, build: Any = build, **rest: Any) -> Any:
    """Run a search of one trial for one epoch, in this process."""
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
    """Start a search in the directory of a run."""
    argosy.train(study(stop=argosy.MaxEpochs(1)), directory="runs/search", launcher="inline", devices="cpu:1")
    tune()


def in_another_search() -> None:
    """Start a search in the directory of another search."""
    tune()
    tune(seed=4)


def in_another_space(space: Any) -> None:
    """Resume a search with a changed space."""
    tune()
    tune(space, n_trials=2)


def enqueued_too_late() -> None:
    """Enqueue a trial after all trials exist."""
    tune()
    tune({"lr": FloatDistribution(0.1, 0.2)}, enqueue=[{"lr": 0.2}])


def another_owner() -> None:
    """Use a database that has another search of this name."""
    tune(storage="sqlite:///search.db", study_name="nets")
    tune(storage="sqlite:///search.db", study_name="nets", directory="runs/other")


def locked_storage(patch: pytest.MonkeyPatch) -> None:
    """Run a search whose results cannot be written to the storage."""
    from argosy.tuning.mirror import StorageMirror

    def refuse(*_: Any) -> None:
        raise OSError("database is locked")

    begin = StorageMirror.settle
    patch.setattr(
        StorageMirror, "settle", lambda *given: (begin(*given), patch.setattr(StorageMirror, "_write", refuse))[0]
    )
    tune()


def of_networks() -> None:
    """Use a space of networks, about which Optuna warns too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tune({"net": CategoricalDistribution([nn.ReLU()])})


def failed() -> None:
    """Run a search whose only trial diverges."""
    tune({"lr": CategoricalDistribution([math.inf])}).best()


def without_optuna(patch: pytest.MonkeyPatch) -> None:
    """Act as if Optuna were not installed."""
    for name in ("argosy.running.search.tuner", "argosy.tuning.sampling", "argosy.tuning.optuna_package"):
        patch.delitem(sys.modules, name, raising=False)
    patch.setitem(sys.modules, "optuna", None)
    tune()


def without_a_samplers_package() -> None:
    """Use a sampler of Optuna that needs a missing package."""

    class CmaEsSampler(optuna.samplers.CmaEsSampler):
        def sample_relative(self, *_: Any) -> Any:
            raise ModuleNotFoundError("No module named 'cmaes'", name="cmaes")

    tune(sampler=CmaEsSampler, n_trials=6)


CASES = {
    "an enqueue that is not a list": lambda: tune(enqueue=0.1),
    "an enqueued trial with a misspelt parameter": lambda: tune(enqueue=[{"lt": 0.1}]),
    "an enqueued trial with a value outside the space": lambda: tune(enqueue=[{"lr": 0.3}]),
    "an enqueued trial with a parameter that the space does not suggest": lambda: tune(
        lambda trial: {"lr": trial.suggest_float("lr", 0.1, 0.2)}, enqueue=[{"depth": 2}]
    ),
    "more enqueued trials than trials": lambda: tune(enqueue=[{"lr": 0.1}, {"lr": 0.1}]),
    "a trial that is enqueued after all trials exist": enqueued_too_late,
    "an enqueued trial with a grid": lambda: tune(scheduler="grid", enqueue=[{"lr": 0.1}]),
    "a search without its optional packages": without_optuna,
    "a search report that cannot build networks": lambda: (
        tune(),
        argosy.load("runs/search").best().load(),
    ),
    "a sampler without its package": without_a_samplers_package,
    "build is not a function": lambda: tune(build=3),
    "build with one argument per parameter": lambda: tune(build=lambda lr, width: "mlp"),
    "build raises": lambda: tune(build=lambda parameters: parameters["depth"]),
    "a space that raises": lambda: tune(lambda trial: trial.layers),
    "build does not return a member": lambda: tune(build=lambda parameters: "mlp"),
    "build returns a list of unrelated members": lambda: tune(build=lambda parameters: [build(parameters)]),
    "a population of repeated members": lambda: tune(scheduler="pbt", build=lambda p: argosy.replicate(build(p), 2)),
    "the network of a mean over members": lambda: tune(build=lambda p: argosy.replicate(build(p), 2)).best(),
    "the best of a search whose trials all failed": failed,
    "a space that is neither a dictionary nor a function": lambda: tune([0.1, 0.01]),
    "a search whose data is a tuple of arrays": lambda: tune(data=VALIDATED.arrays),
    "a search whose objective is a function": lambda: tune(objective=argosy.accuracy),
    "a search without an objective": lambda: tune(objective={}),
    "several objectives with mode=": lambda: tune(objective={"val_loss": "min", "seconds": "min"}, mode="min"),
    "objectives with an unknown mode": lambda: tune(objective={"val_loss": "min", "seconds": "less"}),
    "time as the first objective": lambda: tune(objective={"seconds": "min", "val_loss": "min"}),
    "an objective that no trial reports": lambda: tune(objective={"val_loss": "min", "second": "min"}),
    "a population with several objectives": lambda: tune(
        scheduler="pbt", objective={"val_loss": "min", "seconds": "min"}
    ),
    "the median scheduler with constraints": lambda: tune(scheduler="median", constraints=lambda reached: [0.0]),
    "a single-objective sampler for several objectives": lambda: tune(
        objective={"val_loss": "min", "seconds": "min"}, sampler=optuna.samplers.CmaEsSampler
    ),
    "a sampler with its own seed": lambda: tune(sampler=partial(optuna.samplers.RandomSampler, seed=1)),
    "a trial that is to start over": lambda: tune(fresh=["mlp-1"]),
    "a sampler that takes no seed": lambda: tune(
        sampler=partial(optuna.samplers.PartialFixedSampler, {"lr": 0.1}, optuna.samplers.RandomSampler())
    ),
    "a grid sampler": lambda: tune(sampler=partial(optuna.samplers.GridSampler, {"lr": [0.1, 0.2]}), n_trials=2),
    "constraints that are not a function": lambda: tune(constraints={"seconds": 60}),
    "constraints of two arguments": lambda: tune(constraints=lambda reached, parameters: [0.0]),
    "constraints that do not return a list": lambda: tune(constraints=lambda reached: reached["parameters"] - 100),
    "constraints over an unknown metric": lambda: tune(constraints=lambda reached: [reached["latency"] - 1]),
    "the best of a search whose trials all violate a constraint": lambda: tune(
        constraints=lambda reached: [1.0]
    ).best(),
    "a space of plain numbers": lambda: tune({"lr": (0.1, 0.01)}),
    "a space of networks": of_networks,
    "a space with a name that is a number": lambda: tune({1: FloatDistribution(0.1, 0.2)}),
    "a space that returns a number": lambda: tune(lambda trial: trial.suggest_float("lr", 0.1, 0.1)),
    "a grid of too many points": lambda: tune(
        dict.fromkeys(("lr", "decay"), FloatDistribution(0, 1, step=1e-4)), scheduler="grid"
    ),
    "a space with choices that are equal": lambda: tune({"nesterov": CategoricalDistribution([1, True])}),
    "a space that sets a constraint": lambda: tune(
        lambda trial: trial.set_constraint("small", trial.suggest_float("lr", 0.1, 0.2) - 0.3)
    ),
    "a population over a space that is a function": lambda: tune(lambda trial: None, scheduler="pbt"),
    "a population without changeable parameters": lambda: tune(
        {"width": CategoricalDistribution([1, 2])}, scheduler="pbt"
    ),
    "generations without a population": lambda: tune(epochs_per_generation=2),
    "a search in place of a study": lambda: argosy.plan(
        argosy.Search(build=build, space=SPACE, data=VALIDATED, max_epochs=1)  # type: ignore[arg-type]
    ),
    "brackets of another scheduler": lambda: tune(scheduler="asha", brackets="in-turn"),
    "eta of a scheduler that promotes no trials": lambda: tune(scheduler="median", eta=2),
    "a grid over a space that is a function": lambda: tune(lambda trial: None, scheduler="grid"),
    "a grid over a continuous range": lambda: tune({"lr": FloatDistribution(0.01, 1.0)}, scheduler="grid"),
    "an unknown scheduler": lambda: tune(scheduler="best"),
    "a search of 0 trials": lambda: tune(n_trials=0),
    "a search of 0 epochs": lambda: tune(max_epochs=0),
    "a sampler instead of its class": lambda: tune(sampler=optuna.samplers.TPESampler()),
    "a scheduler without a number of trials": lambda: tune(n_trials=None),
    "a search in the directory of a run": beside_a_run,
    "a search in the directory of another": in_another_search,
    "a search whose space has a different parameter": lambda: in_another_space({"rate": FloatDistribution(0.01, 1.0)}),
    "a search whose space has a different range": lambda: in_another_space({"lr": FloatDistribution(2.0, 3.0)}),
    "an unknown packing": lambda: tune(packs="knn"),
    "packs with a policy": lambda: tune(packs="knn(2)", policy="rounds"),
    "warm=False without rungs": lambda: tune(warm=False),
    "a search with retry_failed": lambda: tune(retry_failed=True),
    "a storage that cannot be opened": lambda: tune(storage="search.db"),
    "a storage that cannot be written": locked_storage,
    "a storage with another search of the same name": another_owner,
}
