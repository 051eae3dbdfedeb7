"""Tests feeders in processes of their own; the test sends them the driver's messages."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import studies

import argosy
import argosy.stream.feed as feeding
from argosy.protocol.events import Used
from argosy.protocol.feeder import Credit, Feed, Leg, Lend, Open, Opened, Team
from argosy.protocol.trainer import Exit
from argosy.settings import Settings
from argosy.stream.feed import feed
from argosy.stream.heartbeat import MAX_LOADERS, Heartbeat
from argosy.stream.ring import RingReader
from argosy.stream.wire import Peer

NODES = 2


class Slow(studies.Vectors):
    """A dataset that takes 30 ms for a block of 16."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(index)


def live(driver: Peer, number: int) -> None:
    """Run a feeder; the one of the first node is slow."""
    data = argosy.Data(train=Slow(4096) if number == 0 else studies.Vectors(4096))
    settings = Settings(nodes=NODES, block_size=16, loader_workers=0)
    feed(
        driver,
        lambda: data,
        settings,
        name=f"node{number}/feeder-0",
        seed=0,
        per_epoch=1,
        cores=1,
        heartbeat=Heartbeat.private(),
        keep_bytes=0,
    )


def read(reader: RingReader, arrived: list[int]) -> None:
    """Act as a trainer that only records the leg of each block."""
    with contextlib.suppress(EOFError):
        while True:
            # No view of a block is kept, so its slot is free again at once.
            arrived += [block.place.leg for block, _ in reader.blocks()]
            select.select([reader.peer], [], [])


@contextmanager
def feeders() -> Iterator[list[tuple[Any, Peer, list[int]]]]:
    """Start a feeder on each node, with open data and a trainer; yield (process, driver's end, legs of its blocks) of each."""
    context, found = get_context("fork"), []
    for number in range(NODES):
        ours, theirs = Peer.pair()
        process = context.Process(target=live, args=(theirs, number))
        process.start()
        theirs.close()
        found.append((process, ours, list[int]()))
    try:
        for _, driver, arrived in found:
            driver.send(Open())
            (opened,) = driver.wait(30)
            assert isinstance(opened, Opened)
            here, there = Peer.pair()
            driver.send(Lend(reader="trainer"), [there.fileno()])
            there.close()
            reader = RingReader(here)
            threading.Thread(target=read, args=(reader, arrived)).start()
        yield found
    finally:
        for process, driver, _ in found:
            driver.close()
            process.kill()
            process.join()


def last_word(driver: Peer) -> Used:
    """Send Exit and return the feeder's answer, ignoring earlier messages."""
    driver.send(Exit())
    while said := driver.wait(10):
        for found in said:
            if isinstance(found, Used):
                return found
    pytest.fail("the feeder says nothing")


def test_a_feeder_forgets_its_exchange_in_the_middle_of_what_it_says(tmp_path: Path) -> None:
    with feeders() as found:
        for number in range(8):
            endless = Leg(number=number, section=0, position=0)
            credit = Credit(leg=number, until=10**6, horizon=None, assignments={"trainer": 1})
            for rank, (_, driver, _) in enumerate(found):
                team = Team(
                    sharing="all-shared",
                    preparing=NODES,
                    rank=rank,
                    nodes=NODES,
                    key=str(number),
                    rendezvous=str(tmp_path / str(number)),
                )
                driver.send(Feed(leg=endless, team=team))
                driver.send(credit)
            deadline = time.monotonic() + 60
            while any(number not in arrived for _, _, arrived in found):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            # The second node waits for a block. It is stopped meanwhile, so that it receives the driver's message and the later
            # one of its exchange process at once.
            (_, slow, _), (process, fast, _) = found
            os.kill(process.pid, signal.SIGSTOP)
            fast.send(Feed(leg=Leg.empty()))
            time.sleep(0.1)
            os.kill(process.pid, signal.SIGCONT)
            slow.send(Feed(leg=Leg.empty()))
        for _, driver, _ in found:
            assert last_word(driver).gauge["exchanged_bytes"] > 0


class Asked(Exception):  # noqa: N818
    """Raised with the number of loaders that were asked for."""


def test_with_very_many_cores_there_are_no_more_loaders_than_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(count: int, *_: Any, hang_up: Any, **__: Any) -> None:
        hang_up()
        raise Asked(count)

    monkeypatch.setattr(feeding, "open_for", asked)
    driver, theirs = Peer.pair()
    driver.send(Open())
    how = {"name": "feeder", "seed": 0, "per_epoch": 1, "heartbeat": Heartbeat.private(), "keep_bytes": 0}
    with pytest.raises(Asked, match=str(MAX_LOADERS)):
        feed(theirs, lambda: None, Settings(), cores=5 * MAX_LOADERS, **how)
