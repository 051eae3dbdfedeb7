"""Tests that a member's bits do not depend on the members beside it, on its device, or on how the stream is prepared.

Numerics are exact: by default a member may be split, or stepped by a program that rounds differently.
"""

from functools import partial
from pathlib import Path
from typing import Any

import evidence
import pytest
import studies
import torch
from torch.utils.data import Subset

import argosy
from argosy.cli import demo

TRAIN, VAL = 210, 60


def small_digits(*, train: bool) -> Subset:
    """Return some of the demo's digits, decoded and jittered as in the demo."""
    return Subset(demo.Digits(train=train), range(TRAIN if train else VAL))


def digits(*names: str) -> argosy.Study:
    """Return a study of members of the demo on some of its data; all members if none is named."""
    chosen = [member for member in demo.study.members if not names or member.name in names]
    data = argosy.Data(
        train=partial(small_digits, train=True), val=partial(small_digits, train=False), on_device=demo.normalize
    )
    return argosy.Study(data=data, members=chosen, stop=argosy.MaxEpochs(2))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the results of the eight members, each trained in a run of its own."""
    found = {}
    for member in demo.study.members:
        directory = tmp_path_factory.mktemp(member.name)
        argosy.train(digits(member.name), directory=directory, launcher="inline", devices="cpu:1", numerics="exact")
        found.update(evidence.results(directory))
    return found


INLINE = [("inline", 0, 64, "cpu:2"), ("inline", 0, 1000, "cpu:1")]
PROCESSES = [
    ("processes", 0, 64, "cpu:2"),
    ("processes", 0, 1000, "cpu:1"),
    ("processes", 3, 64, "cpu:1"),
    ("processes", 3, 1000, "cpu:2"),
]
"""Every pair of values of loader workers, block size and devices occurs."""


@pytest.mark.parametrize(("launcher", "workers", "block", "devices"), INLINE + PROCESSES)
def test_eight_members_together_equal_each_alone(
    alone: dict[str, object], tmp_path: Path, launcher: str, workers: int, block: int, devices: str
) -> None:
    argosy.train(
        digits(),
        directory=tmp_path,
        launcher=launcher,
        loader_workers=workers,
        block_size=block,
        devices=devices,
        numerics="exact",
    )
    together = evidence.results(tmp_path)
    assert together == alone


def test_solo_policy_equals_balanced(tmp_path: Path) -> None:
    for policy in ("solo", "balanced"):
        settings: dict[str, Any] = {"policy": policy, "devices": "cpu:2", "numerics": "exact"}
        argosy.train(studies.study(), directory=tmp_path / policy, launcher="processes", **settings)
    assert evidence.results(tmp_path / "solo") == evidence.results(tmp_path / "balanced")


def test_neighbours_that_draw_from_every_generator_change_nothing(tmp_path: Path) -> None:
    noisy = studies.member("noisy", augment=draw_from_everything)
    for name, fleet in {"alone": [studies.member()], "beside": [noisy, studies.member()]}.items():
        argosy.train(studies.study(fleet=fleet), directory=tmp_path / name, launcher="inline", numerics="exact")
    assert evidence.results(tmp_path / "alone")["mlp"] == evidence.results(tmp_path / "beside")["mlp"]


def test_a_member_that_draws_from_numpy_and_random_equals_itself_alone(tmp_path: Path) -> None:
    noisy = studies.member("noisy", augment=draw_from_everything)
    settings: dict[str, Any] = {"launcher": "inline", "devices": "cpu:1", "numerics": "exact"}
    for name, fleet in {"alone": [noisy], "beside": [studies.member(), noisy]}.items():
        argosy.train(studies.study(fleet=fleet), directory=tmp_path / name, **settings)
    assert evidence.results(tmp_path / "alone")["noisy"] == evidence.results(tmp_path / "beside")["noisy"]


class Warming:
    """An augmentation that depends on the number of its calls, a state that members would share."""

    calls = 0

    def __call__(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        return batch[0] * (1 + self.calls / 100), batch[1]


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_members_that_share_an_augmentation_with_a_state_equal_each_alone_inline(tmp_path: Path, devices: str) -> None:
    shared = Warming()
    fleet = [studies.member(name, augment=shared, batch_size=size) for name, size in (("a", 20), ("b", 33))]
    settings: dict[str, Any] = {"launcher": "inline", "devices": devices, "numerics": "exact"}
    for name, members in {"a": fleet[:1], "b": fleet[1:], "both": fleet}.items():
        argosy.train(studies.study(fleet=members, epochs=3), directory=tmp_path / name, **settings)
    both = evidence.results(tmp_path / "both")
    assert {name: evidence.results(tmp_path / name)[name] for name in ("a", "b")} == both


def draw_from_everything(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Augment a batch with numbers from Python's, NumPy's and torch's generators."""
    import random

    import numpy as np

    x, y = batch
    return x + 0.1 * random.random() + 0.1 * float(np.random.rand()) + 0.1 * torch.rand_like(x), y
