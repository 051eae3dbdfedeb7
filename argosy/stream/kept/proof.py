"""Learn the facts of a Dataset when it is opened: from kept rows, which a few samples prove, or by probing it.

Whatever the key says, a few kept samples are prepared again at each opening and compared bit by bit. If one differs, all rows are deleted.
"""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from argosy.errors import RunError
from argosy.errors.traces import USER_ERRORS
from argosy.stream.blocks import Layout, same_bits, sample_leaves
from argosy.stream.kept.cache import Entry, Location, RowCache, make_header
from argosy.stream.kept.keys import Key, make_key
from argosy.stream.kept.rows import Rows, read_marks
from argosy.stream.kept.witnesses import Witnesses
from argosy.stream.mapped import files_of_split
from argosy.stream.probing import Facts, dataset_length, probe
from argosy.stream.samples import SamplePreparer
from argosy.stream.trees import unflatten
from argosy.stream.value_text import UnreadableContent

__all__ = ["Prover"]

SAMPLES_VERIFIED = 3
"""Number of samples that are prepared again at each opening."""
NOT_KEPT = (
    "drawn again in each epoch, so nothing is kept. Move the random part to Data(then=...); the rest is then "
    "prepared only once"
)


@dataclass(frozen=True, slots=True)
class Prover:
    """Learns the facts of the splits of one study's data."""

    cache: RowCache | None
    """Cache of kept rows; None to keep none."""
    keys: dict[int, Key | UnreadableContent] = field(default_factory=dict)
    """Keys by the identity of the Dataset, which two splits may share."""

    def facts(self, preparing: SamplePreparer) -> Facts:
        """Return the facts of a split."""
        return self.facts_after_then(preparing, self._dataset_facts(preparing))

    def facts_after_then(self, preparing: SamplePreparer, facts: Facts) -> Facts:
        """Return the facts of a split after `Data.then`, if there is one, from the facts of the Dataset's own samples."""
        if preparing.then is None:
            return facts
        finished = probe(preparing, facts.layout)
        return replace(
            finished, gathers=facts.gathers, location=facts.location, base=facts.layout, keeping=facts.keeping
        )

    def _dataset_facts(self, preparing: SamplePreparer) -> Facts:
        if self.cache is None:
            return probe(preparing)
        key = self.keys.get(id(preparing.dataset)) or _key(preparing.dataset)
        self.keys[id(preparing.dataset)] = key
        if isinstance(key, UnreadableContent):
            return _in_memory(probe(preparing), str(id(preparing.dataset)), f"it contains {key}")
        try:
            return self._kept_facts(preparing, self.cache, key)
        except (OSError, RunError) as error:
            return _in_memory(probe(preparing), key.name, str(error))

    def _kept_facts(self, preparing: SamplePreparer, cache: RowCache, key: Key) -> Facts:
        entry = cache.look_up(key, dataset_length(preparing))
        why = self._verify_kept(preparing, cache, key, entry) if isinstance(entry, Entry) else entry
        if isinstance(why, Facts):
            return why
        facts = probe(preparing)
        begun = (_empty_rows(entry, facts) or _create_rows(cache, key, facts)) if facts.constant else None
        if begun is None:
            return _in_memory(facts, key.name, "there is no room on the disk")
        folder, count = begun
        Witnesses(folder, key.roots).add()
        location = Location(name=folder.name, folder=folder, count=count, roots=key.roots)
        return replace(facts, location=location, keeping=f"prepared once and kept from now on ({why})")

    def _verify_kept(self, preparing: SamplePreparer, cache: RowCache, key: Key, entry: Entry) -> Facts | str:
        """Return the facts from the header if preparing some kept samples again gives the same bits; else the reason in words."""
        folder, header = entry.folder, entry.header
        marks = read_marks(folder)[: header.count]
        kept = marks.nonzero()[0].tolist()
        if not kept:
            return "nothing is kept of it yet"
        indices = random.SystemRandom().sample(kept, min(SAMPLES_VERIFIED, len(kept)))
        rows: Rows | None = None
        layout: Layout | None = None
        for index in indices:
            try:
                leaves, tree = sample_leaves(preparing(index))
                layout = layout or Layout.of(unflatten(leaves, tree))
                layout.check(leaves, tree)
            except USER_ERRORS:  # the user's code: raised again when the sample is requested
                leaves = []
            if rows is None and layout is not None and header.fits(layout):
                rows = Rows.open(folder, layout, header.count)
                if rows is None:
                    return "another machine is using the kept samples"
            if rows is None or not same_bits(leaves, rows.row(index)):
                cache.discard(folder)
                return (
                    f"sample {index} differs from the kept one, although nothing that it depends on seems to have "
                    "changed"
                )
        assert layout is not None
        complete = len(marks) == header.length and bool(marks.all())
        return Facts(
            length=header.length,
            layout=layout,
            fingerprint=header.fingerprint,
            gathers=header.gathers,
            seconds_per_sample=0.0 if complete else header.seconds_per_sample,
            files=files_of_split(preparing.dataset),
            constant=True,
            location=Location(name=folder.name, folder=folder, count=header.count, roots=key.roots),
            keeping=f"{len(kept):,} of {header.length:,} kept by earlier runs",
        )


def _empty_rows(entry: Entry | str, facts: Facts) -> tuple[Path, int] | None:
    """Return a folder of rows that has none yet, for example one created for another split of the same Dataset."""
    if isinstance(entry, str) or not entry.folder.exists() or not entry.header.fits(facts.layout):
        return None
    return entry.folder, entry.header.count


def _create_rows(cache: RowCache, key: Key, facts: Facts) -> tuple[Path, int] | None:
    """Return a folder for the rows, and the number of rows for which it has room; None if there is no room."""
    sample_bytes = max(facts.layout.sample_bytes, 1)
    count = cache.room(facts.length * sample_bytes) // sample_bytes
    folder = cache.create(key, make_header(key, facts, count), facts.layout) if count else None
    return None if folder is None else (folder, count)


def _key(dataset: Any) -> Key | UnreadableContent:
    try:
        return make_key(dataset)
    except UnreadableContent as error:
        return error


def _in_memory(facts: Facts, name: str, why: str) -> Facts:
    """Return the facts of samples that are kept in memory, or not at all because they are drawn again in each epoch."""
    if not facts.constant:
        return replace(facts, keeping=NOT_KEPT)
    location = Location(name=name, folder=None, count=facts.length)
    return replace(facts, location=location, keeping=f"prepared once and kept in memory, for this run only: {why}")
