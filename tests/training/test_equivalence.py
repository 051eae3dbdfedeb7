"""Tests that differences in float32 are judged by the effect of one ulp on the same network, not by a fixed tolerance."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import packs
import pytest
import torch
from torch import Tensor, nn

from argosy.training.choice import fused_check, split_check
from argosy.training.device import equivalence
from argosy.training.device.equivalence import UNMOVED, ComparedPair, difference, gradient_pairs, nudge

ROWS = 96


class Single(nn.Module):
    """A network that refuses float64, so that it can be compared in float32 only."""

    def __init__(self, act: Callable[[nn.Module, Tensor], Tensor], part: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.act, self.part, self.head = act, part(), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("float32 alone")
        return self.head(self.act(self.part, x))


def single(act: Callable[[nn.Module, Tensor], Tensor], part: Callable[[], nn.Module] | None = None) -> Any:
    return partial(Single, act, part or partial(nn.Linear, 16, 3))


def looked_up(part: nn.Module, x: Tensor) -> Tensor:
    """Look up rows with gradients scaled by frequency; with many rows, a share has almost the frequencies of the batch."""
    return part((x.detach().abs() * 2).long() % 3).sum(1)


def otherwise_in_a_pack(part: nn.Module, x: Tensor) -> Tensor:
    y = part(x)
    return y * 1.0003 if torch._C._functorch.is_batchedtensor(y) else y


def sensitive(part: nn.Module, x: Tensor) -> Tensor:
    """Amplify the rounding of products that are so small that they round differently in a pack."""
    return torch.sin(3e4 * part(x))


def fused(model: Any) -> str:
    """Return why members of this network must not be one program."""
    found = packs.admission(packs.pack(model))
    return found.alone.get("m0", "")


def split(model: Any) -> str:
    """Return why a member with this network must not be split."""
    live = packs.live(packs.member("m", model=model, dtype=torch.float32, batch_size=ROWS))
    (x, y), _ = packs.samples(torch.float32, train=ROWS)
    return split_check.why_not_split(live, (x, y), ROWS)


def test_equal_results_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of millions of weights are mostly equal to the bit, and each conversion is one more pass over them."""
    monkeypatch.setattr(equivalence, "_wide", None)
    gradients = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    copies = {name: gradient.clone() for name, gradient in gradients.items()}
    buffer = ComparedPair.of("a buffer", torch.arange(3), torch.arange(3))
    for share in (0.0, 1e-10):
        assert difference([*gradient_pairs(gradients, copies), buffer], share) is None


BY_FREQUENCY = single(looked_up, partial(nn.Embedding, 3, 3, scale_grad_by_freq=True))


@pytest.mark.parametrize(
    ("check", "module", "model", "passes", "reason"),
    [
        (fused, fused_check, single(otherwise_in_a_pack), False, "differs from that of the member alone"),
        (split, split_check, BY_FREQUENCY, False, "differs from that of the whole batch"),
        (fused, fused_check, single(sensitive), True, "differs from that of the member alone"),
    ],
    ids=["an error of a pack", "an error of a share", "a sensitive pack"],
)
def test_float32_is_measured_by_the_network_itself(
    check: Any, module: ModuleType, model: Any, passes: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = check(model)
    assert (found == "") if passes else (reason in found), found
    monkeypatch.setattr(module, "rounding_share", lambda *_: UNMOVED)
    fixed = check(model)
    assert (reason in fixed) if passes else (fixed == ""), fixed


@pytest.mark.parametrize(
    ("dtype", "computed", "ulp"),
    [
        (torch.float32, torch.float32, 2**-23),
        (torch.complex64, torch.float32, 2**-23),
        (torch.float32, torch.bfloat16, 2**-7),
        (torch.float16, torch.float32, 2**-10),
        (torch.int64, torch.float32, 0.0),
    ],
    ids=str,
)
def test_an_ulp_is_of_what_is_computed_in(dtype: torch.dtype, computed: torch.dtype, ulp: float) -> None:
    weight = torch.ones(64, dtype=dtype)
    nudge([weight], computed)
    assert {abs(complex(number) - 1) for number in weight.tolist()} == {ulp}
