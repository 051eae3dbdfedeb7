"""Tests that batches do not depend on how the stream is cut into blocks."""

import copy
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
import torch
from blocks import blocks
from hypothesis import given
from hypothesis import strategies as st
from reference import digest

from argosy.stream.batches import Batch, Cutter, InOrderCutter
from argosy.stream.blocks import ALIGNMENT, Block
from argosy.stream.order import Digest, Selection, permutation
from argosy.training.programs.fused.lockstep import share_cutters

LENGTH = 53


def stepped(cutter: Cutter, block: Block) -> Iterator[Batch]:
    """Yield the batches of a block, each committed before the next is cut."""
    for batch in cutter.take(block):
        cutter.commit(batch)
        yield batch


@given(
    size=st.integers(1, 60),
    batch_size=st.integers(1, 60),
    subset=st.none() | st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=90),
    drop_last=st.booleans(),
    holes=st.lists(st.integers(0, LENGTH - 1), max_size=6),
    done=st.integers(0, 3),
)
def test_batches_are_the_sequence_cut_by_their_size(size, batch_size, subset, drop_last, holes, done) -> None:
    order = permutation(0, 0, LENGTH)
    sequence = [index for index in order.tolist() for _ in range(1 if subset is None else subset.count(index))]
    expected = [sequence[start : start + batch_size] for start in range(0, len(sequence), batch_size)]
    if drop_last and expected and len(expected[-1]) < batch_size:
        expected.pop()
    done = min(done, len(expected))
    selection = Selection.of(subset, LENGTH)
    cutter = InOrderCutter(
        selection=selection, order=order, batch_size=batch_size, drop_last=drop_last, position=done * batch_size
    )
    cut = [batch for block in blocks(order, size, holes=tuple(holes)) for batch in stepped(cutter, block)]
    assert [batch.data[1].tolist() for batch in cut] == [[i for i in b if i not in holes] for b in expected[done:]]
    assert cutter.done
    assert sum(batch.rows for batch in cut) == sum(len(batch.data[0]) for batch in cut)
    if not done:
        total = cut[0].digest if cut else None
        for batch in cut[1:]:
            total = total.plus(batch.digest)
        elements = sum(map(len, expected))
        assert total is None or total == digest(selection, order, elements=elements, holes=holes)


@given(
    size=st.integers(1, 60),
    batch_size=st.integers(1, 60),
    subset=st.none() | st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=90),
    holes=st.lists(st.integers(0, LENGTH - 1), max_size=20),
    cuts=st.lists(st.floats(0, 1), max_size=3),
)
def test_the_parts_of_a_batch_are_the_batch_and_it_is_known_when_it_comes(
    size, batch_size, subset, holes, cuts
) -> None:
    order = permutation(0, 0, LENGTH)
    selection = Selection.of(subset, LENGTH)
    cutter = InOrderCutter(selection=selection, order=order, batch_size=batch_size, drop_last=False)
    bounds = [0.0, *sorted(cuts), 1.0]
    under_way = None
    for block in blocks(order, size, holes=tuple(holes)):
        expected = cutter.completions(block, under_way)
        cut = list(cutter.take(block, after=under_way))
        assert len(cut) == len(expected) and all(block.place.start < e <= block.place.start + size for e in expected)
        for batch in cut:
            parts = [cutter.part(batch, low, high, order) for low, high in pairwise(bounds)]
            assert torch.equal(torch.cat([part.data[1] for part in parts]), batch.data[1])
            assert reduce(Digest.plus, (part.digest for part in parts)) == batch.digest
            assert sum(part.rows for part in parts) == batch.rows
            # The latest time at which a batch may be committed is when the next one has been cut.
            if under_way is not None:
                cutter.commit(under_way)
            under_way = batch
    assert under_way is not None
    cutter.commit(under_way)
    assert cutter.done


def test_a_batch_inside_a_block_is_a_view_and_an_unaligned_one_a_copy() -> None:
    order = np.arange(64, dtype=np.int64)
    cutter = InOrderCutter(selection=Selection.of(None, 64), order=order, batch_size=8, drop_last=False)
    (block,) = blocks(order, 64, width=3)
    first, second, third = list(cutter.take(block))[:3]
    assert first.data[0].data_ptr() == block.leaves[0].data_ptr()
    # 8 rows of 12 bytes: the second batch starts at byte 96, the third at byte 192.
    assert second.data[0].data_ptr() != block.leaves[0][8:].data_ptr()
    assert third.data[0].data_ptr() == block.leaves[0][16:].data_ptr()
    assert second.data[0].data_ptr() % ALIGNMENT == 0


def test_private_batches_never_touch_the_block() -> None:
    order = np.arange(16, dtype=np.int64)
    cutter = InOrderCutter(selection=Selection.of(None, 16), order=order, batch_size=8, drop_last=False)
    (block,) = blocks(order, 16)
    for batch in cutter.take(block, private=True):
        batch.data[0].fill_(7)
    assert not block.touched


def test_what_is_written_into_a_batch_is_in_nothing_that_comes_again() -> None:
    """Writing into a private batch changes neither what is carried nor the batch if it is cut again.

    The batch spans two blocks and is never committed, like a split member's batch that is under way when the member is saved.
    """
    order = np.arange(16, dtype=np.int64)
    cutter = InOrderCutter(selection=Selection.of(None, 16), order=order, batch_size=16, drop_last=False)
    first, last = blocks(order, 8)
    assert list(cutter.take(first, private=True)) == []
    (batch,) = cutter.take(last, private=True)
    batch.data[0].fill_(99)
    assert cutter.carried is not None
    assert cutter.carried.leaves[0][:, 0].tolist() == list(range(8))
    (again,) = cutter.take(last, private=True)
    assert again.data[0][:, 0].tolist() == list(range(16))


def test_a_write_into_a_view_is_seen() -> None:
    order = np.arange(16, dtype=np.int64)
    cutter = InOrderCutter(selection=Selection.of(None, 16), order=order, batch_size=8, drop_last=False)
    (block,) = blocks(order, 16)
    next(cutter.take(block)).data[0].div_(2)
    assert block.touched


def test_a_gap_in_the_stream_is_never_skipped_over() -> None:
    order = np.arange(32, dtype=np.int64)
    cutter = InOrderCutter(selection=Selection.of(None, 32), order=order, batch_size=8, drop_last=False)
    with pytest.raises(AssertionError, match="skipped"):
        list(cutter.take(blocks(order, 16, start=16)[0]))


def indices(batches: list[Batch]) -> list[list[int]]:
    return [batch.data[1].tolist() for batch in batches]


@given(size=st.integers(1, 60), batch_size=st.integers(1, 60), drop_last=st.booleans(), turns=st.data())
def test_a_block_that_is_left_goes_on_behind_the_last_committed_batch(size, batch_size, drop_last, turns) -> None:
    order = permutation(0, 0, LENGTH)
    whole, left = (
        InOrderCutter(selection=Selection.of(None, LENGTH), order=order, batch_size=batch_size, drop_last=drop_last)
        for _ in range(2)
    )
    expected = indices([batch for block in blocks(order, size) for batch in stepped(whole, block)])
    found = []
    for block in blocks(order, size):
        through = False
        while not through:
            through = True
            for batch in left.take(block):
                if turns.draw(st.booleans(), label="committed"):
                    found.append(batch)
                    left.commit(batch)
                if turns.draw(st.booleans(), label="left"):
                    through = False
                    break
                if left.position < batch.stop:
                    found.append(batch)
                    left.commit(batch)
    assert indices(found) == expected
    assert left.position == whole.position == left.length


@given(size=st.integers(1, 60), batch_size=st.integers(1, 60))
def test_a_batch_may_be_under_way_while_the_next_one_is_cut(size, batch_size) -> None:
    order = permutation(0, 0, LENGTH)
    cutter = InOrderCutter(selection=Selection.of(None, LENGTH), order=order, batch_size=batch_size, drop_last=False)
    found, under_way = [], None
    for block in blocks(order, size):
        for batch in cutter.take(block, after=under_way):
            if under_way is not None:
                cutter.commit(under_way)
            under_way = batch
            found.append(batch)
    cutter.commit(under_way)
    assert [index for batch in indices(found) for index in batch] == order.tolist()
    assert cutter.done


@given(
    size=st.integers(1, 60),
    batch_size=st.integers(1, 60),
    moves=st.sets(st.integers(0, 60)),
    holes=st.sets(st.integers(0, 52)),
)
def test_what_is_gathered_moves_with_its_member(size, batch_size, moves, holes) -> None:
    order, selection = permutation(0, 0, LENGTH), Selection.of([*range(LENGTH), 7, 7], LENGTH)
    cutter = InOrderCutter(selection=selection, order=order, batch_size=batch_size, drop_last=False)
    found = []
    for number, block in enumerate(blocks(order, size, holes=holes)):
        found += list(stepped(cutter, block))
        if number in moves:
            carried = cutter.carried
            elements = 0 if carried is None else carried.elements
            assert elements < batch_size
            copied = carried and carried._replace(leaves=[leaf.clone() for leaf in carried.leaves])
            cutter = InOrderCutter(
                selection=selection,
                order=order,
                batch_size=batch_size,
                drop_last=False,
                position=cutter.position,
                carried=copied,
            )
    seen = [index for index in order.tolist() for _ in range(3 if index == 7 else 1)]
    assert indices(found) == [
        [index for index in seen[start : start + batch_size] if index not in holes]
        for start in range(0, len(seen), batch_size)
    ]
    total = Digest()
    for batch in found:
        total = total.plus(batch.digest)
    assert total == digest(selection, order, elements=len(seen), holes=tuple(holes))


def test_cutters_are_the_same_where_one_can_do_for_both() -> None:
    def cutter(subset: list[int] | None = None, **rest: object) -> Cutter:
        fields = {"order": np.arange(64, dtype=np.int64), "batch_size": 8, "drop_last": False} | rest
        return InOrderCutter(selection=Selection.of(subset, 64), **fields)

    assert cutter().cuts_alike(cutter()) and cutter([1, 2, 3]).cuts_alike(cutter([3, 2, 1]))
    others = [cutter([1, 2, 3]), cutter(batch_size=9), cutter(list(range(63))), cutter(position=8)]
    assert not any(cutter().cuts_alike(other) or other.cuts_alike(cutter()) for other in others)
    assert not cutter([1, 2, 3]).cuts_alike(cutter([1, 2, 4]))
    begun, (block,) = cutter(), blocks(np.arange(64, dtype=np.int64), 64, stop=12)
    for batch in stepped(begun, block):
        assert batch.rows == 8
    assert not begun.cuts_alike(cutter(position=8))


def test_hundreds_of_bootstraps_are_not_compared_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Cutter] = []
    alike = Cutter.cuts_alike
    monkeypatch.setattr(Cutter, "cuts_alike", lambda self, other: compared.append(self) or alike(self, other))
    draws, order = np.random.RandomState(0), permutation(0, 0, 1000)
    cutters: list[Cutter] = [
        InOrderCutter(
            selection=Selection.of(draws.randint(1000, size=1000).tolist(), 1000),
            order=order,
            batch_size=8,
            drop_last=False,
        )
        for _ in range(300)
    ]
    again = [copy.deepcopy(cutter) for cutter in cutters]
    assert share_cutters([*cutters, *again]) == [*cutters, *cutters]
    assert len(compared) < 600, "each pair was compared: it grows with the square of their number"
