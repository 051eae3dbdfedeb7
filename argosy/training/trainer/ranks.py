"""The split members aboard a trainer: their halves among the steps of whole units, in the merged order."""

import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from argosy.protocol.trainer import Broke
from argosy.stream.batches import Batch
from argosy.stream.blocks import Block
from argosy.stream.heartbeat import Heartbeat
from argosy.training.programs.shard.parallel import POLL_SECONDS, Group
from argosy.training.programs.shard.shard import Shard
from argosy.training.trainer.guard import Guard
from argosy.training.trainer.merged import Move, moves
from argosy.training.trainer.units import Unit

__all__ = ["Ranks"]


class Ranks:
    """Of one trainer.

    A member whose group is broken, or whose sum hangs, stands still, and its device with it where it has nothing else to do, until
    the driver says what becomes of it: that is on its way, as somebody has left the group, or nobody does anything for too long.
    """

    def __init__(
        self,
        guard: Guard,
        heartbeat: Heartbeat,
        emit: Callable[[Any], None],
        *,
        step: Callable[[Unit, Block], bool],
        stepped: Callable[[Unit, int], None],
        called: Callable[[], bool],
    ) -> None:
        self._guard = guard
        self._heartbeat = heartbeat
        self._emit = emit
        self._step = step
        """Lets a whole unit make one step; whether it is through with the block."""
        self._stepped = stepped
        """Takes note of samples that were stepped on."""
        self._called = called
        """After every move, and while it waits: whether a command does."""
        self.waited = 0.0
        """Seconds without anything to do but wait for other devices."""
        self._told: set[str] = set()
        """Rendezvous of the groups that were said to be broken."""

    def through(self, units: Sequence[Unit], assigned: Container[str], block: Block) -> bool:
        """Run the steps that a training block completes; False where it was called away, and is to come back for the rest.

        Members that end meanwhile are no more `aboard`.
        """
        here = [unit for unit in units if unit.follow(block.place)]
        split = {unit.names[0]: unit for unit in here if unit.shard is not None}
        # Copies on the device itself: others step between two begins of a member, so what a block held before would not tell whose a
        # write was.
        shown = {name: unit.watch.shown(block, apart=False) for name, unit in split.items()}
        through = self._moves(split, deque(unit for unit in here if unit.shard is None), assigned, block, shown)
        for name, unit in split.items():
            if unit.watch.wrote(shown[name], block) and name in assigned:
                self._guard(name, partial(unit.watch.refuse, name))
        return through

    def _moves(
        self,
        split: Mapping[str, Unit],
        whole: deque[Unit],
        assigned: Container[str],
        block: Block,
        shown: Mapping[str, Block],
    ) -> bool:
        shards = {name: unit.shard for name, unit in split.items() if unit.shard is not None}
        cuts = {name: shard.cut(shown[name]) for name, shard in shards.items()}
        for move, name in moves(shards, block, lambda: bool(whole)):
            if move is Move.WAIT:
                self._wait(name, shards[name])
            elif move is Move.WHOLE:
                if self._step(whole[0], block):
                    whole.popleft()
            else:
                self._half(split[name], shards[name], cuts[name], move)
                if name not in assigned:
                    del shards[name]
            if self._called():
                return False
        for name in shards:
            next(cuts[name], None)  # the beginning of a batch that a later block completes is gathered
        return True

    def _half(self, unit: Unit, shard: Shard, cut: Iterator[Batch], move: Move) -> None:
        before = unit.samples
        with self._heartbeat.busy(f"training {unit.words}"), unit.watch.steps():
            done = self._guard(
                unit.names[0], partial(_begin, shard, cut) if move is Move.BEGIN else partial(_finish, unit, shard)
            )
        if move is Move.FINISH and done:
            self._stepped(unit, unit.samples - before)

    def _wait(self, name: str, shard: Shard) -> None:
        """Until its next half need not wait, or a command does."""
        started = time.perf_counter()
        with self._heartbeat.waiting(
            f"waiting for the other devices of member {name!r} in its step {shard.live.steps + 1}"
        ):
            while shard.waits and not self._called():
                self._tell_if_broken(name, shard.group)
                time.sleep(POLL_SECONDS)
        self.waited += time.perf_counter() - started

    def _tell_if_broken(self, name: str, group: Group) -> None:
        if group.broken and group.rendezvous not in self._told:
            self._told.add(group.rendezvous)
            self._emit(Broke(member=name, detail=group.broken))


def _begin(shard: Shard, cut: Iterator[Batch]) -> bool:
    with shard.active():
        shard.begin(next(cut))
    return True


def _finish(unit: Unit, shard: Shard) -> bool:
    with shard.active():
        unit.samples += shard.finish()
    return True
