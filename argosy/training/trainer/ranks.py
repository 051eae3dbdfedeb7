"""Steps the split members of a trainer: interleaves the halves of their steps with steps of whole instances, in the merged order."""

import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
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
from argosy.training.trainer.program_instances import ProgramInstance

__all__ = ["Ranks"]


@dataclass(eq=False)
class Ranks:
    """Steps the split members of one trainer.

    If a member's group is broken or a sum hangs, the member stops, and so does its device if it has no other work, until the driver
    decides. The driver notices that a rank has left the group, or that no rank makes progress.
    """

    _guard: Guard
    _heartbeat: Heartbeat
    _emit: Callable[[Any], None]
    _: KW_ONLY
    step: Callable[[ProgramInstance, Block], bool]
    """Makes one step of a whole instance; returns whether it has finished the block."""
    stepped: Callable[[ProgramInstance], None]
    """Ends members whose loss is not finite, after a step."""
    called: Callable[[], bool]
    """Returns whether a command is pending; polled after moves and while waiting."""
    waited: float = field(default=0.0, init=False)
    """Seconds spent only waiting for other devices."""
    _reported: set[str] = field(default_factory=set, init=False)
    """Rendezvous of groups that were reported as broken."""

    def through(self, instances: Sequence[ProgramInstance], assigned: Container[str], block: Block) -> bool:
        """Run the steps whose batches a training block completes. Returns False if a command interrupted it; call it again for the rest.

        Members that end meanwhile are removed from `assigned`.
        """
        following = [instance for instance in instances if instance.follow(block.place)]
        split = {instance.names[0]: instance for instance in following if instance.shard is not None}
        # The copies are on the device itself, because other members step between two begins, and a changed block would not
        # show which member wrote.
        shown = {name: instance.watch.shown(block, apart=False) for name, instance in split.items()}
        whole = deque(instance for instance in following if instance.shard is None)
        through = self._make_moves(split, whole, assigned, block, shown)
        for name, instance in split.items():
            if instance.watch.restore_if_written(shown[name], block) and name in assigned:
                self._guard(name, partial(instance.watch.refuse, name))
        return through

    def _make_moves(
        self,
        split: Mapping[str, ProgramInstance],
        whole: deque[ProgramInstance],
        assigned: Container[str],
        block: Block,
        shown: Mapping[str, Block],
    ) -> bool:
        shards = {name: instance.shard for name, instance in split.items() if instance.shard is not None}
        cuts = {name: shard.cut(shown[name]) for name, shard in shards.items()}
        for move, name in moves(shards, block, lambda: bool(whole)):
            if move is Move.WAIT:
                self._wait(name, shards[name])
            elif move is Move.WHOLE:
                if self.step(whole[0], block):
                    whole.popleft()
                    continue  # it may have rested, without a step that could be interrupted
            else:
                self._step_half(split[name], shards[name], cuts[name], move)
                if name not in assigned:
                    del shards[name]
            if self.called():
                return False
        for name in shards:
            next(cuts[name], None)  # gathers the first samples of a batch that a later block completes
        return True

    def _step_half(self, instance: ProgramInstance, shard: Shard, cut: Iterator[Batch], move: Move) -> None:
        half = partial(_begin, shard, cut) if move is Move.BEGIN else partial(_finish, instance, shard)
        with self._heartbeat.busy(f"training {instance.description}"), instance.watch.steps():
            done = self._guard(instance.names[0], half)
        if move is Move.FINISH and done:
            self.stepped(instance)

    def _wait(self, name: str, shard: Shard) -> None:
        """Wait until the next half is ready, or a command is pending."""
        started = time.perf_counter()
        doing = f"waiting for the other devices of member {name!r} in its step {shard.live.steps + 1}"
        with self._heartbeat.waiting(doing):
            while shard.waits and not self.called():
                self._report_if_broken(name, shard.group)
                time.sleep(POLL_SECONDS)
        self.waited += time.perf_counter() - started

    def _report_if_broken(self, name: str, group: Group) -> None:
        if group.broken and group.rendezvous not in self._reported:
            self._reported.add(group.rendezvous)
            self._emit(Broke(member=name, detail=group.broken))


def _begin(shard: Shard, cut: Iterator[Batch]) -> bool:
    with shard.active():
        shard.begin(next(cut))
    return True


def _finish(instance: ProgramInstance, shard: Shard) -> bool:
    with shard.active():
        instance.samples += shard.finish()
    return True
