"""What must be known of a Dataset before it is fed, learned from a few samples that are prepared for that alone."""

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from argosy.errors import StudyError
from argosy.stream.blocks import Layout, bytes_of, same_bits, sample_leaves
from argosy.stream.kept.cache import Location
from argosy.stream.mapped import MappedFile, files_in
from argosy.stream.own_generators import states_of_own
from argosy.stream.padding import given
from argosy.stream.samples import THROWN, Preparing, generator_states, refusal
from argosy.stream.shards import Shards

__all__ = ["Facts", "confirm", "fingerprint_of", "length_of", "probe"]

Leaves = list[torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known of one split."""

    length: int
    layout: Layout
    fingerprint: str
    """SHA-256 over two prepared samples, the first and the last of those that are probed; empty of arrays."""
    labels: str = ""
    """SHA-256 over the numbers that a Dataset has for its samples, such as labels; empty where it has none."""
    gathers: bool = False
    """Whether whole lists of samples may be asked for with ``__getitems__``."""
    seconds_per_sample: float = 0.0
    """Seconds that one core takes to prepare a sample; 0 where nothing is prepared."""
    again: bool = False
    """Whether this is validation on the training samples."""
    doubt: str = ""
    """Why validation on it may say little, in a sentence."""
    constant: bool = False
    """Whether samples may be kept: one of the first drew nothing, and is the same under another seed."""
    location: Location | None = None
    """Where samples are kept; None where they are not."""
    keeping: str = ""
    """What is kept, or why nothing is, in words."""
    base: Layout | None = None
    """Layout of the Dataset's own samples, where `Data.then` makes others of them."""
    files: tuple[MappedFile, ...] = ()
    """Files that samples are read from by maps, those that the first samples have opened among them."""
    shards: tuple[int, ...] = ()
    """Lengths of the shards of a stream that is not kept."""

    @property
    def identity(self) -> str:
        """Digest by which a study's data is known again, on another node and on disk."""
        return hashlib.sha256(f"{self.fingerprint} {self.labels}".encode()).hexdigest()

    @property
    def kept_layout(self) -> Layout:
        """Layout of what may be kept."""
        return self.base or self.layout


def probe(preparing: Preparing, *, skip_errors: bool, base: Layout | None = None) -> Facts:
    """Learn the facts of a Dataset; with a `base`, of what `Data.then` makes of its samples, which have this layout.

    A few samples are prepared twice, in another order: a difference names the dataset, which draws from a generator of its own. Where
    nothing was drawn for a sample, it is prepared under another seed the second time, and so are those of a stream that is not kept: its
    samples may draw nothing that shows.
    """
    dataset, split, length = preparing.dataset, preparing.split, length_of(preparing)
    layout = _first_layout(preparing, base, length, skip_errors=skip_errors)
    leaves = _leaves_of(preparing, base, layout, skip_errors=skip_errors)
    probes = _probes(dataset, length)
    first, drew, own = {}, {}, {}
    for index in probes:
        first[index] = leaves(index)
        drew[index] = base is not None or preparing.drew(index)  # what `then` draws is drawn in each epoch
        own[index] = states_of_own(given(dataset), preparing.then)
    started = time.perf_counter()
    stream = isinstance(dataset, Shards) and base is None
    again, moved = {}, {}
    for index in reversed(probes):
        again[index] = leaves(index, epoch=0 if drew[index] and not stream else 1)
        # Draws of one that is seeded for each index leave it where they left it before.
        moved[index] = states_of_own(given(dataset), preparing.then) != own[index]
    seconds = (time.perf_counter() - started) / len(probes)
    differ = [index for index in probes if not same_bits(first[index], again[index])]
    for index in probes if any(moved.values()) else differ:
        if stream:
            raise StudyError(
                f"Data.{split}: the {type(given(dataset.stream)).__name__} gives another sample {index} when it is read again, so that what it gives "
                "depends on where reading begins. Let Data(then=...) do what draws, and leave shuffling to the study."
            )
        if moved[index] or drew[index] or not same_bits(first[index], leaves(index)):
            found = (
                f"prepared sample {index} twice from the same seeds, and the results differ: it writes into what it holds, as into a cached tensor, "
                "or draws"
            )
            if moved[index]:
                found = f"draws for sample {index}"
            raise StudyError(
                f"Data.{split} ({type(given(dataset)).__name__}) {found} from a generator of its own. Draw from `random`, `numpy.random` or torch's "
                "default generator (seeded for every sample), or derive the generator's seed from the index; write into copies alone."
            )
    if stream and not same_bits(*_second_rows(dataset, leaves)):
        raise StudyError(
            f"Data.{split}: the {type(given(dataset.stream)).__name__} gives another sample when it begins to read at the second one of a shard than "
            "when it reads on from the first. Let read(shard, row) begin at sample `row`, past those before it."
        )
    return Facts(
        length=length,
        layout=layout,
        fingerprint=fingerprint_of([first[probes[0]], first[probes[-1]]]),
        gathers=all(first.values()) and _gathers(dataset, first),
        seconds_per_sample=seconds,
        constant=not differ and any(first[index] and not drew[index] for index in probes),
        files=files_in(dataset),
    )


def _second_rows(shards: Shards, leaves: Callable[..., Leaves]) -> tuple[Leaves, Leaves]:
    """Return the second sample of a shard, when that is read on and when reading begins there; nothing where it cannot."""
    index = shards.second
    if index is None:
        return [], []
    shards.close()
    leaves(index - 1)
    read_on = leaves(index)
    shards.close()
    return read_on, leaves(index)


def length_of(preparing: Preparing) -> int:
    """Return the number of samples of a Dataset; raises StudyError where there are none."""
    dataset, split = preparing.dataset, preparing.split
    try:
        length = len(dataset)
    except THROWN as error:  # the user's code
        raise StudyError(
            f"Data.{split}: the {type(given(dataset)).__name__} does not say how many samples it has: len() raised {error!r}. Give "
            "a map-style Dataset, with __len__ and __getitem__."
        ) from error
    if length == 0:
        raise StudyError(
            f"Data.{split} is empty: the len() of the {type(given(dataset)).__name__} is 0. Give it samples."
        )
    return length


def confirm(facts: Facts, preparing: Preparing, *, skip_errors: bool) -> None:
    """Raise StudyError unless a Dataset that was opened again, in another process, is the one that was probed."""
    dataset, split, length = preparing.dataset, preparing.split, length_of(preparing)
    leaves = _leaves_of(preparing, facts.base, facts.layout, skip_errors=skip_errors)
    probes = _probes(dataset, length)
    if length != facts.length or fingerprint_of([leaves(probes[0]), leaves(probes[-1])]) != facts.fingerprint:
        raise StudyError(
            f"Data.{split}: the {type(given(dataset)).__name__} is another one whenever it is opened (here of {length} samples, "
            f"before of {facts.length}), and each loader worker opens its own, because it leaves files or connections open. Let "
            "it give the same samples in the same order: sort what it lists, and seed what it draws."
        )


def _probes(dataset: Any, length: int) -> list[int]:
    return dataset.probes if isinstance(dataset, Shards) else sorted({0, length // 2, length - 1})


def fingerprint_of(samples: Iterable[Leaves]) -> str:
    """Return the SHA-256 over these samples."""
    digest = hashlib.sha256()
    for leaves in samples:
        for leaf in leaves:
            digest.update(bytes_of(leaf))
    return digest.hexdigest()


def _leaves_of(
    preparing: Preparing, base: Layout | None, layout: Layout, *, skip_errors: bool
) -> Callable[..., Leaves]:
    """Return a function (index, epoch=0) -> leaves of a sample; none for one that raises and may be skipped."""

    def leaves(index: int, epoch: int = 0) -> Leaves:
        try:
            found, tree = sample_leaves(preparing.made(base, index, epoch))
            layout.check(found, tree)
            return [leaf.clone() for leaf in found]  # a Dataset may write into what it returned, when it is asked again
        except THROWN as error:  # the user's code: the run's contract decides what it does to the run
            if not skip_errors:
                raise refusal(error, preparing.split, index) from error
            return []

    return leaves


def _first_layout(preparing: Preparing, base: Layout | None, length: int, *, skip_errors: bool) -> Layout:
    for index in range(length):
        try:
            return Layout.of(preparing.made(base, index))
        except THROWN as error:  # as above
            if not skip_errors:
                raise refusal(error, preparing.split, index) from error
            last = error
    raise StudyError(
        f"Data.{preparing.split}: each of the {length} samples raised, the last one {last!r}; there is nothing to train on. Mend the "
        "dataset."
    ) from last


def _gathers(dataset: Any, singly: dict[int, Leaves]) -> bool:
    """Return whether a list of samples equals the samples one by one, and draws nothing from the generators."""
    if not hasattr(dataset, "__getitems__"):
        return False
    before = generator_states()
    try:
        together = [sample_leaves(sample)[0] for sample in dataset.__getitems__(list(singly))]
    except THROWN:  # as above: it is asked for single samples, as if it had no lists
        return False
    untouched = generator_states() == before
    return untouched and len(together) == len(singly) and all(map(same_bits, singly.values(), together))
