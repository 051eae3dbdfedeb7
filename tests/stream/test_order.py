"""Tests the published order, the published seeds and the digest."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from argosy.stream.order import Digest, Selection, member_seed, mix64, permutation, sample_seed, split_order


def test_order_is_published_for_good() -> None:
    assert permutation(0, 0, 10).tolist() == np.random.RandomState([0, 0, 0]).permutation(10).tolist()
    assert permutation(5 + 7 * 2**32, 3, 10).tolist() == np.random.RandomState([5, 7, 3]).permutation(10).tolist()
    assert split_order(1, "val", 3, 4).tolist() == [0, 1, 2, 3]


def test_seeds_are_published_for_good() -> None:
    # The first two outputs of splitmix64 from state 0.
    assert mix64(0) == 0xE220A8397B1DCDAF
    assert mix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    assert sample_seed(0, "train", 0, 0) == mix64(mix64(mix64(0)))
    assert member_seed(0, "mlp") == 0x2C1397001F356E43


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 99))
def test_seeds_differ_in_every_argument(seed: int, epoch: int, index: int) -> None:
    base = sample_seed(seed, "train", epoch, index)
    others = [
        sample_seed(seed + 1, "train", epoch, index),
        sample_seed(seed, "val", epoch, index),
        sample_seed(seed, "train", epoch + 1, index),
        sample_seed(seed, "train", epoch, index + 1),
    ]
    assert base not in others


@given(st.lists(st.integers(0, 19), min_size=1, max_size=60), st.integers(0, 5))
def test_a_subset_is_the_order_with_each_index_repeated_in_place(subset: list[int], epoch: int) -> None:
    order = permutation(0, epoch, 20)
    positions = Selection.of(subset, 20).positions(order)
    expected = [index for index in order.tolist() for _ in range(subset.count(index))]
    assert positions is not None
    assert order[positions].tolist() == expected


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=50, unique=True), st.integers(1, 49))
def test_digests_add_up_over_any_cut(indices: list[int], cut: int) -> None:
    array, positions = np.array(indices, dtype=np.int64), np.arange(len(indices), dtype=np.int64)
    parts = Digest.of(array[:cut], positions[:cut]).plus(Digest.of(array[cut:], positions[cut:]))
    assert parts == Digest.of(array, positions)


@given(st.permutations(range(12)))
def test_a_digest_knows_the_order(order: list[int]) -> None:
    positions = np.arange(12, dtype=np.int64)
    straight, other = Digest.of(positions, positions), Digest.of(np.array(order, dtype=np.int64), positions)
    assert other.indices == straight.indices
    assert (other.positions == straight.positions) == (order == list(range(12)))
