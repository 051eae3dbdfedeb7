"""Compares many heads on one frozen trunk, with features computed once for all, with the trunk inside each member and with a hand-written loop.

The trunk is a small residual network on pictures of 3 x 32 x 32; heads are linear layers with their own learning rates.
The sides take turns in one process on one device (launcher ``inline``), each with an empty cache:

* ``heads``: `argosy.data.features`, so that features are prepared once and cached; heads step as one program if that is
  faster.
* ``again``: the same once more, with the cached features.
* ``one``, ``sixteen``: one head, and sixteen.
* ``loop``: a hand-written loop, as people do it: first the features of all pictures, in batches; then a step of each
  head on each batch.
* ``inside``: members whose networks are trunk and head, without gradients for the trunk. They are few and train for
  fewer epochs, since each step of each runs the trunk; the seconds for as many members as heads follow in proportion.

Weights of heads are compared with the loop's, and with those of members with the trunk inside. There, the features of a
sample may be rounded differently in a batch than alone, which is reported.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from measuring import arguments, finish, hardware, target
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import TensorDataset

import argosy
from argosy.stream.order import member_seed, split_order

HEADS, CLASSES, WIDTH, BATCH = 52, 10, 64, 50


class Block(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return x_BCHW + self.second(functional.relu(self.first(x_BCHW)))


def trunk() -> nn.Module:
    """Return the trunk, with the same weights at each call; it maps pictures ``[B, 3, 32, 32]`` to features ``[B, 64]``."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        layers = nn.Conv2d(3, WIDTH, 3, stride=2, padding=1), Block(WIDTH), Block(WIDTH), nn.AdaptiveAvgPool2d(1)
        return nn.Sequential(*layers, nn.Flatten()).eval().requires_grad_(False)


class Inside(nn.Module):
    """A network of trunk and head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = trunk(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.trunk.eval()(x_BCHW)
        output: Tensor = self.head(features)
        return output


def rate(number: int) -> float:
    return 0.02 * (1 + number % 13)


def trained(parameters: Any, lr: float) -> SGD:
    """Return an optimizer of the weights that are trained."""
    return SGD([weight for weight in parameters if weight.requires_grad], lr=lr)


def pictures(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (samples,), generator=generator)
    return TensorDataset(torch.randn(samples, 3, 32, 32, generator=generator) + y[:, None, None, None] / 5, y)


def by_argosy(
    data: Any, model: Callable[[], nn.Module], heads: int, epochs: int, cache: str
) -> tuple[float, dict[str, Tensor]]:
    """Return the seconds, and the heads' weights by name."""
    os.environ["ARGOSY_CACHE"] = cache
    members = [
        argosy.Member(f"head-{n}", model=model, optimizer=partial(trained, lr=rate(n)), batch_size=BATCH)
        for n in range(heads)
    ]
    study = argosy.Study(data=argosy.Data(train=data), members=members, stop=argosy.MaxEpochs(epochs))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        report = argosy.train(study, quiet=True, directory=folder, launcher="inline", devices="cpu:1")
        seconds = time.perf_counter() - began
        return seconds, {row.name: list(row.load().parameters())[-2].detach() for row in report.rows}


def by_hand(data: TensorDataset, epochs: int) -> tuple[float, dict[str, Tensor]]:
    """Return the same for a loop that computes features first."""
    torch.set_num_threads(1)
    began, network = time.perf_counter(), trunk()
    x, y = data.tensors
    with torch.inference_mode():
        features = torch.cat([network(part) for part in x.split(BATCH)])
    features = features.clone()
    heads = {}
    for n in range(HEADS):
        torch.manual_seed(member_seed(0, f"head-{n}"))
        heads[f"head-{n}"] = nn.Linear(WIDTH, CLASSES)
    steps = {name: SGD(head.parameters(), lr=rate(n)) for n, (name, head) in enumerate(heads.items())}
    for epoch in range(epochs):
        for indices in torch.from_numpy(split_order(0, "train", epoch, len(x))).split(BATCH):
            inputs, target_B = features[indices], y[indices]
            for name, head in heads.items():
                loss = functional.cross_entropy(head(inputs), target_B)
                steps[name].zero_grad()
                loss.backward()
                steps[name].step()
    return time.perf_counter() - began, {name: head.weight.detach() for name, head in heads.items()}


def difference(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """Return the largest difference of weights, over the heads that both have."""
    return max(float((some[name] - others[name]).abs().max()) for name in some.keys() & others.keys())


def one_round(samples: int, epochs: int, inside: int, inside_epochs: int) -> dict[str, float]:
    """Return the seconds of each side, and differences."""
    data = pictures(samples)
    head = partial(nn.Linear, WIDTH, CLASSES)
    features = argosy.data.features(data, trunk())
    with (
        tempfile.TemporaryDirectory() as first,
        tempfile.TemporaryDirectory() as other,
        tempfile.TemporaryDirectory() as third,
    ):
        heads, weights = by_argosy(features, head, HEADS, epochs, first)
        again, same = by_argosy(features, head, HEADS, epochs, first)
        loop, loops = by_hand(data, epochs)
        one, _ = by_argosy(features, head, 1, epochs, other)
        sixteen, _ = by_argosy(features, head, 16, epochs, third)
        few, short = by_argosy(features, head, inside, inside_epochs, first)
        slow, whole = by_argosy(data, Inside, inside, inside_epochs, first)
    return {
        "heads": heads,
        "again": again,
        "loop": loop,
        "one": one,
        "sixteen": sixteen,
        "inside": slow * HEADS / inside * epochs / inside_epochs,
        "inside measured": slow,
        "again differs": difference(weights, same),
        "loop differs": difference(weights, loops),
        "inside differs": difference(short, whole),
        "few": few,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--inside", type=int, default=4, help="number of members with the trunk inside")
    options = parser.parse_args()
    print(hardware(), flush=True)
    rounds = []
    for number in range(options.rounds):
        rounds.append(one_round(options.samples, options.epochs, options.inside, 1))
        print(f"round {number}: {', '.join(f'{name} {value:.4g}' for name, value in rounds[-1].items())}", flush=True)

    def ratios(over: str, under: str) -> Sequence[float]:
        return [found[over] / found[under] for found in rounds]

    targets = [
        target("52 heads, a loop by hand that computes features once = 1", ratios("heads", "loop"), at_most=1.10),
        target("52 members with the trunk inside, 52 heads = 1", ratios("inside", "heads"), at_least=20),
        target("16 heads, one head = 1", ratios("sixteen", "one"), at_most=1.3),
        target("weights of a second run differ by", [found["again differs"] for found in rounds], at_most=0.0),
        target(
            "weights of members with the trunk inside differ by",
            [found["inside differs"] for found in rounds],
            at_most=1e-5,
        ),
    ]
    finish("trunk", {"rounds": rounds}, targets, as_json=options.json)


if __name__ == "__main__":
    main()
