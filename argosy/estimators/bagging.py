"""Trains members on the folds of a table, and makes one network of all of them: the part of the estimators without scikit-learn."""

import contextlib
import copy
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from argosy.api import train
from argosy.designs.folds import kfold
from argosy.disk.scratch import scratch
from argosy.ensembling.calibrate import temperature
from argosy.ensembling.ensemble import Ensemble
from argosy.ensembling.making import make_ensemble, weights_of
from argosy.ensembling.predict import Predicted
from argosy.errors import MemberError, StudyError
from argosy.errors.checks import describe_value
from argosy.errors.traces import user_errors_in
from argosy.estimators.columns import Columns, Rows
from argosy.estimators.preparation import Numbers, TablePreparation
from argosy.estimators.tabular import Shape
from argosy.results.failures import raise_interrupts
from argosy.results.report import Report
from argosy.study import Data, Member, Study

__all__ = ["MembersFor", "TrainingTable", "predict", "train_bagged"]

MembersFor = Member | Callable[[Shape], Member | Sequence[Member]]
"""A member, or a function that makes members for a table."""
MEMORY = Path("/dev/shm")
"""In-memory folder for the files of temporary runs; on a disk, each of a thousand small writes would wait."""
LEAST_BYTES = 2**29
"""Least free space there; a container has 64 MiB by default."""
ROWS = 4_096
"""Rows that are predicted at once."""
IN_FLOAT64 = (
    "Create tensors in forward in the type of its inputs (dtype=x.dtype), and register those of __init__ as buffers."
)
NOTE = "scores are computed on {:,} samples, each predicted by the networks that held it out"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTable:
    """A training table."""

    columns: Columns
    rows: Rows
    targets: npt.NDArray[Any]
    """Class numbers ``[N]``, or numbers ``[N, outputs]``."""
    weights: npt.NDArray[np.float64] | None
    """Weights of the samples ``[N]``, with mean 1; None if all weigh the same."""
    classes: int
    """Number of classes; 0 if targets are numbers."""

    @property
    def outputs(self) -> int:
        """Number of values that a network returns for a row: one logit per class, or one value per target."""
        return self.classes or int(self.targets.shape[1])


class Restored(nn.Module):
    """Converts outputs to the units of the targets; networks are trained on targets with mean 0 and standard deviation 1."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, targets: npt.NDArray[Any]) -> None:
        super().__init__()
        equal = (targets == targets[0]).all(axis=0)  # so are outputs; rounded, their mean and deviation are others
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = targets.mean(axis=0), targets.std(axis=0)
        unfit = ~(equal | (np.isfinite(deviation) & (deviation > 0)))
        if unfit.any():
            raise StudyError(
                f"argosy.Regressor: y has numbers up to {np.abs(targets[:, unfit]).max():.3g}, whose squares are too large or too small for "
                "float64. Remove rows with such targets, or divide y by a constant."
            )
        self.register_buffer("mean", torch.from_numpy(np.where(equal, targets[0], mean)))
        self.register_buffer("deviation", torch.from_numpy(np.where(equal, 0.0, deviation)))

    def forward(self, outputs_NO: Tensor) -> Tensor:
        """Return outputs ``[N, outputs]`` in the units of the targets."""
        return outputs_NO * self.deviation + self.mean

    def standardised(self, targets_NO: Tensor) -> Tensor:
        """Return targets with mean 0 and standard deviation 1."""
        return (targets_NO - self.mean) / torch.where(self.deviation > 0, self.deviation, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """A fold, with what was fitted to its training rows."""

    held_out: Sequence[int]
    preparation: TablePreparation
    restored: Restored | None
    """None for classes."""

    @classmethod
    def of(cls, samples: TrainingTable, member: Member, numbers: Numbers) -> "Fold":
        """Return the fold that a member is trained on."""
        assert member.subset is not None
        assert member.val_subset is not None
        rows = np.asarray(member.subset)
        return cls(
            held_out=member.val_subset,
            preparation=TablePreparation(samples.columns, samples.rows[rows], numbers),
            restored=None if samples.classes else Restored(samples.targets[rows]),
        )

    def arrays(self, samples: TrainingTable) -> list[Tensor]:
        """Return the whole table as this fold's networks see it."""
        targets, dtype = torch.from_numpy(samples.targets), torch.get_default_dtype()  # that of the networks
        wanted = targets if self.restored is None else self.restored.standardised(targets).to(dtype)
        prepared = [self.preparation(torch.from_numpy(samples.rows)).to(dtype), wanted]
        return prepared if samples.weights is None else [*prepared, torch.from_numpy(samples.weights).to(dtype)]

    def network_for_rows(self, network: nn.Module) -> nn.Module:
        """Return a network for rows as an estimator encodes them; in float64, so that an output does not depend on the other rows."""
        restored = () if self.restored is None else (self.restored,)
        return nn.Sequential(self.preparation, network.double(), *restored).eval()


class Bag(nn.Module):
    """Mean output of the networks of one member's folds; for classes, divided by a temperature."""

    temperature: Tensor

    def __init__(self, networks: Sequence[nn.Module], temperature: float) -> None:
        super().__init__()
        self.networks: nn.ModuleList = nn.ModuleList(networks)
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float64))

    def forward(self, rows_NC: Tensor) -> Tensor:
        """Return outputs ``[N, …]``."""
        return torch.stack([network(rows_NC) for network in self.networks]).mean(dim=0) / self.temperature


def train_bagged(
    samples: TrainingTable,
    members: Sequence[MembersFor],
    *,
    folds: int,
    numbers: Numbers,
    ensemble: Literal["greedy", "all"],
    launcher: str,
    seed: int,
) -> Ensemble:
    """Train members on all folds as one run, and return their ensemble: rows in, probabilities of classes or numbers out.

    The data of the run are one copy of the table per fold, prepared with statistics of the fold's training rows. The ensemble is
    selected and calibrated on the networks' outputs for the rows that they held out. Raises MemberError if no member was trained on all folds.
    """
    base_members = _make_members(members, samples, folds)
    families = [_split_into_folds(member, samples, folds, seed) for member in base_members]
    splits = [Fold.of(samples, member, numbers) for member in families[0]]
    arrays = tuple(torch.cat(parts) for parts in zip(*(fold.arrays(samples) for fold in splits), strict=True))
    study = Study(
        data=Data(arrays=arrays, val_arrays=arrays),
        members=[
            _shift_rows(one, by=fold * len(samples.rows)) for family in families for fold, one in enumerate(family)
        ],
        seed=seed,
    )
    with scratch("fit", _memory_folder()) as folder:
        report = train(study, directory=folder, launcher=launcher, devices=_devices(launcher), quiet=True)
        raise_interrupts(report)
        networks = {
            member.name: [
                fold.network_for_rows(report.member(one.name).load()) for fold, one in zip(splits, family, strict=True)
            ]
            for member, family in zip(base_members, families, strict=True)
            if all(report.member(one.name).counts for one in family)
        }
    if not networks:
        raise _member_error(report)
    bags, held_out = _make_bags(samples, splits, networks)
    greedy = ensemble == "greedy"
    made_ensemble = make_ensemble(
        bags,
        [seed] * len(bags),
        held_out,
        combine="probabilities" if samples.classes else "mean",
        select="greedy" if greedy else None,
        calibrate=False,
        weights=_select_for_numbers(held_out) if greedy and not samples.classes else (),
    )
    made_ensemble.note = NOTE.format(len(samples.rows))
    made_ensemble = made_ensemble.double()
    made_ensemble.weights /= (
        made_ensemble.weights.sum()
    )  # they were float32: probabilities have to sum to one in float64
    return made_ensemble.eval()


def predict(network: nn.Module, rows_NC: Tensor) -> Tensor:
    """Return a network's outputs for rows, some at a time: what its layers hold of a million rows would take gigabytes."""
    network.eval()  # an ensemble may have been trained further
    with torch.no_grad():
        return torch.cat([network(some) for some in torch.split(rows_NC, ROWS)])


def _memory_folder() -> Path | None:
    """Return the folder of files in memory; None where it has no room, or may not be written."""
    with contextlib.suppress(OSError):
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > LEAST_BYTES:
            return MEMORY
    return None


def _devices(launcher: str) -> str | None:
    """Return a single device for a process without accelerators, so that all members can be packed on it."""
    return None if launcher != "inline" or torch.accelerator.is_available() else "cpu:1"


def _make_members(members: Sequence[MembersFor], samples: TrainingTable, folds: int) -> list[Member]:
    count = len(samples.rows)
    shape = Shape(
        samples=count - -(-count // folds),
        inputs=TablePreparation.width(samples.columns),
        outputs=samples.outputs,
        of_classes=samples.classes > 0,
    )
    base_members: list[Member] = []
    for one in members:
        if isinstance(one, type):
            raise StudyError(
                f"members has the class {one.__name__}, which is neither a member nor a function of the table's "
                "shape. Pass an instance of it, for example argosy.tabular()."
            )
        result = one(shape) if callable(one) else one
        base_members += result if isinstance(result, Sequence) else [result]
    if not base_members:
        raise StudyError(
            f"members is an empty list, or its functions returned no members for {shape}. Pass at least one member, "
            "or argosy.tabular()."
        )
    if other := [one for one in base_members if not isinstance(one, Member)]:
        raise StudyError(
            f"members has {describe_value(other[0])}; it must be an argosy.Member, a function of the table's shape that returns one or a list of them, or a "
            "list of these."
        )
    names = [one.name for one in base_members]  # of two argosy.tabular(...) with the same networks they are the same
    for place, name in enumerate(names):
        if before := names[:place].count(name):
            base_members[place] = replace(base_members[place], name=f"{name}-{before + 1}")
    # A member's default loss is for classes.
    return [
        replace(one, loss=nn.MSELoss()) if not samples.classes and one.loss is None and one.step is None else one
        for one in base_members
    ]


def _split_into_folds(member: Member, samples: TrainingTable, folds: int, seed: int) -> list[Member]:
    """Return the member on each fold; folds have equal shares of classes, unless a class has too few rows for that."""
    if samples.weights is not None:
        member = _with_weights(member)
    stratified = samples.classes > 0 and np.bincount(samples.targets).min() >= folds
    of: dict[str, Any] = {"stratify": samples.targets} if stratified else {"samples": len(samples.rows)}
    return kfold(member, folds, **of, seed=seed)


def _shift_rows(member: Member, by: int) -> Member:
    """Return the member on a later copy of the table."""
    assert member.subset is not None
    assert member.val_subset is not None
    return replace(
        member, subset=[by + row for row in member.subset], val_subset=[by + row for row in member.val_subset]
    )


def _make_bags(
    samples: TrainingTable, cut: Sequence[Fold], networks: Mapping[str, Sequence[nn.Module]]
) -> tuple[dict[str, Bag], Predicted]:
    """Return each member's networks as one, calibrated on the rows that they held out, and their outputs for these rows.

    A row with a weight is repeated about as often as its weight says.
    """
    order = torch.cat([torch.as_tensor(fold.held_out) for fold in cut])
    drawn = _resample_rows(samples.weights[order]) if samples.weights is not None else torch.arange(len(order))
    order = order[drawn]
    rows, targets = torch.from_numpy(samples.rows), torch.from_numpy(samples.targets)[order]
    bags, outputs_of = {}, []
    for name, family in networks.items():
        with user_errors_in(f"the network of member {name!r}, which predicts in float64,", IN_FLOAT64):
            parts = [predict(network, rows[list(fold.held_out)]) for fold, network in zip(cut, family, strict=True)]
        outputs = torch.cat(parts)[drawn]
        if outputs.shape[1:] != (samples.outputs,):
            raise StudyError(
                f"the network of member {name!r} returns {list(outputs.shape[1:])} per row, but the table needs "
                f"[{samples.outputs}]: one logit per class, or one number per target. Change its number of outputs; a "
                "function of the table's shape gets it as shape.outputs."
            )
        scale = temperature(outputs, targets, doubt=1 / (len(order) + 2)) if samples.classes else 1.0
        bags[name] = Bag(family, scale)
        outputs_of.append(outputs / scale)
    return bags, Predicted(outputs_of, targets, order, len(order))


def _select_for_numbers(held_out: Predicted) -> list[float]:
    """Return the weights of a greedy selection in which each target counts in units of its deviation, as in training."""
    unit = held_out.targets.std(dim=0, correction=0)
    unit = torch.where(unit > 0, unit, 1.0)
    return weights_of([(output - held_out.targets) / unit for output in held_out.outputs], "mean", "greedy")


def _resample_rows(weights: npt.NDArray[np.float64]) -> Tensor:
    """Return as many row numbers as there are weights, taken at equal distances along the cumulative weight."""
    ends = np.cumsum(weights / weights.mean())
    return torch.from_numpy(np.searchsorted(ends, np.arange(len(ends)) + 0.5).clip(max=len(ends) - 1))


def _with_weights(member: Member) -> Member:
    """Return the member with the losses of samples multiplied by their weights."""
    if member.step is not None:
        raise StudyError(
            f"member {member.name!r} has its own step, which does not use sample_weight. Remove step= or "
            "sample_weight=."
        )
    loss = nn.CrossEntropyLoss() if member.loss is None else copy.copy(member.loss)
    if hasattr(loss, "reduction"):
        loss.reduction = "none"
    return replace(member, loss=None, step=partial(weighted_loss, loss))


def weighted_loss(
    loss: Callable[[Tensor, Tensor], Tensor], model: nn.Module, batch: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of a batch ``(x, y, weight)``, the mean of its samples' losses times weights, and for metrics outputs and targets."""
    inputs, target, weight_B = batch
    output = model(inputs)
    losses = loss(output, target)
    if losses.shape[:1] != weight_B.shape:
        raise StudyError(
            f"a loss returned a tensor of {losses.numel()} for {len(weight_B)} samples, but sample_weight needs the "
            "loss of each sample. Use a loss that returns shape [B], or a torch loss with reduction='none'."
        )
    of_samples_B = losses.flatten(1).mean(dim=1) if losses.dim() > 1 else losses
    return (of_samples_B * weight_B).mean(), output, target


def _member_error(report: Report) -> MemberError:
    failed = next(row for row in report.rows if not row.counts)
    return MemberError(
        f"no member was trained on all folds; {failed.name!r} has {failed.status}:\n{failed.reason.rstrip()}\nFix the "
        "member: its network gets float32 [batch, inputs] and must return [batch, outputs]. A function of the "
        "table's shape gets both numbers."
    )
