"""Fit and predict like scikit-learn and skorch: arrays in, a network that predicts out."""

import numbers
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from argosy.api import train
from argosy.data.tables import check_same_columns, names_of
from argosy.disk.scratch import scratch
from argosy.errors import MemberError, StudyError
from argosy.errors.checks import check_arrays, check_has_values, describe_value
from argosy.errors.labels import check_none_missing, labels_of, rows_of
from argosy.errors.spelling import known_keywords
from argosy.results.failures import raise_interrupts
from argosy.results.report import Report
from argosy.stopping import MaxEpochs, Stop
from argosy.study import Data, Member, Study

__all__ = ["Fitted", "fit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """The result of `argosy.fit`."""

    report: Report
    network: nn.Module = field(repr=False)
    """The best member's network, with its best weights."""
    classes: npt.NDArray[Any] | None = field(repr=False)
    """Classes in the order of the network's outputs; None for regression."""
    feature_names_in_: npt.NDArray[Any] | None = field(repr=False)
    """Names of X's columns, which later tables must have in the same order; None if X had none."""

    def __repr__(self) -> str:
        best, objective = self.report.best(), self.report.objective
        return f"Fitted: {best.name}, {objective} {best.metrics[objective]:.4g}, the best of {len(self.report.rows)}"

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the class of each sample ``[N]``, or the network's outputs for regression."""
        outputs = self._outputs(X)
        return outputs.numpy() if self.classes is None else self.classes[outputs.argmax(dim=1).numpy()]

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:
        """Return probabilities ``[N, classes]``, in the order of `classes`."""
        if self.classes is None:
            raise StudyError("predict_proba needs classes, but the targets are numbers (floats). Use predict.")
        return self._outputs(X).softmax(dim=1).numpy()

    def _outputs(self, X: Any) -> Tensor:
        self._check_names(X)
        inputs, known = _tensor(_numbers(X)), self.report.networks().known_study().data.arrays[0]
        if inputs.dim() != known.dim():
            raise StudyError(
                f"X has shape {list(inputs.shape)}, but each sample of the X of argosy.fit has {list(known.shape[1:])}. Pass one row per "
                "sample; a single sample is X[np.newaxis]."
            )
        if known.is_floating_point():  # a few rows may be whole numbers by chance
            inputs = inputs.to(known.dtype)
        outputs: Tensor = self.report.predict((inputs,), self.network)
        return outputs

    def _check_names(self, X: Any) -> None:
        """Raise StudyError if columns have other names or another order; warn if only one of the two has names."""
        fitted_names, new_names = self.feature_names_in_, _names(X)
        if fitted_names is None or new_names is None:
            if fitted_names is not new_names:
                with_names, without = (
                    ("X", "the X of argosy.fit") if fitted_names is None else ("the X of argosy.fit", "X")
                )
                warnings.warn(
                    f"{with_names} has column names and {without} has none, so columns are matched by position.",
                    stacklevel=4,
                )
            return
        check_same_columns(new_names, fitted_names, "argosy.fit", "X[fitted.feature_names_in_]")


@known_keywords("argosy.fit", train)
def fit(
    X: Any,
    y: Any,
    members: Sequence[Member] | Member,
    *,
    stop: Stop | None = None,
    validation: float = 0.2,
    seed: int = 0,
    directory: str | Path | None = None,
    **settings: Any,
) -> Fitted:
    """Train members on arrays, and return the best of them to predict with.

    Networks get float32, or int64 if X contains only integers or booleans. Targets of float type are regression targets; all others are
    class labels of any kind, and networks return one logit per class. A fraction `validation` of the samples, drawn by `seed`, is held out.
    Members without a rule of their own train until `stop`, by default for 10 epochs. Without a directory, nothing of the run is kept except
    the return value. `settings` are those of `argosy.train`; nothing is printed. Column names of a table are kept, and checked in `predict`.
    Raises what `argosy.train` raises, MemberError if no member has finished an epoch, and KeyboardInterrupt if a signal ends the run.
    """
    names = _names(X)
    inputs, target = _numbers(X), _targets(y)
    classes, wanted = (None, target) if target.dtype.kind == "f" else np.unique(target, return_inverse=True)
    check_arrays("argosy.fit: (X, y)", (inputs, wanted))
    arrays = (_tensor(inputs), _tensor(wanted))
    held_out = _draw_held_out(len(target), validation, seed)
    study = Study(
        data=Data(
            arrays=_take_rows(arrays, ~held_out), val_arrays=_take_rows(arrays, held_out) if held_out.any() else None
        ),
        members=[members] if isinstance(members, Member) else members,
        stop=MaxEpochs(10) if stop is None else stop,
        seed=seed,
    )
    settings = {"quiet": True, **settings}
    if directory is not None:
        return _make_fitted(train(study, directory=directory, **settings), classes, names, arrays[0])
    with scratch("fit") as folder:
        return _make_fitted(train(study, directory=folder, **settings), classes, names, arrays[0])


def _make_fitted(
    report: Report, classes: npt.NDArray[Any] | None, names: npt.NDArray[Any] | None, inputs: Tensor
) -> Fitted:
    raise_interrupts(report)
    failed = next((row for row in report.rows if row.reason), None)
    if failed is not None and not any(row.metrics for row in report.rows):
        gaps = inputs.isnan().reshape(len(inputs), -1).any(dim=1)
        advice = (
            f"Fix X: {int(gaps.sum()):,} of its {len(gaps):,} rows have missing values. Fill them in."
            if gaps.any()
            else "Fix the member."
            if inputs.is_floating_point()
            else "Fix the member. If its network needs floats, pass X as floats."
        )
        raise MemberError(
            f"argosy.fit: no member has finished an epoch; {failed.name!r} has {failed.status}:\n{failed.reason.rstrip()}\n{advice}"
        )
    best = report.best()
    network = best.load()
    if classes is not None:
        _check_outputs(best.name, report.predict((inputs[:1],), network), len(classes))
    return Fitted(report=report, network=network, classes=classes, feature_names_in_=names)


def _check_outputs(member: str, output: Any, classes: int) -> None:
    """Raise StudyError unless a network returns one number per class: its largest one is the class that is predicted."""
    shape = list(output.shape[1:]) if isinstance(output, Tensor) else type(output).__name__
    if shape != [classes]:
        raise StudyError(
            f"argosy.fit: y has {classes} classes, but the network of member {member!r} returns {shape} per sample; "
            f"it must return one logit per class, [{classes}]. Change its number of outputs and use a loss for "
            "classes, such as cross-entropy, or train it with argosy.train."
        )


def _targets(y: Any) -> npt.NDArray[Any]:
    """Return floats ``[N, …]``, or one label for each sample ``[N]``; raises StudyError if some are missing."""
    array = rows_of("argosy.fit: y", y)
    if array.dtype.kind == "f" and array.ndim > 1:
        check_none_missing("argosy.fit: y", y, array)
        return array
    return labels_of("argosy.fit: y", y)


def _draw_held_out(samples: int, share: float, seed: int) -> npt.NDArray[np.bool_]:
    if not 0 <= share < 1:
        raise StudyError(
            f"argosy.fit: validation is {share}; it must be a fraction of the samples, at least 0 and less than 1."
        )
    held_out = np.zeros(samples, np.bool_)
    held_out[np.random.RandomState(seed & 0xFFFFFFFF).permutation(samples)[: round(share * samples)]] = True
    return held_out


def _take_rows(arrays: tuple[Tensor, Tensor], chosen: npt.NDArray[np.bool_]) -> tuple[Tensor, ...]:
    return tuple(array[torch.from_numpy(chosen)] for array in arrays)


def _names(X: Any) -> npt.NDArray[Any] | None:
    """Return the names of a table's columns; None for an array, or if columns are only numbered."""
    names = names_of(X) or []
    if names == list(range(len(names))):
        return None
    array = np.empty(len(names), object)
    array[:] = names
    return array


def _numbers(values: Any) -> npt.NDArray[Any]:
    """Return an array; columns of mixed numeric types, such as flags in a table, become float64.

    Raises StudyError for anything not numeric.
    """
    check_has_values("X", values)
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if not array.ndim:
        raise StudyError(
            f"argosy.fit: X is {describe_value(values)}; it must be an array or a table of numbers. For a sparse matrix, pass "
            "X.toarray()."
        )
    if array.dtype.kind in "biuf":
        return array
    columns = array.T if array.ndim == 2 else array[None]
    names = names_of(values) or range(len(columns))
    if wrong := [repr(name) for name, column in zip(names, columns, strict=True) if not _are_numbers(column)]:
        raise StudyError(
            f"X has values that are not numbers in {len(wrong)} of its {len(columns)} columns: "
            f"{', '.join(wrong[:5])}. Encode them, for example as class numbers, fill in missing values, or remove "
            "the columns."
        )
    return array.astype(np.float64)


def _are_numbers(values: npt.NDArray[Any]) -> bool:
    durations = np.timedelta64  # which NumPy has among whole numbers
    return all(isinstance(value, numbers.Real | np.bool_) and not isinstance(value, durations) for value in values.flat)


def _tensor(values: npt.NDArray[Any]) -> Tensor:
    """Return numbers in the dtypes of networks: torch's default for floats, int64 for others."""
    floats = np.float64 if torch.get_default_dtype() == torch.float64 else np.float32
    return torch.from_numpy(np.array(values, dtype=floats if values.dtype.kind == "f" else np.int64))
