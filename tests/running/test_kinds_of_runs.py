"""Tests kinds of programs: each is tried on real training steps, a refused one is replaced, and a choice is reused on resuming."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import packs
import pytest
import replays
import torch
from packs import member
from torch import nn
from torch.optim import SGD

import argosy
from argosy.training.choice.fusion_group import FusionGroup

replayable = replays.replayable
pytestmark = pytest.mark.usefixtures("replayable", "captured")


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make programs cheaper the more members they have, and captured programs cheaper still."""

    def note(fusion_group: FusionGroup, seconds: float, samples: int, need: int | None = None) -> None:
        costs = {"plain": 1.0, "graphed": 0.1}
        fusion_group.tries[fusion_group.now] = [costs[fusion_group.now.kind] / fusion_group.now.size]

    monkeypatch.setattr(FusionGroup, "note", note)


def study(model: Callable[[], nn.Module], epochs: int) -> argosy.Study:
    """Return a study of four like members and one that differs."""
    train, val = packs.samples(train=320)
    fleet = [member(f"m{n}", model=model, optimizer=partial(SGD, lr=0.02 * (n + 1), momentum=0.9)) for n in range(4)]
    return argosy.Study(
        data=argosy.Data(arrays=train, val_arrays=val),
        members=[*fleet, member("odd", model=packs.mlp)],
        stop=argosy.MaxEpochs(epochs),
    )


def run(directory: Path, what: argosy.Study, **settings: Any) -> argosy.Report:
    return argosy.train(what, directory=directory, launcher="inline", devices="cpu:1", block_size=100, **settings)


def weights(directory: Path, name: str) -> Any:
    return torch.load(directory / "members" / name / "last.pt", weights_only=True)["model"]


def told(directory: Path, name: str) -> list[tuple[str, int, bool]]:
    """Return the kind and size of each program chosen for a member, and whether the choice was settled."""
    events = evidence.event_lines(directory, "Packed")
    return [(e["kind"], len(p), e["settled"]) for e in events for p in e["programs"] if name in p]


def test_captured_programs_are_chosen_and_found_again(tmp_path: Path) -> None:
    run(tmp_path / "run", study(packs.ResNet, 3))
    pack = [("plain", 4, False), ("graphed", 1, False), ("graphed", 4, False), ("graphed", 4, True)]
    assert told(tmp_path / "run", "m0") == pack
    assert told(tmp_path / "run", "odd") == [("graphed", 1, False), ("graphed", 1, True)]
    made = len(replays.recorded)
    report = run(tmp_path / "run", study(packs.ResNet, 4))
    assert told(tmp_path / "run", "m0") == pack
    assert any("record" in recorder.asked for recorder in replays.recorded[made:])
    assert {pack.improvement for pack in report.packs if pack.settled} == {1 - 0.1 / 4, 0.9}
    run(tmp_path / "alone", study(packs.ResNet, 4), numerics="exact")
    for name in ("m0", "m3", "odd"):
        assert packs.difference(weights(tmp_path / "run", name), weights(tmp_path / "alone", name)) < 1e-10, name


@pytest.mark.falls_back
def test_what_cannot_be_captured_is_made_again_plainly(tmp_path: Path) -> None:
    """Dropout draws from each member's own random state, which cannot be captured, so the members fall back to a plain program."""
    report = run(tmp_path / "run", study(packs.convnet, 3))
    assert {row.status for row in report.rows} == {"done"}
    assert told(tmp_path / "run", "m0")[-1] == ("plain", 4, True)
    (reason,) = {pack.refused["graphed"] for pack in report.packs if pack.size == 4 and pack.refused}
    assert "random numbers" in reason
    run(tmp_path / "alone", study(packs.convnet, 3), numerics="exact")
    for name in ("m0", "m3"):
        assert packs.difference(weights(tmp_path / "run", name), weights(tmp_path / "alone", name)) < 1e-10, name
