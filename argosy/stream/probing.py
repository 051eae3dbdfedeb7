"""Probe a Dataset before it is fed: prepare a few samples, only to learn their layout and how they are prepared."""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from argosy.errors import StudyError
from argosy.errors.traces import USER_ERRORS
from argosy.stream.blocks import Layout, host_bytes, same_bits, sample_leaves
from argosy.stream.kept.cache import Location
from argosy.stream.mapped import MappedFile, files_of_split
from argosy.stream.own_generators import outside_parts, own_generator_states, states_of
from argosy.stream.padding import unwrap_padding
from argosy.stream.samples import SamplePreparer, generator_states, sample_error
from argosy.stream.shards import ShardedStream, name_of

__all__ = ["Facts", "check_draws", "check_same_data", "fingerprint_of", "dataset_length", "parts_of", "probe"]

Leaves = list[torch.Tensor]

DRAWS = "draws for sample {} from its own generator"
DIFFERS = (
    "prepared sample {} twice from the same seeds, and the results differ: it writes into stored data such as a cached tensor, or draws "
    "from its own generator"
)
KEEPS = (
    "draws random numbers for sample {} when it is first asked for, and not again; what it keeps of them differs between loader workers. "
    "Keep only what is the same for every seed, name temporary files by tempfile or uuid, and build networks in __init__"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known of one split."""

    length: int
    layout: Layout
    fingerprint: str
    """SHA-256 over two prepared samples, the first and the last of those probed; empty for arrays."""
    labels: str = ""
    """SHA-256 over the numbers that a Dataset holds for its samples, such as labels; empty if it holds none."""
    gathers: bool = False
    """Whether lists of samples may be requested with ``__getitems__``."""
    seconds_per_sample: float = 0.0
    """Seconds that one core takes to prepare a sample; 0 if nothing is prepared."""
    doubt: str = ""
    """Sentence that says why validation on this split may be of little value."""
    constant: bool = False
    """Whether samples may be kept: at least one probed sample drew nothing and was the same under another seed."""
    location: Location | None = None
    """Where samples are kept; None if they are not."""
    keeping: str = ""
    """Says in words what is kept, or why nothing is."""
    base: Layout | None = None
    """Layout of the Dataset's own samples, if `Data.then` works on them."""
    files: tuple[MappedFile, ...] = ()
    """Files from which samples are read through memory maps, including those opened with the first samples."""
    shards: tuple[int, ...] = ()
    """Lengths of the shards of a stream that is not kept."""

    @property
    def identity(self) -> str:
        """Digest by which a study's data are recognised, on another node and on disk."""
        return hashlib.sha256(f"{self.fingerprint} {self.labels}".encode()).hexdigest()

    @property
    def kept_layout(self) -> Layout:
        """Layout of the samples that may be kept."""
        return self.base or self.layout


class _Reading(NamedTuple):
    """One of the probed samples, as prepared once."""

    leaves: Leaves
    """Empty if it raised."""
    drew: bool
    """Whether random numbers were drawn for it, as far as is known."""
    generators: list[bytes]
    """States afterwards of the generators that the Dataset and `Data.then` own."""


def probe(preparing: SamplePreparer, base: Layout | None = None) -> Facts:
    """Learn the facts of a Dataset or, given the layout `base` of its samples, of what `Data.then` returns for them.

    A few samples are prepared twice, in a different order. A difference is an error that names the Dataset: it draws from a generator of its own, or
    modifies what it holds. So is a sample that draws only the first time. The second time a sample that drew nothing is prepared under another
    seed, as are all samples of a stream that is not kept, because their draws may not show.
    """
    dataset, split, length = preparing.dataset, preparing.split, dataset_length(preparing)
    layout = _first_layout(preparing, base, length)
    leaves = _leaves_of(preparing, base, layout)

    parts = parts_of(preparing)

    def read(index: int, epoch: int = 0) -> _Reading:
        sample = leaves(index, epoch)
        drew = base is not None or preparing.has_drawn(index, epoch)  # `then` may draw in each epoch
        # They are searched for after each sample, because the sample may have made one.
        return _Reading(sample, drew, own_generator_states(*parts))

    probes, stream = _probes(dataset, length), isinstance(dataset, ShardedStream) and base is None
    first = {index: read(index) for index in probes}
    started = time.perf_counter()
    # In the other order, because a sample must not depend on those that were prepared before it.
    again = {index: read(index, epoch=0 if first[index].drew and not stream else 1) for index in reversed(probes)}
    seconds = (time.perf_counter() - started) / len(probes)
    differ = [index for index in probes if not same_bits(first[index].leaves, again[index].leaves)]
    # A generator that is reseeded for each index ends in the same state as before.
    moved = [index for index in probes if first[index].generators != again[index].generators]
    for index in probes if moved else differ:
        if stream:
            raise StudyError(
                f"Data.{split}: {name_of(dataset.stream)} yields a different sample {index} when it "
                "is read again, so its samples depend on where reading starts. Draw in Data(then=...), and leave "
                "shuffling to the study."
            )
        # A sample that drew nothing was prepared under another seed, so it is prepared once more under its own.
        if index in moved or first[index].drew or not same_bits(first[index].leaves, leaves(index)):
            raise _impure(split, dataset, DRAWS.format(index) if index in moved else DIFFERS.format(index))
    # The first sample may also have done what is done only once.
    for index in () if stream else probes[1:]:
        if first[index].drew and not again[index].drew:
            raise _impure(split, dataset, KEEPS.format(index))
    if stream and not same_bits(*_second_rows(dataset, leaves)):
        raise StudyError(
            f"Data.{split}: {name_of(dataset.stream)} yields a different sample when reading starts "
            "at the second row of a shard than when it continues from the first. Let read(shard, row) start at "
            "sample `row` and skip those before it."
        )
    return Facts(
        length=length,
        layout=layout,
        fingerprint=fingerprint_of([first[probes[0]].leaves, first[probes[-1]].leaves]),
        gathers=_can_gather(dataset, {index: reading.leaves for index, reading in first.items()}),
        seconds_per_sample=seconds,
        constant=not differ and any(one.leaves and not one.drew for one in first.values()),
        files=files_of_split(dataset),
    )


def _impure(split: str, dataset: Any, problem: str) -> StudyError:
    """Return the error for a Dataset whose samples depend on more than their seeds."""
    return StudyError(
        f"Data.{split} ({type(unwrap_padding(dataset)).__name__}) {problem}. Draw from `random`, `numpy.random` or torch's default "
        "generator (seeded for every sample), or derive the generator's seed from the index; write only into copies. Seed transforms of a "
        "library at each call: set_random_seed(random.getrandbits(32)) of Albumentations, set_random_state(random.getrandbits(32)) of MONAI."
    )


def _second_rows(shards: ShardedStream, leaves: Callable[..., Leaves]) -> tuple[Leaves, Leaves]:
    """Return the second sample of a shard twice: read after the first, and read from there. Empty lists if the stream cannot begin at a row."""
    index = shards.second
    if index is None:
        return [], []
    shards.close()
    leaves(index - 1)
    read_on = leaves(index)
    shards.close()
    return read_on, leaves(index)


def dataset_length(preparing: SamplePreparer) -> int:
    """Return the number of samples of a Dataset. Raises StudyError if there are none."""
    dataset, split = preparing.dataset, preparing.split
    try:
        length = len(dataset)
    except USER_ERRORS as error:  # the user's code
        raise StudyError(
            f"Data.{split}: {type(unwrap_padding(dataset)).__name__} does not report its number of samples: len() raised "
            f"{error!r}. Pass a map-style Dataset with __len__ and __getitem__."
        ) from error
    if length == 0:
        raise StudyError(
            f"Data.{split} is empty: the len() of {type(unwrap_padding(dataset)).__name__} is 0. Add samples to it."
        )
    return length


def parts_of(preparing: SamplePreparer) -> list[Any]:
    """Return what may own generators: the Dataset, `Data.then`, and objects outside of them that their code names."""
    given = [unwrap_padding(one) for one in (preparing.dataset, preparing.then)]
    return [*given, *itertools.chain.from_iterable(map(outside_parts, given))]


def check_draws(
    preparing: SamplePreparer, facts: Facts, place: tuple[int, Sequence[int]], generators: list[Any]
) -> None:
    """Raise StudyError if one of these samples (epoch, indices) moves a generator on, and does not seed it first."""
    epoch, indices = place
    leaves = _leaves_of(preparing, facts.base, facts.layout)
    for index in indices:
        leaves(index, epoch)
        before = states_of(generators)
        leaves(index, epoch)
        if states_of(generators) != before:
            raise _impure(preparing.split, preparing.dataset, DRAWS.format(index))


def check_same_data(facts: Facts, preparing: SamplePreparer) -> None:
    """Raise StudyError unless a Dataset that was opened again in another process equals the one that was probed."""
    dataset, split, length = preparing.dataset, preparing.split, dataset_length(preparing)
    leaves = _leaves_of(preparing, facts.base, facts.layout)
    probes = _probes(dataset, length)
    if length != facts.length or fingerprint_of([leaves(probes[0]), leaves(probes[-1])]) != facts.fingerprint:
        raise StudyError(
            f"Data.{split}: {type(unwrap_padding(dataset)).__name__} differs each time it is opened (now {length} samples, "
            f"earlier {facts.length}). Each loader worker opens its own because it leaves files or connections "
            "open. Return the same samples in the same order: sort listed files, and seed random draws."
        )


def _probes(dataset: Any, length: int) -> list[int]:
    return dataset.probes if isinstance(dataset, ShardedStream) else sorted({0, length // 2, length - 1})


def fingerprint_of(samples: Iterable[Leaves]) -> str:
    """Return the SHA-256 over these samples."""
    digest = hashlib.sha256()
    for leaves in samples:
        for leaf in leaves:
            digest.update(host_bytes(leaf))
    return digest.hexdigest()


def _leaves_of(preparing: SamplePreparer, base: Layout | None, layout: Layout) -> Callable[..., Leaves]:
    """Return a function (index, epoch=0) -> leaves of a sample. It returns no leaves for a sample that raises and may be skipped."""

    def leaves(index: int, epoch: int = 0) -> Leaves:
        try:
            read, tree = sample_leaves(preparing.prepare(base, index, epoch))
            layout.check(read, tree)
            return [leaf.clone() for leaf in read]  # a Dataset may reuse the memory for its next sample
        except USER_ERRORS as error:  # the user's code: `on_error` decides whether the run ends
            if not preparing.skip_errors:
                raise sample_error(error, preparing.split, index) from error
            return []

    return leaves


def _first_layout(preparing: SamplePreparer, base: Layout | None, length: int) -> Layout:
    for index in range(length):
        try:
            return Layout.of(preparing.prepare(base, index))
        except USER_ERRORS as error:  # as above
            if not preparing.skip_errors:
                raise sample_error(error, preparing.split, index) from error
            last = error
    raise StudyError(
        f"Data.{preparing.split}: all {length} samples raised, the last one {last!r}, so there is nothing to train "
        "on. Fix the dataset."
    ) from last


def _can_gather(dataset: Any, singly: dict[int, Leaves]) -> bool:
    """Return whether a list of samples equals the samples one by one, and draws nothing from the generators."""
    if not hasattr(dataset, "__getitems__") or not all(singly.values()):
        return False
    *others, last = singly
    indices = [last, *others]  # in ascending order it would not show that a Dataset sorts what it is asked for
    before = generator_states()
    try:
        together = [sample_leaves(sample)[0] for sample in dataset.__getitems__(indices)]
    except USER_ERRORS:  # as above: then only single samples are requested
        return False
    untouched = generator_states() == before
    return (
        untouched
        and len(together) == len(singly)
        and all(same_bits(singly[index], leaves) for index, leaves in zip(indices, together, strict=True))
    )
