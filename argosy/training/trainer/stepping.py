"""Steps all instances of a trainer on one block: one instance after another, or in the merged order if there are split members.

A pass gives every instance its turn. Some steps may be left, because a command is pending or an instance has completed a timed round. They are
made in the next pass, after instances have changed programs (`ProgramChoice.settle`).

If a split member's group is broken or a sum hangs, the member stops, and so does its device if it has no other work, until the driver
decides. The driver notices that a rank has left the group, or that no rank makes progress.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from argosy.protocol.trainer import Broke
from argosy.stream.batches import Batch
from argosy.stream.blocks import Block
from argosy.stream.heartbeat import Heartbeat
from argosy.training.device.attempts import attempt
from argosy.training.programs.graphed.graphed import run_concurrently
from argosy.training.programs.program import MemberFaults
from argosy.training.programs.shard.parallel import POLL_SECONDS, Group
from argosy.training.programs.shard.shard import Shard
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.guard import Guard
from argosy.training.trainer.merged import Move, moves
from argosy.training.trainer.program_choice import ProgramChoice
from argosy.training.trainer.program_instances import ProgramInstance

__all__ = ["Stepping"]


@dataclass(eq=False)
class Stepping:
    """Steps the instances and members of one trainer."""

    _instances: list[ProgramInstance]
    _assigned: Mapping[str, AssignedMember]
    _program_choice: ProgramChoice
    _guard: Guard
    _heartbeat: Heartbeat
    _emit: Callable[[Any], None]
    _: KW_ONLY
    wanted: Callable[[], bool]
    """Returns whether there is something to do between two steps."""
    _left: bool = field(default=False, init=False)
    """Whether a whole instance beside split members has left steps of the block for the next pass."""
    _interrupted: bool = field(default=False, init=False)
    """Whether there was something to do after the last step of this pass."""
    _waited: float = field(default=0.0, init=False)
    """Seconds spent only waiting for other devices."""
    _reported: set[str] = field(default_factory=set, init=False)
    """Rendezvous of groups that were reported as broken."""

    def through(self, block: Block) -> bool:
        """Give every instance its turn; returns False if steps of the block are left."""
        trains = block.place.split == "train"
        if trains and not self._guard.careful:
            self._program_choice.form_groups(block)
        if trains and any(instance.shard for instance in self._instances):
            return self._step_beside_split(block)
        through, self._interrupted = True, False
        programs = [instance.program for instance in self._instances if trains]
        with run_concurrently(programs, partial(self._follow, block)):
            # A copy of the list, which changes when members end.
            for instance in list(self._instances):
                if not self._advance(instance, block, self._called):
                    through = False
                    # After an instance that rests, the others have their turn though there is always something to do.
                    if self._interrupted and self.wanted():
                        return False
        self._program_choice.settle()
        return through

    def _follow(self, block: Block) -> None:
        for instance in self._instances:
            if instance.through is not block.place:
                instance.follow(block.place)

    def waited(self) -> float:
        """Return the seconds spent only waiting for other devices since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    # ---- beside split members

    def _step_beside_split(self, block: Block) -> bool:
        """Run the steps whose batches a training block completes, in the merged order; returns False if steps are left."""
        self._left = False
        following = [instance for instance in self._instances if instance.follow(block.place)]
        split = {instance.names[0]: instance for instance in following if instance.shard is not None}
        # The copies are on the device itself, because other members step between two begins, and a changed block would not
        # show which member wrote.
        shown = {name: instance.watch.shown(block, apart=False) for name, instance in split.items()}
        whole = deque(instance for instance in following if instance.shard is None)
        through = self._make_moves(split, whole, block, shown)
        for name, instance in split.items():
            if instance.watch.restore_if_written(shown[name], block) and name in self._assigned:
                self._guard(name, partial(instance.watch.refuse, name))
        if not through:
            return False
        self._program_choice.settle()
        return not self._left

    def _make_moves(
        self,
        split: Mapping[str, ProgramInstance],
        whole: deque[ProgramInstance],
        block: Block,
        shown: Mapping[str, Block],
    ) -> bool:
        shards = {name: instance.shard for name, instance in split.items() if instance.shard is not None}
        cuts = {name: shard.cut(shown[name]) for name, shard in shards.items()}
        for move, name in moves(shards, block, lambda: bool(whole)):
            if move is Move.WAIT:
                self._wait(name, shards[name])
            elif move is Move.WHOLE:
                if self._step_once(whole[0], block):
                    whole.popleft()
                    continue  # it may have rested, without a step that could be interrupted
            else:
                self._step_half(split[name], shards[name], cuts[name], move)
                if name not in self._assigned:
                    del shards[name]
            if self._called():
                return False
        for name in shards:
            next(cuts[name], None)  # gathers the first samples of a batch that a later block completes
        return True

    def _step_half(self, instance: ProgramInstance, shard: Shard, cut: Iterator[Batch], move: Move) -> None:
        half = partial(_begin, shard, cut) if move is Move.BEGIN else partial(_finish, instance, shard)
        with self._heartbeat.busy(f"training {instance.description}"), instance.watch:
            done = self._guard(instance.names[0], half)
        if move is Move.FINISH and done:
            self._stepped(instance)

    def _wait(self, name: str, shard: Shard) -> None:
        """Wait until the next half is ready, or a command is pending."""
        started = time.perf_counter()
        doing = f"waiting for the other devices of member {name!r} in its step {shard.live.steps + 1}"
        with self._heartbeat.waiting(doing):
            while shard.waits and not self._called():
                self._report_if_broken(name, shard.group)
                time.sleep(POLL_SECONDS)
        self._waited += time.perf_counter() - started

    def _report_if_broken(self, name: str, group: Group) -> None:
        if group.broken and group.rendezvous not in self._reported:
            self._reported.add(group.rendezvous)
            self._emit(Broke(member=name, detail=group.broken))

    def _step_once(self, instance: ProgramInstance, block: Block) -> bool:
        """Make one step of a whole instance; returns whether it has nothing left to do in this pass."""
        through = self._advance(instance, block, lambda: True)
        over = through or instance.rests or instance not in self._instances
        self._left |= over and not through
        return over

    # ---- one instance

    def _advance(self, instance: ProgramInstance, block: Block, called: Callable[[], bool]) -> bool:
        """Step an instance on a block; returns False if batches are left, because it was `called` or other instances come first."""
        # With thousands of members, commands interrupt many passes; instances that have had their turn are skipped cheaply.
        if instance.through is block.place or not instance.follow(block.place):
            return True
        trains = block.place.split == "train"
        shown = instance.watch.shown(block, apart=instance.assignment[0].live.backend.apart)
        steps = partial(self._step, instance, shown, called) if trains else partial(instance.evaluate, shown, called)
        compiles = instance.kind == "compiled"  # compilation happens in the middle of a step
        with self._heartbeat.busy(f"training {instance.description}", opaque=compiles), instance.watch:
            if instance.together:
                through = self._step_several(instance, steps)
            else:
                through = self._guard(instance.names[0], steps) is not False
        if instance.watch.restore_if_written(shown, block):
            for name in [name for name in instance.names if name in self._assigned]:
                self._guard(name, partial(instance.watch.refuse, name))
            return True
        instance.through = block.place if through else None
        return through

    def _step_several(self, instance: ProgramInstance, steps: Callable[[], bool]) -> bool:
        """Step several members.

        A member ends if its own code raised. After other errors, other programs repeat the step, or the same one if memory could be freed.
        """
        faults: Mapping[str, BaseException] = {}
        through = False
        with attempt(lambda error: self._guard.check_process(instance.names, error)) as tried:
            try:
                through = steps()
                self._guard.wait_if_careful()
            except MemberFaults as own:
                faults = own.errors
        # Not in the handler, whose traceback keeps the step's tensors alive.
        for name, fault in faults.items():
            self._guard(name, partial(_raise, fault))
        if tried.error:
            instance.undo()
            if not (tried.memory and self._guard.give_back(tried.error)):
                self._program_choice.handle_error(instance, tried.error, memory=tried.memory)
        return through and not tried.error

    def _step(self, instance: ProgramInstance, block: Block, called: Callable[[], bool]) -> bool:
        before = instance.samples
        through = instance.step(block, called)
        if instance.samples > before:
            self._stepped(instance)
        return through

    def _stepped(self, instance: ProgramInstance) -> None:
        for assigned in instance.assignment:
            # A careful trainer waits, because the results of these steps may fail an assertion in the next block.
            self.end_if_diverged(assigned, wait=self._guard.careful)

    def end_if_diverged(self, assigned: AssignedMember, *, wait: bool) -> bool:
        """End a member whose training loss is not finite; returns whether it was. Without `wait`, an asynchronous device's last block is left out."""
        live = assigned.live
        # The second read waits for an asynchronous device to complete its steps.
        if not (live.diverged or (wait and live.diverged)):
            return False
        if assigned.leads:
            reason = f"its training loss is not a number after {live.steps} steps"
            self._guard.end(assigned.name, "diverged", reason)
        else:
            self._guard.drop(assigned.name)  # its first device ends it
        return True

    def _called(self) -> bool:
        """Send a heartbeat after a step; returns whether to stop before the next."""
        self._heartbeat.beat()
        self._interrupted = self.wanted()
        return self._interrupted


def _raise(error: BaseException) -> None:
    raise error


def _begin(shard: Shard, cut: Iterator[Batch]) -> bool:
    with shard.active():
        shard.begin(next(cut))
    return True


def _finish(instance: ProgramInstance, shard: Shard) -> bool:
    with shard.active():
        instance.samples += shard.finish()
    return True
