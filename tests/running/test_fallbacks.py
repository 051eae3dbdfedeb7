"""Tests that slower programs replace faster ones that user code or torch refuses, whereas Argosy's own errors end the run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import pytest
import replays
import torch
from packs import live, member, samples
from torch import nn

import argosy
from argosy.errors import WorkerError
from argosy.errors.traces import reason_of
from argosy.training.choice import admission, fused_check, split_check
from argosy.training.choice.fusion_group import FusionGroup
from argosy.training.choice.split_check import why_not_split
from argosy.training.device.recorders import Uncaptured
from argosy.training.programs.fused.compiled import Compilation, Pass
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.graphed import evaluation, graphed
from argosy.training.programs.graphed.captured import Captured
from argosy.training.programs.graphed.graphed import Graphed
from argosy.training.programs.graphed.single import Single
from argosy.training.programs.graphed.static_inputs import StaticInputs

replayable = replays.replayable


def ours(words: str = "raise AssertionError('a bug')") -> Callable[..., Any]:
    """Return a function with this body that seems to come from a file of Argosy."""
    names: dict[str, Any] = {}
    exec(compile(f"def broken(*_, **__):\n {words}", Path(argosy.__file__).with_name("broken.py"), "exec"), names)
    found: Callable[..., Any] = names["broken"]
    return found


def study(epochs: int = 2, **own: Any) -> argosy.Study:
    train, val = samples(train=320)
    fleet = [member(f"m{number}", **own) for number in range(3)]
    return argosy.Study(data=argosy.Data(arrays=train, val_arrays=val), members=fleet, stop=argosy.MaxEpochs(epochs))


def train(directory: Path, asked: argosy.Study, **settings: Any) -> argosy.Report:
    given = {"launcher": "inline", "devices": "cpu:1", "block_size": 100, **settings}
    return argosy.train(asked, directory=directory, **given)


def as_one(fusion_group: FusionGroup, seconds: float, samples: int, need: int | None = None) -> None:
    """Make programs cheaper if they step several members or are not plain."""
    fusion_group.tries[fusion_group.now] = [(1.0 if fusion_group.now.kind == "plain" else 0.1) / fusion_group.now.size]


BUGS = [f"{kind}('a bug')" for kind in ("AssertionError", "RuntimeError")]
"""Errors like those that calls of members' code catch: any Exception in some places, only torch's RuntimeError in others."""


def ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: str, **how: Any
) -> None:
    """Check that an error raised in `owner.name` ends the run of members that prefer to be one program."""
    monkeypatch.setattr(FusionGroup, "note", as_one)
    monkeypatch.setattr(owner, name, ours(f"raise {error}"))
    with pytest.raises(Exception, match="a bug") as raised:
        train(tmp_path, study(), **how)
    assert error.startswith(type(raised.value).__name__)


@pytest.mark.parametrize("error", BUGS)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (admission, "obstacle"),
        (fused_check, "_run"),
        (Fused, "begin"),
        (Fused, "of"),
        (Pass, "compiled"),
        (Compilation, "derive"),
    ],
)
def test_an_error_of_argosys_own_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: str
) -> None:
    ends_the_run(tmp_path, monkeypatch, owner, name, error, compile=owner in (Pass, Compilation))


@pytest.mark.parametrize("error", BUGS)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Graphed, "of"),
        (Graphed, "begin"),
        (Captured, "_record"),
        (Captured, "replay"),
        (evaluation.Evaluation, "_warm_up"),
        (graphed, "have_diverged"),
        (StaticInputs, "set_numbers"),
        (Fused, "whole_gradients"),
        (Single, "of"),
        (Single, "whole_gradients"),
    ],
)
@pytest.mark.usefixtures("replayable")
def test_an_error_of_argosys_own_in_a_captured_program_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: str
) -> None:
    monkeypatch.setattr(evaluation, "EAGER_PASSES", 1)
    ends_the_run(tmp_path, monkeypatch, owner, name, error)


def test_an_error_of_argosys_own_ends_the_run_from_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_check, "_run", ours())
    with pytest.raises(WorkerError, match=r"(?s)cannot continue.*AssertionError: a bug"):
        train(tmp_path, study(), launcher="processes")


@pytest.mark.parametrize("error", BUGS)
def test_an_error_of_argosys_own_is_no_reason_against_a_split(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    monkeypatch.setattr(split_check, "_run_backward", ours(f"raise {error}"))
    inputs, labels = samples()[0]
    with pytest.raises((AssertionError, LookupError, RuntimeError, TypeError), match="a bug"):
        why_not_split(live(member("m0")), (inputs[:16], labels[:16]), 16)


class Refuses(nn.Linear):
    """A layer that calls `item`, which vmap cannot vectorise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        return made + 0.0 * made.sum().item()


@pytest.mark.falls_back
def test_what_torch_refuses_is_said_once(tmp_path: Path) -> None:
    asked = study(3, model=partial(Refuses, 16, 4))
    report = train(tmp_path, asked)
    assert {row.status for row in report.rows} == {"done"}
    (line,) = evidence.event_lines(tmp_path, "FellBack")
    assert line["members"] == ["m0", "m1", "m2"]
    assert line["kind"] == "fused"
    assert "as one program it raises RuntimeError: vmap" in line["reason"]


def raised(action: Callable[[], Any]) -> Exception:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError


def test_whose_an_error_is() -> None:
    def of_a_user() -> None:
        raise AssertionError("a user's")

    assert reason_of(raised(of_a_user)) == "AssertionError: a user's"
    refused = ours("import torch; return torch.zeros(2) + torch.zeros(3)")
    assert reason_of(raised(refused)).startswith("RuntimeError: The size of tensor a (2) must match")
    assert reason_of(raised(ours("from argosy.errors import StudyError; raise StudyError('meant')")))
    assert reason_of(raised(ours(f"from {Uncaptured.__module__} import Uncaptured; raise Uncaptured('meant')")))
    for bug in ("return [][0]", "raise RuntimeError", "raise MemoryError", "raise NotImplementedError"):
        error = raised(ours(bug))
        with pytest.raises(type(error)) as found:
            reason_of(error)
        assert found.value is error
    # What counts is the line that raised, wherever it was called from.
    assert reason_of(raised(partial(ours("_[0]()"), of_a_user))) == "AssertionError: a user's"
