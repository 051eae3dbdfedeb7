"""Tests of checks before training: networks are called only with batch sizes that they will see; losses must not sum or broadcast."""

import math
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import ASGD, SGD
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import argosy
from argosy.api import profile
from argosy.errors import MemberFailed, StudyError
from argosy.running.launch.inline import Inline
from argosy.training.member.averaging import check_step

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(72, 6, generator=GENERATOR)
CLASSES = torch.arange(72) % 5


def ran(directory: Path, *members: argosy.Member, launcher: str = "inline", **rest: Any) -> argosy.Report:
    """Train these members for two epochs and return the report."""
    data = rest.pop("data", None) or argosy.Data(arrays=(X, CLASSES), val_arrays=(X[:40], CLASSES[:40]))
    study = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(2))
    return argosy.train(study, directory=directory, launcher=launcher, devices="cpu:1", **rest)


LINEAR = partial(nn.Linear, 6, 5)


def member(name: str = "net", model: Any = LINEAR, batch_size: int = 16, **rest: Any) -> argosy.Member:
    return argosy.Member(name, model=model, optimizer=partial(SGD, lr=0.01), batch_size=batch_size, **rest)


def reason(directory: Path, *members: argosy.Member, **rest: Any) -> str:
    """Train one member and return why it failed, or an empty string."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemberFailed)  # the report's row has the same text
        row = ran(directory, *(members or (member(),)), **rest).rows[0]
    assert row.reason or row.status != "failed"
    return row.reason if row.status == "failed" else ""


# ---- sizes of batches


class Sized(nn.Module):
    """A network that raises for other batch sizes than these."""

    def __init__(self, training: tuple[int, ...], validating: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.sizes = {True: training, False: validating}

    def forward(self, x: Tensor) -> Tensor:
        if len(x) not in self.sizes[self.training]:
            raise RuntimeError(f"shown {len(x)} samples, training: {self.training}")
        return self.layer(x)


class Recurrent(nn.Module):
    """A network whose state has one row per sample, so that it trains on one batch size only."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.register_buffer("state", torch.zeros(batch, 5))

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x) + self.state if self.training else self.layer(x)
        if self.training:
            self.state.copy_(made.detach().view(len(self.state), 5) * 0.1)
        return made


SIZES: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "full batches": ({"drop_last": True}, (16,), (16, 8)),
    "a last batch": ({}, (16, 8), (16, 8)),
    "validation in one batch": ({"drop_last": True, "eval_batch_size": 1000}, (16,), (40,)),
    "validation in batches": ({"drop_last": True, "eval_batch_size": 20}, (16,), (20,)),
    "micro-batches": ({"drop_last": True, "accumulate": 4, "eval_batch_size": 20}, (4,), (20,)),
    "a subset": ({"drop_last": True, "val_subset": range(12)}, (16,), (12,)),
    "batches larger than blocks": ({"drop_last": True, "batch_size": 36, "eval_batch_size": 40}, (36,), (40,)),
    "one sample": ({"batch_size": 1, "eval_batch_size": 20}, (1,), (20,)),
    "augmented": ({"drop_last": True, "augment": lambda batch: batch, "eval_batch_size": 20}, (16,), (20,)),
    "a loss is given": ({"drop_last": True, "loss": nn.CrossEntropyLoss(), "eval_batch_size": 20}, (16,), (20,)),
}


@pytest.mark.parametrize("launcher", ["inline", "processes"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("rest", "training", "validating"), SIZES.values(), ids=SIZES)
def test_a_network_is_shown_no_other_sizes_than_it_will_see(
    tmp_path: Path,
    rest: dict[str, Any],
    training: tuple[int, ...],
    validating: tuple[int, ...],
    count: int,
    launcher: str,
) -> None:
    if launcher == "processes" and count == 1:
        pytest.skip("the case with three members covers this one")
    sized = partial(Sized, training, validating)
    report = ran(tmp_path, *(member(f"m{n}", sized, **rest) for n in range(count)), launcher=launcher, block_size=20)
    assert [row.status for row in report.rows] == ["done"] * count, report.rows[0].reason


def step(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def test_an_own_step_is_shown_no_other_sizes(tmp_path: Path) -> None:
    sized = partial(Sized, (16,), (16, 8))
    assert reason(tmp_path, member(model=sized, step=step, drop_last=True), block_size=20) == ""


@pytest.mark.parametrize("count", [1, 3])
def test_a_buffer_of_one_row_per_sample(tmp_path: Path, count: int) -> None:
    report = ran(
        tmp_path, *(member(f"m{n}", partial(Recurrent, 16), drop_last=True) for n in range(count)), block_size=20
    )
    assert [row.status for row in report.rows] == ["done"] * count, report.rows[0].reason


def test_a_profile_shows_no_shares_to_a_network_of_one_size() -> None:
    data = argosy.Data(arrays=(X, CLASSES), val_arrays=(X[:40], CLASSES[:40]))
    study = argosy.Study(data=data, members=[member(model=partial(Sized, (16,), (16, 8)), drop_last=True)])
    assert profile(study, launcher=Inline(), node_devices=2).profiles[0].samples_per_second[0] > 0


# ---- losses that add up


def summed(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target).sum() * len(output)


def constant_and_sum(output: Tensor, target: Tensor) -> Tensor:
    return 3.0 + functional.cross_entropy(output, target, reduction="sum") / 7


def pairs(output: Tensor, target: Tensor) -> Tensor:
    """A sum over all pairs of outputs."""
    return torch.cdist(output, output).sum()


def of_class_1(output: Tensor, target: Tensor) -> Tensor:
    """A sum that is zero for the first samples, as that of a hinge may be."""
    return (functional.cross_entropy(output, target, reduction="none") * (target == 1)).sum()


def hinges_of_pairs(output: Tensor, target: Tensor) -> Tensor:
    """Pushes outputs of two classes apart; zero for the first samples, which have no pairs."""
    unlike = (target == 1)[:, None] & (target != 1)
    return ((9 - torch.cdist(output, output)).relu() * unlike).sum() / len(output)


SUMS: dict[str, Any] = {
    "a sum without the first samples": of_class_1,
    "its square": lambda output, target: of_class_1(output, target).square(),
    "CrossEntropyLoss": nn.CrossEntropyLoss(reduction="sum"),
    "a partial": partial(functional.cross_entropy, reduction="sum"),
    "a function": summed,
    "a sum beside a constant": constant_and_sum,
    "a sum over pairs": pairs,
    "NLLLoss": lambda output, target: nn.NLLLoss(reduction="sum")(output.log_softmax(1), target),
    "a negative sum": lambda output, target: -output.softmax(1)[torch.arange(len(target)), target].sum(),
}


@pytest.mark.parametrize("loss", SUMS.values(), ids=SUMS)
def test_a_loss_that_adds_up_samples_is_refused(tmp_path: Path, loss: Any) -> None:
    told = reason(tmp_path, member(loss=loss))
    assert "its loss sums over the samples of a batch" in told
    assert "\n" not in told.strip()


@pytest.mark.parametrize("validate", [None, lambda model, batch: step(model, batch) * len(batch[0])])
def test_a_step_that_adds_up_samples_is_refused(tmp_path: Path, validate: Any) -> None:
    def adding(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    told = reason(tmp_path, member(step=adding if validate is None else step, validate=validate))
    assert f"its {'step' if validate is None else 'validate'} sums over the samples of a batch" in told


def adding(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def root(model: nn.Module, batch: Any) -> Tensor:
    return adding(model, batch).sqrt()


def variational(model: nn.Module, batch: Any) -> Tensor:
    """A step that sums samples and also draws random numbers in each call."""
    return adding(model, (batch[0] + 0.01 * torch.randn_like(batch[0]), batch[1]))


@pytest.mark.parametrize("rows", [20, 2])
@pytest.mark.parametrize("own", [adding, root, variational])
@pytest.mark.parametrize("what", ["step", "validate"])
def test_a_sum_in_batches_of_one_size_is_refused(tmp_path: Path, what: str, own: Any, rows: int) -> None:
    told = reason(tmp_path, member(**{"step": step, what: own}, batch_size=8, eval_batch_size=rows))
    assert f"its {what} sums over the samples of a batch" in told
    assert "\n" not in told.strip()


@pytest.mark.parametrize("seed", range(3))
def test_a_supervised_contrastive_loss_is_accepted_although_the_first_samples_differ_in_class(seed: int) -> None:
    output = torch.randn(16, 5, generator=torch.Generator().manual_seed(seed))
    check_step(member(step=step), "step", lambda pair: supervised(*pair), (output, CLASSES[:16]), 16)


def remembering(memory: Tensor, batch: Any) -> Tensor:
    """Early-learning regularization (Liu et al. 2020); each call updates a moving average of predictions."""
    output, target, number = batch
    said = output.softmax(1)
    memory[number] = 0.7 * memory[number] + 0.3 * said
    return functional.cross_entropy(output, target) + 3 * (1 - (memory[number] * said).sum(1)).log().mean()


@pytest.mark.parametrize("seed", [5, 77, 96])
def test_a_step_whose_memory_changes_in_each_call_is_accepted_although_its_value_grows(seed: int) -> None:
    output = 2 * torch.randn(16, 3, generator=torch.Generator().manual_seed(seed))
    target = output.argmax(1)
    target[:3] = 0
    check_step(
        member(step=step), "step", partial(remembering, torch.zeros(16, 3)), (output, target, torch.arange(16)), 16
    )


def denoising(network: nn.Module, seed: int, batch: Any) -> Tensor:
    """A diffusion model's validation loss with times and noise of a fixed seed, so that it depends on the order of samples."""
    generator, (x,) = torch.Generator().manual_seed(seed), batch
    noise, time = torch.randn(x.shape, generator=generator), torch.rand(len(x), 1, generator=generator)
    return (network((1 - time) * x + time * noise) - noise).square().mean()


@pytest.mark.parametrize("seed", range(3))
def test_a_value_that_depends_on_the_order_of_samples_is_accepted_although_it_grows_by_chance(seed: int) -> None:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for one in range(20):
            check_step(member(step=step), "validate", partial(denoising, nn.Tanh(), one), (x,), 16)


def observing(calls: list[int], batch: Any) -> Tensor:
    """A value that moves with some calls only, as that of fake quantization whose observed range has grown by a level."""
    calls.append(1)
    return torch.ones(()) + 0.01 * max(0, len(calls) - 3) ** 2


def test_a_value_that_moves_with_later_calls_is_accepted_although_it_grows() -> None:
    check_step(member(step=step), "step", partial(observing, []), (X[:16],), 16)


def mining(model: nn.Module, batch: Any) -> Tensor:
    """A step that draws a negative for each sample; raises if the batch has only one class."""
    others = batch[1][:, None] != batch[1]
    drawn = torch.multinomial(others.float(), 1)[:, 0]
    output = model(batch[0])
    return functional.softplus(1 - (output - output[drawn]).square().sum(1)).mean()


def test_a_step_that_takes_no_batch_of_equal_samples_is_taken(tmp_path: Path) -> None:
    assert reason(tmp_path, member(step=mining)) == ""


def test_a_root_of_a_sum_is_refused(tmp_path: Path) -> None:
    loss = lambda output, target: functional.cross_entropy(output, target, reduction="sum").sqrt()  # noqa: E731
    assert "its loss sums over the samples of a batch" in reason(tmp_path, member(loss=loss))


def test_a_step_that_adds_up_is_refused_without_a_validation(tmp_path: Path) -> None:
    assert "its step sums over" in reason(tmp_path, member(step=adding), data=argosy.Data(arrays=(X, CLASSES)))


def test_a_sum_of_a_network_that_takes_its_own_sizes_alone_is_refused(tmp_path: Path) -> None:
    sized = partial(Sized, (16,), (16, 8))
    assert "its step sums over" in reason(tmp_path, member(model=sized, step=adding, drop_last=True), block_size=20)


def contrastive(output: Tensor, target: Tensor) -> Tensor:
    """InfoNCE with negatives from the batch."""
    near = output @ output.T - 1e9 * torch.eye(len(output))
    return functional.cross_entropy(near, torch.arange(len(output)).roll(1))


def supervised(output: Tensor, target: Tensor) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020); 0 if no two samples have the same class."""
    apart = torch.eye(len(output))
    near = functional.normalize(output) @ functional.normalize(output).T / 0.2 - 1e9 * apart
    alike = (target[:, None] == target).float() - apart
    return -((alike * near.log_softmax(1)).sum(1) / alike.sum(1).clamp(min=1)).mean()


def of_one_size(output: Tensor, target: Tensor) -> Tensor:
    weights = {16: torch.ones(16), 8: torch.ones(8)}[len(output)]
    return (functional.cross_entropy(output, target, reduction="none") * weights).mean()


def drawing(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target) + torch.rand(())


def dice(output: Tensor, target: Tensor) -> Tensor:
    truth, said = functional.one_hot(target, 5), output.softmax(1)
    return 1 - 2 * (truth * said).sum() / (truth + said).sum()


def ctc(output: Tensor, target: Tensor) -> Tensor:
    times = output.log_softmax(1)[:, None].expand(-1, 4, -1).transpose(0, 1)
    lengths = torch.full((len(target),), 4), torch.ones(len(target), dtype=torch.long)
    return functional.ctc_loss(times, target.clamp(min=1)[:, None], *lengths)


MEANS: dict[str, Any] = {
    "the default": None,
    "cross-entropy": nn.CrossEntropyLoss(),
    "one value per sample": nn.CrossEntropyLoss(reduction="none"),
    "weighted": nn.CrossEntropyLoss(weight=torch.tensor([9.0, 1, 1, 0.1, 0.01])),
    "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.3),
    "ignoring a label": nn.CrossEntropyLoss(ignore_index=0),
    "batchmean": lambda o, t: nn.KLDivLoss(reduction="batchmean")(o.log_softmax(1), functional.one_hot(t, 5).float()),
    "mean of divergences": lambda o, t: functional.kl_div(o.log_softmax(1), functional.one_hot(t, 5).float()),
    "pos_weight": lambda o, t: nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 7.0))(
        o, functional.one_hot(t, 5).float()
    ),
    "CTC": ctc,
    "contrastive": contrastive,
    "dice": dice,
    "for two batch sizes only": of_one_size,
    "random": drawing,
    "a constant": lambda o, t: 0.0 * functional.cross_entropy(o, t) + 2.5,
    "a mean over a large constant": lambda o, t: 1e6 + functional.cross_entropy(o, t),
    "the mean of a sum": lambda o, t: functional.cross_entropy(o, t, reduction="sum") / len(t),
    "margins": nn.MultiMarginLoss(),
    "a sum over outputs": lambda o, t: o.square().sum(1).mean(),
    "each sample's hinges over pairs": hinges_of_pairs,
    "each sample's sum over pairs": lambda o, t: (o @ o.T).sigmoid().sum() / len(o),
    "a mean in one dimension": lambda o, t: functional.cross_entropy(o, t)[None],
}


@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
@pytest.mark.parametrize("loss", MEANS.values(), ids=MEANS)
def test_a_loss_that_is_no_sum_is_taken(tmp_path: Path, loss: Any) -> None:
    assert reason(tmp_path, member(loss=loss)) == ""


ONE: dict[str, tuple[Any, tuple[int, ...]]] = {
    "a column": (partial(nn.Linear, 6, 1), (-1, 1)),
    "a column, and flat targets": (partial(nn.Linear, 6, 1), (-1,)),
    "flat": (lambda: nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), (-1,)),
}


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()], ids=["default", "given"])
@pytest.mark.parametrize(("model", "shape"), ONE.values(), ids=ONE)
def test_cross_entropy_of_one_output_and_numbers_is_refused(
    tmp_path: Path, model: Any, shape: tuple[int, ...], loss: Any
) -> None:
    numbers = X.sum(1).reshape(shape)
    data = argosy.Data(arrays=(X, numbers), val_arrays=(X[:40], numbers[:40]))
    found = reason(tmp_path, member(model=model, loss=loss), data=data)
    assert "member 'net': its network has one output and targets are floats" in found
    assert "loss=nn.MSELoss()" in found


@pytest.mark.parametrize(
    "numbers", [X[:, :5], (X[:, :5] > 0).float(), X[:, :5, None]], ids=["numbers", "several labels", "pixels"]
)
def test_the_default_loss_takes_floats_only_as_probabilities(tmp_path: Path, numbers: Any) -> None:
    data = argosy.Data(arrays=(X, numbers), val_arrays=(X[:40], numbers[:40]))
    model = (lambda: nn.Sequential(nn.Linear(6, 5), nn.Unflatten(1, (5, 1)))) if numbers.dim() == 3 else LINEAR
    found = reason(tmp_path / "default", member(model=model), data=data)
    assert "member 'net': its targets are floats, of which those of one sample sum to" in found
    assert reason(tmp_path / "given", member(model=model, loss=nn.CrossEntropyLoss()), data=data) == ""


def test_shares_of_classes_are_targets_of_cross_entropy(tmp_path: Path) -> None:
    shares = functional.one_hot(CLASSES, 5).float() * 0.9 + 0.02
    assert reason(tmp_path, data=argosy.Data(arrays=(X, shares), val_arrays=(X[:40], shares[:40]))) == ""


def test_val_loss_depends_on_no_batch_size_where_it_is_a_mean(tmp_path: Path) -> None:
    found = [
        ran(tmp_path / str(size), member(loss=nn.CrossEntropyLoss(), eval_batch_size=size)).rows[0].metrics["val_loss"]
        for size in (7, 16, 40)
    ]
    assert found == pytest.approx([found[0]] * 3, rel=1e-6)


def notes(directory: Path, *members: argosy.Member, **rest: Any) -> list[str]:
    """Train one member and return the notes that the journal has about it."""
    assert reason(directory, *members, **rest) == ""
    return [note for event in evidence.event_lines(directory, "MemberStarted") for note in event["notes"]]


def coupled(model: nn.Module, batch: Any) -> Tensor:
    return contrastive(model(batch[0]), batch[1])


def mixed(model: nn.Module, batch: Any) -> Tensor:
    """A step that mixes each sample with a random one of its batch."""
    order = torch.randperm(len(batch[0]))
    return functional.cross_entropy(model(0.7 * batch[0] + 0.3 * batch[0][order]), batch[1])


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 5))


ALL = {"eval_batch_size": 40}
COUPLED: dict[str, tuple[dict[str, Any], bool]] = {
    "a loss": ({"loss": contrastive}, True),
    "a loss of each sample": (
        {"loss": lambda o, t: functional.cross_entropy(o @ o.T, torch.arange(len(o)).roll(1), reduction="none")},
        True,
    ),
    "a step": ({"step": coupled}, True),
    "a step in small batches": ({"step": coupled, "eval_batch_size": 4, "val_subset": range(10)}, True),
    "a validation": ({"step": step, "validate": coupled}, True),
    "a loss on all samples at once": ({"loss": contrastive, **ALL}, False),
    "a step on all samples at once": ({"step": coupled, **ALL}, False),
    "a sum over all samples at once": ({"step": step, "validate": adding, **ALL}, False),
    "in training alone": ({"step": coupled, "validate": step}, False),
    "statistics of batches": ({"model": normalized, "step": mixed, "validate": step}, False),
    "a step that draws": ({"step": mixed}, False),
    "a mean": ({"step": step}, False),
    "a mean in bfloat16": ({"step": step, "precision": "bfloat16"}, False),
}


@pytest.mark.parametrize(("rest", "noted"), COUPLED.values(), ids=COUPLED)
def test_a_val_loss_that_depends_on_eval_batch_size_is_noted(tmp_path: Path, rest: dict[str, Any], noted: bool) -> None:
    found = notes(tmp_path, member(**{"eval_batch_size": 20, **rest}))
    assert [note.partition(":")[0] for note in found] == (
        ["val_loss is not a mean over samples, so it depends on eval_batch_size"] if noted else []
    )


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(), nn.MSELoss()])
@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()])
def test_probabilities_for_cross_entropy_are_warned_of(tmp_path: Path, loss: Any, last: nn.Module) -> None:
    noted = isinstance(last, nn.Softmax) and not isinstance(loss, nn.MSELoss)
    shares = functional.one_hot(CLASSES, 5).float()
    data = argosy.Data(arrays=(X, shares), val_arrays=(X[:40], shares[:40]))
    with pytest.warns(UserWarning, match="'net': its network returns probabilities") if noted else nullcontext():
        found = notes(tmp_path, member(model=lambda: nn.Sequential(nn.Linear(6, 5), last), loss=loss), data=data)
    assert [note.partition(",")[0] for note in found] == ["its network returns probabilities"] * noted


@pytest.mark.parametrize("rest", [{"loss": contrastive}, {"step": coupled}, {"step": step}, {}])
def test_a_loss_of_whole_batches_is_noted_with_micro_batches(tmp_path: Path, rest: dict[str, Any]) -> None:
    found = notes(tmp_path, member(accumulate=2, **rest, **ALL))
    noted = rest in ({"loss": contrastive}, {"step": coupled})
    assert [note[:40] for note in found] == (["its loss is not a mean over samples, so "] if noted else [])


SHOWN: list[tuple[bool, int]] = []


class Counting(nn.Module):
    """A network that records its calls in `ROWS_SHOWN` and counts samples in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(6, 5), nn.Dropout(0.3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        SHOWN.append((self.training, len(x)))
        self.count += len(x)
        return self.dropout(self.layer(x))


def test_steps_are_tried_on_a_copy_which_trains_on_no_other_sizes(tmp_path: Path) -> None:
    SHOWN.clear()
    with pytest.warns(UserWarning, match="its validation changes 'count' of the network"):
        report = ran(tmp_path, member(model=Counting, step=step, drop_last=True, eval_batch_size=20))
    assert {rows for training, rows in SHOWN if training} == {16}
    assert report.rows[0].status == "done"
    assert torch.load(report.rows[0].folder / "last.pt")["model"]["count"] == 2 * (4 * 16 + 40)


def test_no_graph_is_compiled_for_a_size_that_is_tried(tmp_path: Path) -> None:
    sizes = []

    def counting(graph: Any, inputs: Any) -> Any:
        sizes.append({len(tensor) for tensor in inputs if isinstance(tensor, Tensor) and tensor.dim() == 2})
        return graph

    def compiled() -> nn.Module:
        return torch.compile(nn.Linear(6, 5), backend=counting)

    assert reason(tmp_path, member(model=compiled, step=step, batch_size=20, drop_last=True)) == ""
    assert sizes, "nothing was compiled"
    assert all(shown <= {20, 5} for shown in sizes)  # 20 samples; 5 rows of the weight matrix


# ---- first mistakes


def sentence(directory: Path, *members: argosy.Member, arrays: Any = (X, CLASSES), **rest: Any) -> str:
    """Train on these arrays and return the error or the reason of the failed member, without a traceback."""
    try:
        told = reason(directory, *members, data=argosy.Data(arrays=arrays, val_arrays=arrays, **rest))
    except StudyError as error:
        told = str(error)
    assert told
    assert "File " not in told
    return told


NUMBERS = X[:, :1] * 2
ONE = partial(nn.Linear, 6, 1)


@pytest.mark.parametrize(
    "loss",
    [nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.MSELoss(reduction="none"), functional.mse_loss],
)
@pytest.mark.parametrize("flat", [True, False])
def test_a_loss_that_broadcasts_is_refused(tmp_path: Path, loss: Any, flat: bool) -> None:
    model, target = (ONE, NUMBERS.flatten()) if flat else (Flat, NUMBERS)
    told = sentence(tmp_path, member(model=model, loss=loss), arrays=(X, target))
    assert "compares each output with the targets of other samples too. Give both the same shape" in told
    assert ("target.reshape(-1, 1)" in told) == flat


def by_hand(output: Tensor, target: Tensor) -> Tensor:
    return (output - target) ** 2


def mean_by_hand(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


class Flat(nn.Module):
    """A network that returns one number per sample, ``[B]``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).flatten()


@pytest.mark.parametrize("loss", [by_hand, mean_by_hand])
def test_a_loss_by_hand_that_broadcasts_is_refused(tmp_path: Path, loss: Any) -> None:
    told = sentence(tmp_path, member(model=ONE, loss=loss), arrays=(X, NUMBERS.flatten()))
    assert "compares each output with the targets of other samples" in told


def pinball(output: Tensor, target: Tensor) -> Tensor:
    """A quantile loss, which compares each output column, ``[B]``, with flat targets."""
    errors = [target - output[:, column] for column in range(3)]
    return sum(
        torch.maximum((q - 1) * error, q * error) for q, error in zip((0.1, 0.5, 0.9), errors, strict=True)
    ).mean()


def test_a_loss_of_quantiles_takes_flat_targets_and_says_so(tmp_path: Path) -> None:
    several = member(model=partial(nn.Linear, 6, 3), loss=pinball)
    assert "Give both the same shape: target[:, 0]." in sentence(tmp_path / "a", several, arrays=(X, NUMBERS))
    assert reason(tmp_path / "b", several, data=argosy.Data(arrays=(X, NUMBERS.flatten()))) == ""


def test_a_step_that_draws_and_looks_at_no_targets_broadcasts_nothing() -> None:
    """A step that only draws random numbers, such as a contrastive one before training, is not taken for one that broadcasts targets.

    Its values for four orders of the targets may be equal by chance while those for another shape differ.
    """
    samples = X[:16], NUMBERS[:16].flatten()
    for seed in range(40):
        torch.manual_seed(seed)
        check_step(member(), "step", lambda batch: 4 + 0.006 * torch.rand(()), samples, 16)


@pytest.mark.parametrize("start", [0.4, 1.0, 1.2])
def test_a_validation_that_moves_a_threshold_broadcasts_nothing(start: float) -> None:
    """A validation without targets, as of an autoencoder, is accepted although its value changes in each call."""
    threshold = torch.tensor(start)

    def error(batch: Any) -> Tensor:
        errors = batch[0].square().mean(1)
        threshold.mul_(0.9).add_(0.1 * errors.quantile(0.5))
        return errors * (1 + (errors > threshold).float())

    check_step(member(), "validate", error, (X[:16] / 2, NUMBERS[:16].flatten()), 16)


def cox(risk: Tensor, time: Tensor) -> Tensor:
    """Cox's partial likelihood, which compares each sample on purpose with those that live longer."""
    risk = risk.flatten()
    longer = time[None, :] >= time[:, None]
    return (torch.where(longer, risk[None, :], -1e9).logsumexp(1) - risk).mean()


def discrepancy(output: Tensor, target: Tensor) -> Tensor:
    """The maximum mean discrepancy of two distributions, whose samples are no pairs."""
    one, two, across = (
        torch.exp(-((a.unsqueeze(1) - b.unsqueeze(0)) ** 2).sum(2)).mean()
        for a, b in ((output, output), (target, target), (output, target))
    )
    return one + two - 2 * across


def test_a_loss_that_compares_two_distributions_is_accepted(tmp_path: Path) -> None:
    maps = member(model=partial(nn.Linear, 6, 6), loss=discrepancy, metrics={"mmd": discrepancy})
    assert reason(tmp_path, maps, data=argosy.Data(arrays=(X, X + 1), val_arrays=(X, X + 1))) == ""


def regression(model: nn.Module, batch: Any) -> Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


def test_a_step_that_broadcasts_is_refused(tmp_path: Path) -> None:
    told = sentence(tmp_path, member(model=ONE, step=regression), arrays=(X, NUMBERS.flatten()))
    assert "network returns [16, 1] and targets are [16]" in told


@pytest.mark.parametrize("what", ["step", "validate"])
def test_a_step_by_hand_that_broadcasts_is_refused(tmp_path: Path, what: str) -> None:
    def alike(model: nn.Module, batch: Any) -> Tensor:
        return functional.mse_loss(model(batch[0]).flatten(), batch[1])

    own = {"step": alike, what: lambda model, batch: mean_by_hand(model(batch[0]), batch[1])}
    told = sentence(tmp_path, member(model=ONE, **own), arrays=(X, NUMBERS.flatten()))
    assert f"its {what} gets [16] of float32 and compares each output with the targets of other samples" in told


def test_a_step_may_compare_all_samples_of_two_sets(tmp_path: Path) -> None:
    def discrepancy(model: nn.Module, batch: Any) -> Tensor:
        some, others = model(batch[0]), batch[1]
        pairs = (some, some), (some, others), (others, others)
        within, between, beyond = ((-(a[:, None] - b).square().sum(-1)).exp().mean() for a, b in pairs)
        return within - 2 * between + beyond

    same = member(model=partial(nn.Linear, 6, 6), step=discrepancy)
    assert reason(tmp_path, same, data=argosy.Data(arrays=(X, X + 1), val_arrays=(X, X + 1))) == ""


def test_a_step_without_a_loss_is_told_what_it_is_for(tmp_path: Path) -> None:
    def silent(model: nn.Module, batch: Any, optimizers: Any) -> None:
        regression(model, batch).backward()
        optimizers["sgd"].step()

    own = replace(
        member(model=ONE, step=regression),
        step=silent,
        validate=regression,
        optimizer=None,
        optimizers=lambda model: {"sgd": SGD(model.parameters(), lr=0.1)},
    )
    told = sentence(tmp_path, own, arrays=(X, NUMBERS))
    assert (
        "its step returned NoneType; it must return a tensor of losses, one per sample, or their mean, for the report, "
        "alone or as (loss, outputs, targets)." in told
    )


class Squares:
    """A metric class that computes a mean over batches."""

    def __init__(self) -> None:
        self.total, self.rows = 0.0, 0

    def update(self, output: Tensor, target: Tensor) -> None:
        self.total += float(((output - target) ** 2).sum())
        self.rows += len(output)

    def compute(self) -> float:
        return self.total / self.rows


def right_half(output: Tensor, target: Tensor) -> Tensor:
    return ((output > 0) == (target > 0)).float().mean()


FLAT, HALF = NUMBERS.flatten(), (CLASSES % 2).float()
WIDE: dict[str, tuple[Any, Tensor, Any]] = {
    "a mean": (ONE, FLAT, mean_by_hand),
    "the root of a mean": (ONE, FLAT, lambda o, t: mean_by_hand(o, t).sqrt()),
    "a maximum": (ONE, FLAT, lambda o, t: (o - t).abs().max()),
    "explained variance": (ONE, FLAT, lambda o, t: 1 - ((t - o) ** 2).sum() / ((t - t.mean()) ** 2).sum()),
    "a matrix": (ONE, FLAT, by_hand),
    "one value per sample": (ONE, FLAT, lambda o, t: (o - t).abs().mean(1)),
    "accuracy": (ONE, HALF, right_half),
    "a function of torch": (ONE, FLAT, functional.mse_loss),
    "NumPy": (ONE, FLAT, lambda o, t: float(np.abs(o.numpy() - t.numpy()).mean())),
    "an object": (ONE, FLAT, Squares()),
    "a class": (ONE, FLAT, Squares),
    "flat outputs": (Flat, NUMBERS, mean_by_hand),
    "some of the outputs": (partial(nn.Linear, 6, 2), FLAT, lambda o, t: (o[:, :1] - t).abs().mean()),
}
ALIKE: dict[str, tuple[Any, Tensor, Any]] = {
    "columns": (ONE, NUMBERS, mean_by_hand),
    "flattened": (ONE, FLAT, lambda o, t: mean_by_hand(o[:, 0], t)),
    "made a column": (ONE, FLAT, lambda o, t: mean_by_hand(o, t[:, None])),
    "an object": (ONE, NUMBERS, Squares()),
    "pairs on purpose": (ONE, FLAT, cox),
    "distances on purpose": (ONE, FLAT, lambda o, t: torch.cdist(o, t[:, None]).mean()),
    "distributions": (ONE, FLAT, lambda o, t: (o.flatten().sort().values - t.sort().values).abs().mean()),
    "a difference of means": (ONE, FLAT, lambda o, t: o.mean() - t.mean()),
    "targets alone": (ONE, FLAT, lambda o, t: t.std()),
    "accuracy": (LINEAR, CLASSES, argosy.accuracy),
    "weights of classes": (LINEAR, CLASSES, lambda o, t: (torch.arange(5.0)[t] * (o.argmax(1) == t)).mean()),
    "weights of outputs": (LINEAR, CLASSES, lambda o, t: (torch.arange(5.0) * o).sum(1)),
    "a scalar": (LINEAR, CLASSES, lambda o, t: 1 - (o.argmax(1) == t).float()),
    "shares of classes": (
        LINEAR,
        CLASSES,
        lambda o, t: (o.argmax(1).bincount(minlength=5) - t.bincount(minlength=5)).abs().sum(),
    ),
    "as many outputs as samples": (partial(nn.Linear, 6, 16), CLASSES, lambda o, t: o.abs()),
}


def near(output: Tensor, target: Tensor) -> Tensor:
    """A loss that accepts flat and column targets, so only the metric can be wrong."""
    if target.is_floating_point():
        return functional.mse_loss(output.reshape(len(output), -1)[:, 0], target.flatten())
    return functional.cross_entropy(output, target)


@pytest.mark.parametrize(("model", "target", "metric"), WIDE.values(), ids=WIDE)
def test_a_metric_that_broadcasts_is_refused(tmp_path: Path, model: Any, target: Tensor, metric: Any) -> None:
    told = sentence(tmp_path, member(model=model, loss=near, metrics={"odd": metric}), arrays=(X, target))
    assert (
        "so its metric 'odd' compares each output with the targets of other samples too. Give both the same shape"
        in told
    )


def test_a_metric_beside_an_own_validation_that_broadcasts_is_refused(tmp_path: Path) -> None:
    def validated(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = model(batch[0])
        return near(output, batch[1]), output, batch[1]

    own = member(model=ONE, step=validated, validate=validated, metrics={"odd": mean_by_hand})
    assert "its metric 'odd' compares each output with the targets" in sentence(tmp_path, own, arrays=(X, FLAT))


@pytest.mark.parametrize(("model", "target", "metric"), ALIKE.values(), ids=ALIKE)
def test_a_metric_that_does_not_broadcast_is_accepted(tmp_path: Path, model: Any, target: Tensor, metric: Any) -> None:
    taken = member(model=model, loss=near, metrics={"even": metric})
    assert reason(tmp_path, taken, data=argosy.Data(arrays=(X, target), val_arrays=(X, target))) == ""


@pytest.mark.parametrize(
    "rest",
    [
        {"metrics": {"odd": lambda output, target: output @ output.T}},
        {"loss": lambda output, target: (output @ output.T).square()},
        {"step": lambda model, batch: (model(batch[0]) @ model(batch[0]).T).square()},
    ],
    ids=["metric", "loss", "step"],
)
def test_values_of_each_sample_with_each_other_are_refused(tmp_path: Path, rest: dict[str, Any]) -> None:
    told = reason(tmp_path, member(**rest))
    assert "gives [16, 16] for 16 samples and [8, 8] for 8, so it compares samples of a batch with each other" in told


@pytest.mark.parametrize(
    ("model", "loss", "target"),
    [
        (ONE, lambda o, t: functional.mse_loss(o.squeeze(1), t), NUMBERS.flatten()),
        (ONE, lambda o, t: functional.mse_loss(o[:, 0], t), NUMBERS.flatten()),
        (ONE, lambda o, t: functional.mse_loss(o, t.unsqueeze(1)), NUMBERS.flatten()),
        (ONE, lambda o, t: functional.mse_loss(o.squeeze(), t), NUMBERS.flatten()),
        (ONE, lambda o, t: cox(o, t), NUMBERS.flatten()),
        (ONE, lambda o, t: cox(o, t) / 7, NUMBERS.flatten()),
        (ONE, nn.MSELoss(), NUMBERS),
        (Flat, nn.MSELoss(), NUMBERS.flatten()),
        (Flat, nn.L1Loss(), NUMBERS.flatten().double()),  # torch 2.11 differentiates no squares of two dtypes
        (partial(nn.Linear, 6, 2), lambda o, t: functional.gaussian_nll_loss(o[:, 0], t, o[:, 1].exp()), NUMBERS[:, 0]),
    ],
)
def test_a_loss_that_makes_shapes_alike_is_taken(tmp_path: Path, model: Any, loss: Any, target: Tensor) -> None:
    assert reason(tmp_path, member(model=model, loss=loss), data=argosy.Data(arrays=(X, target))) == ""


HOT = functional.one_hot(CLASSES, 5)
IMAGES = torch.randn(72, 8, 8, 3, generator=GENERATOR)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(9, 5))


class Tokens(nn.Module):
    """A network with an output for each of four positions, classes last, ``[B, 4, 5]``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).view(len(x), 4, 5)


BCE = nn.BCEWithLogitsLoss()
MISTAKES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "float64 samples": (
        {},
        (X.double(), CLASSES),
        "got samples of float64 but has weights of float32; they must have the same dtype",
    ),
    "whole samples": ({}, (X.long(), CLASSES), "got samples of int64 but has weights of float32"),
    "bytes": ({}, (X.to(torch.uint8), CLASSES), "got samples of uint8 but has weights of float32"),
    "NumPy's default": ({}, (X.double().numpy(), CLASSES.numpy()), r"samples of float64 .* array.astype\('float32'\)"),
    "double images": ({"model": convolution}, (IMAGES.movedim(-1, 1).double(), CLASSES), "got samples of float64"),
    "a wrong width": (
        {"model": narrow},
        (X, CLASSES),
        r"cannot be multiplied .*; layer '2', Linear\(in_features=9.*\), was given \[16, 8\]",
    ),
    "a wrong first width": (
        {"model": partial(nn.Linear, 7, 5)},
        (X, CLASSES),
        r"; the network, Linear\(.*\), was given \[16, 6\]",
    ),
    "channels last": (
        {"model": convolution},
        (IMAGES, CLASSES),
        r"layer '0', Conv2d.* was given \[16, 8, 8, 3\] of float32: its channels are in the last dimension",
    ),
    "int32 labels": ({}, (X, CLASSES.int()), "targets are .* of int32, .* needs class numbers as int64"),
    "float labels": ({}, (X, CLASSES.float()), "needs class numbers as int64"),
    "flags": ({"model": partial(nn.Linear, 6, 2)}, (X, CLASSES > 2), "of bool, .* needs class numbers as int64"),
    "labels in a column": (
        {},
        (X, CLASSES[:, None]),
        r"needs one class number per sample, \[batch\]. Use target.flatten\(\)",
    ),
    "one-hot whole numbers": ({}, (X, HOT), r"or one-hot targets as floats. Use target.argmax\(1\)"),
    "classes last": (
        {"model": Tokens},
        (X, CLASSES[:, None].expand(-1, 4)),
        r"classes in the second dimension. Return x.movedim",
    ),
    "labels out of range": ({}, (X, CLASSES + 1), "a target has label 5, but its network has 5 outputs"),
    "labels below 0": ({}, (X, CLASSES - 1), "a target has label -?[0-9], but its network has 5 outputs"),
    "one logit and classes": ({"model": ONE}, (X, CLASSES % 2), "a target has label 1, but its network has 1 outputs"),
    "flat logits and classes": (
        {"model": Flat},
        (X, CLASSES % 2),
        r"needs one output per class, \[batch, classes\].*BCEWithLogitsLoss",
    ),
    "BCE of two shapes": (
        {"model": ONE, "loss": BCE},
        (X, (CLASSES % 2).float()),
        r"needs the same shape for both. Use target.reshape\(-1, 1\)",
    ),
    "BCE of whole targets": (
        {"model": Flat, "loss": BCE},
        (X, CLASSES % 2),
        r"needs the same dtype for both. Use tensor.to\(torch.float32\)",
    ),
    "float64 targets of a Huber loss": (
        {"model": Flat, "loss": nn.HuberLoss()},
        (X, NUMBERS.flatten().double()),
        "no gradient of its loss if targets and outputs have different dtypes .*Double.*Convert the targets",
    ),
    "accuracy on one logit": (
        {"model": ONE, "loss": BCE, "metrics": {"accuracy": argosy.accuracy}},
        (X, (CLASSES % 2).float()[:, None]),
        r"accuracy was given outputs of shape \[16, 1\]; it needs one output per class",
    ),
    "accuracy on flat logits": (
        {"model": Flat, "loss": BCE, "metrics": {"accuracy": argosy.accuracy}},
        (X, (CLASSES % 2).float()),
        r"accuracy was given outputs of shape \[16\]; it needs one output per class",
    ),
    "accuracy of one-hot targets": (
        {"metrics": {"accuracy": argosy.accuracy}},
        (X, HOT.float()),
        r"targets of shape \[16, 5\]; it needs one class number",
    ),
    "pairs of arrays": ({}, ((X, X), (CLASSES, CLASSES)), r"Data.arrays\[0\] is a tuple of 2 arrays"),
    "pairs of unlike arrays": ({}, ((X, IMAGES), (CLASSES, CLASSES)), r"Data.arrays\[0\] is a tuple of 2 arrays"),
    "lists of unlike rows": ({}, ([[1.0], [1.0, 2.0]], [0, 1]), "array 0 of train has rows of different shapes"),
    "a mask": ({}, (np.ma.array(X.numpy(), mask=X.numpy() > 1), CLASSES), r"Data.arrays\[0\] is a masked array"),
    "a sparse matrix": (
        {},
        (sparse.csr_matrix(X.numpy()), CLASSES),
        r"Data.arrays\[0\] is a sparse csr_matrix of SciPy",
    ),
    "strings": ({}, (X, np.array(["a", "b"] * 36)), r"Data.arrays\[1\] has dtype <U1, but samples must be numbers"),
    "objects": ({}, (X.numpy().astype(object), CLASSES), r"Data.arrays\[0\] has dtype object"),
    "records": ({}, (np.zeros(72, [("a", "f4"), ("b", "i4")]), CLASSES), "which torch does not support"),
    "big-endian": (
        {},
        (X.numpy().astype(">f4"), CLASSES),
        r"dtype >f4, which torch does not support.*array.astype\(np.float32\)",
    ),
    "dates": ({}, (np.zeros(72, "datetime64[s]"), CLASSES), "which torch does not support"),
    "sparse tensors": ({}, (X.to_sparse(), CLASSES), r"Pass tensor.cpu\(\) or tensor.to_dense\(\)"),
    "no samples": ({}, (X[:0], CLASSES[:0]), "its arrays have 0, 0 rows"),
}


@pytest.mark.parametrize(("rest", "arrays", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_first_mistake_is_one_sentence(tmp_path: Path, rest: dict[str, Any], arrays: Any, words: str) -> None:
    told = sentence(tmp_path, member(**rest), arrays=arrays)
    assert re.search(words, told), told
    assert len(told.strip().splitlines()) == 1


class Own(nn.Module):
    """A network with its own `forward`, of which a submodule has a wrong width."""

    def __init__(self) -> None:
        super().__init__()
        self.below = narrow()

    def forward(self, x: Tensor) -> Tensor:
        return self.below(x)  # here


def test_a_wrong_width_below_a_forward_of_ones_own_names_its_line(tmp_path: Path) -> None:
    told = reason(tmp_path, member(model=Own))
    assert "return self.below(x)  # here" in told
    assert "layer 'below.2', Linear(in_features=9, out_features=5, bias=True), was given [16, 8] of float32" in told
    assert "site-packages" not in told


class Twice(nn.Module):
    """A network that returns its output twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.layer(x)


def test_an_error_of_a_loss_says_what_it_was_given(tmp_path: Path) -> None:
    told = reason(tmp_path / "numbers", member(loss=nn.MSELoss(), model=partial(nn.Linear, 6, 5)))
    assert told.rstrip().endswith("; its network returns [16, 5] of float32, and targets are [16] of int64")
    told = reason(tmp_path / "twice", member(model=Twice))
    assert told.rstrip().endswith(
        "not tuple; its network returns ([16, 3] of float32, [16, 3] of float32), and targets are [16] of int64"
    )


class Updated:
    """A metric object for outputs of some width, which cannot compute anything."""

    def __init__(self, width: int = 3) -> None:
        self.ones = torch.ones(width)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        torch.add(outputs, self.ones)

    def compute(self) -> float:
        """Raise an error."""
        return math.sqrt(-1)


NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "text as a rate": (
        {"optimizer": partial(SGD, lr="0.1")},
        "raised by its optimizer, SGD, which was given text as lr",
    ),
    "an unknown keyword": ({"optimizer": partial(SGD, rate=0.1)}, "raised by its optimizer, SGD"),
    "a layer of text": (
        {"model": partial(nn.Linear, 6, "5")},
        "raised by its model, Linear, which was given text as out_features",
    ),
    "a schedule": (
        {"schedule": partial(OneCycleLR, max_lr=0.1, total_steps="9")},
        "raised by its schedule, OneCycleLR, which was given text as total_steps",
    ),
    "a schedule that fails when it is stepped": (
        {"schedule": partial(StepLR, step_size="3")},
        "raised by its schedule, StepLR, which was given text as step_size",
    ),
    "one that is stepped after each batch": (
        {"schedule": partial(StepLR, step_size="3"), "schedule_per": "step"},
        "raised by its schedule, StepLR, which was given text as step_size",
    ),
    "an optimizer that fails in its step": (
        {"optimizer": partial(ASGD, alpha="0.7")},
        "raised by its optimizer, ASGD, which was given text as alpha",
    ),
    "an augmentation of one sample": (
        {"augment": lambda sample: sample.flip(-1)},
        "raised by its augment of the batch ([16, 6] of float32, [16] of int64)",
    ),
    "a metric with one argument": (
        {"metrics": {"right": lambda output: output}},
        "raised by metric 'right' of outputs [16, 5] of float32 and targets [16] of int64",
    ),
    "a metric object": (
        {"metrics": {"first": Updated}},
        "raised by metric 'first' of outputs [16, 5] of float32 and targets [16] of int64",
    ),
    "a metric object that fails at the end": (
        {"metrics": {"last": partial(Updated, width=5)}},
        "raised by metric 'last'",
    ),
    "a metric that raises ValueError": (
        {"metrics": {"binary": functional.binary_cross_entropy}},
        "raised by metric 'binary' of outputs [16, 5] of float32 and targets [16] of int64",
    ),
}


@pytest.mark.parametrize("case", NAMED)
def test_an_error_in_a_part_of_a_member_names_the_part_and_no_line_of_argosy(tmp_path: Path, case: str) -> None:
    fields, named = NAMED[case]
    told = reason(tmp_path, argosy.Member("net", **{"model": LINEAR, "optimizer": SGD, "batch_size": 16, **fields}))
    assert told.rstrip().endswith(f"; {named}")
    assert "argosy/training" not in told


class Logarithms(nn.Sequential):
    """A network that returns logarithms of probabilities."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.LogSoftmax(dim=1))


class OfLogits(nn.NLLLoss):
    """A loss that takes the logarithms itself."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean."""
        return super().forward(output.log_softmax(1), target)


def test_a_negative_log_likelihood_takes_logarithms(tmp_path: Path) -> None:
    for name, loss in {"module": nn.NLLLoss(), "bound": partial(functional.nll_loss, ignore_index=7)}.items():
        told = reason(tmp_path / name, member(loss=loss))
        assert "but its loss, NLLLoss, takes logarithms of probabilities, which are at most 0" in told
    assert not reason(tmp_path / "taken", member(model=Logarithms, loss=nn.NLLLoss()))
    assert not reason(tmp_path / "takes", member(loss=OfLogits()))


def flipped(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array[::-1, ::-1]


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = array.copy()
    array.flags.writeable = False
    return array


def big_endian(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(">f4")


KINDS: dict[str, Callable[[Any], Any]] = {
    "strides below 0": flipped,
    "read-only": read_only,
    "big-endian": big_endian,
    "Fortran order": np.asfortranarray,
    "a frame": pd.DataFrame,
    "a read-only frame": lambda array: pd.DataFrame(read_only(array)),
    "a frame with another index": lambda array: pd.DataFrame(array, index=range(100, 100 + len(array))),
    "a list": np.ndarray.tolist,
    "half precision": lambda array: array.astype(np.float16),
    "a tensor that wants gradients": lambda array: torch.tensor(array, requires_grad=True),
    "brain floats": lambda array: torch.tensor(array).bfloat16(),
}


class Rows:
    """A dataset of the rows of an array."""

    def __init__(self, rows: Any, labels: Any) -> None:
        self.rows, self.labels = rows, labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], self.labels[index]


def scaled(batch: Any) -> Any:
    return batch[0].float(), batch[1]


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_arrays_of_every_kind_are_trained_on(tmp_path: Path, made: Callable[[Any], Any]) -> None:
    rows, labels, found = made(X.numpy()), pd.Series(CLASSES.numpy()), []
    if made is not big_endian:  # refused as Data.arrays, because the whole array would be copied, even a memory map
        found.append(argosy.Data(arrays=(rows, labels), val_arrays=(rows, labels), on_device=scaled))
    if not isinstance(rows, pd.DataFrame | list):
        found.append(argosy.Data(train=Rows(rows, CLASSES), val=Rows(rows, CLASSES), on_device=scaled))
    reports = [ran(tmp_path / str(number), member(), data=data) for number, data in enumerate(found)]
    assert all(report.rows[0].status == "done" for report in reports)
    assert len({report.rows[0].metrics["val_loss"] for report in reports}) == 1


@pytest.mark.parametrize("made", [made for name, made in KINDS.items() if "brain" not in name])
def test_fit_takes_arrays_of_every_kind(tmp_path: Path, made: Callable[[Any], Any]) -> None:
    rows = made(X.numpy())
    how = {"launcher": "inline", "devices": "cpu:1", "stop": argosy.MaxEpochs(1)}
    fitted = argosy.fit(rows, CLASSES.numpy()[::-1], member(), **how)
    assert fitted.predict(rows).shape == (72,)


def test_fit_refuses_a_mask() -> None:
    with pytest.raises(StudyError, match="X is a masked array"):
        argosy.fit(np.ma.array(X.numpy(), mask=X.numpy() > 1), CLASSES.numpy(), member())


def test_accuracy_of_tokens_says_how_to_move_their_classes() -> None:
    output, target = torch.randn(2, 5, 3), torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(StudyError, match=r"output.movedim\(-1, 1\) where classes come last"):
        argosy.accuracy(output, target)
    assert argosy.accuracy(output.movedim(-1, 1), target).shape == (2,)


def test_accuracy_of_several_positions_per_sample_is_their_mean() -> None:
    output, target = torch.randn(3, 5, 2, 2), torch.zeros(3, 2, 2, dtype=torch.long)
    right = (output.argmax(1) == target).float()
    assert torch.equal(argosy.accuracy(output, target), right.flatten(1).mean(1))
    with pytest.raises(StudyError, match=r"each must be one tensor.*outputs\[0\]"):
        argosy.accuracy((output, output), target)


@pytest.mark.parametrize("classes", [160, 256, 300])
def test_class_numbers_that_are_bytes_count_as_others_do(classes: int) -> None:
    output = torch.randn(3, classes, 90, generator=GENERATOR)
    right = output.argmax(1).remainder(256)
    right[:, 0] = 156  # -100 as a byte
    assert torch.equal(argosy.accuracy(output, right.byte()), argosy.accuracy(output, right))
    assert argosy.accuracy(output, right.byte()).min() > 0


@pytest.mark.parametrize("ignored", [-100, 255, 0])
def test_pixels_that_the_loss_ignores_are_not_in_the_accuracy(tmp_path: Path, ignored: int) -> None:
    x = torch.randn(24, 2, 4, 4, generator=GENERATOR)
    y = x.sum(1).gt(0).long() + 1
    ignores = torch.rand(y.shape, generator=GENERATOR) < 0.4
    pixels = x, y.masked_fill(ignores, ignored)
    loss, metrics = nn.CrossEntropyLoss(ignore_index=ignored), {"accuracy": argosy.accuracy}
    net = member("net", partial(nn.Conv2d, 2, 3, 1), loss=loss, metrics=metrics)
    report = ran(tmp_path, net, data=argosy.Data(arrays=pixels, val_arrays=pixels))
    right = (report.rows[0].load()(x).argmax(1) == y) & ~ignores
    shares = right.flatten(1).sum(1) / (~ignores).flatten(1).sum(1)
    assert report.rows[0].metrics["val_accuracy"] == pytest.approx(shares.mean().item())
