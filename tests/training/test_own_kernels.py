"""Tests that captured steps of unlike members, and of members with dropout, give each member what it gets alone."""

import warnings
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
from argosy.training.device.kernel_forms import MaskDraw
from argosy.training.device.own_kernels import find_kernels
from argosy.training.device.recorders import Uncaptured
from argosy.training.optim import flat_kernel
from argosy.training.programs.fused.device_draws import DeviceDraws
from argosy.training.programs.fused.draws import has_dropout
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.graphed import evaluation
from argosy.training.programs.graphed.capturable import why_not_captured
from argosy.training.programs.graphed.graphed import Graphed
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
    """Return the members of `UNLIKE`; with a rate, also three with dropout."""
    made = [packs.member(name, **how) for name, how in UNLIKE.items()]
    if rate:
        behind = nn.ReLU(), nn.Dropout(rate)
        adam = partial(Adam, lr=0.01)
        made += [packs.member(f"drop{n}", model=partial(mlp, (24, 8 * n), *behind), optimizer=adam) for n in (1, 2, 3)]
    return made


def alone(members: Sequence[Member], device: str, epochs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train each member alone; return their states and histories."""
    states, history = {}, {}
    for one in members:
        solo = live(one, device)
        history |= train(Solo(solo), epochs)
        states[one.name] = state(solo)
    return states, history


@pytest.mark.usefixtures("replayable", "with_kernels")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("begun", [False, True], ids=["from the beginning", "from the middle"])
def test_unlike_members_are_captured_as_one(device: str, begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "EAGER_PASSES", 2)
    members = unlike(0.0 if device == "cpu:0" else 0.3)
    states, history = alone(members, device, 4)
    lives = [live(one, device) for one in members]
    for one in lives if begun else ():
        train(Solo(one), 1)
    grouped = Grouped.of(lives)
    assert why_not_captured(grouped) is None
    program = Graphed.of(grouped)
    found = train(program, 4 - begun)
    assert program.replays
    assert grouped.evaluation is not None and grouped.evaluation.captured.replays  # type: ignore[attr-defined]
    program.release()
    for one in lives:
        assert difference(state(one), states[one.member.name]) <= ROUNDING, one.member.name
        assert difference(found[one.member.name], history[one.member.name][begun:]) <= ROUNDING


@pytest.mark.usefixtures("replayable", "with_kernels")
@pytest.mark.parametrize("device", DEVICES)
def test_muon_steps_matrices_of_one_shape_at_once(device: str) -> None:
    """Muon orthogonalizes in 16 bits, so a difference in earlier rounding changes a weight by a thousandth of its step."""
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
    assert (
        why_not_captured(Grouped.of([live(one) for one in unlike()]))
        == "its device has no kernel that steps different members"
    )


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
    clipped = "gradients of different members are clipped one after another"
    wanted = clipped if "clip_grad_norm" in more else "one of its optimizers has no kernel"
    assert why_not_captured(Grouped.of([live(one) for one in (*unlike(), other)])) == wanted


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", [4, 70, 1001, 4096, 1_500_002, 6_500_004, 7_000_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masks_are_those_of_torch(size: int, dtype: torch.dtype) -> None:
    device = torch.device("cuda", 0)
    kernels = find_kernels(device)
    assert kernels is not None
    state = torch.tensor([2**40 + 17, 4 * 12345])
    rates = (0.1, 0.0, 0.75)
    found = torch.empty(3, size, dtype=dtype, device=device)
    drawn = [(MaskDraw(0, row * size, size, 1 - rate), 8 * row) for row, rate in enumerate(rates)]
    kernels.masks(found, drawn, state.to(device).unsqueeze(0), {})
    for row, rate in enumerate(rates):
        own = state + torch.tensor([0, 8 * row])
        torch.cuda.set_rng_state(own.view(torch.uint8), device)
        assert torch.equal(functional.dropout(torch.ones(size, dtype=dtype, device=device), rate), found[row])
        moved = int(torch.cuda.get_rng_state(device).view(torch.int64)[1] - own[1])
        assert moved == (kernels.increment(size) if rate else 0)


def assert_captured_as_alone(members: Sequence[Member]) -> None:
    """Check that members captured as one program on a GPU equal members trained alone."""
    states, history = alone(members, "cuda:0", 3)
    lives = [live(one, "cuda:0") for one in members]
    program = Graphed.of(Fused.of(lives))
    found = train(program, 3)
    assert program.replays
    assert difference(found, history) <= ROUNDING
    for one in lives:
        assert difference(state(one), states[one.member.name]) <= ROUNDING


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pack_that_drops_out_is_captured() -> None:
    members = [
        packs.member(f"m{n}", model=partial(packs.mlp, dropout=rate), optimizer=partial(Adam, lr=0.01 * n))
        for n, rate in ((1, 0.2), (2, 0.0), (3, 0.5))
    ]
    assert_captured_as_alone(members)


def randomness(seed: int, offset: int) -> Any:
    return SimpleNamespace(device_state=torch.tensor([seed, offset]).view(torch.uint8), backend=None)


def test_draws_follow_the_members_states() -> None:
    """A step that was not finished draws the same numbers again; a member that drew elsewhere meanwhile continues from there."""
    states = [randomness(3, 8), randomness(4, 0)]
    kernels = stand_in.Plain()
    draws = DeviceDraws(states, kernels, torch.device("cpu"))  # type: ignore[arg-type]
    into = torch.empty(12)

    def step(size: int = 4) -> list[list[float]]:
        draws.place()
        draws.begin()
        draws.masks([MaskDraw(0, 0, size, 0.5), MaskDraw(1, 4, size, 1.0)], into[:8])
        draws.masks([MaskDraw(0, 0, size, 0.5)], into[8:])
        return [into[start : start + size].tolist() for start in (0, 4, 8)]

    def wanted(offset: int, size: int = 4) -> list[list[float]]:
        kept = [stand_in.mask(3, offset + more, size, 0.5, torch.float32).tolist() for more in (0, 4 * size)]
        return [kept[0], [1.0] * size, kept[1]]

    def there() -> list[list[int]]:
        return [one.device_state.view(torch.int64).tolist() for one in states]

    assert step() == step() == wanted(8)
    assert there() == [[3, 8], [4, 0]]
    usual = draws.moves
    draws.advance()
    assert there() == [[3, 40], [4, 0]]
    states[0].device_state = states[0].device_state.clone()  # an augmentation that draws nothing
    assert step() == wanted(40)
    draws.advance()
    assert step(2) == wanted(72, 2)  # a shorter batch
    draws.advance()
    draws.place()
    draws.moves = usual  # a replay
    draws.advance()
    assert there() == [[3, 120], [4, 0]]
    states[0].device_state = torch.tensor([3, 4]).view(torch.uint8)
    assert step() == wanted(4)
    assert there()[0] == [3, 4]


def test_a_rate_of_one_draws_nothing() -> None:
    states, into = [randomness(3, 8)], torch.ones(4)
    draws = DeviceDraws(states, stand_in.Plain(), torch.device("cpu"))  # type: ignore[arg-type]
    draws.place()
    draws.begin()
    draws.masks([MaskDraw(0, 0, 4, 0.0)], into)
    draws.advance()
    assert into.tolist() == [0.0] * 4
    assert states[0].device_state.view(torch.int64).tolist() == [3, 8]


@pytest.mark.usefixtures("replayable", "with_kernels")
def test_a_step_that_ends_halfway_has_moved_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon allocates memory after one kernel has stepped all weights that are not Muon's."""

    def no_memory(ways: Any, group: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    optimizer = partial(packs.matrices, lr=0.01)
    lives = [live(packs.member(f"m{n}", model=partial(mlp, (24,) * n, nn.ReLU()), optimizer=optimizer)) for n in (1, 2)]
    program = Graphed.of(Grouped.of(lives))
    before = [state(one) for one in lives]
    monkeypatch.setattr(flat_kernel, "orthogonal", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        train(program, 1)
    program.undo()
    program.release()
    for one, at_first in zip(lives, before, strict=True):
        assert difference(state(one)["model"], at_first["model"]) == 0.0


@pytest.mark.usefixtures("replayable", "with_kernels")
def test_a_program_that_cannot_be_captured_after_all_leaves_its_members_as_they_were() -> None:
    lives = [live(one) for one in unlike()]
    grouped = Grouped.of(lives)
    weight = lives[0].model[-1].weight  # type: ignore[index]
    lives[1].optimizer.state[lives[1].optimizer.param_groups[0]["params"][0]]["step"] = torch.tensor(3.0)
    with pytest.raises(Uncaptured, match="fewer steps"):
        Graphed.of(grouped)
    grouped.release()
    assert weight.untyped_storage().nbytes() == weight.nbytes


@pytest.mark.usefixtures("replayable", "with_kernels")
def test_momentum_that_a_schedule_switches_on_is_not_replayed() -> None:
    momentum = partial(SGD, lr=0.1, momentum=0.0)
    one = packs.member("m", model=partial(mlp, (24,), nn.ReLU()), optimizer=momentum)
    lives = [live(one), live(packs.member("other", model=partial(mlp, (32,), nn.ReLU()), optimizer=momentum))]
    program = Graphed.of(Grouped.of(lives))
    lives[0].optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(Uncaptured, match="a schedule has changed the form of its steps"):
        train(program, 1)


def test_a_device_that_draws_otherwise_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_kernels(torch.device("cpu")) is None
    monkeypatch.setattr(torch.version, "cuda", None)
    assert find_kernels(torch.device("cuda", 0)) is None


@pytest.mark.parametrize("why", ["Failed to find C compiler.", "CUDA error: out of memory"])
def test_kernels_that_cannot_be_built_are_told(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lack of memory gives no warning, and the kernels are built again at the next request; other errors warn once."""
    asked: list[Any] = []

    def raises(device: torch.device) -> None:
        asked.append(device)
        raise RuntimeError(why)

    restored: list[Any] = []
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: "as it was")
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.append(state))
    monkeypatch.setattr(own_kernels, "find_spec", lambda name: name)
    monkeypatch.setattr(own_kernels, "_in_triton", raises)
    monkeypatch.setattr(own_kernels, "_BUILT", {})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert find_kernels(device) is find_kernels(device) is None
    if "memory" in why:
        assert (len(asked), len(told)) == (2, 0)
    else:
        assert (len(asked), len(told)) == (1, 1)
        words = str(told[0].message)
        assert "for cuda:0 could not be built (" in words and "install gcc, or set CC to a compiler" in words
    assert restored == ["as it was"] * len(asked)


def test_networks_that_drop_out_ask_for_kernels() -> None:
    """Other networks need no kernels, and should not wait for them to be built."""
    found = [
        has_dropout(made) for made in (packs.mlp(0.2), packs.mlp(0.0), packs.Transformer(dropout=0.1), packs.ResNet())
    ]
    assert found == [True, False, True, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pack_that_drops_out_and_augments_goes_on_drawing() -> None:
    def noisy(batch: Any) -> Any:
        return batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]

    members = [
        packs.member(
            f"m{n}",
            model=partial(packs.mlp, dropout=0.4),
            augment=noisy,
            optimizer=partial(Adam, lr=0.01 * n),
            batch_size=20,
        )
        for n in (1, 2)
    ]
    assert_captured_as_alone(members)
