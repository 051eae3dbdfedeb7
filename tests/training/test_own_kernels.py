"""Captured steps of unlike members, and of members that drop out: each member is what it is alone."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import own_kernels as stand_in
import packs
import pytest
import replays
import torch
from packs import difference, live, state, train
from test_grouped import mlp
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR

from argosy.study import Member
from argosy.training.device import own_kernels
from argosy.training.device.kernel_forms import Drawn
from argosy.training.device.own_kernels import kernels_of
from argosy.training.programs.fused.device_draws import DeviceDraws
from argosy.training.programs.fused.draws import drops_out
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.graphed.graphed import Graphed, refusal
from argosy.training.programs.solo import Solo

ROUNDING = 1e-10
replayable, with_kernels = replays.replayable, stand_in.with_kernels
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = [pytest.param("cpu:0", id="recorded"), pytest.param("cuda:0", marks=on_a_gpu, id="cuda")]
UNLIKE: Mapping[str, dict[str, Any]] = {
    "shallow": {"model": partial(mlp, (24,), nn.ReLU()), "optimizer": partial(SGD, lr=0.1)},
    "smooth": {"model": partial(mlp, (32, 24), nn.SiLU()), "optimizer": partial(AdamW, lr=0.02, weight_decay=0.1)},
    "deep": {
        "model": partial(mlp, (24, 24, 32), nn.GELU()),
        "optimizer": partial(Adam, lr=0.01, weight_decay=0.01),
        "schedule": partial(ExponentialLR, gamma=0.9),
        "schedule_per": "step",
    },
    "bounded": {
        "model": partial(mlp, (24, 24), nn.Tanh(), bias=False),
        "optimizer": partial(SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.02),
    },
    "straight": {"model": partial(mlp, ()), "optimizer": partial(SGD, lr=0.05, momentum=0.5)},
}


def unlike(rate: float = 0.0) -> list[Member]:
    """Members of `UNLIKE`, and with a rate as many that drop out."""
    made = [packs.member(name, **how) for name, how in UNLIKE.items()]
    if rate:
        behind = nn.ReLU(), nn.Dropout(rate)
        adam = partial(Adam, lr=0.01)
        made += [packs.member(f"drop{n}", model=partial(mlp, (24, 8 * n), *behind), optimizer=adam) for n in (1, 2, 3)]
    return made


def alone(members: Sequence[Member], device: str, epochs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """States and histories of each by itself."""
    states, history = {}, {}
    for one in members:
        solo = live(one, device)
        history |= train(Solo(solo), epochs)
        states[one.name] = state(solo)
    return states, history


@pytest.mark.usefixtures("replayable", "with_kernels")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("begun", [False, True], ids=["from the beginning", "from the middle"])
def test_unlike_members_are_captured_as_one(device: str, begun: bool) -> None:
    members = unlike(0.0 if device == "cpu:0" else 0.3)
    states, history = alone(members, device, 4)
    lives = [live(one, device) for one in members]
    for one in lives if begun else ():
        train(Solo(one), 1)
    grouped = Grouped.of(lives)
    assert refusal(grouped) is None
    program = Graphed.of(grouped)
    found = train(program, 4 - begun)
    assert program.replays
    program.release()
    for one in lives:
        assert difference(state(one), states[one.member.name]) <= ROUNDING, one.member.name
        assert difference(found[one.member.name], history[one.member.name][begun:]) <= ROUNDING


@pytest.mark.usefixtures("replayable", "with_kernels")
@pytest.mark.parametrize("device", DEVICES)
def test_muon_steps_matrices_of_one_shape_at_once(device: str) -> None:
    """It makes them orthogonal in 16 bits, where another rounding before moves a weight by a thousandth of its step."""
    ways = [
        {"lr": 0.01},
        {"lr": 0.02, "nesterov": False},
        {"lr": 0.03, "weight_decay": 0.3, "momentum": 0.5},
        {"lr": 0.01, "ns_steps": 3},
    ]
    sizes = [(24, 24), (24, 24, 24), (24, 24, 24), (24, 32)]
    members = [
        packs.member(f"m{n}", model=partial(mlp, own, nn.ReLU()), optimizer=partial(packs.matrices, **way))
        for n, (own, way) in enumerate(zip(sizes, ways, strict=True))
    ]
    states, history = alone(members, device, 2)
    lives = [live(one, device) for one in members]
    program = Graphed.of(Grouped.of(lives))
    found = train(program, 2)
    assert program.replays
    assert max(len(run.rows) for run in program._whole.kernels[0]._runs) > 1  # type: ignore[attr-defined]
    program.release()
    for one in lives:
        assert difference(state(one), states[one.member.name]) <= 3e-3, one.member.name
    assert difference(found, history) <= 3e-3


@pytest.mark.usefixtures("replayable")
def test_unlike_members_of_a_device_without_kernels_are_not_captured() -> None:
    assert refusal(Grouped.of([live(one) for one in unlike()])) == "its device has no kernel that steps unlike members"


@pytest.mark.usefixtures("replayable", "with_kernels")
@pytest.mark.parametrize(
    "more",
    [
        {"clip_grad_norm": 0.1},
        {"optimizer": Adagrad},
        {"optimizer": partial(Adam, amsgrad=True)},
    ],
)
def test_unlike_members_with_steps_of_their_own_are_not_captured(more: Any) -> None:
    other = packs.member("other", **{"model": partial(mlp, (24,), nn.ReLU()), **more})
    assert refusal(Grouped.of([live(one) for one in (*unlike(), other)])) == "an optimizer makes its steps itself"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", [4, 70, 1001, 4096, 1_500_002, 6_500_004, 7_000_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masks_are_those_of_torch(size: int, dtype: torch.dtype) -> None:
    device = torch.device("cuda", 0)
    kernels = kernels_of(device)
    assert kernels is not None
    state = torch.tensor([2**40 + 17, 4 * 12345])
    rates = (0.1, 0.0, 0.75)
    found = torch.empty(3, size, dtype=dtype, device=device)
    drawn = [(Drawn(0, row * size, size, 1 - rate), 8 * row) for row, rate in enumerate(rates)]
    kernels.masks(found, drawn, state.to(device).unsqueeze(0))
    for row, rate in enumerate(rates):
        own = state + torch.tensor([0, 8 * row])
        torch.cuda.set_rng_state(own.view(torch.uint8), device)
        assert torch.equal(functional.dropout(torch.ones(size, dtype=dtype, device=device), rate), found[row])
        moved = int(torch.cuda.get_rng_state(device).view(torch.int64)[1] - own[1])
        assert moved == (kernels.increment(size) if rate else 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pack_that_drops_out_is_captured() -> None:
    members = [
        packs.member(f"m{n}", model=partial(packs.mlp, dropout=rate), optimizer=partial(Adam, lr=0.01 * n))
        for n, rate in ((1, 0.2), (2, 0.0), (3, 0.5))
    ]
    states, history = alone(members, "cuda:0", 3)
    lives = [live(one, "cuda:0") for one in members]
    program = Graphed.of(Fused.of(lives))
    found = train(program, 3)
    assert program.replays
    assert difference(found, history) <= ROUNDING
    for one in lives:
        assert difference(state(one), states[one.member.name]) <= ROUNDING


def randomness(seed: int, offset: int) -> Any:
    return SimpleNamespace(device_state=torch.tensor([seed, offset]).view(torch.uint8), backend=None)


def test_draws_follow_the_members_states() -> None:
    """A step that is not made draws again what it drew; a member that draws elsewhere meanwhile goes on from there."""
    states = [randomness(3, 8), randomness(4, 0)]
    kernels = stand_in.Plain()
    draws = DeviceDraws(states, kernels, torch.device("cpu"))  # type: ignore[arg-type]
    into = torch.empty(12)

    def step() -> list[list[float]]:
        draws.place()
        draws.begin()
        draws.masks([Drawn(0, 0, 4, 0.5), Drawn(1, 4, 4, 1.0)], into[:8])
        draws.masks([Drawn(0, 0, 4, 0.5)], into[8:])
        return into.view(3, 4).tolist()

    def wanted(offset: int) -> list[list[float]]:
        kept = [stand_in.mask(3, offset + more, 4, 0.5, torch.float32).tolist() for more in (0, 16)]
        return [kept[0], [1.0] * 4, kept[1]]

    assert step() == step() == wanted(8)
    draws.advance()
    assert states[0].device_state.view(torch.int64).tolist() == [3, 8]
    assert step() == wanted(40)
    draws.advance()
    draws.tell()
    assert [one.device_state.view(torch.int64).tolist() for one in states] == [[3, 72], [4, 0]]
    states[0].device_state = torch.tensor([3, 4]).view(torch.uint8)
    assert step() == wanted(4)
    draws.tell()  # that step was not made
    assert states[0].device_state.view(torch.int64).tolist() == [3, 4]


def test_a_device_that_draws_otherwise_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels_of(torch.device("cpu")) is None
    monkeypatch.setattr(torch.version, "cuda", None)
    own_kernels._of_cuda.cache_clear()
    assert kernels_of(torch.device("cuda", 0)) is None
    own_kernels._of_cuda.cache_clear()


def test_kernels_that_cannot_be_built_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler.")

    restored: list[Any] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: "as it was")
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.append(state))
    monkeypatch.setattr(own_kernels, "find_spec", lambda name: name)
    monkeypatch.setattr(own_kernels, "_compared", no_compiler)
    own_kernels._of_cuda.cache_clear()
    with pytest.warns(
        UserWarning,
        match=r"for cuda:0 could not be built \(.*Failed to find C compiler.*install gcc, or name one in CC",
    ):
        assert kernels_of(torch.device("cuda", 0)) is None
    own_kernels._of_cuda.cache_clear()
    assert restored == ["as it was"]


def test_networks_that_drop_out_ask_for_kernels() -> None:
    """Others would wait for them to be built, and need none."""
    found = [
        drops_out(made) for made in (packs.mlp(0.2), packs.mlp(0.0), packs.Transformer(dropout=0.1), packs.ResNet())
    ]
    assert found == [True, False, True, False]
