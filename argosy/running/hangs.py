"""Notices workers that are there and do nothing: pure bookkeeping over what they say."""

import time
from collections.abc import Iterable
from typing import Any

from argosy.commands import Progress

__all__ = ["Hangs"]


class Hangs:
    """A trainer that says nothing for so long hangs in a step; where all trainers only wait for data, their feeder does."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.heard: dict[str, float] = {}
        self.blocks: dict[str, tuple[int, float]] = {}
        self.feeder_of: dict[str, str | None] = {}

    def watch(self, feeder: str | None, trainers: Iterable[str]) -> None:
        """From here on these trainers have work from this feeder; without trainers, nobody has."""
        trainers = tuple(trainers)
        if not trainers:
            self.feeder_of.clear()
        for trainer in trainers:
            self.feeder_of[trainer] = feeder
            self.heard[trainer] = time.monotonic()
            self.blocks[trainer] = (-1, time.monotonic())

    def hear(self, worker: str, message: Any) -> None:
        """Note a sign of life."""
        self.heard[worker] = time.monotonic()
        if isinstance(message, Progress) and message.blocks != self.blocks.get(worker, (-1, 0.0))[0]:
            self.blocks[worker] = (message.blocks, time.monotonic())

    def hanging(self) -> list[str]:
        """Workers to be ended; each is named once."""
        now = time.monotonic()
        silent = [t for t in self.feeder_of if now - self.heard[t] > self.seconds]
        for trainer in silent:
            del self.feeder_of[trainer]
        hungry = {
            feeder
            for feeder in self.feeder_of.values()
            if feeder is not None
            and all(now - self.blocks[t][1] > self.seconds for t, f in self.feeder_of.items() if f == feeder)
        }
        self.feeder_of = {t: f for t, f in self.feeder_of.items() if f not in hungry}
        return [*silent, *sorted(hungry)]
