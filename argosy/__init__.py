"""Argosy trains a whole fleet of different PyTorch networks over one dataset as one job.

The names below are the public API; everything else may change. Functions that need torch load it on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from argosy.averages import EMA as EMA
from argosy.averages import SWA as SWA
from argosy.averages import LastK as LastK
from argosy.designs.grid import grid as grid
from argosy.designs.grid import replicate as replicate
from argosy.errors import ArgosyError as ArgosyError
from argosy.errors.spelling import meant
from argosy.ragged import Ragged as Ragged
from argosy.results.report import Report as Report
from argosy.stopping import MaxEpochs as MaxEpochs
from argosy.stopping import MaxSamples as MaxSamples
from argosy.stopping import MaxSeconds as MaxSeconds
from argosy.stopping import MaxSteps as MaxSteps
from argosy.stopping import Plateau as Plateau
from argosy.stopping import Target as Target
from argosy.study import Data as Data
from argosy.study import Member as Member
from argosy.study import Study as Study
from argosy.study import accuracy as accuracy
from argosy.tuning.search import Search as Search
from argosy.version import __version__ as __version__

if TYPE_CHECKING:
    # Type checkers see what __getattr__ gives at run time.
    from argosy.adapters.arrays import fit as fit
    from argosy.adapters.huggingface import from_huggingface as from_huggingface
    from argosy.adapters.lightning import from_lightning as from_lightning
    from argosy.api import plan as plan
    from argosy.api import train as train
    from argosy.api import tune as tune
    from argosy.designs.folds import bootstrap as bootstrap
    from argosy.designs.folds import kfold as kfold
    from argosy.estimators.estimators import Classifier as Classifier
    from argosy.estimators.estimators import Regressor as Regressor
    from argosy.estimators.tabular import tabular as tabular
    from argosy.running.directory.attached import attach as attach
    from argosy.running.directory.loading import load as load
    from argosy.running.hosts.ray_cluster import Ray as Ray

__all__ = [
    "EMA",
    "SWA",
    "ArgosyError",
    "Data",
    "LastK",
    "MaxEpochs",
    "MaxSamples",
    "MaxSeconds",
    "MaxSteps",
    "Member",
    "Plateau",
    "Ragged",
    "Report",
    "Search",
    "Study",
    "Target",
    "accuracy",
    "attach",
    "bootstrap",
    "fit",
    "from_huggingface",
    "from_lightning",
    "grid",
    "kfold",
    "load",
    "plan",
    "replicate",
    "tabular",
    "train",
    "tune",
]

ELSEWHERE = {
    "EarlyStopping": "Plateau",
    "Dataset": "Data",
    "DataModule": "Data",
    "Trainer": "train",
    "Experiment": "Study",
    "Model": "Member",
    "Network": "Member",
    "Tuner": "tune",
    "Result": "Report",
    "cross_validate": "kfold",
    "StratifiedKFold": "kfold",
}
"""Names of other libraries, and what they are called here."""
ADAPTERS = {"fit": "arrays", "from_huggingface": "huggingface", "from_lightning": "lightning"}
"""Functions, and the files that they are in."""
ESTIMATORS = ("Classifier", "Regressor")
"""Not in ``__all__``, as all of it is there without scikit-learn."""


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", "data"})


def __getattr__(name: str) -> Any:
    if name in ADAPTERS:
        return getattr(importlib.import_module(f"argosy.adapters.{ADAPTERS[name]}"), name)
    if name in ("plan", "train", "tune"):
        from argosy import api  # imports torch, which ``import argosy`` and ``argosy --help`` must not

        return getattr(api, name)
    if name == "load":
        from argosy.running.directory.loading import load  # imports numpy

        return load
    if name == "attach":
        from argosy.running.directory.attached import attach  # imports numpy

        return attach
    if name == "Ray":
        from argosy.running.hosts.ray_cluster import Ray  # imports ray

        return Ray
    if name in ESTIMATORS:
        from argosy.estimators import estimators  # imports scikit-learn

        return getattr(estimators, name)
    if name == "tabular":
        from argosy.estimators.tabular import tabular  # imports torch

        return tabular
    if name == "data":
        return importlib.import_module("argosy.data")  # imports torch
    if name in ("bootstrap", "kfold"):
        from argosy.designs import folds as resampling  # imports numpy

        return getattr(resampling, name)
    public = list({*__all__, *ESTIMATORS, "Ray"})
    raise AttributeError(f"module 'argosy' has no attribute {name!r}{meant(ELSEWHERE.get(name, name), public)}")
