"""Tests that a prepared sample depends only on (seed, split, epoch, index), and that faulty data are named."""

import random
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import studies
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from argosy import Data, Ragged
from argosy.errors import StudyError
from argosy.stream.blocks import Place
from argosy.stream.kept.cache import RowCache
from argosy.stream.opening import open_kept_rows, open_sources
from argosy.stream.sources import ArraySource, DatasetSource, Source
from argosy.training.choice.copies import fill_block


def fill(source, indices, epoch: int = 0) -> list[torch.Tensor]:
    """Return the leaves of a block of these samples."""
    place = Place(leg=0, split="train", epoch=epoch, section=epoch, start=0, rows=len(indices), last=True)
    block = source.layout.block(place, np.zeros(source.layout.block_bytes(len(indices)), np.uint8))
    source.fill(block, 0, np.array(indices, dtype=np.int64))
    assert block.indices.tolist() == list(indices)
    return [leaf.clone() for leaf in block.leaves]


def source(dataset, *, skip_errors: bool = False) -> DatasetSource:
    return open_sources(Data(train=dataset, on_error="skip" if skip_errors else "raise"), seed=0)["train"]


def test_a_sample_does_not_depend_on_the_ones_before() -> None:
    here = source(studies.Vectors(30))
    torch.manual_seed(1)
    random.seed(2)
    one, other = fill(here, [4, 9, 2]), fill(here, [2, 4, 9])
    assert torch.equal(one[0][[2, 0, 1]], other[0])


def test_epochs_differ() -> None:
    here = source(studies.Vectors(30))
    assert not torch.equal(fill(here, [4], epoch=0)[0], fill(here, [4], epoch=1)[0])


def test_a_class_that_is_called_dataset_has_samples_by_index() -> None:
    """A user's class called Dataset, like that of Hugging Face, counts as indexed data, though it also has `__iter__`."""

    def drawn(self, index):
        return torch.rand(3), index

    drawn.__qualname__ = "Dataset.__getitem__"
    named = type("Dataset", (Dataset,), {"__getitem__": drawn, "__len__": lambda _: 30, "__iter__": lambda _: iter(())})
    here = source(named())
    assert (here.length, here.facts.constant) == (30, False)


class OwnGenerator(studies.Vectors):
    """A dataset that draws from a generator of its own, which cannot be seeded from outside."""

    generator = np.random.default_rng()

    def __getitem__(self, index):
        return torch.tensor(self.generator.random()), 0


def test_an_own_generator_is_refused_by_name() -> None:
    with pytest.raises(StudyError, match=r"OwnGenerator.*its own generator"):
        source(OwnGenerator(10))


class Flips(studies.Vectors):
    """A dataset that flips one sample in a hundred, by a generator among its transforms, so that probes do not show it."""

    def __init__(self, length: int) -> None:
        super().__init__(length, noise=0.0)
        self.transforms = [{"flip": np.random.default_rng(0)}]

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (-x if self.transforms[0]["flip"].random() < 0.01 else x), y


def test_an_own_generator_is_refused_where_samples_do_not_show_it() -> None:
    for kind in (Flips, Bound):
        with pytest.raises(StudyError, match=rf"{kind.__name__}\) draws for sample 0 from its own generator"):
            source(kind(30))


GENERATOR = np.random.default_rng(0)


def seldom(sample: Any) -> Any:
    return (-sample[0] if GENERATOR.random() < 0.01 else sample[0]), sample[1]


def seldom_by(generator: np.random.Generator, sample: Any) -> Any:
    return (-sample[0] if generator.random() < 0.01 else sample[0]), sample[1]


class Seldom:
    """A function with a generator."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, sample: Any) -> Any:
        return seldom_by(self.generator, sample)


class Bound(Flips):
    """The same, by a method written in C, which holds its generator."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.uniform = random.Random(0).random

    def __getitem__(self, index):
        x, y = studies.Vectors.__getitem__(self, index)
        return (-x if self.uniform() < 0.01 else x), y


@pytest.mark.parametrize("ragged", [None, (Ragged(max_length=64), None)])
@pytest.mark.parametrize("then", [Seldom(), seldom, partial(seldom_by, np.random.default_rng(0))])
def test_an_own_generator_of_then_is_refused_where_samples_do_not_show_it(then: Any, ragged: Any) -> None:
    with pytest.raises(StudyError, match=r"draws for sample 0 from its own generator"):
        open_sources(Data(train=studies.Vectors(30), then=then, ragged=ragged), seed=0)


class Global(studies.Vectors):
    """A dataset that draws from a generator of its module, with an effect on few samples."""

    def __getitem__(self, index):
        return seldom(super().__getitem__(index))


def test_a_generator_of_the_module_is_refused_where_samples_do_not_show_it() -> None:
    with pytest.raises(StudyError, match=r"Global\) draws for sample 0 from its own generator"):
        source(Global(30))


class Pipeline:
    """Transforms of a library, with a generator of their own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)


PIPELINE = Pipeline()


class Piped(studies.Vectors):
    """A dataset that is given a function, which draws from a pipeline in a global variable, with an effect on few samples."""

    def __init__(self, length: int) -> None:
        super().__init__(length, noise=0.0)
        self.transform = lambda sample: seldom_by(PIPELINE.generator, sample)

    def __getitem__(self, index):
        return self.transform(super().__getitem__(index))


TABLE = [{"row": [row]} for row in range(2000)]
"""More objects than are searched for generators."""


class Tabled(Piped):
    """The same, with a table in an attribute and in a global variable."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.table = [*TABLE]

    def __getitem__(self, index):
        assert TABLE
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "data",
    [
        Data(train=Subset(Piped(30), range(20))),
        Data(train=studies.Vectors(30), then=Piped(1).transform),
        Data(train=Tabled(30)),
    ],
)
def test_a_pipeline_of_the_module_is_refused_where_samples_do_not_show_it(data: Data) -> None:
    with pytest.raises(StudyError, match=r"draws for sample 0 from its own generator"):
        open_sources(data, seed=0)


class Fresh(studies.Vectors):
    """A dataset that flips one sample in a million, by a new generator without a seed, so that probes do not show it."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (-x if np.random.default_rng().random() < 1e-6 else x), y


def test_samples_that_draw_from_new_generators_without_a_seed_are_not_kept() -> None:
    assert not source(Fresh(30)).facts.constant


class InPlace(studies.Vectors):
    """A dataset that writes into the tensors that it holds, so that a sample differs each time."""

    def __init__(self, length: int, noise: float) -> None:
        super().__init__(length, noise=0.0)
        self.held = [studies.Vectors.__getitem__(self, index)[0] for index in range(length)]
        self.scale = noise

    def __getitem__(self, index):
        self.held[index] *= 0.5 + self.scale * torch.rand(1)
        return self.held[index], 0


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_dataset_that_writes_into_what_it_holds_is_refused(noise: float) -> None:
    with pytest.raises(StudyError, match=r"InPlace\) prepared sample \d+ twice .* writes into stored data"):
        source(InPlace(30, noise))


class Keeping(studies.Vectors):
    """A dataset that keeps its augmented samples, and draws a start value with its first one."""

    def __init__(self, length: int, keeps: bool) -> None:
        super().__init__(length)
        self.keeps, self.kept, self.start = keeps, dict[int, Any](), None

    def __getitem__(self, index):
        self.start = torch.rand(()) if self.start is None else self.start
        if self.keeps and index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept.get(index) or super().__getitem__(index)


def test_a_dataset_that_keeps_augmented_samples_is_refused() -> None:
    with pytest.raises(
        StudyError, match=r"Keeping\) draws random numbers for sample 15 when it is first asked for, and not again"
    ):
        source(Keeping(30, keeps=True))
    assert source(Keeping(30, keeps=False)).length == 30


class Minority(Flips):
    """A dataset that changes samples of one class, none of which is probed, by a generator of its own."""

    seeded = False

    def __getitem__(self, index):
        x, y = studies.Vectors.__getitem__(self, index)
        generator = self.transforms[0]["flip"]
        if index % 10 == 7 and self.seeded:
            generator.bit_generator.state = np.random.PCG64(index).state
        return (x + generator.random() if index % 10 == 7 else x), y


class SeededMinority(Minority):
    """The same, with a generator that is seeded for each of these samples."""

    seeded = True


def test_an_own_generator_of_few_samples_is_refused_when_they_are_prepared_and_they_are_not_kept() -> None:
    here = source(Minority(30))
    fill(here, [4, 5, 6])
    for _ in range(2):
        with pytest.raises(StudyError, match=r"Minority\) draws for sample 7 from its own generator"):
            fill(here, [6, 7, 8])
    seeded = source(SeededMinority(30))
    first, second = fill(seeded, [6, 7, 8]), fill(seeded, [17, 7])
    assert torch.equal(first[0][1], second[0][1])


def test_an_own_generator_of_then_for_few_samples_is_refused_when_they_are_prepared() -> None:
    generator = np.random.default_rng(0)

    def noisy(sample: Any) -> Any:
        return (sample[0] + generator.random() if sample[1] % 10 == 7 else sample[0]), sample[1]

    numbered = [(torch.zeros(2), index) for index in range(30)]
    here = open_sources(Data(train=numbered, then=noisy), seed=0)["train"]
    fill(here, [4, 5])
    for _ in range(2):
        with pytest.raises(StudyError, match=r"draws for sample 7 from its own generator"):
            fill(here, [6, 7, 8])


def test_classes_that_a_target_transform_numbers_may_be_in_another_order() -> None:
    train, val = studies.Vectors(8), studies.Vectors(8)
    train.classes, val.classes = ["cat", "dog"], ["dog", "cat"]
    with pytest.raises(StudyError, match="different classes"):
        open_sources(Data(train=lambda: train, val=lambda: val), seed=0)
    val.target_transform = {0: 1, 1: 0}.get
    assert set(open_sources(Data(train=lambda: train, val=lambda: val), seed=0)) == {"train", "val"}
    assert Data(train=train, val=val).has_val


class Derived(Flips):
    """A dataset that seeds its own generator for each sample with the sample's index."""

    def __getitem__(self, index):
        self.transforms[0]["flip"] = np.random.default_rng(index)
        return super().__getitem__(index)


def test_an_own_generator_whose_seed_is_that_of_the_sample_is_none() -> None:
    assert source(Derived(30)).length == 30


class Rare(studies.Vectors):
    """A dataset that draws for a few samples only, none of which is probed."""

    def __getitem__(self, index):
        x = torch.full((2,), float(index))
        return (x + torch.rand(2) if index % 20 == 7 else x), index % 10


def test_lists_of_samples_of_which_few_draw_are_other_ones_in_each_epoch() -> None:
    lists, singly = source(Subset(Rare(60), range(60))), source(Rare(60))
    fill(lists, [4, 5, 6])
    assert lists.gathers
    for epoch in range(2):
        wanted = fill(singly, [6, 7, 8], epoch=epoch)[0]
        assert torch.equal(fill(lists, [6, 7, 8], epoch=epoch)[0], wanted)
        assert wanted[1, 0] != 7
    assert not lists.gathers


class Ragged(studies.Vectors):
    """A dataset whose sample 17 is longer than the others."""

    def __getitem__(self, index):
        return torch.zeros(3 + (index == 17)), 0


def test_unequal_shapes_say_pad() -> None:
    with pytest.raises(StudyError, match=r"sample 17 .*\(4,\).*\(3,\).*pad"):
        fill(source(Ragged(30)), [16, 17])


class Broken(studies.Vectors):
    """A dataset whose sample 17 cannot be read."""

    error: Exception = OSError("truncated file")

    def __getitem__(self, index):
        if index == 17:
            raise self.error
        return super().__getitem__(index)


def test_a_raising_sample_is_named() -> None:
    with pytest.raises(StudyError, match=r"sample 17 raised OSError: truncated file"):
        fill(source(Broken(30)), [16, 17])


def test_a_note_does_not_hide_the_error_of_a_sample() -> None:
    broken = Broken(30)
    broken.error = OSError("truncated file")
    broken.error.add_note("of shard 3")
    with pytest.raises(StudyError, match=r"sample 17 raised OSError: truncated file\n"):
        fill(source(broken), [17])


class OnGpu(Broken):
    """A dataset with a tensor on a GPU: what torch tells forks of a process that has used the GPU."""

    error = RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, …")


def test_samples_on_an_accelerator_are_told_to_stay_in_host_memory() -> None:
    with pytest.raises(StudyError, match=r"Cannot re-initialize CUDA.*\n(.*\n)*.*in host memory, tensor\.cpu\(\)"):
        fill(source(OnGpu(30)), [16, 17])


def test_a_raising_sample_can_be_skipped() -> None:
    here = source(Broken(30), skip_errors=True)
    place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=3, last=True)
    block = here.layout.block(place, np.zeros(here.layout.block_bytes(3), np.uint8))
    for leaf in block.leaves:
        leaf.fill_(99)  # what the slot might hold from an earlier block
    assert here.fill(block, 0, np.array([16, 17, 18])).holes == [(17, "OSError: truncated file")]
    assert block.sound.tolist() == [True, False, True]
    assert [leaf[1].count_nonzero().item() for leaf in block.leaves] == [0, 0]


class Lists(Dataset):
    """A dataset that counts the lists of samples that it is asked for."""

    def __init__(self) -> None:
        self.lists = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index):
        return torch.tensor(float(index))

    def __getitems__(self, indices):
        self.lists += 1
        return [self[index] for index in indices]


def test_getitems_is_used_where_it_is_deterministic() -> None:
    dataset = Lists()
    here = source(dataset)
    assert fill(here, [3, 1])[0].tolist() == [3.0, 1.0]
    assert dataset.lists == 2
    # A Subset has __getitems__ too, and would draw many samples under one seed.
    assert not source(Subset(studies.Vectors(30), range(20))).facts.gathers


class SortedLists(Lists):
    """A dataset that reads lists in ascending order, as an HDF5 file requires, and returns them so."""

    def __getitems__(self, indices):
        return super().__getitems__(sorted(indices))


class GeneratedLists(Lists):
    """A dataset that generates the samples of a list."""

    def __getitems__(self, indices):
        return iter(super().__getitems__(indices))


@pytest.mark.parametrize(("kind", "gathers"), [(SortedLists, False), (GeneratedLists, True)])
def test_lists_in_another_order_are_not_asked_for(kind: type[Lists], gathers: bool) -> None:
    here = source(kind())
    assert here.facts.gathers == gathers
    assert fill(here, [3, 1])[0].tolist() == [3.0, 1.0]


class Drawing(Dataset):
    """A dataset that draws from one generator, though the number almost never affects the sample."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index):
        return index + (float(self.draw()) > 99.0)


@pytest.mark.parametrize(
    "draw", [np.random.rand, np.random.randn, random.random, lambda: random.gauss(0.0, 1.0), lambda: torch.rand(())]
)
def test_lists_that_draw_are_not_asked_for(draw: Any) -> None:
    """A dataset that draws random numbers is not asked for lists, even if the probed samples do not show the numbers."""
    assert not source(Subset(Drawing(draw), range(20))).facts.gathers


def test_arrays_and_tensor_datasets_take_the_fast_path() -> None:
    x, y = torch.arange(12.0).reshape(6, 2), np.arange(6)
    for data in (Data(arrays=(x, y)), Data(train=TensorDataset(x, torch.from_numpy(y)))):
        here = open_sources(data, seed=0)["train"]
        assert isinstance(here, ArraySource)
        assert fill(here, [5, 0])[0].tolist() == [[10.0, 11.0], [0.0, 1.0]]


def test_a_memory_map_stays_on_disk(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.arange(20, dtype=np.float32))
    here = open_sources(Data(arrays=(np.load(tmp_path / "x.npy", mmap_mode="r"),)), seed=0)["train"]
    assert fill(here, [7, 3])[0].tolist() == [7.0, 3.0]


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(
        StudyError, match=r"^Data.arrays: its arrays have 3, 4 rows; all must have the same number of rows, at least 1"
    ):
        open_sources(Data(arrays=(np.zeros(3), np.zeros(4))), seed=0)


def test_what_the_stream_cannot_carry_is_named() -> None:
    with pytest.raises(StudyError, match=r"^Data.train: sample 0 contains 'text' of type str; .* Convert it"):
        source(["text", "more"])


def cut(source: Source, *indices: int) -> tuple[list[tuple[int, str]], list[bool]]:
    """Return the holes and the sound rows of a block of these samples."""
    place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=len(indices), last=True)
    block = source.layout.block(place, np.zeros(source.layout.block_bytes(len(indices)), np.uint8))
    return source.fill(block, 0, np.array(indices, dtype=np.int64)).holes, block.sound.tolist()


class BrokenLists(Lists):
    """A dataset whose sample 7 cannot be read, alone or in a list."""

    def __getitem__(self, index):
        if index == 7:
            raise OSError("truncated file")
        return super().__getitem__(index)


class ShortLists(BrokenLists):
    """A dataset that leaves the sample that it cannot read out of a list."""

    def __getitems__(self, indices):
        return [self[index] for index in indices if index != 7]


@pytest.mark.parametrize("kind", [BrokenLists, ShortLists])
def test_one_broken_sample_of_a_list_costs_one_hole(kind: type[Lists]) -> None:
    here = source(kind(), skip_errors=True)
    assert here.facts.gathers
    assert cut(here, 6, 7, 8) == ([(7, "OSError: truncated file")], [True, False, True])
    with pytest.raises(StudyError, match=r"^Data\.train: sample 7 raised OSError: truncated file\n"):
        cut(source(kind()), 6, 7, 8)


class Odd(Dataset):
    """A dataset of thirty samples, in which sample 17 and all others are arguments, as is its length; exceptions are raised."""

    def __init__(self, first: Any, odd: Any, length: Any = 30) -> None:
        self.first, self.odd, self.length = first, odd, length

    def __len__(self) -> int:
        if isinstance(self.length, int):
            return self.length
        raise self.length

    def __getitem__(self, index: int) -> Any:
        if index >= 30:
            raise IndexError("list index out of range")
        found = self.odd if index == 17 else self.first
        if isinstance(found, BaseException):
            raise found
        return found


X = torch.zeros(3)
with warnings.catch_warnings(action="ignore"):  # torch is going to drop them
    QUANTIZED = torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)
OBJECTS = np.array([None, 1], dtype=object)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize(
    ("first", "odd", "says"),
    [
        ((X, 0), (torch.zeros(4), 0), r"has shape \(4,\) in its element 0, the first sample \(3,\)\..* pad"),
        ((X, 0), (X, 1.0), r"has torch.float64 in its element 1, the first sample torch.int64\..*convert"),
        ((X, 0), (X.double(), 1), r"has torch.float64 in its element 0, the first sample torch.float32\."),
        (
            (X, 0),
            None,
            r"contains None of type NoneType; a sample may contain only tensors, arrays and numbers\. Convert",
        ),
        ((X, 0), (X, "cat"), r"contains 'cat' of type str;"),
        (
            (X, 0),
            (np.array(["cat"]), 1),
            r"contains array\(\['cat'\], dtype='<U3'\) of type numpy.ndarray with dtype <U3;",
        ),
        ((X, 0), (OBJECTS, 1), r"contains array\(\[None, 1\], dtype=object\) of type numpy.ndarray with dtype object;"),
        (
            (X, 0),
            [X, 0],
            r"has the structure \[·, ·\], the first sample \(·, ·\)\. Return the same structure for all samples, ",
        ),
        ({"x": X, "y": 0}, {"x": X}, r"has the structure \{'x': ·\}, the first sample \{'x': ·, 'y': ·\}\."),
        ((X, 0), SystemExit(2), r"raised SystemExit: 2\n"),
        ((X, 0), torch.strided, r"has a nested tensor, but"),
        ((X, 0), torch.jagged, r"has a nested tensor, but"),
        ((X, 0), (X.to_sparse(), 0), r"has a sparse tensor, but"),
    ],
)
def test_a_sample_unlike_the_first_is_named(first: Any, odd: Any, says: str) -> None:
    odd = (nested(odd), 0) if isinstance(odd, torch.layout) else odd
    with pytest.raises(StudyError, match=rf"^Data\.train: sample 17 {says}"):
        cut(source(Odd(first, odd)), 16, 17)
    holes, sound = cut(source(Odd(first, odd), skip_errors=True), 16, 17)
    assert ([index for index, _ in holes], sound) == ([17], [True, False])


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.as_nested_tensor([X, X], layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (Odd((X, None), 0), r"sample 0 contains None"),
        (Odd((), ()), r"sample 0 is \(\), without any tensor"),
        (Odd((X.to_sparse(), 0), 0), r"sample 0 has a sparse tensor"),
        (lambda: Odd((nested(torch.strided), 0), 0), r"sample 0 has a nested tensor"),
        (lambda: Odd((nested(torch.jagged), 0), 0), r"sample 0 has a nested tensor"),
        (Odd((QUANTIZED, 0), 0), r"sample 0 has a quantized tensor"),
        (Odd((np.ma.masked_less(np.arange(3.0), 1), 0), 0), r"sample 0 has a masked array with masked values"),
        (Odd((X, 0), 0, length=40), r"sample (20|39) raised IndexError: list index out of range"),
        (Odd((X, 0), 0, length=0), r"is empty: the len\(\) of Odd is 0\. Add samples to it\."),
        (Odd((X, 0), 0, length=TypeError("no")), r"Odd does not report its number of samples: len\(\) raised"),
        (Odd((X, 0), 0, length=-1), r"Odd does not report its number of samples: .*ValueError"),
        (lambda: 3, r"its factory <lambda> returned 3, which is not a Dataset"),
        (lambda: Dataset(), r"its factory <lambda> returned an instance of Dataset, which is not a Dataset"),
        (
            lambda: 1 / 0,
            r"its factory <lambda> raised ZeroDivisionError: division by zero\n.*test_sources.*in <lambda>",
        ),
    ],
)
def test_what_is_no_dataset_is_refused_before_training(dataset: Any, says: str) -> None:
    with pytest.raises(StudyError, match=rf"(?s)^Data\.train:? {says}"):
        source(dataset)


def numbered() -> Iterator[int]:
    yield 0


@pytest.mark.parametrize("lines", [numbered(), iter([X]), map(str, [1])], ids=lambda lines: type(lines).__name__)
def test_what_can_be_read_once_only_is_refused(lines: Any) -> None:
    with pytest.raises(
        StudyError,
        match=rf"^Data\.val is a {type(lines).__name__}, which can be read only once and only by this process",
    ):
        Data(train=studies.Vectors(30), val=lines)


class Both(studies.Vectors):
    """A dataset with samples by index that is an iterator too, such as the StreamingDataset of LitData."""

    def __next__(self) -> Any:
        return self[0]


def test_a_dataset_with_samples_by_index_may_be_an_iterator_too() -> None:
    assert open_sources(Data(train=Both(30)), seed=0)["train"].length == 30


def test_a_set_has_no_order() -> None:
    with pytest.raises(StudyError, match=r"^Data\.train is a set, whose order differs between processes\. Pass sorted"):
        Data(train={"a", "b"})


def test_the_dataset_of_a_loader_is_asked_for() -> None:
    with pytest.raises(
        StudyError,
        match=r"is a DataLoader, which makes batches, .*\. Pass its dataset, loader.dataset, and set batch_size",
    ):
        Data(train=DataLoader(studies.Vectors(30)))
    with pytest.raises(StudyError, match=r"on each member\.$"):
        Data(train=DataLoader(studies.Vectors(30), shuffle=True))


def test_a_loader_of_fastai_is_one() -> None:
    """It is no class of torch's, and calls its batch size `bs`; both loaders together are a list of them."""

    class TfmdDL:
        dataset, bs, drop_last, after_batch = studies.Vectors(30), 4, True, None

        def __iter__(self) -> Iterator[list[torch.Tensor]]:
            return iter(DataLoader(self.dataset, self.bs))

    class DataLoaders:
        dataset = train_ds = valid_ds = studies.Vectors(30)
        after_batch = None

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> TfmdDL:
            return TfmdDL()

    own = r"Pass its dataset, loader\.dataset, and set batch_size and drop_last=True on each member\. Its item_tfms and batch"
    with pytest.raises(StudyError, match=f"is a TfmdDL, which makes batches, .*{own}_tfms are left out"):
        Data(train=TfmdDL())
    with pytest.raises(
        StudyError, match=r"is a DataLoaders, .* Pass its datasets, train=dls\.train_ds and val=dls\.valid"
    ):
        Data(train=DataLoaders())
    single = type("DataLoaders", (DataLoaders,), {"valid_ds": property(lambda self: [][1])})
    with pytest.raises(StudyError, match=r"is a DataLoaders, which makes batches"):
        Data(train=single())


def test_what_a_loader_has_besides_its_dataset_is_named() -> None:
    sampler = WeightedRandomSampler([1.0] * 30, 30)
    with pytest.raises(StudyError, match=r"leaves out its WeightedRandomSampler and seldom: .*by_weight"):
        Data(train=DataLoader(studies.Vectors(30), sampler=sampler, collate_fn=seldom))
    with pytest.raises(StudyError, match=r"leaves out its WeightedRandomSampler: "):
        Data(train=DataLoader(studies.Vectors(30), batch_sampler=BatchSampler(sampler, 5, drop_last=False)))
    with pytest.raises(StudyError, match=r"set batch_size and drop_last=True on each member\.$"):
        Data(train=DataLoader(studies.Vectors(30), batch_size=4, drop_last=True))
    drawn = RandomSampler(studies.Vectors(30), replacement=True, num_samples=10)
    with pytest.raises(
        StudyError, match=r"set batch_size on each member\. This leaves out its drawing with replacement: "
    ):
        Data(train=DataLoader(studies.Vectors(30), sampler=drawn))


def test_where_every_sample_raises_there_is_nothing_to_train_on() -> None:
    with pytest.raises(StudyError, match=r"all 30 samples raised, the last one OSError\('gone'\)"):
        source(Odd(OSError("gone"), OSError("gone")), skip_errors=True)


def test_numbers_of_every_kind_and_a_class_as_factory() -> None:
    class Kinds(studies.Vectors):
        def __init__(self) -> None:
            super().__init__(30)

        def __getitem__(self, index: int) -> Any:
            row = np.arange(3.0)
            row.flags.writeable = False
            numbers = {"int": index, "float": 0.5, "bool": True, "np": np.float32(2), "u8": np.uint8(3)}
            return {**numbers, "row": row, "grown": torch.ones(2, requires_grad=True)}

    leaves = fill(source(Kinds), [4, 5])
    assert [leaf.tolist() for leaf in leaves[:5]] == [[4, 5], [0.5, 0.5], [True, True], [2, 2], [3, 3]]
    assert [str(leaf.dtype)[6:] for leaf in leaves[:5]] == ["int64", "float64", "bool", "float32", "uint8"]
    assert leaves[5][1].tolist() == [0, 1, 2] and not leaves[6].requires_grad


def test_complex_numbers_of_every_kind() -> None:
    """Complex samples arrive unchanged: as NumPy scalars, and as torch's tensors that are conjugated only when they are read."""
    z = torch.complex(torch.arange(6.0), torch.ones(6))

    class Spectra(studies.Vectors):
        def __getitem__(self, index: int) -> Any:
            return {
                "lazy": z.conj(),
                "negative": z.conj().imag,
                "one": np.complex64(index + 1j),
                "half": np.float16(0.5),
            }

    leaves = fill(source(Spectra(6)), [4, 5])
    assert torch.equal(leaves[0], z.conj().expand(2, 6)) and torch.equal(leaves[1], -z.imag.expand(2, 6))
    assert leaves[2].tolist() == [4 + 1j, 5 + 1j] and leaves[3].dtype == torch.float16
    here = open_sources(Data(arrays=(z.numpy(), z.conj(), z.conj().imag)), seed=0)["train"]
    assert [leaf.tolist() for leaf in fill(here, [5, 0])] == [[5 + 1j, 1j], [5 - 1j, -1j], [-1.0, -1.0]]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_single_unsigned_numbers_are_gathered_and_kept(dtype: torch.dtype) -> None:
    """Of these dtypes torch cannot select the elements of a vector."""
    numbers = torch.arange(6).to(dtype)
    for dataset in (TensorDataset(numbers), [(number,) for number in numbers]):
        sources = open_sources(Data(train=dataset), seed=0, cache=RowCache(most_bytes=2**20))
        open_kept_rows(sources, 2**20)
        for _ in range(2):  # the second time from kept rows
            (leaf,) = fill(sources["train"], [5, 0])
            assert (leaf.dtype, leaf.tolist()) == (dtype, [5, 0])
    place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=6, last=True)
    block = sources["train"].layout.block(place, np.zeros(sources["train"].layout.block_bytes(6), np.uint8))
    sources["train"].fill(block, 0, np.arange(6))
    assert fill_block(block, 8).leaves[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.arange(2, dtype=">i4"), r"has dtype >i4"),
        ([[1], [2, 3]], r"has rows of different shapes "),
        ([torch.zeros(1), torch.zeros(2)], r"has rows of different shapes "),
    ],
)
def test_arrays_that_the_stream_cannot_carry_are_refused(array: Any, says: str) -> None:
    with pytest.raises(StudyError, match=rf"^Data: array 1 of train {says}"):
        open_sources(Data(arrays=(np.zeros(2), array)), seed=0)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (torch.empty(2, device="meta"), r"of layout torch\.strided on meta; .* Pass tensor\.cpu\(\)"),
        ([torch.empty(1, device="meta"), torch.empty(1, device="meta")], r"of layout torch\.strided on meta"),
        (torch.eye(2).to_sparse(), r"of layout torch\.sparse_coo on cpu; .*to_dense\(\)"),
    ],
)
def test_arrays_elsewhere_than_in_host_memory_are_refused_where_they_are_passed(array: Any, says: str) -> None:
    with pytest.raises(StudyError, match=rf"^Data\.arrays\[1\] is a tensor {says}"):
        Data(arrays=(np.zeros(2), array))


def test_a_column_named_layout_makes_no_tensor() -> None:
    table = pytest.importorskip("pandas").DataFrame({"area": [1.0, 2.0], "layout": [0.0, 1.0]})
    assert Data(arrays=(table, np.zeros(2))).arrays is not None


def test_arrays_of_every_layout_give_their_rows() -> None:
    x = np.arange(12.0).reshape(2, 6)
    grown = torch.arange(12.0).reshape(6, 2).requires_grad_()
    here = open_sources(Data(arrays=(x.T, np.asfortranarray(x.T)[::-1], grown, list(range(6)))), seed=0)["train"]
    leaves = fill(here, [5, 0])
    assert [leaf.tolist() for leaf in leaves] == [[[5, 11], [0, 6]], [[0, 6], [5, 11]], [[10, 11], [0, 1]], [5, 0]]


@pytest.mark.parametrize("rows", [torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(2, 3, requires_grad=True)])
def test_lists_of_tensors_are_stacked(rows: torch.Tensor) -> None:
    (leaf,) = fill(open_sources(Data(arrays=(list(rows),)), seed=0)["train"], [1, 0])
    assert torch.equal(leaf, rows.detach())


class Words:
    """A column like an Arrow array, whose `to_numpy` raises unless the memory can be shared."""

    def to_numpy(self) -> Any:
        raise ValueError("Needed to copy 1 chunks with 0 nulls, but zero_copy_only was True")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(["a", "b"] * 3, dtype=object)


class Settings(dict):
    """Settings that appear to have every attribute."""

    __getattr__ = dict.get


def two_columns_of_one_name() -> Any:
    frame = pytest.importorskip("pandas").DataFrame({"x": range(6), "y": range(6)})
    frame.columns = ["x", "x"]
    return frame


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(6).to(torch.float8_e4m3fn),
        lambda: torch.ones(6, 3).to(torch.float8_e5m2),
        lambda: torch.ones(6, dtype=torch.complex64).conj(),
        lambda: torch.ones(6, dtype=torch.complex64).conj().imag,
        Words,
        Settings,
        two_columns_of_one_name,
    ],
)
def test_a_dataset_may_hold_what_numpy_does_not_take(make: Any) -> None:
    held = studies.Vectors(6)
    held.held = make()
    assert len(fill(source(held), [0, 5])[0]) == 2
