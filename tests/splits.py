"""Runs whose members are split over devices as a test chooses, and comparisons with the same members trained alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import living
import pytest
import studies
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import argosy
from argosy.planning import Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["Double", "SplitBy", "all_alone", "check", "fleet", "member", "study", "train", "weights"]

LENGTH = 150


class Double(nn.Module):
    """A network in float64, so that rounding differences of a split are far smaller than real differences."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 10)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.double())


def member(name: str, epochs: float = 3, **rest: Any) -> argosy.Member:
    """Return a small member in float64; `rest` are fields of Member."""
    rest.setdefault("optimizer", partial(SGD, lr=0.05, momentum=0.9))
    return studies.member(name, model=Double, stop=argosy.MaxEpochs(epochs), **rest)


def fleet() -> list[argosy.Member]:
    """Return five members whose ends, after half an epoch, two or three epochs, cause barriers."""
    return [
        member("wide", batch_size=63, optimizer=partial(AdamW, lr=0.01), clip_grad_norm=0.5),
        member("pair", batch_size=20, accumulate=3, augment=studies.dawdle),
        member("whole", batch_size=33),
        member("short", 0.5, batch_size=16),
        member("middle", 2, batch_size=16),
    ]


def study(*names: str, members: list[argosy.Member] | None = None) -> argosy.Study:
    """Return a study of some members of the fleet, or of `members`."""
    chosen = [one for one in members or fleet() if not names or one.name in names]
    return studies.study(LENGTH, fleet=chosen, val=20, validations_per_epoch=2)


@dataclass(slots=True)
class SplitBy:
    """A policy of one flotilla at a time, in which the test chooses each member's shares by device."""

    shares_of: Callable[[str, int], Mapping[int, float]]
    """(member, how often the policy has launched) -> shares by number of the device."""
    asked: int = field(default=0)

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        if len(situation.free) < len(situation.devices):
            return ()
        self.asked += 1
        return (Flotilla(placements=tuple(self._placed(profile, situation) for profile in situation.waiting)),)

    def _placed(self, profile: Profile, situation: Situation) -> Placement:
        shares = {situation.devices[n].name: share for n, share in self.shares_of(profile.member, self.asked).items()}
        return Placement.uneven(profile, shares) if len(shares) > 1 else Placement.whole(profile, next(iter(shares)))

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        del situation, started, live
        return False


def train(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    shares_of: Any,
    wanted: argosy.Study | None = None,
    **settings: Any,
) -> argosy.Report:
    """Train a study under `SplitBy`, by default on three CPU devices."""
    policy = living.policy(monkeypatch, SplitBy(shares_of))
    how = {"launcher": "processes", "devices": "cpu:3", "loader_workers": 0, "block_size": 64}
    programs = {"numerics": "equivalent", "packing": "interleaved"}
    return living.run(wanted or study(), directory, policy=policy, **{**how, **programs, **settings})


def all_alone(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Train every member of the fleet alone on one device and return its weights."""
    found = {}
    for one in fleet():
        directory = folder / one.name
        argosy.train(study(one.name), directory=directory, launcher="inline", devices="cpu:1", numerics="exact")
        found[one.name] = weights(directory, one.name)
    return found


def weights(directory: Path, name: str) -> dict[str, Tensor]:
    """Return the weights in a member's last checkpoint."""
    return dict(torch.load(directory / "members" / name / "last.pt", weights_only=True)["model"])


def check(directory: Path, alone: Mapping[str, Mapping[str, Tensor]], *names: str) -> None:
    """Assert that the weights of members equal those of training alone, up to rounding."""
    for name in names or alone:
        found = weights(directory, name)
        for key, weight in alone[name].items():
            assert float((found[key] - weight).norm() / weight.norm()) <= 1e-9, (name, key)
