"""Tests that unlike members trained as one program get the same results as alone, and the same again in repeated runs."""

import itertools
import math
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import packs
import pytest
import torch
from test_packs_of_runs import Breaks, costs, equals_alone, study
from test_repeated_runs import cache, chosen, times
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

import argosy
from argosy.errors import MemberFailed

empty = cache
WIDTHS = (24, 32, 40, 24)


def mlp(width: int, depth: int) -> nn.Module:
    """Return a network whose results in a program equal those alone bit for bit, except at width 4."""
    sizes = [16] + [width] * depth
    hidden = (
        nn.Sequential(nn.Linear(ins, outs), nn.Tanh(), nn.Dropout(0.1)) for ins, outs in itertools.pairwise(sizes)
    )
    return nn.Sequential(*hidden, nn.Linear(width, 4))


def unlike(
    count: int = 4,
    *,
    batch_size: int = 16,
    width: int | None = None,
    dtype: torch.dtype = torch.float64,
    **own: dict[str, Any],
) -> Any:
    """Return members of several architectures; `own` maps names to fields of these members alone."""
    optimizers = [
        partial(SGD, lr=0.02 * (n + 1), momentum=0.9) if n % 2 else partial(Adam, lr=0.01) for n in range(count)
    ]
    return [
        packs.member(
            f"m{n}",
            model=partial(mlp, width or WIDTHS[n % 4], 1 + n % 3),
            batch_size=batch_size,
            dtype=dtype,
            **({"optimizer": optimizers[n]} | own.get(f"m{n}", {})),
        )
        for n in range(count)
    ]


def train(directory: Path, what: argosy.Study, **settings: Any) -> dict[str, Any]:
    """Train the study and return its results."""
    argosy.train(what, directory=directory, launcher="inline", devices="cpu:1", quiet=True, **settings)
    return evidence.results(directory)


def rounding(epochs: int = 3) -> argosy.Study:
    """Return a study whose matrix products are so small that the choice of programs changes the last bits of results."""
    fleet = unlike(batch_size=4, width=4, dtype=torch.float32)
    return study(fleet, epochs, torch.float32)


def test_one_that_stops_early_leaves_the_others_a_smaller_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs(monkeypatch, lambda size: 1.0 / size)
    report = equals_alone(tmp_path, study(unlike(6, m2={"stop": argosy.MaxEpochs(2)}), 4))
    assert [sizes for sizes, _ in chosen(tmp_path / "fused")][-1] == [6]
    assert report.packs[-1].unlike and report.packs[-1].exact and report.packs[-1].kind == "grouped"


def test_where_one_program_is_slower_they_are_stepped_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs(monkeypatch, float)
    equals_alone(tmp_path, study(unlike()))
    assert chosen(tmp_path / "fused")[-1] == ([1] * 4, True)


@pytest.mark.falls_back
@pytest.mark.parametrize("what", ["diverges", "fails"])
def test_one_that_ends_badly_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    costs(monkeypatch, lambda size: 1.0 / size)
    bad: dict[str, Any] = {"optimizer": partial(SGD, lr=math.inf)}
    if what == "fails":
        bad = {"schedule": lambda optimizer: LambdaLR(optimizer, Breaks(33)), "schedule_per": "step"}
    with pytest.warns(MemberFailed, match="'m1' (diverged|failed): "):
        equals_alone(tmp_path, study(unlike(5, m1=bad)), "m0", "m2", "m3", "m4")


@pytest.mark.parametrize("together", [True, False])
def test_what_shows_is_chosen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: Path, together: bool
) -> None:
    """A resumed run, a second run, and a run on another machine with `like` use the programs of the first and give the same bits."""
    times(monkeypatch, together=together)
    programs = [([4] if together else [1] * 4, True)]
    first = train(tmp_path / "first", rounding())
    assert chosen(tmp_path / "first") == programs
    train(tmp_path / "resumed", rounding(1))
    times(monkeypatch, together=not together)
    assert train(tmp_path / "resumed", rounding()) == first
    assert train(tmp_path / "second", rounding()) == first
    assert chosen(tmp_path / "second") == programs
    empty.rename(tmp_path / "of another machine")
    assert train(tmp_path / "like", rounding(), like=str(tmp_path / "first")) == first
    assert train(tmp_path / "anew", rounding()) != first
