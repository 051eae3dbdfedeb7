"""Tests that a fused program gives each of its members what it gets alone."""

import copy
import math
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import packs
import pytest
import torch
from packs import alone, difference, member, state, together
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

import argosy
from argosy.errors import StudyError
from argosy.stream.blocks import Block
from argosy.study import Member
from argosy.training.choice.admission import admit
from argosy.training.member import checkpoint
from argosy.training.member.copied import with_own_callables
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.compiled import Compilation
from argosy.training.programs.fused.device_draws import States
from argosy.training.programs.fused.fingerprint import obstacle
from argosy.training.programs.fused.forward import PackInputs, losses_of
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.program import MemberFaults
from argosy.training.programs.solo import Solo

EPOCHS = 9
"""Epochs of six steps."""
EXACT = 1e-10
MODELS = {"mlp": packs.mlp, "resnet": packs.ResNet, "convnet": packs.convnet, "transformer": packs.Transformer}


def by_groups(optimizer: Any, parameters: Any) -> Any:
    """Return the optimizer with a second group, for biases, without weight decay."""
    parameters = list(parameters)
    decayed = [p for p in parameters if p.dim() > 1]
    return optimizer([{"params": decayed}, {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}])


def various(model: Any, **rest: Any) -> list[Member]:
    """Return members with optimizers of every kernel and without one, all with different hyper-parameters."""
    every_step: Any = {"schedule_per": "step"}
    cycle = partial(OneCycleLR, max_lr=0.02, total_steps=60)
    optimizers: list[tuple[Any, dict[str, Any]]] = [
        (partial(SGD, lr=0.05), {"schedule": partial(StepLR, step_size=2, gamma=0.5)}),
        (partial(SGD, lr=0.01, momentum=0.9, weight_decay=1e-3), {"clip_grad_norm": 0.5}),
        (partial(SGD, lr=0.02, momentum=0.8, nesterov=True), {"schedule": cycle, **every_step}),
        (partial(SGD, lr=0.02, momentum=0.8, dampening=0.1), {}),
        (partial(Adam, lr=0.003, betas=(0.8, 0.99)), {"schedule": cycle, **every_step}),
        (partial(Adam, lr=0.002, weight_decay=0.01, eps=1e-7), {"schedule": partial(CosineAnnealingLR, T_max=9)}),
        (partial(AdamW, lr=0.004, weight_decay=0.1), {"schedule": ReduceLROnPlateau, "clip_grad_norm": 1.0}),
        (partial(AdamW, lr=0.002, weight_decay=0.1, fused=True), {}),
        (partial(RMSprop, lr=0.001, centered=True), {"schedule": partial(StepLR, step_size=3), **every_step}),
    ]
    return [
        member(f"m{n}", model=model, optimizer=partial(by_groups, optimizer), **fields, **rest)
        for n, (optimizer, fields) in enumerate(optimizers)
    ]


def orthogonal(model: Any = packs.mlp) -> list[Member]:
    """Return members with Muon and AdamW, in all forms of Muon and with different hyper-parameters."""
    forms: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"lr": 0.02}, {"schedule": partial(StepLR, step_size=2, gamma=0.5)}),
        ({"lr": 0.01, "momentum": 0.8, "weight_decay": 0.0}, {"clip_grad_norm": 0.5}),
        ({"lr": 0.03}, {"schedule": partial(CosineAnnealingLR, T_max=40), "schedule_per": "step"}),
        ({"lr": 0.01, "nesterov": False, "ns_steps": 3}, {}),
        ({"lr": 0.002, "adjust_lr_fn": "match_rms_adamw"}, {"seed": 3}),
    ]
    return [
        member(f"o{n}", model=model, optimizer=partial(packs.matrices, **numbers), **fields)
        for n, (numbers, fields) in enumerate(forms)
    ]


def without_noise(one: Any, model: str) -> dict[str, Any]:
    """Return a member's state without the bias of attention's keys: its true gradient is zero, so Adam's steps on it are pure noise."""
    found = state(one)
    if model == "transformer":
        del found["model"]["layer.self_attn.in_proj_bias"], found["optimizer"]
    return found


@pytest.mark.parametrize("model", MODELS)
def test_fused_equals_alone(model: str) -> None:
    members, ends = various(MODELS[model]), {"m1": 4, "m6": 2}
    members = members if model == "mlp" else [members[n] for n in (1, 2, 4, 6, 7)]
    (lives, history), (fused, found) = (run(members, EPOCHS, ends=ends) for run in (alone, together))
    for one, other in zip(lives, fused, strict=True):
        assert difference(without_noise(one, model), without_noise(other, model)) <= EXACT, one.member.name
    assert difference(history, found) <= EXACT
    assert found["m2"][-1]["val_loss"] < found["m2"][0]["val_loss"]


class Largest:
    """A metric of the whole set, as an object."""

    def __init__(self) -> None:
        self.largest = -math.inf

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.largest = max(self.largest, float(outputs.max()))

    def compute(self) -> float:
        return self.largest


def test_metrics_of_a_whole_validation_are_those_of_each_member_alone() -> None:
    metrics = {"spread": lambda outputs, targets: outputs.std(), "largest": Largest}
    members = [member(f"m{n}", metrics=metrics, average=argosy.EMA(0.5)) for n in range(3)]
    (_, history), (_, found) = alone(members, 2), together(members, 2)
    assert difference(history, found) <= EXACT
    values = [row[f"val_{name}"] for rows in found.values() for row in rows for name in metrics]
    assert all(map(math.isfinite, values))


class Warming:
    """An augmentation that depends on the number of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        return batch[0] * (1 + self.calls / 50), batch[1]

    def called(self, batch: Any) -> Any:
        return self(batch)


def held(bank: Tensor, batch: Any, *, first: Any) -> Any:
    """An augmentation that wraps another one."""
    x, y = first(batch)
    return x + bank, y


@pytest.mark.parametrize("form", ["an object", "a method", "a partial"])
def test_members_that_share_an_augmentation_with_a_state_each_move_their_own(form: str) -> None:
    shared, bank = Warming(), torch.randn(16, dtype=torch.float64)
    forms: dict[str, Any] = {
        "an object": shared,
        "a method": shared.called,
        "a partial": partial(held, bank, first=shared),
    }
    members = [member(f"m{n}", augment=forms[form], optimizer=partial(SGD, lr=0.1 + n / 10)) for n in range(3)]
    (lives, history), (fused, found) = (run(members, 2) for run in (alone, together))
    assert difference([state(one) for one in lives], [state(other) for other in fused]) <= EXACT
    assert difference(history, found) <= EXACT
    (only,), _ = alone(members[-1:], 2)
    assert difference(state(only), state(lives[-1])) == 0.0
    assert shared.calls == 0


def test_data_that_an_augmentation_binds_are_shared_and_so_are_locks_beside_its_state() -> None:
    bank, shared = torch.zeros(16), Warming()
    own = with_own_callables(member("m", augment=partial(held, bank, first=shared)), {}).augment
    assert isinstance(own, partial)
    assert own.args[0] is bank and own.keywords["first"] is not shared
    graph = torch.ones(1, requires_grad=True).exp()
    vars(shared).update(lock=threading.Lock(), last=graph, kept=[Holding(graph)])
    beside = with_own_callables(member("m", augment=shared, loss=(counting := Counting())), {})
    assert beside.augment is not shared and beside.augment.lock is shared.lock and beside.loss is not counting
    held_by = with_own_callables(member("m", augment=partial(held, bank, first=shared)), {}).augment
    assert held_by.keywords["first"] is not shared and held_by.keywords["first"].lock is shared.lock
    assert torch.equal(beside.augment.last, graph) and beside.augment.kept[0].output is beside.augment.last is not graph


class Holding:
    """An object that holds an output, as a layer by hand does."""

    def __init__(self, output: Tensor) -> None:
        self.output = output


class Counting(nn.Module):
    """A loss or step that depends on the number of its calls, and holds a teacher network and a large tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.teacher, self.bank = 0, nn.Linear(16, 4), torch.zeros(1 << 18, dtype=torch.float64)

    def forward(self, first: Any, second: Any) -> Tensor:
        self.calls += 1
        output, target = (first(second[0]), second[1]) if isinstance(first, nn.Module) else (first, second)
        return functional.cross_entropy(output, target, reduction="none") / self.calls


@pytest.mark.parametrize("name", ["loss", "step"])
def test_members_that_share_a_loss_or_a_step_with_a_state_each_move_their_own(name: str) -> None:
    shared = Counting()
    members = [member(f"m{n}", metrics={}, **{name: shared}) for n in range(3)]
    lives, _ = alone(members, 2)
    (only,), _ = alone(members[-1:], 2)
    assert difference(state(only), state(lives[-1])) == 0.0
    assert shared.calls == 0
    own = getattr(only.member, name)
    assert own.teacher.weight is shared.teacher.weight and own.bank is shared.bank
    assert packs.admission(packs.pack(packs.mlp, metrics={}, **{name: shared})).alone["m0"] == (
        f"a step changes its {name}, which is not a buffer"
    )
    unlike = [member(f"m{n}", model=partial(packs.mlp, hidden=4 + n), metrics={}, **{name: shared}) for n in range(5)]
    assert not packs.admission(unlike).grouped


class Outside(nn.Module):
    """A network that holds a function whose closure refers to it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 10))
        self.passed = lambda x: self.layers(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.passed(x)  # type: ignore[no-any-return]


def test_functions_that_refer_to_a_network_are_each_members_own() -> None:
    members = [member(f"m{lr}", model=Outside, optimizer=partial(SGD, lr=lr), seed=1) for lr in (0.01, 0.1)]
    (lives, history), (fused, found) = (run(members, 2) for run in (alone, together))
    assert all(difference(state(one), state(other)) <= EXACT for one, other in zip(lives, fused, strict=True))
    assert difference(history, found) <= EXACT


@pytest.mark.parametrize("model", MODELS)
def test_in_float32_the_difference_is_that_of_the_network_itself(model: str) -> None:
    def members(moved: float = 0.0) -> list[Member]:
        return [
            member(f"m{n}", model=partial(nudged, MODELS[model], moved), optimizer=optimizer, dtype=torch.float32)
            for n, optimizer in enumerate([partial(SGD, lr=0.1, momentum=0.9), partial(SGD, lr=0.2)])
        ]

    def weights(run: Any, epochs: int, moved: float = 0.0, **how: Any) -> list[Any]:
        return [one.model.state_dict() for one in run(members(moved), epochs, dtype=torch.float32, **how)[0]]

    one_step = packs.samples(torch.float32, train=16)
    assert difference(weights(alone, 1, data=one_step), weights(together, 1, data=one_step)) <= 1e-6
    longer = weights(alone, EPOCHS)
    control = difference(longer, weights(alone, EPOCHS, moved=1.0))
    assert difference(longer, weights(together, EPOCHS)) <= 3 * control


def test_matrices_by_muon_and_the_rest_by_adamw() -> None:
    wide = [replace(one, name=f"w{one.name}") for one in orthogonal(partial(packs.mlp, 0.2, 48))]
    for members in (orthogonal(), wide):
        (lives, history), (fused, found) = (
            run(members, EPOCHS, ends={members[1].name: 4}) for run in (alone, together)
        )
        for one, other in zip(lives, fused, strict=True):
            assert difference(state(one), state(other)) <= EXACT, one.member.name
        assert difference(history, found) <= EXACT
        assert found[members[2].name][-1]["val_loss"] < found[members[2].name][0]["val_loss"]
        kernels = Fused.of([packs.live(one) for one in members]).kernels
        assert sum(kernel.rows.stop - kernel.rows.start for kernel in kernels) == len(members)


def nudged(model: Any, moved: float) -> nn.Module:
    """Return a network, with weights one ulp higher if `moved`."""
    built: nn.Module = model()
    if moved:
        for parameter in built.parameters():
            parameter.data = torch.nextafter(parameter.data, torch.full_like(parameter, math.inf))
    return built


def test_a_member_that_diverges_does_not_change_the_others() -> None:
    members = [member("calm", model=packs.ResNet), member("wild", model=packs.ResNet, optimizer=partial(SGD, lr=1e300))]
    (calm, _), _ = alone(members, 2)
    (other, wild), _ = together(members, 2)
    assert difference(state(calm), state(other)) <= EXACT
    assert not all(torch.isfinite(weight).all() for weight in wild.model.state_dict().values())


def noisy(scale: float, batch: Any) -> Any:
    return batch[0] + scale * torch.randn_like(batch[0]), batch[1]


def test_after_a_batch_without_sound_samples_kernels_go_on() -> None:
    """No weight has a gradient then, but no optimizer skips one either: the members make no step."""
    lives = [packs.live(packs.member(f"m{n}", optimizer=partial(Adam, lr=0.01))) for n in range(2)]
    program = Fused.of(lives)
    order = packs.Orders(0, {"train": packs.TRAIN, "val": packs.VAL}).epoch("train", 0)
    packs.train(program, 1, holes=order[16:32].tolist())
    assert len(program.kernels) == 1 and {live.steps for live in lives} == {-(-packs.TRAIN // 16) - 1}


def test_batches_of_ones_own() -> None:
    """Members with own batches (folds, bootstraps, augmentation, broken or short batches) train as alone; one without a batch waits."""
    fields: list[dict[str, Any]] = [
        {},
        {"subset": range(70)},
        {"subset": [3, 3, 5, *range(20, 96)], "drop_last": True, "optimizer": partial(Adam, lr=0.01)},
        {"subset": range(30, 96), "clip_grad_norm": 0.2, "optimizer": partial(AdamW, lr=0.01)},
        {"drop_last": True, "optimizer": partial(SGD, lr=0.01, momentum=0.9)},
        {"val_subset": [1, 2, 3, 5, 8], "optimizer": RMSprop},
    ]
    for augmented in (False, True):
        members = [
            member(f"m{n}", model=packs.ResNet, **{**own, "accumulate": 3, "batch_size": 21, "schedule_per": "step"},
                   augment=partial(noisy, 0.1 * n) if augmented and n else None, schedule=partial(StepLR, step_size=5))
            for n, own in enumerate(fields)
        ]  # fmt: skip
        how: dict[str, Any] = {"holes": (7, 50, 51), "size": 17}
        (lives, history), (fused, found) = (run(members, 3, **how) for run in (alone, together))
        assert difference([state(one) for one in lives], [state(other) for other in fused]) <= EXACT
        assert difference(history, found) <= EXACT


def test_dropout_and_seeds_are_each_members_own() -> None:
    members = [
        *(member(f"p{p}", model=partial(packs.convnet, p)) for p in (0.0, 0.1, 0.5)),
        *(member(f"s{seed}", model=packs.convnet, seed=seed) for seed in (1, 2)),
    ]
    attentive = [member(f"p{p}", model=partial(packs.Transformer, dropout=p)) for p in (0.1, 0.3)]
    for fleet in (members, attentive):
        (lives, history), (fused, found) = (run(fleet, 2) for run in (alone, together))
        assert difference([state(one) for one in lives], [state(other) for other in fused]) <= EXACT
        assert difference(history, found) <= EXACT
        assert all(one.state_dict()["random"]["torch"] is not None for one in fused[1:])


class Sampled(nn.Module):
    """A network with dropout in validation too, like one that averages several passes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(functional.dropout(x, 0.5, training=True))


def test_what_a_validation_draws_goes_on_over_its_blocks() -> None:
    """Random draws must continue from block to block, and not begin again with each block or after a pause."""
    members = [member(name, model=Sampled, eval_batch_size=8) for name in "ab"]
    first, *others = [run(members, 2, size=size)[1] for run in (alone, together) for size in (8, 40)]
    assert all(difference(first, found) <= EXACT for found in others)


def test_bfloat16_rounds_as_alone() -> None:
    members = [
        member(f"m{n}", optimizer=partial(SGD, lr=lr), dtype=torch.float32, precision="bfloat16")
        for n, lr in enumerate((0.1, 0.2))
    ]
    (lives, history), (fused, found) = (run(members, 2, dtype=torch.float32) for run in (alone, together))
    assert difference([state(one)["model"] for one in lives], [state(other)["model"] for other in fused]) <= 0.02
    exact = together([replace(one, precision="float32") for one in members], 2, dtype=torch.float32)[1]
    assert difference(history, found) < difference(exact, found)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "loss",
    [
        functional.cross_entropy,
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), reduction="none"),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.NLLLoss(),
        nn.PoissonNLLLoss(),
        nn.HingeEmbeddingLoss(),
    ],
)
def test_losses_that_torch_widens_from_bfloat16_are_as_alone(loss: Any, apart: bool) -> None:
    outputs = torch.randn(3, 8, 3, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    targets = torch.randint(3, (3, 8), generator=torch.Generator().manual_seed(1))
    if isinstance(loss, nn.PoissonNLLLoss | nn.HingeEmbeddingLoss):
        targets = functional.one_hot(targets).bfloat16()
        targets = 1 - 2 * targets if isinstance(loss, nn.HingeEmbeddingLoss) else targets
    data = PackInputs(tree=(None, targets if apart else targets[0]), samples=8, apart=apart)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = torch.stack([loss(outputs[n], targets[n if apart else 0]) for n in range(3)])
        found = losses_of(loss, outputs, data, States([]))
    assert found.dtype == torch.float32 and torch.equal(found, wanted)
    assert torch.equal(*(torch.autograd.grad(losses.sum(), outputs)[0] for losses in (found, wanted)))


@pytest.mark.parametrize("members", [various(partial(packs.convnet, 0.2)), orthogonal()], ids=["various", "orthogonal"])
def test_saved_from_a_pack_and_resumed_alone(tmp_path: Path, members: list[Member]) -> None:
    """A checkpoint holds only its member, none of the shared buffer, and resuming from it equals going on in memory."""
    lives = [packs.live(one) for one in members]
    program = Fused.of(lives)
    packs.train(program, 2)
    paths = [tmp_path / f"{one.member.name}.pt" for one in lives]
    checkpoint.save_all([(checkpoint.to_plain(one.state_dict()), path) for one, path in zip(lives, paths, strict=True)])
    assert all(path.stat().st_size < 40_000 for path in paths)
    program.release()
    for one, path in zip(lives, paths, strict=True):
        resumed = packs.live(one.member)
        resumed.load_state_dict(checkpoint.load(path))
        assert difference(state(resumed), state(one)) == 0.0
        ahead = [packs.train(Solo(each), 2) for each in (one, resumed)]
        assert difference(state(resumed), state(one)) == 0.0 and difference(*ahead) == 0.0


def test_resumed_into_a_pack_beside_one_that_begins() -> None:
    members = various(packs.mlp)
    (lives, _), (fused, _) = (run(members[:6], 2) for run in (alone, together))
    begun = packs.live(members[6])
    begun.epoch = 2
    late = packs.live(members[6])
    late.epoch = 2
    for one in [*lives, late]:
        packs.train(Solo(one), 2)
    packs.train(Fused.of([*fused, begun]), 2)
    assert difference([state(one) for one in [*lives, late]], [state(one) for one in [*fused, begun]]) <= EXACT


def test_while_fused_a_members_own_objects_are_views() -> None:
    lives = [packs.live(one) for one in various(packs.ResNet)]
    parameters = [list(one.model.parameters()) for one in lives]
    program = Fused.of(lives)
    packs.train(program, 1)
    shared = {p.untyped_storage().data_ptr() for one in lives for p in one.model.parameters()}
    assert len(shared) == 1
    program.release()
    tensors = [t for one in lives for t in [*one.model.state_dict().values(), *moments(one)]]
    assert all(t.untyped_storage().nbytes() == t.numel() * t.itemsize for t in tensors)
    assert all(p.grad is None for one in parameters for p in one)
    assert [list(map(id, one.model.parameters())) for one in lives] == [list(map(id, one)) for one in parameters]


def moments(one: Any) -> list[Tensor]:
    return [value for own in one.optimizer.state.values() for value in own.values() if isinstance(value, Tensor)]


class TwoHeads(nn.Module):
    """A network whose second head is used only if `uses` is set."""

    uses = True

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x).tanh()
        return self.first(hidden) + (self.second(hidden) if TwoHeads.uses else 0.0)


@pytest.mark.parametrize("uses", [(True, False, True), (False, True, False)])
def test_weights_that_have_no_part_in_a_loss_are_left_alone(uses: tuple[bool, ...], monkeypatch: Any) -> None:
    members = various(TwoHeads)
    runs = [[Solo(packs.live(one)) for one in members], [Fused.of([packs.live(one) for one in members])]]
    for used in uses:
        monkeypatch.setattr(TwoHeads, "uses", used)
        for programs in runs:
            for program in programs:
                packs.train(program, 1)
    lives = [solo.members[0] for solo in runs[0]]
    fused = {one.member.name: one for one in runs[1][0].members}
    for one in lives:
        assert difference(weighty(one), weighty(fused[one.member.name])) <= EXACT, one.member.name


def weighty(one: Any) -> Any:
    """Return a member's state without optimizer state of weights never stepped, where torch has none and a kernel has zeros."""
    found = state(one)
    found["optimizer"] = {
        number: own for number, own in found["optimizer"]["state"].items() if any(t.any() for t in own.values())
    }
    return found


def test_a_schedule_that_ends_momentum_for_a_step() -> None:
    cycle = partial(OneCycleLR, max_lr=0.05, total_steps=19, pct_start=0.5, base_momentum=0.0, anneal_strategy="linear")
    members = [
        member(f"m{n}", optimizer=partial(SGD, lr=0.01, momentum=0.9), schedule=cycle, schedule_per="step", seed=n)
        for n in range(3)
    ]
    (lives, _), (fused, _) = (run(members, 3) for run in (alone, together))
    assert difference([state(one) for one in lives], [state(other) for other in fused]) <= EXACT


def sequence(optimizer: Any) -> Any:
    return SequentialLR(optimizer, [LinearLR(optimizer), CosineAnnealingLR(optimizer, 4)], [5])


def chain(optimizer: Any) -> Any:
    return ChainedScheduler([ConstantLR(optimizer, 0.5, 3), ExponentialLR(optimizer, 0.9)], optimizer)


SCHEDULES: tuple[Any, ...] = (
    sequence,
    chain,
    partial(StepLR, step_size=2),
    partial(MultiStepLR, milestones=[2, 7]),
    partial(LambdaLR, lr_lambda=lambda step: 0.9**step),
    partial(MultiplicativeLR, lr_lambda=lambda step: 0.9),
    partial(PolynomialLR, total_iters=9),
    partial(CosineAnnealingWarmRestarts, T_0=3),
    partial(CyclicLR, base_lr=0.001, max_lr=0.01, step_size_up=4),
    partial(OneCycleLR, max_lr=0.01, total_steps=20),
    partial(ReduceLROnPlateau, patience=0),
)


def test_schedules_of_every_kind() -> None:
    members = [
        member(f"{name}{number}", optimizer=optimizer, schedule=schedule,
               schedule_per="epoch" if schedule is SCHEDULES[-1] else "step")
        for number, schedule in enumerate(SCHEDULES)
        for name, optimizer in (("adam", partial(Adam, lr=0.01)), ("sgd", partial(SGD, lr=0.01, momentum=0.9)))
    ]  # fmt: skip
    (lives, history), (fused, found) = (run(members, 3) for run in (alone, together))
    assert [obstacle(one) for one in fused] == [None] * len(fused)
    for one, other in zip(lives, fused, strict=True):
        assert difference(state(one), state(other)) <= EXACT, one.member.name
    assert difference(history, found) <= EXACT


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("alike", [False, True])
def test_members_of_adam_that_differ_in_rates_alone_or_in_nothing(dtype: torch.dtype, alike: bool) -> None:
    rates, decays = ((0.01, 0.01), (0.1, 0.1)) if alike else ((0.001, 0.01), (0.0, 0.1))
    optimizers = [
        partial(kind, lr=lr, weight_decay=decay) for kind in (Adam, AdamW) for lr in rates for decay in decays
    ]
    members = [member(f"m{number}", optimizer=made, dtype=dtype) for number, made in enumerate(optimizers)]
    epochs = EPOCHS if dtype == torch.float64 else 1
    (lives, _), (fused, _) = (run(members, epochs, dtype=dtype) for run in (alone, together))
    assert difference([state(one) for one in lives], [state(other) for other in fused]) <= (
        EXACT if dtype == torch.float64 else 1e-5
    )


class Signs(Optimizer):
    """A user-defined optimizer with state."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                parameter -= group["lr"] * mean.lerp_(parameter.grad, 0.1).sign()


FOREIGN: tuple[Any, ...] = (
    optim.Adadelta,
    optim.Adagrad,
    optim.Adamax,
    optim.ASGD,
    optim.NAdam,
    optim.RAdam,
    optim.Rprop,
    optim.Adafactor,
    partial(optim.RMSprop, lr=0.001, momentum=0.5),
    partial(Adam, amsgrad=True),
    partial(AdamW, maximize=True),
    partial(Adam, lr=torch.tensor(0.01)),
    partial(Adam, betas=(torch.tensor(0.9), torch.tensor(0.99901))),
    partial(Adam, betas=(torch.tensor(0.9), torch.tensor(0.99904))),  # its betas look like those before
    partial(SGD, lr=0.01, foreach=True),
    partial(Signs, lr=0.001),
)


def test_optimizers_without_a_kernel_step_as_they_are() -> None:
    members = [member(f"m{number}", optimizer=optimizer) for number, optimizer in enumerate(FOREIGN)]
    (lives, history), (fused, found) = (run(members, 2) for run in (alone, together))
    for one, other in zip(lives, fused, strict=True):
        assert difference(state(one), state(other)) <= EXACT, one.member.name
    assert difference(history, found) <= EXACT


def test_left_at_any_turn_it_goes_on_behind_the_last_one_finished() -> None:
    members = various(packs.ResNet, subset=range(80))
    fused = together(members, 1, size=96)[0]
    program = Fused.of([packs.live(one) for one in members])
    (arrays, _), orders = packs.samples(), packs.Orders(0, {"train": packs.TRAIN})
    for one in program.members:
        one.begin_epoch(orders, 0)
    (block,) = packs.blocks(orders.epoch("train", 0), 96, arrays=arrays)
    for _ in range(5):
        with program.active():
            turn = next(iter(program.cut(block)))
            program.begin(turn)
            assert program.finish() == 16 * len(members)
    by_name = {one.member.name: one for one in program.members}
    assert program.members[0].position == 80
    assert (
        difference([one.model.state_dict() for one in fused], [by_name[m.name].model.state_dict() for m in members])
        == 0.0
    )


# ---- labels without an output that come later, and would leave a GPU unusable


BOTH = packs.Orders(0, {"train": packs.TRAIN, "val": packs.TRAIN})


def meeting(split: str) -> tuple[list[LiveMember], list[Block]]:
    """Return three members and the blocks of two epochs.

    In the second epoch the last sample has a label without an output. Only the third member, "c", leaves that sample out.
    """
    (inputs, targets), _ = packs.samples()
    last = int(BOTH.epoch(split, 1)[-1])
    others = {f"{which}subset": [n for n in range(packs.TRAIN) if n != last] for which in ("", "val_")}
    network = partial(packs.mlp, dropout=0.2)
    lives = [packs.live(member(name, model=network, batch_size=8)) for name in "ab"]
    lives.append(packs.live(member("c", model=network, batch_size=8, **others)))
    found = []
    for epoch, labels in enumerate((targets, targets.index_fill(0, torch.tensor(last), 4))):
        (block,) = packs.blocks(
            BOTH.epoch(split, epoch), packs.TRAIN, arrays=(inputs, labels), epoch=epoch, split=split
        )
        found.append(block.with_copies(block.leaves))
    for one in lives:
        one.begin_epoch(BOTH, 1)
    return lives, found


def go(program: Fused, block: Block) -> None:
    """Train or validate on a block."""
    if block.place.split == "train":
        with program.active():
            for turn in program.cut(block):
                program.begin(turn)
                program.finish()
    else:
        with program.active(keep=True):
            for _ in program.evaluate(block):
                pass


@pytest.mark.parametrize("split", ["train", "val"])
def test_labels_without_an_output_end_only_members_that_get_them_before_any_step(split: str) -> None:
    lives, (sound, later) = meeting(split)
    program = Fused.of(lives)
    go(program, sound)
    for one in lives:
        one.begin_epoch(BOTH, 1)
    before = [state(one) for one in lives]
    with pytest.raises(MemberFaults) as raised:
        go(program, later)
    assert raised.value.errors.keys() == {"a", "b"}
    for name, error in raised.value.errors.items():
        assert str(error).startswith(f"member {name!r}: a target has label 4, but its network has 4 outputs")
    assert difference(before, [state(one) for one in lives]) == 0.0
    program.release()
    go(Fused.of(lives[2:]), later)


@pytest.mark.parametrize("split", ["train", "val"])
def test_labels_without_an_output_are_blamed_on_no_member_before_the_first_step(split: str) -> None:
    lives, (_, later) = meeting(split)
    program = Fused.of(lives)
    before = [state(one) for one in lives]
    with pytest.raises(StudyError, match="a target has label 4, but its network has 4 outputs"):
        go(program, later)
    program.undo()
    assert difference(before, [state(one) for one in lives]) == 0.0


def test_undo_after_members_stepped_apart_undoes_no_step() -> None:
    """`undo` after an error in validation keeps the statistics of the last batches, which differ in length."""
    lives = [packs.live(packs.member(f"m{n}", model=packs.ResNet, subset=[*range(80 - 8 * n)])) for n in range(2)]
    program = Fused.of(lives)
    packs.train(program, 1, size=packs.TRAIN)
    before = copy.deepcopy([state(one) for one in lives])
    program.undo()
    assert difference(before, [state(one) for one in lives]) == 0.0


def test_code_that_is_made_for_it_does_not_run_before_labels_could_be_compared() -> None:
    class Made(Compilation):
        runs = 0

        def derive(self, of: Any, plainly: Any, *, usual: bool) -> Any:
            self.runs += 1
            return plainly()

    lives, (sound, _) = meeting("train")
    made = Made()
    go(Fused.of(lives[:2], made), sound)
    assert made.runs == packs.TRAIN // 8 - 1


def test_labels_of_members_that_augment_are_not_compared() -> None:
    lives, (_, later) = meeting("train")
    for one in lives:
        one.member = replace(one.member, augment=lambda batch: (batch[0], batch[1].clamp(max=3)))
    go(Fused.of(lives), later)


class Asserting(nn.CrossEntropyLoss):
    """A loss that asserts its labels, like cross-entropy's CUDA kernel."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        assert int(target.max()) < 4
        return super().forward(output, target)


def test_a_trial_meets_no_label_without_an_output() -> None:
    lives = [packs.live(member(name, model=packs.mlp, loss=Asserting())) for name in "ab"]
    (inputs, targets), order = packs.samples()[0], BOTH.epoch("train", 1)
    labels = targets.index_fill(0, torch.tensor(int(order[0])), 4)
    (block,) = packs.blocks(order, packs.TRAIN, arrays=(inputs, labels), epoch=1)
    found = admit(lives, block.with_copies(block.leaves))
    assert tuple(found.packs) == ()
    assert all("raises StudyError: member" in reason and "label 4" in reason for reason in found.alone.values())
