"""Argosy trains a whole fleet of different PyTorch networks over one dataset as one job.

The names below are the public API; everything else may change. Each is loaded where it is first asked for, so that the
command line starts at once and torch is imported by what needs it.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from argosy.version import __version__ as __version__

if sys.platform == "win32":
    raise ImportError(
        "Argosy runs on Linux, and this system is Windows. Install and start it in WSL 2, or in a Linux container."
    )

if TYPE_CHECKING:
    # Type checkers see what _load gives at run time.
    from argosy import data as data
    from argosy import errors as errors
    from argosy.adapters.arrays import fit as fit
    from argosy.adapters.distill import distill as distill
    from argosy.adapters.huggingface import from_huggingface as from_huggingface
    from argosy.adapters.lightning import from_lightning as from_lightning
    from argosy.api import plan as plan
    from argosy.api import train as train
    from argosy.api import tune as tune
    from argosy.averages import EMA as EMA
    from argosy.averages import SWA as SWA
    from argosy.averages import LastK as LastK
    from argosy.designs.folds import bootstrap as bootstrap
    from argosy.designs.folds import kfold as kfold
    from argosy.designs.grid import grid as grid
    from argosy.designs.grid import replicate as replicate
    from argosy.errors import ArgosyError as ArgosyError
    from argosy.estimators.estimators import Classifier as Classifier
    from argosy.estimators.estimators import Regressor as Regressor
    from argosy.estimators.tabular import tabular as tabular
    from argosy.ragged import Ragged as Ragged
    from argosy.results.report import Report as Report
    from argosy.running.directory.attached import attach as attach
    from argosy.running.hosts.ray_cluster import Ray as Ray
    from argosy.running.search.loading import load as load
    from argosy.stopping import EnsemblePlateau as EnsemblePlateau
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

__all__ = [
    "EMA",
    "SWA",
    "ArgosyError",
    "Data",
    "EnsemblePlateau",
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
    "distill",
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
HOMES: dict[str, tuple[str, ...]] = {
    "adapters.arrays": ("fit",),
    "adapters.distill": ("distill",),
    "adapters.huggingface": ("from_huggingface",),
    "adapters.lightning": ("from_lightning",),
    "api": ("plan", "train", "tune"),
    "averages": ("EMA", "LastK", "SWA"),
    "designs.folds": ("bootstrap", "kfold"),
    "designs.grid": ("grid", "replicate"),
    "errors": ("ArgosyError",),
    "estimators.estimators": ("Classifier", "Regressor"),
    "estimators.tabular": ("tabular",),
    "ragged": ("Ragged",),
    "results.report": ("Report",),
    "running.directory.attached": ("attach",),
    "running.hosts.ray_cluster": ("Ray",),
    "running.search.loading": ("load",),
    "stopping": ("EnsemblePlateau", "MaxEpochs", "MaxSamples", "MaxSeconds", "MaxSteps", "Plateau", "Target"),
    "study": ("Data", "Member", "Study", "accuracy"),
    "tuning.search": ("Search",),
}
"""Modules, and the public names that are in them."""
ESTIMATORS = ("Classifier", "Regressor")
"""Not in ``__all__``, as all of it is there without scikit-learn."""


def __dir__() -> list[str]:
    return sorted({*__all__, *ESTIMATORS, "__version__", "data", "errors"})


def _load(name: str) -> Any:
    if name in ("data", "errors"):
        return importlib.import_module(f"argosy.{name}")
    home = next((module for module, names in HOMES.items() if name in names), None)
    if home is not None:
        try:
            return getattr(importlib.import_module(f"argosy.{home}"), name)
        except ModuleNotFoundError as error:
            if name in ESTIMATORS and (error.name or "").partition(".")[0] == "sklearn":
                raise ImportError(
                    f"argosy.{name} needs scikit-learn. Install it: pip install 'argosy[sklearn]'."
                ) from error
            raise
    from argosy.errors.spelling import did_you_mean  # imports inspect, which no command waits for

    errors = _load("errors")
    public = [*__all__, *ESTIMATORS, "Ray", *(f"errors.{one}" for one in errors.__all__ if one not in __all__)]
    raise AttributeError(f"module 'argosy' has no attribute {name!r}{did_you_mean(ELSEWHERE.get(name, name), public)}")


if not TYPE_CHECKING:  # which would take every name of the package for one that exists
    __getattr__ = _load
