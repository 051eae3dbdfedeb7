"""Texts of different lengths, networks that read them, and a plain loop that trains these networks."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

import argosy
from argosy.stream.order import member_seed, permutation, window_order

__all__ = [
    "RAGGED",
    "Lines",
    "Normed",
    "Reader",
    "Texts",
    "Tagger",
    "filled_up",
    "fleet",
    "member",
    "reference",
    "study",
    "tagged",
]

MOST = 30
RAGGED = ({"ids": argosy.Ragged(MOST, mask="mask")}, None)


class Texts(Dataset[tuple[dict[str, Any], int]]):
    """A dataset of texts of 1 to 30 tokens, in two classes."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length, self.seed = length, seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[dict[str, Any], int]:
        draw = np.random.RandomState([self.seed, index])
        label = int(draw.randint(2))
        ids = draw.randint(1, 20, draw.randint(1, MOST + 1))
        ids[draw.rand(len(ids)) < 0.3] = 1 + label
        return {"ids": ids.tolist()}, label


class Lines(IterableDataset[tuple[dict[str, Any], int]]):
    """An iterable dataset of the same texts."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length, self.seed = length, seed

    def __iter__(self) -> Iterator[tuple[dict[str, Any], int]]:
        texts = Texts(self.length, self.seed)
        return (texts[index] for index in range(self.length))


class Reader(nn.Module):
    """A classifier of texts, with or without attention; in float64, so rounding is far smaller than real differences."""

    def __init__(self, width: int = 8, *, attends: bool = True) -> None:
        super().__init__()
        self.embedded = nn.Embedding(20, width, padding_idx=0)
        layer = partial(nn.TransformerEncoderLayer, width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.layer = layer() if attends else None
        self.classes = nn.Linear(width, 2)
        self.double()

    def forward(self, text: Mapping[str, Tensor]) -> Tensor:
        found, mask = self.embedded(text["ids"]), text["mask"]
        if self.layer is not None:
            found = self.layer(found, src_key_padding_mask=mask == 0)
        weight = mask[..., None].to(found.dtype)
        return self.classes((found * weight).sum(1) / weight.sum(1))


class Normed(nn.Module):
    """A classifier with BatchNorm, which cannot train on a batch of one text."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.norm = Reader(attends=False), nn.BatchNorm1d(2).double()

    def forward(self, text: Mapping[str, Tensor]) -> Tensor:
        return self.norm(self.read(text))


class Tagger(nn.Module):
    """A network with an output for each token, ``[B, L, 2]``, so the lengths of its outputs differ."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = nn.Embedding(20, 2)

    def forward(self, text: Mapping[str, Tensor]) -> Tensor:
        return self.embedded(text["ids"])


def tagged(directory: Path, **rest: Any) -> argosy.Report:
    """Train a `Tagger` and return the report; `rest` are fields of its Member."""
    how = {"loss": lambda output, label: (output.mean((1, 2)) - label) ** 2, "batch_size": 4, **rest}
    tagger = argosy.Member("tagger", model=Tagger, optimizer=partial(torch.optim.SGD, lr=0.1), **how)
    wanted = study(tagger, length=40, stop=argosy.MaxEpochs(1))
    return argosy.train(wanted, directory=directory, launcher="inline", devices="cpu:1", quiet=True)


def filled_up(batch: Any) -> Any:
    """An augmentation that pads every batch to the longest possible text, as people do by hand."""
    text, label = batch
    short = MOST - text["ids"].shape[1]
    return {key: functional.pad(values, (0, short)) for key, values in text.items()}, label


def member(name: str, *, attends: bool = True, batch_size: int = 4, **rest: Any) -> argosy.Member:
    """Return a small member; `rest` are fields of Member."""
    return argosy.Member(
        name,
        model=rest.pop("model", partial(Reader, attends=attends)),
        optimizer=partial(torch.optim.SGD, lr=0.05),
        batch_size=batch_size,
        metrics={"accuracy": argosy.accuracy},
        **rest,
    )


def fleet() -> list[argosy.Member]:
    """Return four different members: several batch sizes, a bootstrap, a budget of tokens."""
    return [
        member("plain"),
        member("bag", attends=False, batch_size=5, drop_last=True),
        member("budget", batch_size=8, batch_tokens=64),
        member("bootstrap", batch_size=3, subset=[3, 3, 5, *range(40, 130)]),
    ]


def study(*members: argosy.Member, length: int = 620, sort: Any = Texts, **rest: Any) -> argosy.Study:
    """Return a study of texts; `rest` are fields of Study."""
    then = rest.pop("then", None)
    data = argosy.Data(train=sort(length), val=sort(90, 1), ragged=RAGGED, then=then)
    return argosy.Study(data=data, members=members, **{"stop": argosy.MaxEpochs(2), **rest})


# ---- the plain loop


def reference(member: argosy.Member, wanted: argosy.Study, epochs: int) -> tuple[evidence.Bits, list[float]]:
    """Train a member in a plain loop; returns the bits of its weights, and its validation loss after each epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(member_seed(0, member.name))
    model, losses = member.model(), []
    optimizer = member.optimizer(model.parameters())
    train, val = wanted.data.train, wanted.data.val
    for epoch in range(epochs):
        sequence = permutation(0, epoch, len(train)).tolist()
        if member.subset is not None:
            sequence = [index for index in sequence for _ in range(list(member.subset).count(index))]
        if member.drop_last:
            sequence = sequence[: len(sequence) - len(sequence) % member.batch_size]
        for indices in _batches(train, sequence, member, epoch):
            optimizer.zero_grad()
            _losses(model, train, indices).mean().backward()
            optimizer.step()
        with torch.no_grad():
            model.eval()
            total = torch.zeros((), dtype=torch.float64)
            for indices in _batches(val, list(range(len(val))), member, None):
                total += _losses(model, val, indices).double().sum()
            losses.append(float(total) / len(val))
            model.train()
    return evidence.Bits.of(model.state_dict()), losses


def _batches(texts: Any, sequence: list[int], member: argosy.Member, epoch: int | None) -> Iterator[list[int]]:
    """Yield batches: windows of 64 full batches are sorted by length and cut; in training the batches of a window are shuffled."""
    size = 64 * member.batch_size
    for number, first in enumerate(range(0, len(sequence), size)):
        window = sequence[first : first + size]
        places = sorted(range(len(window)), key=lambda place: len(texts[window[place]][0]["ids"]))
        batches: list[list[int]] = [[]]
        for place in places:
            longest, most = len(texts[window[place]][0]["ids"]), member.batch_tokens
            full = len(batches[-1]) == member.batch_size
            if full or (most is not None and batches[-1] and (len(batches[-1]) + 1) * longest > most):
                batches.append([])
            batches[-1].append(place)
        order = range(len(batches)) if epoch is None else window_order(0, epoch, number, len(batches)).tolist()
        yield from ([window[place] for place in sorted(batches[one])] for one in order)


def _losses(model: nn.Module, texts: Any, indices: list[int]) -> Tensor:
    found = [texts[index] for index in indices]
    rows = [text["ids"] for text, _ in found]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    labels = torch.tensor([label for _, label in found])
    return functional.cross_entropy(model({"ids": ids, "mask": mask}), labels, reduction="none")
