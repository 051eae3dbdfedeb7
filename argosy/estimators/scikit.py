"""Scikit-learn (extra: sklearn), with types for the classes that estimators inherit, because it has none."""

from typing import TYPE_CHECKING, Any, Self

from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight as check_sample_weight
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

__all__ = [
    "BaseEstimator",
    "ClassifierMixin",
    "RegressorMixin",
    "check_classification_targets",
    "check_consistent_length",
    "check_is_fitted",
    "check_random_state",
    "check_sample_weight",
    "validate_data",
]

if TYPE_CHECKING:

    class BaseEstimator:
        """Parameters of an estimator."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Return parameters by name."""

        def set_params(self, **params: Any) -> Self:
            """Set parameters, and return the estimator."""

        def __sklearn_tags__(self) -> Any:
            """Return the estimator's tags."""

    class ClassifierMixin(BaseEstimator):
        """The score of classifiers."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            """Return the accuracy of predictions for X."""

    class RegressorMixin(BaseEstimator):
        """The score of regressors."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            """Return R², the share of the variance of y that predictions for X explain."""

else:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
