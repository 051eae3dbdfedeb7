"""What is wrong with a member shows before anything is trained, in one sentence, and ends nobody else."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import studies
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR

import argosy

OLDER = studies.Mlp()
OTHER = SGD(OLDER.parameters(), lr=0.1)


class OnOlder(nn.Module):
    """Its own last layer, on a network that others may train as well."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = OLDER, nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def refused(tmp_path: Path, **wrong: argosy.Member) -> dict[str, str]:
    """The reasons for which these members failed; nobody has trained a step, but one who is sound."""
    fleet = [*wrong.values(), studies.member("sound")]
    report = argosy.train(studies.study(fleet=fleet, epochs=1), directory=tmp_path, launcher="inline")
    assert {row.name: row.status for row in report.rows} == {**dict.fromkeys(wrong, "failed"), "sound": "done"}
    assert [line["member"] for line in evidence.event_lines(tmp_path, "MemberStarted")] == ["sound"]
    for name in wrong:
        log = (tmp_path / "members" / name / "log.txt").read_text()
        assert log.strip().endswith(report.member(name).reason.strip().splitlines()[-1])
    return {name: report.member(name).reason for name in wrong}


def changed(**fields: Callable[..., Any]) -> dict[str, argosy.Member]:
    return {name: member(name) for name, member in fields.items()}


def never(*_: Any) -> Any:
    raise ValueError("never works")


def too_short(epoch: int) -> float:
    return [1.0][epoch]


def beyond(batch: Any) -> Any:
    return batch[0], batch[1] + 1


def test_what_is_built_wrongly_is_refused(tmp_path: Path) -> None:
    member, linear = studies.member, partial(nn.Linear, 12, 10)
    reasons = refused(
        tmp_path,
        older=member("older", model=lambda: OLDER),
        on_older=member("on_older", model=OnOlder),
        lazy=member("lazy", model=lambda: nn.Sequential(nn.LazyLinear(10))),
        no_network=member("no_network", model=lambda: "resnet"),
        foreign=member("foreign", model=linear, optimizer=lambda _: SGD(OLDER.parameters(), lr=0.1)),
        closure=member("closure", model=linear, optimizer=LBFGS),
        no_optimizer=member("no_optimizer", model=linear, optimizer=list),
        other=member("other", model=linear, schedule=lambda _: StepLR(OTHER, 1)),
        watching=member("watching", model=linear, schedule=ReduceLROnPlateau, schedule_per="step"),
    )
    assert "returned 6 parameters that were there before the call" in reasons["older"]
    assert "Build the network inside the factory, or return copy.deepcopy of it." in reasons["on_older"]
    assert "0.weight, 0.bias of its network have no shape yet" in reasons["lazy"]
    assert "its model factory returned str; it must return a torch.nn.Module" in reasons["no_network"]
    assert "its optimizer holds 6 parameters that are not its network's" in reasons["foreign"]
    assert "LBFGS.step needs a closure" in reasons["closure"]
    assert "its optimizer factory returned list" in reasons["no_optimizer"]
    assert "its schedule is that of another optimizer" in reasons["other"]
    assert "ReduceLROnPlateau watches the objective" in reasons["watching"]
    for name, reason in reasons.items():
        assert reason.startswith(f"StudyError: member {name!r}: "), "one sentence, no traceback"
        assert "\n" not in reason


def test_what_would_raise_only_later_is_refused(tmp_path: Path) -> None:
    member = studies.member
    reasons = refused(
        tmp_path,
        metric=member("metric", metrics={"broken": never}),
        nothing=member("nothing", metrics={"nothing": lambda o, t: None}),
        shape=member("shape", metrics={"one": lambda o, t: torch.ones(1)}),
        factory=member("factory", metrics={"dict": lambda: {"f1": 1}}),
        compute=member("compute", metrics={"state": Raising}),
        schedule=member("schedule", schedule=partial(LambdaLR, lr_lambda=too_short)),
        augment=member("augment", augment=never),
        labels=member("labels", augment=beyond),
        few=member("few", model=partial(nn.Linear, 12, 5), loss=nn.CrossEntropyLoss()),
        loss=member("loss", loss=lambda output, target: 1.0),
        losses=member("losses", loss=lambda output, target: output.mean(0)),
        step=member("step", step=lambda model, batch: {"loss": 1}, metrics={}),
    )
    assert "ValueError: never works" in reasons["metric"]
    assert "metric 'nothing' gave no number and no tensor of real numbers for a batch of 20" in reasons["nothing"]
    assert "metric 'one' gave a tensor of shape (1,) for a batch of 20; a metric gives one" in reasons["shape"]
    assert "metric 'dict' takes no arguments, so it is called for an object with update" in reasons["factory"]
    assert "ValueError: only at the end" in reasons["compute"]
    assert "IndexError: list index out of range" in reasons["schedule"]
    assert "ValueError: never works" in reasons["augment"]
    assert "a target is label 10, and its network has 10 outputs, for the labels 0 to 9" in reasons["labels"]
    assert "a target is label 9, and its network has 5 outputs, for the labels 0 to 4" in reasons["few"]
    assert "its loss gave float; it must give a tensor of losses" in reasons["loss"]
    assert "the loss gave a tensor of shape (10,) for a batch of 20" in reasons["losses"]
    assert "its step gave dict; it must give a tensor of losses" in reasons["step"]


class Raising:
    """A metric that raises when all has come."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        pass

    def compute(self) -> float:
        raise ValueError("only at the end")
