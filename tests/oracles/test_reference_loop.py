"""Argosy == a plain PyTorch loop that knows nothing of it but the published order and the published seeds."""

import random
from pathlib import Path

import evidence
import numpy as np
import pytest
import studies
import torch
from torch.nn import functional

import argosy
from argosy.stream.order import member_seed, permutation, sample_seed


def prepare(dataset: torch.utils.data.Dataset, split: str, epoch: int, index: int) -> tuple[torch.Tensor, int]:
    """One sample, under the seed that is published for it."""
    seed = sample_seed(0, split, epoch, index)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    return dataset[index]


def batches(dataset: torch.utils.data.Dataset, split: str, epoch: int, sequence: list[int], size: int) -> list:
    """The whole epoch, cut into batches."""
    samples = [prepare(dataset, split, epoch, index) for index in sequence]
    cut = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [(torch.stack([x for x, _ in batch]), torch.tensor([y for _, y in batch])) for batch in cut]


def reference(member: argosy.Member, train: torch.utils.data.Dataset, val: torch.utils.data.Dataset, epochs: int):
    """Train one member with nothing but torch."""
    torch.manual_seed(member_seed(0, member.name))
    model = member.model()
    optimizer = member.optimizer(model.parameters())
    state, losses = torch.get_rng_state(), []
    for epoch in range(epochs):
        order = permutation(0, epoch, len(train)).tolist()
        if member.subset is not None:
            order = [index for index in order for _ in range(list(member.subset).count(index))]
        if member.drop_last:
            order = order[: len(order) - len(order) % member.batch_size]
        prepared = batches(train, "train", epoch, order, member.batch_size)
        model.train()
        torch.set_rng_state(state)
        for x, y in prepared:
            optimizer.zero_grad()
            size = -(-len(x) // member.accumulate)
            for start in range(0, len(x), size):
                part = slice(start, start + size)
                loss = functional.cross_entropy(model(x[part]), y[part], reduction="none").mean()
                (loss * (len(x[part]) / len(x)) if len(x[part]) < len(x) else loss).backward()
            if member.clip_grad_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), member.clip_grad_norm)
            optimizer.step()
        state = torch.get_rng_state()
        model.eval()
        total = torch.zeros((), dtype=torch.float64)
        with torch.no_grad():
            for x, y in batches(val, "val", epoch, list(range(len(val))), member.eval_batch_size or member.batch_size):
                total += functional.cross_entropy(model(x), y, reduction="none").double().sum()
        losses.append(float(total) / len(val))
    return evidence.fingerprint(model.state_dict()), losses


@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_every_member_equals_a_plain_loop(tmp_path: Path, launcher: str) -> None:
    study = studies.study()
    argosy.train(study, directory=tmp_path, launcher=launcher, block_size=37)
    found = evidence.results(tmp_path)
    for member in study.members:
        weights, losses = reference(member, study.data.train, study.data.val, epochs=2)
        assert [metrics["val_loss"] for _, _, metrics, _, _ in found[member.name]["epochs"]] == losses, member.name
        assert found[member.name]["weights"] == weights, member.name
