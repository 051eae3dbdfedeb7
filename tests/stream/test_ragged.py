"""Tests samples of different lengths: padded in the stream, grouped by length, and as long as the longest of their batch."""

import copy
import itertools
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from blocks import blocks
from hypothesis import given
from hypothesis import strategies as st
from reference import digest

from argosy import Ragged
from argosy.stream.batches import Batch
from argosy.stream.blocks import ALIGNMENT, Block, Layout, Place, UnfitSample, sample_leaves
from argosy.stream.by_length import ByLengthCutter
from argosy.stream.kept.keys import make_key
from argosy.stream.order import Digest, Selection, permutation, window_elements
from argosy.stream.padding import Padded, make_batch, pad_dataset, pad_sample, unpad_sample

LENGTH = 150
LONGEST = 24
TEXTS = [torch.arange(1, 1 + n) for n in np.random.RandomState(0).randint(1, LONGEST + 1, LENGTH).tolist()]
RAGGED = {"ids": Ragged(LONGEST, pad=-1, mask="mask"), "label": None}


def sample(index: int) -> dict[str, object]:
    return {"ids": TEXTS[index], "label": index}


LEAVES = [sample_leaves(pad_sample(sample(index), RAGGED))[0] for index in range(LENGTH)]


def of_texts(order: np.ndarray, size: int, holes: tuple[int, ...] = ()) -> list[Block]:
    """Return blocks of the texts in this order."""
    layout = Layout.of(pad_sample(sample(0), RAGGED))
    found = []
    for low in range(0, len(order), size):
        rows = min(size, len(order) - low)
        place = Place(leg=0, split="train", epoch=0, section=0, start=low, rows=rows, last=low + rows == len(order))
        memory = np.empty(layout.block_bytes(rows) + ALIGNMENT, np.uint8)
        block = layout.block(place, memory[-memory.ctypes.data % ALIGNMENT :])
        for row, index in enumerate(order[low : low + rows].tolist()):
            block.indices[row], block.sound[row] = index, index not in holes
            for target, leaf in zip(block.leaves, LEAVES[index], strict=True):
                target[row] = 0 if index in holes else leaf
        found.append(block)
    return found


def cutter(order: np.ndarray, batch_size: int, **more: object) -> ByLengthCutter:
    subset = more.pop("subset", None)
    drop_last = bool(more.pop("drop_last", False))
    selection = Selection.of(subset, len(order))
    return ByLengthCutter(
        selection=selection, order=order, batch_size=batch_size, drop_last=drop_last, drawn=(3, 0), **more
    )


def stepped(found: ByLengthCutter, block: Block) -> list[Batch]:
    """Return the batches of a block, each committed before the next is cut."""
    made = []
    for batch in found.take(block):
        found.commit(batch)
        made.append(batch)
    return made


@given(
    size=st.sampled_from((7, 40, 64, 150)),
    batch_size=st.integers(1, 6),
    tokens=st.none() | st.integers(LONGEST, 4 * LONGEST),
    subset=st.none() | st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=200),
    drop_last=st.booleans(),
    holes=st.lists(st.integers(0, LENGTH - 1), max_size=6),
)
def test_each_element_is_in_one_batch_whatever_the_blocks(size, batch_size, tokens, subset, drop_last, holes) -> None:
    order = permutation(0, 0, LENGTH)
    more = {"tokens": tokens, "subset": subset, "drop_last": drop_last}
    found = cutter(order, batch_size, **more)
    cut = [batch for block in of_texts(order, size, tuple(holes)) for batch in stepped(found, block)]
    assert found.done and found.again == 0
    selection = Selection.of(subset, LENGTH)
    used = selection.length - (selection.length % batch_size if drop_last else 0)
    elements = np.concatenate([batch.elements for batch in cut]) if cut else np.empty(0, np.int64)
    assert sorted(elements.tolist()) == list(range(used))
    total = Digest()
    for batch in cut:
        total = total.plus(batch.digest)
        rows, ids, mask = batch.rows, batch.data["ids"], batch.data["mask"]
        labels = batch.data["label"].tolist()
        assert len(batch.elements) <= batch_size and rows == len(ids) == len(mask) == len(labels)
        lengths = [len(TEXTS[index]) for index in labels]
        assert ids.shape[1] == max([1, *lengths])
        assert mask.sum(1).tolist() == lengths
        for row, index in enumerate(labels):
            assert ids[row].tolist() == TEXTS[index].tolist() + [-1] * (ids.shape[1] - lengths[row])
        if tokens is not None and len(batch.elements) > 1:
            assert ids.numel() <= tokens
    assert total == digest(selection, order, elements=used, holes=holes)
    again = cutter(order, batch_size, **more)
    others = [batch for block in of_texts(order, 77, tuple(holes)) for batch in stepped(again, block)]
    assert [batch.data["label"].tolist() for batch in others] == [batch.data["label"].tolist() for batch in cut]


@given(size=st.sampled_from((7, 40, 64, 150)), batch_size=st.integers(1, 3), stop=st.integers(0, 200))
def test_a_cutter_goes_on_where_another_has_stopped(size, batch_size, stop) -> None:
    order = permutation(0, 0, LENGTH)
    whole = cutter(order, batch_size)
    found = [b for block in of_texts(order, size) for b in stepped(whole, block)]
    first = cutter(order, batch_size)
    done = []
    for block in of_texts(order, size):
        for batch in itertools.islice(first.take(block), max(stop - len(done), 0)):
            first.commit(batch)
            done.append(batch)
    seen = first.position - first.again
    assert first.done or 0 <= first.again < window_elements(batch_size)
    second = cutter(order, batch_size, position=first.position)
    rest = [b for block in of_texts(order, size)[seen // size :] for b in stepped(second, block)]
    assert [b.data["label"].tolist() for b in (*done, *rest)] == [b.data["label"].tolist() for b in found]


def test_shares_of_a_batch_are_the_batch_and_it_is_known_when_it_comes() -> None:
    order = permutation(0, 0, LENGTH)
    found = cutter(order, 2, subset=list(range(0, LENGTH, 2)))
    for block in of_texts(order, 90, (4, 8)):
        expected = found.completions(block)
        cut = list(found.take(block))
        assert len(expected) == len(cut)
        assert all(block.place.start < element <= block.place.start + block.place.rows for element in expected)
        for batch in cut:
            parts = [found.part(batch, low, high, order) for low, high in ((0, 0.4), (0.4, 1.0))]
            assert torch.equal(torch.cat([part.data["ids"] for part in parts]), batch.data["ids"])
            assert parts[0].digest.plus(parts[1].digest) == batch.digest
            found.commit(batch)
    assert found.done


def test_cutters_that_cut_alike_share_their_windows_and_keep_none_that_is_done() -> None:
    order, windows = permutation(0, 0, LENGTH), WeakValueDictionary()
    alone, found = cutter(order, 1), [cutter(order, 1, windows=windows) for _ in range(3)]
    expected = [batch for block in of_texts(order, 50) for batch in stepped(alone, block)]
    cut: list[list[Batch]] = [[], [], []]
    for block in of_texts(order, 50):
        for number, one in enumerate(found[:2]):
            cut[number] += stepped(one, block)
        assert len(windows) <= 1
    found[2] = copy.deepcopy(found[2])
    for block in of_texts(order, 50):  # a cutter that comes later gets the batches that the others had
        cut[2] += stepped(found[2], block)
    for batches in cut:
        assert [batch.data["label"].tolist() for batch in batches] == [
            batch.data["label"].tolist() for batch in expected
        ]
        assert [batch.digest for batch in batches] == [batch.digest for batch in expected]
    assert not windows


def test_neighbouring_batches_are_of_unlike_length_and_little_is_padding() -> None:
    rng = np.random.RandomState(1)
    order = permutation(0, 0, 20_000)
    lengths = torch.from_numpy(np.exp(rng.uniform(np.log(8), np.log(512), 20_000)).astype(np.int64))
    values = torch.zeros(20_000, 1)
    found = cutter(order, 16)
    longest, kept = [], 0
    for block in blocks(order, 4096, arrays=(values, lengths)):
        block.tree = (tuple, None, ((Padded, None, (None, None)),))
        for batch in found.take(block):
            rows = lengths[order[batch.elements]]
            longest.append(int(rows.max()))
            kept += int(rows.sum())
            found.commit(batch)
    shown = np.array(longest, dtype=float)
    assert 1 - kept / (16 * shown.sum()) < 0.05
    assert abs(np.corrcoef(shown[:-1], shown[1:])[0, 1]) < 0.15


def test_a_sample_is_what_it_was_before_it_was_padded() -> None:
    boxes = {"boxes": torch.rand(3, 4), "image": torch.rand(2, 2), "labels": [1, 2, 3]}
    ragged = {"boxes": Ragged(5), "labels": Ragged(5, pad=-1)}
    given = pad_sample(boxes, ragged)
    assert given["boxes"].values.shape == (5, 4) and given["labels"].values.tolist() == [1, 2, 3, -1, -1]
    back = unpad_sample(given)
    assert torch.equal(back["boxes"], boxes["boxes"]) and back["labels"].tolist() == [1, 2, 3]
    assert back["image"] is boxes["image"]
    none = pad_sample({"boxes": torch.empty(0, 4), "image": 0, "labels": torch.empty(0, dtype=torch.int64)}, ragged)
    leaves, tree = sample_leaves(none)
    batch = make_batch([leaf[None] for leaf in leaves], tree)
    assert batch["boxes"].shape == (1, 1, 4) and batch["labels"].tolist() == [[-1]]


class Texts:
    """A dataset of texts."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, object]:
        return sample(max(index, self.least))


def test_the_key_of_padded_samples_is_that_of_the_dataset_and_how_they_are_padded() -> None:
    plain, padded_samples = Texts(0), pad_dataset(Texts(0), RAGGED)
    key, of_plain = make_key(padded_samples), make_key(plain)
    assert key.subject == of_plain.subject == f"{__name__}.Texts"
    assert key.difference(of_plain.parts) == "Data.ragged"
    assert key.difference(make_key(pad_dataset(Texts(1), RAGGED)).parts) == "its least"
    assert key.difference(make_key(pad_dataset(Texts(0), {**RAGGED, "ids": Ragged(9)})).parts) == "Data.ragged"
    assert padded_samples[3]["label"] == 3


@pytest.mark.parametrize(
    ("sample", "ragged", "words"),
    [
        ({"ids": [1], "label": 0, "mask": [1]}, RAGGED, "has 'mask', which is also a mask= of Data.ragged"),
        ((torch.zeros(9), 1), (Ragged(8), None), "has length 9; Data.ragged allows at most 8"),
        ((torch.zeros(3), 1), {"ids": Ragged(8)}, "has the structure \\(·, ·\\), Data.ragged {'ids': ·}"),
        ({"x": torch.zeros(3)}, {"ids": Ragged(8)}, "has the structure {'x': ·}"),
        ((torch.zeros(3), 1), (Ragged(8),), "has the structure \\(·, ·\\)"),
        ((torch.tensor(3.0), 1), (Ragged(8), None), "has a single number where"),
        (((torch.zeros(2), torch.zeros(2)), 1), (Ragged(8), None), "has \\(·, ·\\) where"),
        (
            (torch.zeros(3, dtype=torch.int64), 1),
            (Ragged(8, pad=0.5), None),
            "which cannot represent pad=0.5 of Data.ragged",
        ),
    ],
)
def test_a_sample_that_is_built_otherwise_is_refused(sample, ragged, words) -> None:
    with pytest.raises(UnfitSample, match=words):
        pad_sample(sample, ragged)
