"""Batches do not depend on how the stream is cut into blocks."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from argosy.stream.batches import Batch, Cutter
from argosy.stream.blocks import ALIGNMENT, Block, Layout, Place
from argosy.stream.order import Selection, permutation

LENGTH = 53


def stepped(cutter: Cutter, block: Block) -> Iterator[Batch]:
    """The batches of a block, each committed before the next."""
    for batch in cutter.take(block):
        cutter.commit(batch)
        yield batch


def blocks(order: np.ndarray, size: int, *, start: int = 0, holes: tuple[int, ...] = (), width: int = 3) -> list[Block]:
    """The stream of an epoch in blocks; every row holds its sample's index."""
    layout = Layout.of((torch.zeros(width), 0))
    found = []
    for low in range(start, len(order), size):
        rows = min(size, len(order) - low)
        place = Place(leg=0, split="train", epoch=0, section=0, start=low, rows=rows, last=low + rows == len(order))
        memory = np.empty(layout.block_bytes(rows) + ALIGNMENT, np.uint8)
        block = layout.block(place, memory[-memory.ctypes.data % ALIGNMENT :])
        indices = order[low : low + rows]
        block.indices[:] = indices
        block.sound[:] = ~np.isin(indices, holes)
        block.leaves[0].copy_(torch.from_numpy(indices)[:, None])
        block.leaves[1].copy_(torch.from_numpy(indices))
        found.append(layout.block(place, memory[-memory.ctypes.data % ALIGNMENT :]))
    return found


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
    cutter = Cutter(
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
        assert total is None or total == selection.digest(order, elements=elements, holes=holes)


def test_a_batch_inside_a_block_is_a_view_and_an_unaligned_one_a_copy() -> None:
    order = np.arange(64, dtype=np.int64)
    cutter = Cutter(selection=Selection.of(None, 64), order=order, batch_size=8, drop_last=False)
    (block,) = blocks(order, 64, width=3)
    first, second, third = list(cutter.take(block))[:3]
    assert first.data[0].data_ptr() == block.leaves[0].data_ptr()
    # 8 rows of 12 bytes: the second batch starts at byte 96, the third at byte 192.
    assert second.data[0].data_ptr() != block.leaves[0][8:].data_ptr()
    assert third.data[0].data_ptr() == block.leaves[0][16:].data_ptr()
    assert second.data[0].data_ptr() % ALIGNMENT == 0


def test_private_batches_never_touch_the_block() -> None:
    order = np.arange(16, dtype=np.int64)
    cutter = Cutter(selection=Selection.of(None, 16), order=order, batch_size=8, drop_last=False)
    (block,) = blocks(order, 16)
    for batch in cutter.take(block, private=True):
        batch.data[0].fill_(7)
    assert not block.touched


def test_a_write_into_a_view_is_seen() -> None:
    order = np.arange(16, dtype=np.int64)
    cutter = Cutter(selection=Selection.of(None, 16), order=order, batch_size=8, drop_last=False)
    (block,) = blocks(order, 16)
    next(cutter.take(block)).data[0].div_(2)
    assert block.touched


def test_a_gap_in_the_stream_is_never_skipped_over() -> None:
    order = np.arange(32, dtype=np.int64)
    cutter = Cutter(selection=Selection.of(None, 32), order=order, batch_size=8, drop_last=False)
    with pytest.raises(AssertionError, match="skipped"):
        list(cutter.take(blocks(order, 16, start=16)[0]))
