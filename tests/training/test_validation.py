"""Tests that a metric's value does not depend on batches, blocks, sections or the device."""

import math
import threading
import warnings
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import evidence
import numpy as np
import pytest
import studies
import torch
from late import devices  # noqa: F401
from torch import nn

import argosy
from argosy.errors import StudyError
from argosy.stream.order import Digest
from argosy.training.device.devices import open_backend
from argosy.training.member.validation import Validation, new_state

OUTPUTS = torch.randn(41, 10, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(41) ** 2 % 10


def macro_f1(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A metric of the whole set: its value differs from its mean over batches."""
    predicted, classes = output.argmax(1), torch.arange(output.shape[1])[:, None]
    hits = ((predicted == classes) & (target == classes)).sum(1)
    return (2 * hits / ((predicted == classes).sum(1) + (target == classes).sum(1)).clamp(min=1)).mean()


def share_of_threes(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((target == 3).sum()) / len(output)


class MacroF1(nn.Module):
    """The same metric as torchmetrics would compute it, by counts to which each batch is added."""

    def __init__(self, classes: int = 10, least: int = 1) -> None:
        super().__init__()
        self.least = least
        self.register_buffer("counts", torch.full((3, classes), 1e9))
        self.reset()

    def reset(self) -> None:
        self.counts.zero_()

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        predicted, classes = output.argmax(1), torch.arange(self.counts.shape[1])[:, None]
        self.counts[0] += ((predicted == classes) & (target == classes)).sum(1)
        self.counts[1] += (predicted == classes).sum(1)
        self.counts[2] += (target == classes).sum(1)

    def compute(self) -> torch.Tensor:
        hits, predicted, there = self.counts
        return (2 * hits / (predicted + there).clamp(min=self.least)).mean()


class Mean:
    """A metric with a state and without `reset`."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        self.values += output[:, 0].tolist()

    def compute(self) -> float:
        return math.fsum(self.values) / len(self.values)


def right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.argmax(1) == target


def squeezed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A metric that gives a scalar instead of one value per sample for a batch of one sample."""
    return output[:, :1].squeeze()


def of_numpy(output: torch.Tensor, target: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.abs(output.numpy()).max(1)


USED = MacroF1()
USED.update(OUTPUTS[:9], TARGETS[:9])
METRICS = {
    "right": right,
    "squeezed": squeezed,
    "of_numpy": of_numpy,
    "f1": macro_f1,
    "threes": share_of_threes,
    "state": USED,
    "class": MacroF1,
    "partial": partial(MacroF1, classes=10),
    "factory": lambda: Mean(),
}


def validated(sizes: Sequence[int], metrics: dict[str, Any], device: str = "cpu:0") -> dict[str, float]:
    """Return the metrics of a validation with batches of these sizes."""
    member = studies.member(metrics=metrics)
    validation, start = Validation(member, open_backend(device)), 0
    for rows in sizes:
        part = slice(start, start + rows)
        validation.add(rows, Digest(), OUTPUTS[part, 0], OUTPUTS[part], TARGETS[part])
        start += rows
    validation.end()
    return validation.values()


class Elsewhere:
    """A device whose tensors have no values, and do not mix with those of the host."""

    device = torch.device("meta")

    def fetch(self, leaf: torch.Tensor) -> Any:
        return torch.ones(leaf.shape, dtype=leaf.dtype), SimpleNamespace(synchronize=lambda: None)


def test_what_a_metric_binds_is_where_its_arguments_are() -> None:
    def per_sample(output: torch.Tensor, target: torch.Tensor, *, weight: torch.Tensor) -> torch.Tensor:
        return (output * weight).sum(1) * target

    def of_the_set(output: torch.Tensor, target: torch.Tensor, *, weight: torch.Tensor) -> torch.Tensor:
        return per_sample(output, target, weight=weight).mean()

    weight = torch.full((10,), 0.5)
    loss = torch.nn.CrossEntropyLoss(weight=2 * weight)
    bound = {"sample": partial(per_sample, weight=weight), "set": partial(of_the_set, weight=weight)}
    metrics = bound | {"module": loss, "method": loss.forward}
    validation = Validation(studies.member(metrics=metrics), Elsewhere())  # type: ignore[arg-type]
    for part in (slice(20), slice(20, 41)):
        output, target = OUTPUTS[part].to("meta"), TARGETS[part].to("meta")
        validation.add(len(target), Digest(), output[:, 0], output, target)
    validation.end()
    assert validation._ended == pytest.approx({"set": 5.0, "module": math.log(10), "method": math.log(10)})
    assert not loss.weight.is_meta


class Apart(torch.Tensor):
    """A tensor that cannot be read as an array before it is copied to the host, as on a GPU."""

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor.")

    def cpu(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


@pytest.mark.parametrize("kind", [Apart, torch.bfloat16])
def test_metrics_may_read_outputs_as_arrays(kind: Any) -> None:
    """Metrics of scikit-learn do; the first batch, which shows their kind, is given to them as the whole set is."""

    def right_of_numpy(output: torch.Tensor, target: torch.Tensor) -> Any:
        return output.numpy().argmax(1) == target.numpy()

    metrics = {"sample": right_of_numpy, "set": lambda *both: float(right_of_numpy(*both).mean())}
    backend = SimpleNamespace(
        device=open_backend("cpu:0").device, fetch=lambda leaf: (leaf.cpu(), SimpleNamespace(synchronize=lambda: None))
    )
    validation = Validation(studies.member(metrics=metrics), backend)  # type: ignore[arg-type]
    outputs = OUTPUTS.to(kind) if kind is torch.bfloat16 else OUTPUTS.as_subclass(kind)
    validation.add(41, Digest(), OUTPUTS[:, 0], outputs, TARGETS)
    validation.check(41, outputs, TARGETS)
    validation.end()
    expected = float(right(outputs.cpu().float(), TARGETS).double().mean())
    assert validation.values() == pytest.approx(
        {"loss": float(OUTPUTS[:, 0].mean()), "sample": expected, "set": expected}
    )


@pytest.mark.parametrize("device", ["cpu:0", "late:0"])
@pytest.mark.parametrize("sizes", [[41], [1] * 41, [1, 20, 20], [20, 20, 1], [7, 34]])
def test_values_do_not_depend_on_batches(devices: None, device: str, sizes: list[int]) -> None:  # noqa: F811
    found = validated(sizes, METRICS, device)
    assert found["f1"] == float(macro_f1(OUTPUTS, TARGETS))
    assert found["threes"] == share_of_threes(OUTPUTS, TARGETS)
    assert found["right"] == float(right(OUTPUTS, TARGETS).double().mean())
    assert found["squeezed"] == pytest.approx(float(OUTPUTS[:, 0].double().mean()), abs=1e-12)
    assert found["of_numpy"] == pytest.approx(float(OUTPUTS.abs().max(1).values.double().mean()), abs=1e-12)
    assert found["factory"] == pytest.approx(float(OUTPUTS[:, 0].double().mean()), abs=1e-7)
    for name in ("state", "class", "partial"):
        assert found[name] == pytest.approx(found["f1"], abs=1e-6)


@pytest.mark.parametrize("sizes", [[41], [1, 40], [7, 34]])
def test_a_metric_may_write_into_its_arguments(sizes: list[int]) -> None:
    def doubled(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.mul_(2)[:, 0]

    def doubled_set(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.mul_(2)[:, 0].mean()

    for metric in (doubled, doubled_set):
        validation = Validation(studies.member(metrics={"doubled": metric}), open_backend("cpu:0"))
        for output, target in zip(OUTPUTS.split(sizes), TARGETS.split(sizes), strict=True):
            validation.add(len(output), Digest(), output[:, 0], output.clone(), target)
        validation.end()
        assert validation.values()["doubled"] == pytest.approx(2 * float(OUTPUTS[:, 0].double().mean()), abs=1e-7)


@pytest.mark.parametrize("sizes", [[41], [1, 40], [7, 34]])
def test_what_a_metric_writes_is_not_seen_by_others(sizes: list[int]) -> None:
    class Drifting:
        def __init__(self) -> None:
            self.total = 0.0

        def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
            self.total += float(output[:, 0].double().sum())
            target.zero_()

        def compute(self) -> float:
            return self.total / 41

    def in_array(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        output.numpy()[:] *= 2
        return output[:, 0]

    def in_place(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.mul_(2)[:, 0].mean()

    def targets(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return target.double()

    metrics = {"state": Drifting, "array": in_array, "set": in_place, "other_state": Drifting, "targets": targets}
    validation = Validation(studies.member(metrics=metrics), open_backend("cpu:0"))
    for output, target in zip(OUTPUTS.split(sizes), TARGETS.split(sizes), strict=True):
        validation.add(len(output), Digest(), output[:, 0], output.clone(), target.clone())
    validation.end()
    first, right = float(OUTPUTS[:, 0].double().mean()), float(TARGETS.double().mean())
    wanted = {"state": first, "array": 2 * first, "set": 2 * first, "other_state": first, "targets": right}
    assert validation.values() == pytest.approx({"loss": first} | wanted, abs=1e-6)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_outputs_of_unusual_layout_reach_metrics() -> None:
    class Count:
        def __init__(self) -> None:
            self.number = 0

        def update(self, output: list[torch.Tensor], target: torch.Tensor) -> None:
            self.number += len(output) + len(target)

        def compute(self) -> int:
            return self.number

    with torch.inference_mode():
        inferred = OUTPUTS * 2
    unusual = [OUTPUTS.to_sparse(), torch.nested.nested_tensor([*OUTPUTS]), inferred]
    validation = Validation(studies.member(metrics={"count": Count}), open_backend("cpu:0"))
    validation.add(41, Digest(), OUTPUTS[:, 0], unusual, TARGETS)
    validation.end()
    assert validation.values()["count"] == 44


@pytest.mark.parametrize("value", [None, "0.5", (1.0, 2.0), torch.ones(3), torch.ones(20, dtype=torch.complex64)])
def test_what_is_no_value_is_refused_in_one_sentence(value: Any) -> None:
    with pytest.raises(
        StudyError, match=r"member 'mlp': metric 'odd' returned .* for a batch of 20; it must return one value"
    ):
        validated([20], {"odd": lambda output, target: value})


def test_a_metric_of_samples_must_not_become_one_of_the_set() -> None:
    with pytest.raises(StudyError, match="metric 'odd' returned one number for a batch of 21; it must return"):
        validated([20, 21], {"odd": lambda output, target: output[:, 0] if len(output) == 20 else output.mean()})


def of_all_classes(output: torch.Tensor, target: torch.Tensor) -> float:
    """Raise if a class is missing, like scikit-learn's `log_loss`, and its `roc_auc_score` of several classes."""
    if len(target.unique()) < output.shape[1]:
        raise ValueError("Number of classes in y_true not equal to the number of columns in 'y_score'")
    return float((output.argmax(1) == target).double().mean())


class OfAllClasses:
    """A metric object whose `compute` raises if a class is missing."""

    def __init__(self) -> None:
        self.batches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        self.batches.append((output, target))

    def compute(self) -> float:
        return of_all_classes(*map(torch.cat, zip(*self.batches, strict=True)))


@pytest.mark.parametrize("metric", [of_all_classes, OfAllClasses])
def test_a_metric_of_the_set_may_refuse_a_batch_that_lacks_a_class(tmp_path: Path, metric: Any) -> None:
    x, y = torch.randn(40, 12), torch.arange(40) // 10
    # Neither the batch on which steps are tried nor the first one of validation has all classes.
    member = studies.member(model=partial(nn.Linear, 12, 4), metrics={"auc": metric}, batch_size=8)
    study = argosy.Study(data=argosy.Data(arrays=(x, y), val_arrays=(x, y)), members=[member], stop=argosy.MaxEpochs(1))
    report = argosy.train(study, directory=tmp_path, launcher="inline", quiet=True)
    assert report.rows[0].metrics["val_auc"] == of_all_classes(report.predict(), y)


def of_both_labels(output: torch.Tensor, target: torch.Tensor) -> float:
    """Raise if a column lacks a class, like `roc_auc_score` of several labels in earlier versions of scikit-learn."""
    if not bool(((target == 0).any(0) & (target == 1).any(0)).all()):
        raise ValueError("Only one class present in y_true")
    return float(((output > 0) == (target > 0)).double().mean())


def test_a_metric_of_several_labels_may_refuse_a_batch_that_lacks_one(tmp_path: Path) -> None:
    x, y = torch.randn(40, 12), (torch.arange(40)[:, None] >= torch.tensor([10, 20, 30])).float()
    member = studies.member(
        model=partial(nn.Linear, 12, 3), metrics={"auc": of_both_labels}, loss=nn.BCEWithLogitsLoss(), batch_size=8
    )
    study = argosy.Study(data=argosy.Data(arrays=(x, y), val_arrays=(x, y)), members=[member], stop=argosy.MaxEpochs(1))
    report = argosy.train(study, directory=tmp_path, launcher="inline", quiet=True)
    assert report.rows[0].metrics["val_auc"] == of_both_labels(report.predict(), y)


def of_two_samples(output: torch.Tensor, target: torch.Tensor) -> float:
    """Raise for fewer than two samples, like `r2_score` of torchmetrics and `pearsonr` of SciPy."""
    if len(target) < 2:
        raise ValueError("Needs at least two samples to calculate r2 score.")
    return float((output - target).square().mean())


def test_a_metric_of_the_set_may_refuse_a_batch_of_one_sample(tmp_path: Path) -> None:
    x, y = torch.randn(6, 12), torch.randn(6, 1)
    member = studies.member(
        model=partial(nn.Linear, 12, 1), metrics={"r2": of_two_samples}, loss=nn.MSELoss(), batch_size=1
    )
    study = argosy.Study(data=argosy.Data(arrays=(x, y), val_arrays=(x, y)), members=[member], stop=argosy.MaxEpochs(1))
    report = argosy.train(study, directory=tmp_path, launcher="inline", quiet=True)
    assert report.rows[0].metrics["val_r2"] == pytest.approx(report.rows[0].metrics["val_loss"])


@pytest.mark.parametrize(
    ("output", "target"),
    [
        (torch.ones(12, 5), torch.zeros(4, 3)),
        (torch.ones(()), torch.zeros(4)),
        (torch.eye(4).to_sparse(), torch.arange(4)),
        (torch.ones(4, 10**6), torch.full((4, 10**6), 0.5)),  # which must not be repeated for a million classes
    ],
)
def test_the_error_of_a_metric_is_its_own_where_its_batch_cannot_be_repeated(
    output: torch.Tensor, target: torch.Tensor
) -> None:
    def refusing(output: torch.Tensor, target: torch.Tensor) -> float:
        raise ValueError("its own")

    validation = Validation(studies.member(metrics={"odd": refusing}), open_backend("cpu:0"))
    with pytest.raises(ValueError, match="its own"):
        validation.add(4, Digest(), torch.ones(4), output, target)


def warning_of_one_class(output: torch.Tensor, target: torch.Tensor) -> float:
    """Warn if there is one class only, like scikit-learn's `roc_auc_score` of two classes."""
    if len(target.unique()) < 2:
        warnings.warn("Only one class is present in y_true", stacklevel=2)
    return float((output.argmax(1) == target).double().mean())


def test_a_metric_is_not_heard_of_training_samples(tmp_path: Path) -> None:
    """Training samples may all be of one class, as for an anomaly detector, so warnings about them are suppressed."""
    x, y = torch.randn(40, 12), torch.arange(40) % 2
    members = [studies.member(f"m{number}", metrics={"auc": warning_of_one_class}) for number in range(3)]
    data = argosy.Data(arrays=(x, 0 * y), val_arrays=(x, y))
    study = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(1))
    with warnings.catch_warnings(record=True, action="always") as told:  # also in the check of programs of several
        assert argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1", quiet=True).status == "done"
    assert [str(one.message) for one in told] == []


def test_a_metric_that_refuses_all_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="Number of classes"):
        validated([20, 21], {"auc": lambda output, target: of_all_classes(output, target * 0)})


def test_outputs_that_cannot_be_gathered_are_refused() -> None:
    validation = Validation(studies.member(metrics={"f1": lambda output, target: 1.0}), open_backend("cpu:0"))
    with pytest.raises(
        StudyError, match=r"metric 'f1' is computed on the whole set.*batch of 20 has a tensor of shape \(2, 20\)"
    ):
        validation.add(20, Digest(), OUTPUTS[:20, 0], {"hidden": OUTPUTS[:20, :2].T}, TARGETS[:20])


def test_nothing_validated_is_no_number() -> None:
    assert all(math.isnan(value) for value in validated([], METRICS).values())


class Identity(nn.Module):
    """A network whose outputs in validation are views of the block, which other members share."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if self.training else x[:, 1:11]


@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_blocks_go_though_outputs_are_gathered(tmp_path: Path, launcher: str) -> None:
    """Gathered outputs do not keep slots: the run has more blocks than the ring has slots. The metric is the same for all sizes."""
    found = []
    for batch, block, sections in ((7, 16, 1), (100, 64, 2)) if launcher == "inline" else ((7, 16, 1),):
        member = studies.member(model=Identity, metrics={"f1": macro_f1}, eval_batch_size=batch, precision="bfloat16")
        study = studies.study(100, val=400, fleet=[member], epochs=1, validations_per_epoch=sections)
        folder = tmp_path / f"{batch}"
        argosy.train(study, directory=folder, launcher=launcher, block_size=block)
        found.append(evidence.event_lines(folder, "SectionEnded")[-1]["metrics"]["val_f1"])
    assert len(set(found)) == 1
    assert 0.9 < found[0] <= 1.0


class Keeping:
    """A metric that keeps the targets themselves, like torchmetrics' AUROC."""

    def __init__(self) -> None:
        self.targets: list[torch.Tensor] = []

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        self.targets.append(target.flatten())

    def compute(self) -> torch.Tensor:
        return torch.cat(self.targets).float().mean()


class Remembering(nn.Linear):
    """A network that keeps a view of each training batch after its first 20 steps."""

    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        if self.training and self.steps > 20:
            self.seen = [*getattr(self, "seen", ()), x[:1]]
        return super().forward(x)


def test_members_may_keep_what_they_are_shown(tmp_path: Path) -> None:
    """Members that keep more blocks than the ring has slots do not stop the run."""
    fleet = [
        studies.member("keeping", metrics={"kept": Keeping}, batch_size=16),
        studies.member("remembering", model=partial(Remembering, 12, 10), batch_size=8),
    ]
    study, how = studies.study(200, val=150, fleet=fleet), {"block_size": 16, "devices": "cpu:1", "numerics": "exact"}
    report = argosy.train(study, directory=tmp_path / "0", launcher="processes", time_limit=30.0, **how)
    assert report.status == "done", "the run stood still"
    kept = {row.name: row.metrics for row in report.rows}["keeping"]["val_kept"]
    assert kept == pytest.approx(4.5)
    argosy.train(study, directory=tmp_path / "1", launcher="inline", **how)
    assert evidence.results(tmp_path / "0") == evidence.results(tmp_path / "1")


def noisy(output: torch.Tensor, target: torch.Tensor) -> float:
    """A metric of the whole set that draws random numbers, such as a bootstrap."""
    return float(torch.rand(())) + float(np.random.rand())


def test_what_a_metric_draws_is_its_members_own(tmp_path: Path) -> None:
    both = [studies.member("first", metrics={"noisy": noisy}), studies.member("second", metrics={"noisy": noisy})]
    for name, fleet in (("both", both), ("alone", both[1:])):
        argosy.train(studies.study(fleet=fleet), directory=tmp_path / name, launcher="inline")
    together, alone = (evidence.results_of(tmp_path / name, "second") for name in ("both", "alone"))
    assert together == alone


class Killed(BaseException):
    """Ends a run at once."""


CALLS = ContextVar("CALLS", default=0)
"""Calls of `kills` left until it raises."""


def kills(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    CALLS.set(CALLS.get() - 1)
    if CALLS.get() == 0:
        raise Killed
    return right(output, target)


def killed(directory: Path, at: int) -> dict[str, Any]:
    """Train with a validation of seven batches in each half of an epoch, killed in call `at` of a metric; return the results."""
    CALLS.set(at)
    metrics = {"kills": kills, "f1": macro_f1, "state": MacroF1()}
    fleet = [studies.member(metrics=metrics, eval_batch_size=6), studies.member("beside")]
    study = studies.study(fleet=fleet, validations_per_epoch=2)
    argosy.train(study, directory=directory, launcher="inline", block_size=16, checkpoint_seconds=1e-9)
    return evidence.results(directory)


def test_a_metric_that_no_validation_can_copy_is_one_sentence() -> None:
    metric = MacroF1()
    metric.lock = threading.Lock()
    with pytest.raises(
        StudyError, match=r"class MacroF1, cannot be copied \(cannot pickle .*lock.*Pass a class or a func"
    ):
        new_state(metric)


def test_a_validation_that_was_interrupted_begins_anew(tmp_path: Path) -> None:
    """Members are saved between all batches, also those of a validation."""
    whole = killed(tmp_path / "whole", at=-1)
    for at in (12, 20, 25):
        with pytest.raises(Killed):
            killed(tmp_path / f"{at}", at=at)
        assert killed(tmp_path / f"{at}", at=-1) == whole
