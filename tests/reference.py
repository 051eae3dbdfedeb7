"""A plain PyTorch loop that trains a member on given stream epochs, and knows only argosy's published order and seeds."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import evidence
import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import Dataset

import argosy
from argosy.stream.order import Digest, Indices, Selection, member_seed, permutation, sample_seed

__all__ = ["digest", "reference"]


def reference(
    member: argosy.Member,
    data: argosy.Data,
    stream_epochs: Iterable[int],
    *,
    sections: int = 1,
    ends: int | None = None,
    before: Callable[[int, Any], None] = lambda number, optimizer: None,
) -> tuple[evidence.Bits, list[float]]:
    """Train a member; returns the bits of its weights, and its validation loss after each section. With `ends` it stops after that many.

    `before` is called at the beginning of each epoch with its number and the optimizer.
    """
    torch.set_num_threads(1)
    torch.manual_seed(member_seed(0, member.name))
    model = member.model()
    optimizer = member.optimizer(model.parameters())
    state, losses = torch.get_rng_state(), []
    for number, epoch in enumerate(stream_epochs):
        before(number, optimizer)
        steps = _batches(member, data.train, epoch)
        behind, batch = next(steps, (0, None))
        for section in range(1, sections + 1):
            if len(losses) == ends:
                return evidence.Bits.of(model.state_dict()), losses
            model.train()
            torch.set_rng_state(state)
            # A batch that is not full at the end of a section belongs to the next section.
            while batch is not None and behind <= section * len(data.train) // sections:
                _step(member, model, optimizer, batch)
                behind, batch = next(steps, (0, None))
            state = torch.get_rng_state()
            model.eval()
            losses.append(_validate(member, model, data.val, epoch))
    return evidence.Bits.of(model.state_dict()), losses


@lru_cache(maxsize=10_000)
def _prepare(dataset: Dataset[Any], split: str, epoch: int, index: int) -> Any:
    """Return one sample, prepared with its published seed; cached for the other members."""
    seed = sample_seed(0, split, epoch, index)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    return dataset[index]


def _batch(dataset: Any, split: str, epoch: int, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    generators = random.getstate(), np.random.get_state(), torch.get_rng_state()
    samples = [_prepare(dataset, split, epoch, index) for index in indices]
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    torch.set_rng_state(generators[2])
    return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])


def _batches(member: argosy.Member, train: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    """Yield batches, each with the number of elements of the epoch's order up to and including its last sample."""
    order = [(place + 1, index) for place, index in enumerate(permutation(0, epoch, len(train)).tolist())]
    if member.subset is not None:
        order = [pair for pair in order for _ in range(list(member.subset).count(pair[1]))]
    if member.drop_last:
        order = order[: len(order) - len(order) % member.batch_size]
    for start in range(0, len(order), member.batch_size):
        pairs = order[start : start + member.batch_size]
        yield pairs[-1][0], _batch(train, "train", epoch, [index for _, index in pairs])


def _step(member: argosy.Member, model: Any, optimizer: Any, batch: Any) -> None:
    x, y = batch
    optimizer.zero_grad()
    size = -(-len(x) // member.accumulate)
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        loss = functional.cross_entropy(model(x[part]), y[part], reduction="none").mean()
        (loss * (len(x[part]) / len(x)) if len(x[part]) < len(x) else loss).backward()
    if member.clip_grad_norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), member.clip_grad_norm)
    optimizer.step()


@torch.no_grad()
def _validate(member: argosy.Member, model: Any, val: Any, epoch: int) -> float:
    total, size = torch.zeros((), dtype=torch.float64), member.eval_batch_size or member.batch_size
    rows = range(len(val)) if member.val_subset is None else sorted(member.val_subset)
    for start in range(0, len(rows), size):
        x, y = _batch(val, "val", epoch, rows[start : start + size])
        total += functional.cross_entropy(model(x), y, reduction="none").double().sum()
    return float(total) / len(rows)


def digest(selection: Selection, order: Indices, *, elements: int, holes: Sequence[int] = ()) -> Digest:
    """Return the digest of a correct program for the first `elements` of an epoch, if samples in `holes` are broken."""
    positions = selection.positions(order)
    indices = (order if positions is None else order[positions])[:elements]
    sound = ~np.isin(indices, np.asarray(holes, dtype=np.int64))
    return Digest.of(indices[sound], np.flatnonzero(sound))
