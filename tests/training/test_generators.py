"""Tests that members with own random generators are refused: neighbours would advance them, and no checkpoint has their state."""

import math
import random
from functools import partial
from random import uniform
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import studies
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from argosy.errors import StudyError
from argosy.stream.own_generators import uses_random_modules
from argosy.study import Member
from argosy.training.device.devices import open_backend
from argosy.training.member.building import build_member

NUMPY, TORCH = np.random.default_rng(0), torch.Generator().manual_seed(0)


def noisy(batch: Any) -> Any:
    return batch[0] + torch.from_numpy(NUMPY.normal(size=batch[0].shape)), batch[1]


def indirect(batch: Any) -> Any:
    def noise(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=TORCH)

    return batch[0] + noise(batch[0]), batch[1]


def bound(generator: Any, batch: Any) -> Any:
    return batch[0] * generator.random(), batch[1]


def helped(batch: Any) -> Any:
    return noisy(batch)


def around() -> Any:
    generator = random.Random(0)
    return lambda batch: (batch[0] * generator.random(), batch[1])


class Transform:
    """An augmentation that draws from a generator in a nested attribute."""

    def __init__(self, generator: Any) -> None:
        self.inner = [{"generator": generator}]

    def __call__(self, batch: Any) -> Any:
        return bound(self.inner[0]["generator"], batch)

    def called(self, batch: Any) -> Any:
        return self(batch)


class Net(nn.Module):
    """A network that is initialised from a global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 10)
        nn.init.normal_(self.layer.weight, generator=TORCH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Dropping(nn.Linear):
    """A layer that draws in each pass from a global generator."""

    def __init__(self) -> None:
        super().__init__(12, 10)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * float(NUMPY.random())


class Noisy(nn.CrossEntropyLoss):
    """A loss that draws in `forward`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target) * float(NUMPY.random())


class Langevin(SGD):
    """An optimizer that adds noise to its steps, from its own generator."""

    def __init__(self, weights: Any, generator: torch.Generator) -> None:
        super().__init__(weights, lr=0.1)
        self.generator = generator

    def step(self, closure: Any = None) -> None:
        super().step()
        for weight in self.param_groups[0]["params"]:
            weight.data += 0.01 * torch.randn(weight.shape, generator=self.generator)


UNIFORM = random.Random(0).random
"""A method written in C."""


def shifting(batch: Any) -> Any:
    return batch[0] + UNIFORM(), *batch[1:]


def resampled(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(1) == target)[torch.from_numpy(NUMPY.integers(len(target), size=len(target)))].sum())


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("augment", noisy, "numpy Generator"),
        ("augment", helped, "numpy Generator"),
        ("augment", indirect, "torch.* Generator"),
        ("augment", partial(bound, np.random.RandomState(0)), "numpy RandomState"),
        ("augment", around(), "random Random"),
        ("augment", Transform(NUMPY), "numpy Generator"),
        ("augment", Transform(NUMPY).called, "numpy Generator"),
        ("augment", shifting, "random Random"),
        ("model", Net, "torch.* Generator"),
        ("loss", Noisy(), "numpy Generator"),
    ],
)
def test_a_generator_of_ones_own_is_refused(field: str, value: Any, kind: str) -> None:
    with pytest.raises(
        StudyError, match=rf"member 'a': its {field} has its own generator, a {kind}\. .* seeded for each member"
    ):
        built(studies.member("a", **{field: value}))


def test_a_generator_in_a_pass_is_refused() -> None:
    with pytest.raises(StudyError, match=r"member 'a': its layer Dropping has its own generator, a numpy Generator\."):
        built(studies.member("a", model=lambda: nn.Sequential(Dropping())))


@pytest.mark.parametrize("optimizer", [lambda weights: Langevin(weights, TORCH), partial(Langevin, generator=TORCH)])
def test_a_generator_of_an_optimizer_is_refused(optimizer: Any) -> None:
    with pytest.raises(
        StudyError, match=r"member 'a': its optimizer Langevin has its own generator, a torch.* Generator\."
    ):
        built(studies.member("a", optimizer=optimizer))


def blurred(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(noisy(batch)[0]), batch[1])


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"metrics": {"share": resampled}}, "metric 'share'"),
        (
            {
                "step": lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
                "validate": blurred,
                "metrics": {},
            },
            "validate",
        ),
    ],
)
def test_a_generator_in_a_validation_is_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(StudyError, match=rf"member 'a': its {what} has its own generator, a numpy Generator\."):
        built(studies.member("a", **fields))


def drawing(batch: Any) -> Any:
    own = np.random.default_rng(int(batch[1].sum()))  # depends on the batch alone
    return batch[0] * random.random() + np.random.normal() + torch.rand(1) * own.random(), batch[1]


def test_the_seeded_generators_and_those_of_a_call_are_none() -> None:
    built(studies.member("a", augment=drawing))
    built(studies.member("a", augment=partial(bound, random)))


def built(member: Member) -> None:
    build_member(member, open_backend("cpu:0"), study_seed=0, objective="val_loss", mode="min")


def late(batch: Any) -> Any:
    return batch if len(batch) > 1 else np.random.rand()


def later(batch: Any) -> Any:
    return batch if len(batch) > 1 else uniform(0.0, 1.0)


def rounded(batch: Any) -> Any:
    return np.sqrt(batch), torch.rand(1), math.pi


class Masking(nn.Linear):
    """A layer that draws on large batches only, in another method."""

    def __init__(self) -> None:
        super().__init__(12, 10)

    def forward(self, input: Tensor) -> Tensor:
        return self.masked(super().forward(input)) if len(input) > 1000 else super().forward(input)

    def masked(self, output: Tensor) -> Tensor:
        return output * random.random()


elsewhere = FunctionType(late.__code__, {"np": np}, "elsewhere")
elsewhere.__module__ = studies.__name__
studies.elsewhere = elsewhere  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "function",
    [
        late,
        later,
        Masking,
        partial(late),
        lambda batch: late(batch),
        lambda batch: elsewhere(batch),
        lambda batch: studies.elsewhere(batch),  # type: ignore[attr-defined]
        random.random,
    ],
)
def test_code_that_may_draw_from_numpy_or_random_is_known_by_its_names(function: Any) -> None:
    assert uses_random_modules(function) == (function is not random.random)


@pytest.mark.parametrize("function", [rounded, nn.Dropout, nn.Dropout(), functional.cross_entropy, None])
def test_code_that_draws_from_torch_alone_is_none(function: Any) -> None:
    assert not uses_random_modules(function)
