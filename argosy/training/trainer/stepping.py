"""Steps all units of a trainer on one block: unit by unit, and beside split members in the merged order.

A pass gives every unit its turn. Steps that it leaves, for a command or because a unit has no turns left in a timed round, are made
in the next pass, after units have changed programs (`ProgramChoice.settle`).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from argosy.errors.traces import reason_of
from argosy.stream.blocks import Block
from argosy.stream.gauges import TrainerGauge
from argosy.stream.heartbeat import Heartbeat
from argosy.training.device.devices import out_of_memory
from argosy.training.programs.graphed.graphed import together
from argosy.training.programs.program import OwnFaults
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.guard import Guard
from argosy.training.trainer.program_choice import ProgramChoice
from argosy.training.trainer.ranks import Ranks
from argosy.training.trainer.units import Unit

__all__ = ["Stepping"]


class Stepping:
    """Steps the units and members of one trainer."""

    def __init__(
        self,
        units: list[Unit],
        assigned: Mapping[str, AssignedMember],
        fusion: ProgramChoice,
        guard: Guard,
        heartbeat: Heartbeat,
        gauge: TrainerGauge,
        emit: Callable[[Any], None],
        *,
        wanted: Callable[[], bool],
        drop: Callable[[str], object],
    ) -> None:
        self._units = units
        self._assigned = assigned
        self._program_choice = fusion
        self._guard = guard
        self._heartbeat = heartbeat
        self._gauge = gauge
        self._wanted = wanted
        """Returns whether there is something to do between two steps."""
        self._drop = drop
        self._left = False
        """Whether a whole unit beside split members has left steps of the block for the next pass."""
        self._ranks = Ranks(guard, heartbeat, emit, step=self._beside, stepped=self._stepped, called=self._called)

    def through(self, block: Block) -> bool:
        """Give every unit its turn; False where steps of the block are left."""
        trains = block.place.split == "train"
        if trains and not self._guard.careful:
            self._program_choice.look(block)
        if trains and any(unit.shard for unit in self._units):
            return self._merged(block)
        through = True
        with together([unit.program for unit in self._units if trains]):
            for unit in list(self._units):
                if not self._advance(unit, block, self._called):
                    through = False
                    if self._wanted():
                        return False
        self._program_choice.settle()
        return through

    def waited(self) -> float:
        """Return the seconds spent only waiting for other devices since the last call."""
        waited, self._ranks.waited = self._ranks.waited, 0.0
        return waited

    # ---- beside split members

    def _merged(self, block: Block) -> bool:
        self._left = False
        if not self._ranks.through(self._units, self._assigned, block):
            return False
        self._program_choice.settle()
        return not self._left

    def _beside(self, unit: Unit, block: Block) -> bool:
        """Make one step of a whole unit; returns whether it has no more to do in this pass."""
        through = self._advance(unit, block, lambda: True)
        over = through or unit.rests or unit not in self._units
        self._left |= over and not through
        return over

    # ---- one unit

    def _advance(self, unit: Unit, block: Block, called: Callable[[], bool]) -> bool:
        """Step a unit on a block; False where batches are left, because it was `called` or other units come first."""
        if not unit.follow(block.place):
            return True
        trains = block.place.split == "train"
        shown = unit.watch.shown(block, apart=unit.assignment[0].live.backend.apart)
        with self._heartbeat.busy(f"training {unit.words}", opaque=unit.compiles), unit.watch.steps():
            steps = partial(self._step, unit, shown, called) if trains else partial(unit.evaluate, shown, called)
            through = self._together(unit, steps) if unit.together else self._guard(unit.names[0], steps) is not False
        if unit.watch.wrote(shown, block):
            for name in [name for name in unit.names if name in self._assigned]:
                self._guard(name, partial(unit.watch.refuse, name))
            return True
        return through

    def _together(self, unit: Unit, steps: Callable[[], bool]) -> bool:
        """Step several members. A member ends if its code raised; after other errors, other programs repeat the step, or the same one
        where memory could be freed for it."""
        faults: Mapping[str, Exception] = {}
        error, memory = None, False
        try:
            through = steps()
            self._guard.wait_if_careful()
            return through
        except OwnFaults as own:
            faults = own.errors
        except Exception as raised:  # boundary between members' code and ours
            self._guard.check_process(unit.names, raised)
            error, memory = reason_of(raised), out_of_memory(raised)
        # Outside of the handler: its traceback keeps the step's tensors alive.
        for name, fault in faults.items():
            self._guard(name, partial(_raise, fault))
        if error is not None:
            unit.undo()
            if not (memory and self._guard.give_back(error)):
                self._program_choice.broke(unit, error, memory=memory)
        return False

    def _step(self, unit: Unit, block: Block, called: Callable[[], bool]) -> bool:
        before = unit.samples
        through = unit.step(block, called)
        if unit.samples > before:
            self._stepped(unit, unit.samples - before)
        return through

    def _stepped(self, unit: Unit, samples: int) -> None:
        """Count samples, and end members with a loss that is not finite."""
        self._gauge.samples += samples
        for assigned in unit.assignment:
            live = assigned.live
            # Read once: asked again, it would wait for an asynchronous device to complete this very block. A careful trainer does
            # wait: the next block may assert for what these steps have left.
            if not (live.diverged or (self._guard.careful and live.diverged)):
                continue
            if assigned.leads:
                reason = f"its training loss is not a number after {live.steps} steps"
                self._guard.end(assigned.name, "diverged", reason)
            else:
                self._drop(assigned.name)  # its first device ends it

    def _called(self) -> bool:
        """Beat after a step; returns whether to stop before the next."""
        self._heartbeat.beat()
        return self._wanted()


def _raise(error: Exception) -> None:
    raise error
