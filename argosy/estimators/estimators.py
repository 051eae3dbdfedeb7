"""Classifier and Regressor: a fleet of networks as a scikit-learn estimator."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from argosy.ensembling.ensemble import Ensemble
from argosy.errors.checks import check_choice, check_has_values, check_whole
from argosy.errors.labels import check_no_times, labels_of
from argosy.errors.spelling import known_keywords
from argosy.estimators.bagging import MembersFor, TrainingTable, predict, train_bagged
from argosy.estimators.columns import Columns, is_table
from argosy.estimators.preparation import Numbers
from argosy.estimators.scikit import (
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
    check_classification_targets,
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    check_sample_weight,
    validate_data,
)
from argosy.estimators.tabular import Tabular
from argosy.study import Member

__all__ = ["Classifier", "Regressor"]

FEW = 2_000
"""Up to this many rows members are trained in this process, because starting others would cost more than it saves."""


class Bagged(BaseEstimator):
    """Base class of both estimators: their parameters, which `fit` checks, and the handling of rows."""

    def __init__(
        self,
        members: MembersFor | Sequence[MembersFor] | None = None,
        *,
        ensemble: Literal["greedy", "all"] = "greedy",
        folds: int = 5,
        numbers: Numbers = "quantile",
        launcher: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.members = members
        self.ensemble = ensemble
        self.folds = folds
        self.numbers = numbers
        self.launcher = launcher
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that missing values are allowed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _check_inputs(self, X: Any, y: Any, sample_weight: Any, **targets: Any) -> tuple[Any, Any, Any]:
        """Return a table, its targets and its weights, without rows of weight 0. Raises scikit-learn's errors and StudyError."""
        check_has_values(f"{self._name}: X", X)
        check_has_values(f"{self._name}: y", y)
        vars(self).pop("ensemble_", None)  # if `fit` fails, classes and columns are not an earlier ensemble's
        if is_table(X):
            y = validate_data(self, X="no_validation", y=y, **targets)
            validate_data(self, X, skip_check_array=True, y=y)
            check_consistent_length(X, y)
            if not len(X.columns):  # as scikit-learn says of an array
                raise ValueError(f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
        else:
            check_no_times(f"{self._name}: X", X)
            X, y = validate_data(self, X, y, dtype=np.float64, ensure_all_finite="allow-nan", **targets)
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            kept = np.flatnonzero(sample_weight)
            X = X.take(kept) if is_table(X) and hasattr(X, "take") else X[kept]  # a DataFrame is not indexed by rows
            y, sample_weight = y[kept], sample_weight[kept] / sample_weight[kept].mean()
        if len(y) < 2:
            raise ValueError(
                f"{self._name} was given n_samples={len(y)}, but needs at least 2, because one is held out. Pass more "
                "rows."
            )
        return X, y, sample_weight

    def _train(self, X: Any, targets: npt.NDArray[Any], weights: Any, *, classes: int) -> None:
        check_choice(f"{self._name}: ensemble", self.ensemble, ("greedy", "all"))
        check_choice(f"{self._name}: numbers", self.numbers, ("quantile", "standard"))
        folds = (
            self.folds.item() if isinstance(self.folds, np.integer) else self.folds
        )  # a search over np.arange gives such
        check_whole(f"{self._name}: folds", folds, least=2)
        members = Tabular() if self.members is None else self.members
        self.columns_: Columns = Columns.of(X)
        self.ensemble_: Ensemble = train_bagged(
            TrainingTable(
                columns=self.columns_, rows=self.columns_.rows(X), targets=targets, weights=weights, classes=classes
            ),
            [members] if isinstance(members, Member) or callable(members) else members,
            folds=min(folds, len(targets)),
            numbers=self.numbers,
            ensemble=self.ensemble,
            launcher=self.launcher or ("inline" if len(targets) <= FEW else "processes"),
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )

    def _predict_rows(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the ensemble's prediction for each row."""
        check_is_fitted(self, "ensemble_")
        check_has_values(f"{self._name}: X", X)
        if is_table(X):
            validate_data(self, X, reset=False, skip_check_array=True)
            if not len(X):  # as scikit-learn says of an array
                raise ValueError(
                    f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required by {self._name}."
                )
        else:
            check_no_times(f"{self._name}: X", X)
            X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
        predicted: npt.NDArray[np.float64] = predict(self.ensemble_, torch.from_numpy(self.columns_.rows(X))).numpy()
        return predicted

    @property
    def _name(self) -> str:
        return f"argosy.{type(self).__name__}"


@known_keywords("argosy.Classifier", tabular=Tabular)
class Classifier(ClassifierMixin, Bagged):
    """A calibrated, bagged ensemble of networks as a scikit-learn classifier: ``argosy.Classifier().fit(X, y).predict_proba(X)``.

    X is an array of numbers, or a DataFrame in which columns of strings are categories; values may be missing. The members are those of
    `argosy.tabular` by default; `members` can be an `argosy.Member`, a function from the table's `Shape` to one or several members, or a list of
    these. Their networks get float32 ``[batch, inputs]``, scaled by the training rows of their fold (`numbers`), and return logits. All
    members are trained on all `folds` in one run. The ensemble is selected on the predictions for held-out rows (``greedy``, Caruana et al.
    2004) or contains ``all`` members, and its probabilities are calibrated by temperatures fitted on these predictions. With up to 2,000 rows
    the run is in this process; `launcher` changes that. Nothing of the run is kept except the estimator.

    After `fit` there are `classes_`, `n_features_in_`, with names of columns `feature_names_in_`, and `ensemble_`, an `Ensemble` with `scores`.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Classifier":
        """Train on rows X ``[N, columns]`` with labels y ``[N]``; losses are multiplied by `sample_weight` ``[N]``."""
        if (labels := np.asarray(y)).dtype.kind in "OUSmM" and labels.ndim == 1:
            labels_of(f"{self._name}: y", y)  # names the rows without one
        X, y, weights = self._check_inputs(X, y, sample_weight)
        check_classification_targets(y)
        classes, targets = np.unique(y, return_inverse=True)
        self.classes_: npt.NDArray[Any] = classes
        self._train(X, targets.astype(np.int64), weights, classes=len(self.classes_))
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row ``[N]``."""
        probabilities_NC = self._predict_rows(X)
        labels: npt.NDArray[Any] = self.classes_[probabilities_NC.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return probabilities ``[N, classes]``, in the order of `classes_`."""
        return self._predict_rows(X)


@known_keywords("argosy.Regressor", tabular=Tabular)
class Regressor(RegressorMixin, Bagged):
    """A bagged ensemble of networks as a scikit-learn regressor: ``argosy.Regressor().fit(X, y).predict(X)``.

    Like `argosy.Classifier`, but targets are one or several numbers per row. Networks return as many numbers, and are trained on targets
    that are standardised by the training rows of their fold, with ``nn.MSELoss()`` if your own member has neither a loss nor a step.
    """

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that a row may have several targets."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Regressor":
        """Train on rows X ``[N, columns]`` with targets y ``[N]`` or ``[N, outputs]``; losses are multiplied by `sample_weight` ``[N]``."""
        check_no_times(f"{self._name}: y", y)
        X, y, weights = self._check_inputs(X, y, sample_weight, multi_output=True, y_numeric=True)
        self._targets = y.shape[1:]
        self._train(X, y.reshape(len(y), -1).astype(np.float64), weights, classes=0)
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return numbers for each row, ``[N]`` or ``[N, outputs]``."""
        return self._predict_rows(X).reshape(-1, *self._targets)
