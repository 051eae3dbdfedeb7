"""Tests the measurement of how much time each pair of members saves by training together on one device."""

from dataclasses import replace
from functools import partial

import packs
import torch
from torch.optim import SGD

import argosy
from argosy.running.control.pairs import Pair, measure_pairs
from argosy.settings import Settings
from argosy.views.pairs import pairs_table


def test_the_matrix_of_pairs() -> None:
    members = [packs.member(f"m{n}", optimizer=partial(SGD, lr=0.1 * (n + 1))) for n in range(2)]
    members.append(packs.member("odd", model=packs.convnet))
    train, val = packs.samples(torch.float64)
    study = argosy.Study(
        data=argosy.Data(arrays=train, val_arrays=val), members=members, stop=argosy.MaxEpochs(1), seed=3
    )
    pairs = measure_pairs(study, study.names, "cpu:0", Settings())
    fused = {pair.members: pair.fused for pair in pairs}
    alike = {("m0", "m0"), ("m0", "m1"), ("m1", "m1"), ("odd", "odd")}
    assert fused == {pair: pair in alike for pair in [*alike, ("m0", "odd"), ("m1", "odd")]}
    assert all(min(*pair.alone_seconds, pair.together_seconds) > 0 for pair in pairs)
    assert [len(list(column.cells)) for column in pairs_table(pairs).columns] == [3] * 4


def test_a_pair_that_is_slower_says_so() -> None:
    pair = Pair(members=("a", "b"), fused=True, alone_seconds=(1.0, 3.0), together_seconds=5.0)
    assert pair.improvement == -0.25
    (cell,) = pairs_table([replace(pair, members=("a", "a"))]).columns[1].cells
    assert cell == "-25%*"
