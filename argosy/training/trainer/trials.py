"""Builds members and measures them on the first available block, before they are assigned.

A pending command interrupts a measurement between two steps; the measurement is resumed afterwards.
"""

import gc
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from argosy.protocol.trainer import Measure, Measured
from argosy.stream.blocks import Block
from argosy.stream.heartbeat import Heartbeat
from argosy.training.choice.copies import hide_step_warning
from argosy.training.choice.measure import measure_steps
from argosy.training.device.process_state import check_settings_kept
from argosy.training.member.live import LiveMember
from argosy.training.trainer.guard import Guard

__all__ = ["Trials"]


@dataclass(eq=False)
class Trials:
    """Members that are measured."""

    _build: Callable[[str], LiveMember]
    _guarded: Guard
    _emit: Callable[[Any], None]
    _listen: Callable[[], bool]
    _heartbeat: Heartbeat
    wanted: Measure | None = field(default=None, init=False)
    """Command with the members still to be measured."""
    built: dict[str, LiveMember] = field(default_factory=dict, init=False)
    """Built members that are not assigned yet."""
    left: bool = field(default=False, init=False)
    """Whether a command interrupted the measurements."""
    _at_hand: str = field(default="", init=False)
    """The member that is being built or measured."""
    _crowded: bool = field(default=False, init=False)
    """Whether built members have taken memory that one of them needed, so each is built just before it is measured."""
    _steps: Generator[None, None, Measured] | None = field(default=None, init=False)
    """Steps of the interrupted measurement."""

    def want(self, command: Measure) -> None:
        """Add members to those still to be measured; if these are for another assignment, replace them."""
        earlier = self.wanted
        if earlier is not None and earlier.assignment == command.assignment:
            accumulate = {**earlier.accumulate, **command.accumulate}
            command = replace(command, members=(*earlier.members, *command.members), accumulate=accumulate)
        else:
            self.left, self._steps = False, None
        self.wanted = command

    @property
    def beside(self) -> bool:
        """Whether members are measured beside an assignment, on its blocks."""
        return self.wanted is not None and self.wanted.assignment is None

    def replaced(self, name: str) -> None:
        """Drop a built member, after its definition was replaced."""
        self.built.pop(name, None)
        self._steps = None

    def forget(self, *, assignment_of_its_own: bool = False) -> None:
        """Drop built members and measurements; with `assignment_of_its_own`, keep the command for members to measure beside an assignment."""
        self.built.clear()
        self.left, self._steps = False, None
        if not assignment_of_its_own or not self.beside:
            self.wanted = None

    def give_back(self) -> bool:
        """Drop built members except the one at hand, after memory ran out; returns whether there were any. They are built again when needed."""
        others = self.built.keys() - {self._at_hand}
        for name in others:
            del self.built[name]
        if others:
            self._crowded = True
            gc.collect()  # layers may refer to each other in cycles, as parametrized ones do
        return bool(others)

    def take(self, name: str) -> LiveMember:
        """Return a built member, or build it."""
        return self.built.pop(name, None) or self.build(name)

    def build(self, name: str) -> LiveMember:
        """Build a member."""
        with self._heartbeat.busy(f"building member {name!r}", opaque=True):
            return self._build(name)

    def measure(self, block: Block, *, validated: int) -> bool:
        """Measure all wanted members; `validated` is the number of validation samples with the layout of this block's samples, or 0.

        Returns False if a command is pending; `left` is then true, and the next call continues.
        """
        assert self.wanted is not None
        self._guarded.begin(careful=True)
        self.left = True
        # All members are built before the first is measured, if they have room. Otherwise their weights would be scattered over, and
        # fragment, the memory that steps allocate and free.
        for name in self.wanted.members:
            if name not in self.built and not self._crowded:
                self._prepare(name, self.wanted)
                if self._listen():
                    return False
        while self.wanted.members:
            name = self.wanted.members[0]
            if name not in self.built:
                self._prepare(name, self.wanted)
                continue
            measured = self._measure(name, self.wanted, block, validated=validated)
            if self._steps is not None:
                return False
            if measured is not None:
                self._emit(measured)
            self._done_with(name)
            if self._crowded:
                gc.collect()  # as in `give_back`, of the copies
        self.left, self.wanted, self._at_hand = False, None, ""
        return True

    def _prepare(self, name: str, command: Measure) -> None:
        self._at_hand = name
        live = self._guarded(name, partial(self.build, name), again=True)
        if live is None:
            self._done_with(name)
            return
        accumulate = command.accumulate.get(name, live.member.accumulate)
        if live.member.accumulate != accumulate:
            live.member = replace(live.member, accumulate=accumulate)
        self.built[name] = live

    def _done_with(self, name: str) -> None:
        assert self.wanted is not None
        self.wanted = replace(self.wanted, members=tuple(other for other in self.wanted.members if other != name))

    def _measure(self, name: str, command: Measure, block: Block, *, validated: int) -> Measured | None:
        """Measure a member; returns None if it raised, or if a command interrupted its `_steps`."""

        def steps() -> Measured | None:
            under_way, self._steps = self._steps, None
            if under_way is None:
                thorough, groups = command.thorough, command.groups
                live = self.built[name]
                under_way = measure_steps(live, block, thorough=thorough, groups=groups, validated=validated)
            with check_settings_kept(name):
                return self._resume(under_way)

        self._at_hand = name
        with self._heartbeat.busy(f"measuring member {name!r}", opaque=True), hide_step_warning():
            measured: Measured | None = self._guarded(name, steps, again=True)
        return measured

    def _resume(self, steps: Generator[None, None, Measured]) -> Measured | None:
        try:
            while True:
                next(steps)
                if self._listen():
                    self._steps = steps
                    return None
        except StopIteration as end:
            measured: Measured = end.value
            return measured
