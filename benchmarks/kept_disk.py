"""One delivery of samples by loader workers without a trainer: prepared anew, written, from memory or from disk. Part of `kept.py`."""

import argparse
import json
import resource
import selectors
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kept_photographs import Several

import argosy
from argosy.stream.blocks import Place
from argosy.stream.gauges import StreamGauge
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept.cache import RowCache
from argosy.stream.opening import open_kept_rows, open_sources
from argosy.stream.order import split_order
from argosy.stream.preparation import Preparation
from argosy.stream.ring import Ring
from argosy.stream.schedule import choose_block_size
from argosy.stream.sources import Source

LOADERS, SLOTS = 2, 6
ALL_OF_IT = 2**40
"""A memory budget in which any rows fit."""


def preparation_of(sources: dict[str, Source], block_size: int) -> tuple[Preparation, selectors.BaseSelector]:
    """Return preparation as a feeder has it, and a selector that hears its workers."""
    selector = selectors.DefaultSelector()
    ring = Ring(slots=SLOTS, slot_bytes=sources["train"].layout.block_bytes(block_size))
    preparation = Preparation(
        ring,
        sources,
        StreamGauge(),
        Heartbeat.private(),
        selector,
        wanted_loaders=LOADERS,
    )
    return preparation, selector


def places(count: int, block_size: int) -> Iterator[Place]:
    """Yield the first blocks of an epoch."""
    for start in range(0, count, block_size):
        rows = min(block_size, count - start)
        yield Place(leg=0, split="train", epoch=0, section=0, start=start, rows=rows, last=start + rows == count)


def deliver(sources: dict[str, Source], count: int) -> tuple[float, StreamGauge]:
    """Deliver `count` samples of an epoch into blocks without readers; return the seconds that it took."""
    block_size = choose_block_size(sources["train"].layout)
    preparation, selector = preparation_of(sources, block_size)
    if sources["train"].parallel:
        for _ in range(LOADERS):
            preparation.start_loader()
    order = split_order(0, "train", 0, sources["train"].length)
    left, began, more = places(count, block_size), time.perf_counter(), True
    while more or preparation.filling:
        while more and preparation.free:
            place = next(left, None)
            more = place is not None
            if place is not None:
                preparation.start(place, order[place.start : place.start + place.rows], ())
        at_once = preparation.dispatch()
        for key, _ in selector.select(timeout=0) if at_once else selector.select():
            key.data()
        while preparation.filling and not preparation.filling[0].missing:
            preparation.free.append(preparation.filling.popleft().slot)
    seconds = time.perf_counter() - began
    preparation.end()
    return seconds, preparation.gauge


def read_bytes() -> int:
    """Return the bytes that this process and its children have read from disk."""
    return 512 * sum(resource.getrusage(who).ru_inblock for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", type=Path, help="folder of the photographs")
    parser.add_argument("rows", type=Path, help="folder of the kept rows")
    parser.add_argument("how", choices=("anew", "write", "memory", "disk"))
    parser.add_argument("--times", type=int, required=True, help="how often each photograph is a sample")
    parser.add_argument("--samples", type=int, required=True, help="samples to deliver")
    options = parser.parse_args()
    data = argosy.Data(train=Several(options.train, options.times), keep=options.how != "anew")
    cache = RowCache(options.rows) if data.keep else None
    sources = open_sources(data, seed=0, cache=cache)
    sample_bytes = sources["train"].layout.sample_bytes
    open_kept_rows(sources, options.samples * sample_bytes if options.how == "disk" else ALL_OF_IT)
    before = read_bytes()
    seconds, gauge = deliver(sources, options.samples)
    result: dict[str, Any] = {
        "seconds": seconds,
        "samples": options.samples,
        "sample_bytes": sample_bytes,
        "prepared": gauge.prepared,
        "read_bytes": read_bytes() - before,
        "cpu_seconds": gauge.preparation_cpu_seconds,
    }
    if sources["train"].kept is not None:
        sources["train"].kept.commit()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
