"""Tests that a fused program computes plain MLPs layer by layer, with the bits of the vectorised pass."""

from collections.abc import Sequence
from typing import Any

import packs
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from argosy.training.member.randomness import Randomness
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.device_draws import States
from argosy.training.programs.fused.forward import Forward, PackInputs
from argosy.training.programs.fused.layers import Layers

MEMBERS, SAMPLES, WIDTH = 3, 8, 24


def deep(number: int) -> nn.Module:
    """Return a network with all activations, dropout rates that depend on the member, and a layer without biases."""
    rate = (0.0, 0.3, 1.0)[number]
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Dropout(rate))
    others = [
        layer
        for activation in (nn.GELU("tanh"), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.LeakyReLU(0.2), nn.ELU(0.5))
        for layer in (nn.Linear(WIDTH, WIDTH), activation)
    ]
    head = nn.Identity(), nn.Dropout(0.2 + 0.1 * number, inplace=True), nn.Linear(WIDTH, 4, bias=False)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.1), first, *others, *head)


def tied(number: int) -> nn.Module:
    """Return a network that uses a layer twice, with another that shares its weight, a frozen one, and no random draws."""
    layer, other, frozen = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
    other.weight = layer.weight
    frozen.requires_grad_(False)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Dropout(0.0), other, frozen, nn.Linear(WIDTH, 4))


def flattened(number: int) -> nn.Module:
    """Return a network on sequences of vectors, which it flattens in the middle."""
    behind = nn.Linear(20, WIDTH), nn.Dropout(0.3 * number), nn.Linear(WIDTH, 4)
    return nn.Sequential(nn.Dropout(0.4), nn.Linear(WIDTH, 4), nn.Dropout(0.2), nn.Flatten(), nn.Dropout(0.1), *behind)


class Named(nn.Sequential):
    """A subclass that computes like its parent."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 4))


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "deep": (deep, (2, 3, 4)),
    "tied": (tied, (WIDTH,)),
    "of sequences": (tied, (5, WIDTH)),
    "flattened": (flattened, (5, WIDTH)),
    "named": (lambda number: Named(), (WIDTH,)),
}
LOSSES: dict[str, Any] = {
    "default": None,
    "own": lambda output, target: functional.mse_loss(output[:, 0].sum(-1), target.to(output).sum(-1)),
    "drawing": lambda output, target: functional.cross_entropy(output + 0.1 * torch.randn_like(output), target),
}


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def shadowed() -> nn.Module:
    """Return a network with a layer whose `forward` is replaced on the object."""
    layer = nn.Linear(WIDTH, 4)
    layer.forward = lambda x: x  # type: ignore[method-assign]
    return nn.Sequential(layer)


REFUSED: dict[str, Any] = {
    "a layer of their own": lambda: nn.Sequential(Doubled(WIDTH, 4)),
    "shadowed": shadowed,
    "parametrised": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, 4))),
    "flattened with the samples": lambda: nn.Sequential(nn.Flatten(0), nn.Linear(WIDTH, 4)),
    "norms": lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4)),
    "no sequence": packs.ResNet,
}


def passed(forward: Forward, models: Sequence[nn.Module], data: PackInputs) -> dict[str, Any]:
    """Return all results of a training pass, and of an evaluation after it."""
    buffer = ParameterBuffer.of(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models])
    states = States(Randomness.seeded(number, packs.open_backend("cpu:0")) for number in range(MEMBERS))
    found: dict[str, Any] = {}
    for mode in ("training", "evaluation"):
        forward.train(mode == "training")
        losses, output = forward.values(buffer.named, buffer.buffers, data, states, lambda output: None)
        found |= {f"losses in {mode}": losses, f"output in {mode}": output}
        found |= {f"state {number} after {mode}": state.torch_state for number, state in enumerate(states)}
        if mode == "training":
            leaves = {piece.name: buffer.named[piece.name] for piece in buffer.pieces}
            gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
            found |= {f"gradient of {name}": own for name, own in zip(leaves, gradients, strict=True)}
    return found


@pytest.mark.parametrize("apart", [False, True], ids=["common", "own"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("network", NETWORKS)
def test_layer_by_layer_is_as_vectorised(network: str, loss: str, apart: bool) -> None:
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    models = [build(number) for number in range(MEMBERS)]
    member, own = packs.member("m", loss=LOSSES[loss], dtype=torch.float32), [MEMBERS] * apart
    target = torch.randint(0, 4, [*own, SAMPLES, *[4] * (network == "of sequences")])
    data = PackInputs((torch.randn(*own, SAMPLES, *shape), target), SAMPLES, apart)
    by_layers, vectorised = (Forward.of(models, member, torch.device("cpu")) for _ in range(2))
    assert by_layers._layers is not None
    vectorised._layers = None
    one, other = (passed(forward, models, data) for forward in (by_layers, vectorised))
    for what, found in other.items():
        assert one[what] is found or torch.equal(one[what], found), what
    assert any(what.startswith("gradient") for what in other)


@pytest.mark.parametrize("network", REFUSED)
def test_what_computes_otherwise_is_vectorised(network: str) -> None:
    assert Layers.of(REFUSED[network]()) is None


def test_inputs_that_are_no_rows_are_vectorised() -> None:
    """If each sample is a single number, `Linear` takes the whole batch as one row."""
    member = packs.member("m", loss=lambda output, target: output.square().mean(), dtype=torch.float32)
    forward = Forward.of([nn.Sequential(nn.Linear(SAMPLES, 4)) for _ in range(2)], member, torch.device("cpu"))
    weights = {"0.weight": torch.randn(2, 4, SAMPLES), "0.bias": torch.randn(2, 4)}
    x = torch.randn(SAMPLES)
    losses, _ = forward.values(weights, {}, PackInputs((x, x), SAMPLES, apart=False), [], lambda output: None)
    outputs = torch.stack([functional.linear(x, *own) for own in zip(*weights.values(), strict=True)])
    torch.testing.assert_close(losses, outputs.square().mean(1))
