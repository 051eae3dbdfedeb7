"""Arrays: the samples per second that reach 32 members through ring and cutters, compared with a DataLoader over the same data.

Training is stripped on both sides (peak(n) of SC'18): members take every batch and do nothing with it.
"""

import multiprocessing
import os
import select
import time
from functools import partial
from typing import Any

import torch
from measuring import arguments, finish, hardware, quartiles, target
from torch.utils.data import DataLoader, TensorDataset

from argosy import Data
from argosy.protocol.feeder import Credit, Feed, Leg, Lend, Open
from argosy.running.launch.blobs import load_blob, write_data_blob
from argosy.settings import Settings
from argosy.stream.batches import Cutter, InOrderCutter
from argosy.stream.blocks import Block
from argosy.stream.feed import feed
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.order import Selection
from argosy.stream.ring import RingReader
from argosy.stream.schedule import Orders
from argosy.stream.wire import Peer

LENGTH, FEATURES, MEMBERS, BATCH = 100_000, 64, 32, 64


def loader_rate(x: torch.Tensor, y: torch.Tensor, workers: int) -> float:
    """Return the samples per second of one epoch of a DataLoader."""
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, num_workers=workers)
    began, samples = time.perf_counter(), 0
    for batch, _ in loader:
        samples += len(batch)
    return samples / (time.perf_counter() - began)


def argosy_rate(x: torch.Tensor, y: torch.Tensor, epochs: int) -> float:
    """Return the samples per second that all members receive in one process per core, as in trainers."""
    readers = tuple(f"reader-{number}" for number in range(len(os.sched_getaffinity(0))))
    context = multiprocessing.get_context("fork")
    ours, theirs = Peer.pair()
    data, _ = write_data_blob(Data(arrays=(x, y)))
    feeder = context.Process(target=run_feeder, args=(theirs, data))
    feeder.start()
    ours.send(Open())
    ours.wait()
    results = context.SimpleQueue()
    share = MEMBERS // len(readers)
    processes = []
    for name in readers:
        here, there = Peer.pair()
        ours.send(Lend(reader=name), [there.fileno()])
        there.close()
        processes.append(context.Process(target=run_reader, args=(here, share, epochs, results)))
        processes[-1].start()
        here.close()
    ours.send(Feed(leg=Leg(number=0, section=0, position=0)))
    ours.send(Credit(leg=0, until=epochs, horizon=epochs, assignments=dict.fromkeys(readers, 1)))
    found = [results.get() for _ in readers]
    for process in (*processes, feeder):
        process.kill()
        process.join()
    began, ended = min(began for began, _, _ in found), max(ended for _, ended, _ in found)
    return sum(delivered for _, _, delivered in found) / (ended - began)


def run_reader(feeder: Peer, members: int, epochs: int, results: Any) -> None:
    """Run a trainer whose members do nothing; report when it began and ended, and the samples that they received."""
    torch.set_num_threads(1)
    reader = RingReader(feeder)
    orders, selection = Orders(0, {"train": LENGTH}), Selection.of(None, LENGTH)
    delivered, began, cutters = 0, time.perf_counter(), list[Cutter]()
    over = False
    while not over:
        select.select([reader.peer], [], [])
        for block, _ in reader.blocks():
            if not cutters or cutters[0].done:
                order = orders.epoch("train", block.place.epoch)
                cutters = [
                    InOrderCutter(selection=selection, order=order, batch_size=BATCH, drop_last=False)
                    for _ in range(members)
                ]
            delivered += sum(_rows(cutter, block) for cutter in cutters)
            over = cutters[0].done and block.place.epoch == epochs - 1
            del block  # it goes back to the ring
    results.put((began, time.perf_counter(), delivered))


def _rows(cutter: Cutter, block: Block) -> int:
    """Return the samples in a member's batches of a block."""
    rows = 0
    for batch in cutter.take(block):
        rows += batch.rows
        cutter.commit(batch)
    return rows


def run_feeder(driver: Peer, data: int) -> None:
    torch.set_num_threads(1)
    opened = partial(load_blob, data)
    who: dict[str, Any] = {"name": "feeder-0", "heartbeat": Heartbeat.private()}
    cores = len(os.sched_getaffinity(0))
    feed(driver, opened, Settings(), **who, seed=0, per_epoch=1, cores=cores, keep_bytes=0)


def main() -> None:
    options = arguments(__doc__).parse_args()
    print(hardware())
    torch.set_num_threads(1)
    x, y = torch.randn(LENGTH, FEATURES), torch.arange(LENGTH) % 10
    ratios, loaders = [], []
    for _ in range(options.rounds):
        loaders.append(max(loader_rate(x, y, 0), loader_rate(x, y, 2)))
        ratios.append(argosy_rate(x, y, 3) / loaders[-1])
    print(f"DataLoader (the faster of 0 and 2 workers): {quartiles(loaders)[1]:,.0f} samples/s")
    targets = [target(f"samples/s delivered to {MEMBERS} members, against one DataLoader", ratios, at_least=50.0)]
    finish("fast_path", {"dataloader_samples_per_second": loaders}, targets, as_json=options.json)


if __name__ == "__main__":
    main()
