"""Tests that a bad member is reported in one sentence before anything trains, and ends no other member."""

import copy
from functools import partial
from pathlib import Path
from typing import Any, Self

import evidence
import late
import pytest
import studies
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import LBFGS, SGD, Adam, SparseAdam
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

import argosy
from argosy.errors import MemberFailed, PlanError
from argosy.stream.order import permutation

devices = late.devices

OLDER = studies.Mlp()
OTHER = SGD(OLDER.parameters(), lr=0.1)


class Around(torch.optim.Optimizer):
    """An optimizer that wraps another one without calling the `__init__` of torch's Optimizer, as many do."""

    def __init__(self, parameters: Any) -> None:
        self.inner = SGD(parameters, lr=0.1)
        self.param_groups, self.defaults = self.inner.param_groups, self.inner.defaults


class Following:
    """A schedule that is stepped with the loss."""

    state_dict = load_state_dict = dict

    def step(self, loss: float) -> None: ...


class OnOlder(nn.Module):
    """A network with a new last layer on a body that other members may train as well."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = OLDER, nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def refused(tmp_path: Path, **wrong: argosy.Member) -> dict[str, str]:
    """Return the reasons for which these members failed, after checking that only a good member beside them has trained."""
    fleet = [*wrong.values(), studies.member("sound")]
    with pytest.warns(MemberFailed):
        report = argosy.train(studies.study(fleet=fleet, epochs=1), directory=tmp_path, launcher="inline")
    assert {row.name: row.status for row in report.rows} == {**dict.fromkeys(wrong, "failed"), "sound": "done"}
    assert [line["member"] for line in evidence.event_lines(tmp_path, "MemberStarted")] == ["sound"]
    for name in wrong:
        log = (tmp_path / "members" / name / "log.txt").read_text()
        last = report.member(name).reason.strip().splitlines()[-1]
        assert log.strip().endswith(last.replace("; raised by", "\nraised by"))  # a note has a line of its own there
    return {name: report.member(name).reason for name in wrong}


def never(*_: Any) -> Any:
    raise ValueError("never works")


def too_short(epoch: int) -> float:
    return [1.0][epoch]


def beyond(batch: Any) -> Any:
    return batch[0], batch[1] + 1


def moving(model: nn.Module, batch: Any, optimizers: Any) -> Tensor:
    found = nn.functional.cross_entropy(model(batch[0]), batch[1])
    found.backward()
    optimizers["all"].step()
    return found


def test_what_is_built_wrongly_is_refused(tmp_path: Path) -> None:
    member, linear = studies.member, partial(nn.Linear, 12, 10)
    reasons = refused(
        tmp_path,
        older=member("older", model=lambda: OLDER),
        on_older=member("on_older", model=OnOlder),
        lazy=member("lazy", model=lambda: nn.Sequential(nn.LazyLinear(10))),
        no_network=member("no_network", model=lambda: "resnet"),
        foreign=member("foreign", model=linear, optimizer=lambda _: SGD(OLDER.parameters(), lr=0.1)),
        around=member("around", model=linear, optimizer=Around),
        several=member(
            "several",
            model=linear,
            optimizer=None,
            optimizers=lambda model: {"all": Around(model.parameters())},
            step=moving,
            validate=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        ),
        closure=member("closure", model=linear, optimizer=LBFGS),
        no_optimizer=member("no_optimizer", model=linear, optimizer=list),
        other=member("other", model=linear, schedule=lambda _: StepLR(OTHER, 1)),
        following=member("following", model=linear, schedule=lambda _: Following()),
        watching=member("watching", model=linear, schedule=ReduceLROnPlateau, schedule_per="step"),
        upwards=member("upwards", model=linear, schedule=partial(ReduceLROnPlateau, mode="max")),
    )
    assert "returned 6 parameters that existed before the call" in reasons["older"]
    assert "Build the network inside the factory, or return copy.deepcopy(network)." in reasons["on_older"]
    assert "0.weight, 0.bias of its network have no shape yet" in reasons["lazy"]
    assert "its model factory returned str; it must return a torch.nn.Module" in reasons["no_network"]
    assert "its optimizer holds 6 parameters that do not belong to its network" in reasons["foreign"]
    assert "Around never calls __init__ of torch's Optimizer" in reasons["around"]
    assert "Around never calls __init__ of torch's Optimizer" in reasons["several"]
    assert "LBFGS.step needs a closure" in reasons["closure"]
    assert "its optimizer factory returned list" in reasons["no_optimizer"]
    assert "its schedule belongs to another optimizer" in reasons["other"]
    assert "its schedule is an instance of Following, which wants loss in step()" in reasons["following"]
    assert "ReduceLROnPlateau watches the objective" in reasons["watching"]
    assert "has mode='max', but the study's objective has mode 'min'" in reasons["upwards"]
    for name, reason in reasons.items():
        assert reason.startswith(f"StudyError: member {name!r}: "), (
            "the reason should be one sentence without a traceback"
        )
        assert "\n" not in reason


def test_what_would_raise_only_later_is_refused(tmp_path: Path) -> None:
    member = studies.member
    clipped = member("clipped", model=Embedded, optimizer=SparseAdam, clip_grad_norm=1.0)
    reasons = refused(
        tmp_path,
        metric=member("metric", metrics={"broken": never}),
        nothing=member("nothing", metrics={"nothing": lambda o, t: None}),
        shape=member("shape", metrics={"one": lambda o, t: torch.ones(1)}),
        factory=member("factory", metrics={"dict": lambda: {"f1": 1}}),
        compute=member("compute", metrics={"state": Raising}),
        parts=member("parts", metrics={"parts": Parts}),
        schedule=member("schedule", schedule=partial(LambdaLR, lr_lambda=too_short)),
        augment=member("augment", augment=never),
        labels=member("labels", augment=beyond),
        few=member("few", model=partial(nn.Linear, 12, 5), loss=nn.CrossEntropyLoss()),
        loss=member("loss", loss=lambda output, target: 1.0),
        losses=member("losses", loss=lambda output, target: output.mean(0)),
        step=member("step", step=lambda model, batch: {"loss": 1}, metrics={}),
        frozen=member("frozen", model=partial(frozen, 12, 10)),
        constant=member("constant", step=lambda model, batch: torch.zeros(()), metrics={}),
        **({"clipped": clipped} if torch.__version__ < "2.14" else {}),  # which clips sparse gradients
        dense=member("dense", model=Embedded, optimizer=Adam),
    )
    assert "ValueError: never works" in reasons["metric"]
    assert (
        "metric 'nothing' returned neither a number nor a tensor of real numbers for a batch of 20"
        in reasons["nothing"]
    )
    assert "metric 'one' returned a tensor of shape (1,) for a batch of 20; it must return one" in reasons["shape"]
    assert "metric 'dict' takes no arguments, so it must return an object with update" in reasons["factory"]
    assert "ValueError: only at the end" in reasons["compute"]
    assert "metric 'parts' returned a dict for compute(); it must return one value per sample" in reasons["parts"]
    assert "Pass its parts as metrics, for example metrics=dict(collection)." in reasons["parts"]
    assert "IndexError: list index out of range" in reasons["schedule"]
    assert "ValueError: never works" in reasons["augment"]
    assert "a target has label 10, but its network has 10 outputs, for labels 0 to 9" in reasons["labels"]
    assert "a target has label 9, but its network has 5 outputs, for labels 0 to 4" in reasons["few"]
    assert "its loss returned float; it must return a tensor of losses" in reasons["loss"]
    assert "the loss returned a tensor of shape (10,) for a batch of 20" in reasons["losses"]
    assert "its step returned dict; it must return a tensor of losses" in reasons["step"]
    assert "no gradient flows from its loss to any parameter" in reasons["frozen"]
    assert "no gradient flows from its loss to any parameter" in reasons["constant"]
    if "clipped" in reasons:
        assert "clip_grad_norm is 1.0, but torch cannot clip sparse gradients" in reasons["clipped"]
    assert "Adam does not support sparse gradients, please consider SparseAdam instead" in reasons["dense"]


def frozen(*sizes: int) -> nn.Module:
    return nn.Linear(*sizes).requires_grad_(False)


class Embedded(nn.Module):
    """A network with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 10, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x[:, 0] * 49).long())


class Rotated(nn.Module):
    """A network with complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 10, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.to(torch.complex64)).abs()


class Sloping(nn.Module):
    """A network that adds a derivative of its first layer by `torch.func.grad`, which does not allow saved-tensor hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + torch.func.grad(lambda z: self.first(z).square().sum())(x))


class Mixing(nn.Module):
    """A network that multiplies its features by a sparse buffer, which autograd keeps; it is in checkpoints if `persistent`."""

    def __init__(self, layout: torch.layout = torch.sparse_coo, *, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(12).roll(1, 0).to_sparse(layout=layout), persistent=persistent)
        self.first, self.last = nn.Linear(12, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sparse.mm(self.matrix, self.first(x).T).T)


class Sparse(Mixing):
    """`Mixing` with the sparse matrix as a trained parameter."""

    def __init__(self) -> None:
        super().__init__()
        del self.matrix
        self.matrix = nn.Parameter(torch.eye(12).roll(1, 0).to_sparse())


def pruned() -> nn.Module:
    """Return a layer whose weight is computed and stored in a plain attribute."""
    return prune.random_unstructured(nn.Linear(12, 10), "weight", 0.3)


def quasi_newton(model: nn.Module) -> dict[str, Any]:
    """Return an optimizer that needs a closure and has attributes besides its state."""
    return {"lbfgs": LBFGS(model.parameters(), lr=0.1, max_iter=2)}


def closing(model: nn.Module, batch: Any, optimizers: Any) -> Tensor:
    def closure() -> Tensor:
        optimizers["lbfgs"].zero_grad()
        loss = mean_loss(model, batch)
        loss.backward()
        return loss

    return optimizers["lbfgs"].step(closure)


def mean_loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


cycle = partial(OneCycleLR, max_lr=0.1, total_steps=4)
"""A schedule with exactly as many steps as two epochs of the member that has it."""


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_what_is_unusual_trains_and_goes_on_where_it_was(tmp_path: Path) -> None:
    linear = partial(nn.Linear, 12, 10)
    fleet = [
        studies.member("sparse", model=Embedded, optimizer=partial(SparseAdam, lr=0.1), accumulate=3),
        studies.member("complex", model=Rotated, clip_grad_norm=1.0),
        studies.member("copied", model=partial(copy.deepcopy, OLDER)),
        studies.member("half", model=linear, precision="bfloat16", metrics={}, step=mean_loss),
        studies.member("large", model=linear, eval_batch_size=1000, loss=nn.CrossEntropyLoss(ignore_index=9)),
        studies.member("plateau", model=linear, schedule=ReduceLROnPlateau),
        studies.member("pruned", model=pruned),
        studies.member("sloping", model=Sloping),
        studies.member("mixing", model=Mixing, average=argosy.EMA(0.9)),
        studies.member("trained", model=Sparse, optimizer=partial(SGD, lr=0.1)),
        studies.member("rows", model=partial(Mixing, torch.sparse_csr)),
        studies.member("apart", model=partial(Mixing, persistent=False)),
        studies.member("momentum", model=Embedded, optimizer=partial(SGD, lr=0.1, momentum=0.9)),
        argosy.Member("lbfgs", model=linear, optimizers=quasi_newton, step=closing, validate=mean_loss, batch_size=50),
        studies.member("counted", model=linear, schedule=cycle, schedule_per="step", batch_size=85),
    ]
    for run, epochs in (("whole", (2,)), ("parts", (1, 2))):
        for end in epochs:
            study = studies.study(fleet=fleet, epochs=end)
            report = argosy.train(study, directory=tmp_path / run, launcher="inline")
            assert {row.status for row in report.rows} == {"done"}, [row.reason for row in report.rows]
    for member in fleet:
        whole, parts = (evidence.results_of(tmp_path / run, member.name) for run in ("whole", "parts"))
        assert whole == parts, member.name


class Mixer(nn.Module):
    """The layer of `Mixing` that multiplies by the matrix; it has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(12).roll(1, 0).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.matrix, x.T).T


MIXER = Mixer()


class Smoothing:
    """A loss that holds a sparse matrix."""

    def __init__(self) -> None:
        self.matrix = torch.eye(10).to_sparse()

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(torch.sparse.mm(self.matrix, output.T).T, target, reduction="none")


@pytest.mark.usefixtures("devices")
@pytest.mark.filterwarnings("ignore:Sparse CSR")
# torch 2.11 says so of the first sparse tensor of a process.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("where", ["cpu:1", "late:0"])
def test_sparse_matrices_train_on_any_device_wherever_they_are_held(where: str, tmp_path: Path) -> None:
    fleet = [
        studies.member("buffer", model=Mixing),
        studies.member("rows", model=partial(Mixing, torch.sparse_csr)),
        studies.member("shared", model=lambda: nn.Sequential(MIXER, nn.Linear(12, 10))),
        studies.member("loss", model=partial(nn.Linear, 12, 10), loss=Smoothing()),
    ]
    study = studies.study(fleet=fleet, epochs=2)
    report = argosy.train(study, directory=tmp_path, launcher="inline", devices=where, numerics="exact")
    assert {row.status for row in report.rows} == {"done"}, [row.reason for row in report.rows]


def test_a_label_that_comes_late_is_named(tmp_path: Path) -> None:
    inputs, labels = torch.randn(100, 12), torch.arange(100) % 10
    labels[int(permutation(0, 0, 100)[-1])] = -1
    study = studies.study(data=argosy.Data(arrays=(inputs, labels)), fleet=[studies.member(metrics={})])
    with pytest.warns(MemberFailed, match="a target has label -1"):
        report = argosy.train(study, directory=tmp_path, launcher="inline", block_size=16)
    assert report.rows[0].status == "failed"
    assert "StudyError: member 'mlp': a target has label -1, but its network has 10 outputs" in report.rows[0].reason


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_sample_without_a_label_that_comes_late_is_refused_on_any_device(tmp_path: Path, split: str) -> None:
    inputs, labels = torch.randn(320, 12, generator=torch.Generator().manual_seed(0)), torch.arange(320) % 10
    late = labels.index_fill(0, torch.tensor(int(permutation(0, 0, 320)[-1])), -100)
    data = argosy.Data(
        arrays=(inputs, late if split == "train" else labels), val_arrays=(inputs, late if split == "val" else labels)
    )
    linear = partial(studies.member, model=partial(nn.Linear, 12, 10), metrics={}, batch_size=8)
    with pytest.warns(MemberFailed, match="'meets_it' failed"):
        report = argosy.train(
            studies.study(data=data, fleet=[linear("meets_it"), linear("mean", loss=nn.CrossEntropyLoss())], epochs=1),
            directory=tmp_path,
            launcher="inline",
            block_size=64,
        )
    assert "1 of 64 samples have the label -100" in report.member("meets_it").reason
    assert report.member("mean").status == "done"


def test_micro_batches_of_one_are_refused_with_batch_norm(tmp_path: Path) -> None:
    study = studies.study(170, fleet=[studies.member(batch_size=22, accumulate=7)])
    with pytest.raises(PlanError, match="some of the 7 micro-batches of a batch of 16 would hold 1 sample"):
        argosy.train(study, directory=tmp_path, launcher="inline")
    assert not list((tmp_path / "members").glob("*/*.pt"))


class Kept(nn.Module):
    """A network whose trunk has BatchNorm, and stays in eval() as soon as the network is told to train."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = (
            nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6)).requires_grad_(False),
            nn.Linear(6, 10),
        )

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


@pytest.mark.parametrize("sizes", [{"batch_size": 3}, {"batch_size": 2, "accumulate": 2}])
def test_batch_norm_that_stays_in_eval_trains_on_one_sample(tmp_path: Path, sizes: dict[str, int]) -> None:
    study = studies.study(40, fleet=[studies.member(model=Kept, **sizes)], epochs=1)
    report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
    assert report.rows[0].status == "done", report.rows[0].reason


class Raising:
    """A metric that raises in `compute`."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        pass

    def compute(self) -> float:
        raise ValueError("only at the end")


class Parts:
    """A metric of several values, as MetricCollection of torchmetrics."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        pass

    def compute(self) -> dict[str, float]:
        return {"accuracy": 0.5, "f1": 0.4}
