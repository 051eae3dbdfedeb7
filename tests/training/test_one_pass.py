"""Tests that steps by torch's fused kernels equal the optimizers' steps but for rounding, and are used only where they apply."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import studies
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Muon, Optimizer, RMSprop
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.optimizer import register_optimizer_step_post_hook

import argosy
from argosy.training.optim.kernels import Kernel
from argosy.training.optim.one_pass import can_step_in_one_pass, step_in_one_pass
from argosy.training.optim.optimizer_list import OptimizerList
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs import solo

Factory = Callable[[Any], Optimizer]
STEPS = 50
ROUNDING = 1e-12


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5)).to(dtype)


def differentiate(model: nn.Module, number: int) -> None:
    """Compute gradients that depend on `number`."""
    inputs = torch.randn(16, 7, generator=torch.Generator().manual_seed(number), dtype=next(model.parameters()).dtype)
    model.zero_grad()
    model(inputs).square().mean().backward()


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors(one)


def difference(one: Any, other: Any) -> float:
    return max(
        (float((a.double() - b.double()).abs().max()) for a, b in zip(tensors(one), tensors(other), strict=True)),
        default=0.0,
    )


def listed(parameters: Any) -> Optimizer:
    weights = list(parameters)
    return OptimizerList(
        [Muon([p for p in weights if p.dim() == 2]), Adam([p for p in weights if p.dim() == 1], lr=0.01)]
    )


KINDS: dict[str, Factory] = {
    "a list": listed,
    "SGD": partial(SGD, lr=0.1),
    "SGD that decays": partial(SGD, lr=0.1, weight_decay=0.01),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": partial(Adam, lr=0.01),
    "Adam that decays": partial(Adam, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    "Adam, decoupled": partial(Adam, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "AdamW": partial(AdamW, lr=0.01, weight_decay=0.1),
    "Adagrad": partial(Adagrad, lr=0.1, lr_decay=0.01, weight_decay=0.01),
    "one pass already": partial(AdamW, lr=0.01, fused=True),
}


@pytest.mark.parametrize("factory", KINDS.values(), ids=KINDS)
def test_weights_and_state_are_those_of_the_optimizer(factory: Factory) -> None:
    """This holds while a schedule changes the rate and the momentum, and if the optimizer makes one of the steps itself."""
    models = network(), network()
    own, passed = (factory(model.parameters()) for model in models)
    cycles = bool(own.defaults.get("momentum") or own.defaults.get("betas"))
    schedules = [OneCycleLR(optimizer, 0.1, total_steps=STEPS, cycle_momentum=cycles) for optimizer in (own, passed)]
    assert can_step_in_one_pass(passed)
    made = 0
    for number in range(STEPS):
        for model in models:
            differentiate(model, number)
        own.step()
        if number == STEPS // 2 or not step_in_one_pass(passed):
            passed.step()
        else:
            made += 1
        for schedule in schedules:
            schedule.step()
    assert made >= STEPS - 2
    assert difference(models[0].state_dict(), models[1].state_dict()) < ROUNDING
    assert list(own.state_dict()["state"]) == list(passed.state_dict()["state"])
    assert difference(own.state_dict()["state"], passed.state_dict()["state"]) < ROUNDING
    assert own.state_dict()["param_groups"] == passed.state_dict()["param_groups"]


@pytest.mark.parametrize("one_pass", [False, True])
def test_optimizers_in_a_list_keep_the_state_that_they_began_with(one_pass: bool) -> None:
    models = network(), network()
    apart, listed = (
        [Adagrad(layer.parameters(), lr=0.1, initial_accumulator_value=2.0) for layer in (model[0], model[2])]  # type: ignore[index]
        for model in models
    )
    together = OptimizerList(listed)
    for number in range(3):
        for model in models:
            differentiate(model, number)
        for optimizer in apart:
            optimizer.step()
        if one_pass:
            assert step_in_one_pass(together)
        else:
            together.step()
    assert difference(models[0].state_dict(), models[1].state_dict()) < ROUNDING


def test_a_schedule_cycles_the_momentum_of_optimizers_in_a_list_if_each_has_one() -> None:
    def optimizers(*kinds: Factory) -> list[Optimizer]:
        return [kind([nn.Parameter(torch.zeros(2))]) for kind in kinds]

    sgd, nesterov = partial(SGD, lr=0.1), partial(SGD, lr=0.1, momentum=0.5, nesterov=True)
    for kinds in [(sgd, nesterov), (Adam, AdamW)]:
        apart, together = optimizers(*kinds), OptimizerList(optimizers(*kinds))
        schedules = [OneCycleLR(one, 0.1, total_steps=STEPS) for one in (*apart, together)]
        for _ in range(STEPS - 1):
            for schedule in schedules:
                schedule.optimizer.step()
                schedule.step()
            for key in ("lr", "momentum" if sgd in kinds else "betas"):
                found = [group[key] for group in together.param_groups]
                assert found == [one.param_groups[0][key] for one in apart]
    with pytest.raises(ValueError, match="must support momentum"):
        OneCycleLR(OptimizerList(optimizers(sgd, Adam)), 0.1, total_steps=STEPS)


def test_weights_that_get_a_gradient_late_begin_with_the_optimizer() -> None:
    models = network(), network()
    own, passed = (Adam(model.parameters(), lr=0.01) for model in models)
    made = []
    for number in range(8):
        for model in models:
            differentiate(model, number)
            if number < 4:
                model[2].weight.grad = None  # type: ignore[index, union-attr]
        own.step()
        made.append(step_in_one_pass(passed))
    assert all(made)
    assert difference(models[0].state_dict(), models[1].state_dict()) < ROUNDING
    assert difference(own.state_dict()["state"], passed.state_dict()["state"]) < ROUNDING


def hooked(parameters: Any) -> Optimizer:
    optimizer = SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(lambda optimizer, args, kwargs: None)
    return optimizer


def replaced(parameters: Any) -> Optimizer:
    optimizer = SGD(parameters, lr=0.1)
    optimizer.step = MethodType(lambda optimizer, closure=None: None, optimizer)  # type: ignore[method-assign]
    return optimizer


class Own(SGD):
    """A user-defined subclass."""


STRANGERS: dict[str, Factory] = {
    "another optimizer": RMSprop,
    "a subclass": partial(Own, lr=0.1),
    "amsgrad": partial(Adam, amsgrad=True),
    "dampening": partial(SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "a rate that is a tensor": lambda parameters: Adam(parameters, lr=torch.tensor(0.1)),
    "a hook": hooked,
    "another step": replaced,
}


@pytest.mark.parametrize("factory", STRANGERS.values(), ids=STRANGERS)
def test_other_optimizers_make_their_steps(factory: Factory) -> None:
    assert not can_step_in_one_pass(factory(network().parameters()))


def test_hooks_for_all_optimizers_are_called() -> None:
    optimizer, heard = SGD(network().parameters(), lr=0.1), register_optimizer_step_post_hook(lambda *_: None)
    try:
        assert not can_step_in_one_pass(optimizer)
    finally:
        heard.remove()
    assert can_step_in_one_pass(optimizer)


def test_weights_of_other_types_are_their_optimizers() -> None:
    assert not can_step_in_one_pass(Adam(network(torch.bfloat16).parameters()))
    assert not can_step_in_one_pass(Adam([*network(torch.float32).parameters(), *network().parameters()]))


def transposed(model: nn.Module) -> None:
    weight = model[0].weight  # type: ignore[index]
    weight.data = weight.data.t().contiguous().t()  # type: ignore[union-attr, operator]


def gradients_transposed(model: nn.Module) -> None:
    weight = model[0].weight  # type: ignore[index]
    weight.grad = weight.grad.t().contiguous().t()  # type: ignore[union-attr, operator]


def sparse(model: nn.Module) -> None:
    weight = model[0].weight  # type: ignore[index]
    weight.grad = weight.grad.to_sparse()  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("lies", [transposed, gradients_transposed, sparse])
def test_memory_that_lies_otherwise_is_not_touched(lies: Callable[[nn.Module], None]) -> None:
    """The kernels ignore strides, and would pair weights with gradients of other weights."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    differentiate(model, 0)
    lies(model)
    before = copy.deepcopy(model.state_dict())
    assert not step_in_one_pass(optimizer)
    assert difference(before, model.state_dict()) == 0.0
    optimizer.step()


@pytest.mark.parametrize(("numerics", "passes"), [("equivalent", True), ("exact", False)])
def test_exact_numerics_use_the_optimizer_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numerics: Any, passes: bool
) -> None:
    made = []
    monkeypatch.setattr(
        solo, "step_in_one_pass", lambda optimizer: made.append(step_in_one_pass(optimizer)) or made[-1]
    )
    fleet = [studies.member("adam", optimizer=partial(Adam, lr=0.01))]
    argosy.train(studies.study(fleet=fleet), directory=tmp_path, launcher="inline", devices="cpu:1", numerics=numerics)
    assert bool(made) == all([passes, *made]) == passes


@pytest.mark.parametrize(
    "factory", [partial(SGD, lr=0.05, momentum=0.9), partial(Adam, lr=0.01), partial(AdamW, lr=0.01)]
)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_rows_of_several_members_have_the_bits_of_each_alone(factory: Factory, count: int) -> None:
    """This includes the last elements of each weight, which torch's kernels round differently from those before."""
    models, alone = ([network(torch.float32) for _ in range(count)] for _ in range(2))
    lone, packed = ([factory(model.parameters()) for model in several] for several in (alone, models))
    parameter_buffer = ParameterBuffer.of(models, packed)
    kernel = Kernel.of(packed, parameter_buffer, 0)
    assert kernel is not None
    for number in range(STEPS):
        slopes = torch.randn(count, parameter_buffer.weights.size(1), generator=torch.Generator().manual_seed(number))
        slopes *= 10.0 ** (torch.arange(slopes.size(1)) % 7 - 3)
        for row, model in zip(slopes, alone, strict=True):
            for weight, piece in zip(model.parameters(), parameter_buffer.pieces, strict=True):
                weight.grad = piece.of(row).clone()
        assert all(map(step_in_one_pass, lone))
        move = kernel.ready(slopes)
        with torch.no_grad():
            move()
    assert difference([model.state_dict() for model in alone], [model.state_dict() for model in models]) == 0
    for one, other in zip(lone, packed, strict=True):
        assert difference(one.state_dict()["state"], other.state_dict()["state"]) == 0
