"""Members that are built and measured before they board, on the first block that comes.

Measuring stops between two steps where the trainer has a command to obey, and goes on behind them afterwards.
"""

import warnings
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

from argosy.protocol.trainer import Measure, Measured
from argosy.stream.blocks import Block
from argosy.stream.heartbeat import Heartbeat
from argosy.training.choice.measure import measuring
from argosy.training.device.devices import Backend
from argosy.training.device.process_state import kept_by
from argosy.training.member.live import LiveMember
from argosy.training.trainer.guard import Guard

__all__ = ["Trials"]


class Trials:
    """Of one trainer."""

    def __init__(
        self,
        build: Callable[[str], LiveMember],
        guarded: Guard,
        emit: Callable[[Any], None],
        listen: Callable[[], bool],
        backend: Backend,
        heartbeat: Heartbeat,
    ) -> None:
        self._build = build
        self._guarded = guarded
        self._emit = emit
        self._listen = listen
        self._backend = backend
        self._heartbeat = heartbeat
        self.wanted: Measure | None = None
        """Those whom nobody has measured yet."""
        self.built: dict[str, LiveMember] = {}
        """Members that have not boarded yet."""
        self.left = False
        """Whether some of them are left for a command."""
        self._steps: Generator[None, None, Measured] | None = None
        """Of the one that was being measured then."""

    def want(self, command: Measure) -> None:
        """Measure these as well as those that are still to be measured on the same block."""
        earlier = self.wanted
        if earlier is not None and earlier.assignment == command.assignment:
            accumulate = {**earlier.accumulate, **command.accumulate}
            command = replace(command, members=(*earlier.members, *command.members), accumulate=accumulate)
        else:
            self.left, self._steps = False, None
        self.wanted = command

    @property
    def beside(self) -> bool:
        """Whether some are wanted beside an assignment, whose block it then is."""
        return self.wanted is not None and self.wanted.assignment is None

    def replaced(self, name: str) -> None:
        """Who has this name is somebody else from here on."""
        self.built.pop(name, None)
        self._steps = None

    def forget(self, *, assignment_of_its_own: bool = False) -> None:
        """Nobody boards who was built; with `assignment_of_its_own`, who is to be measured beside an assignment still is."""
        self.built.clear()
        self.left, self._steps = False, None
        if not assignment_of_its_own or not self.beside:
            self.wanted = None

    def take(self, name: str) -> LiveMember:
        """A member to board, as it was built."""
        return self.built.pop(name, None) or self.build(name)

    def build(self, name: str) -> LiveMember:
        """A member at its beginning."""
        with self._heartbeat.busy(f"building member {name!r}", opaque=True):
            return self._build(name)

    def measure(self, block: Block, *, validated: int) -> bool:
        """Measure all that are wanted; `validated` is how many samples of validation look like these, 0 for none.

        False where a command waits: `left` is true then, and the next call goes on.
        """
        assert self.wanted is not None
        self.left = True
        # All are built before the first is measured: weights would lie scattered over the memory that steps take and give
        # back, and a gap between two of them serves only tensors that fit into it.
        for name in self.wanted.members:
            if name not in self.built:
                self._prepare(name, self.wanted)
                if self._listen():
                    return False
        while self.wanted.members:
            name = self.wanted.members[0]
            measured = self._measure(name, self.wanted, block, validated=validated)
            if self._steps is not None:
                return False
            if measured is not None:
                self._emit(measured)
            self._done_with(name)
        self.left, self.wanted = False, None
        return True

    def _prepare(self, name: str, command: Measure) -> None:
        live = self._guarded(name, partial(self.build, name), again=True)
        if live is None:
            self._done_with(name)
            return
        live.member = replace(live.member, accumulate=command.accumulate.get(name, live.member.accumulate))
        self.built[name] = live

    def _done_with(self, name: str) -> None:
        assert self.wanted is not None
        self.wanted = replace(self.wanted, members=tuple(other for other in self.wanted.members if other != name))

    def _measure(self, name: str, command: Measure, block: Block, *, validated: int) -> Measured | None:
        """None for one that raised, or whose `_steps` are left for a command."""

        def steps() -> Measured | None:
            under_way, self._steps = self._steps, None
            if under_way is None:
                thorough, groups = command.thorough, command.groups
                live = self.built[name]
                under_way = measuring(live, block, self._backend, thorough=thorough, groups=groups, validated=validated)
            with kept_by(name):
                return self._go_on(under_way)

        with self._heartbeat.busy(f"measuring member {name!r}", opaque=True), warnings.catch_warnings():
            # Of a twin's schedule, which cannot know that the twin's optimizer steps before it.
            warnings.filterwarnings("ignore", "Seems like `optimizer.step")
            measured: Measured | None = self._guarded(name, steps, again=True)
        return measured

    def _go_on(self, steps: Generator[None, None, Measured]) -> Measured | None:
        try:
            while True:
                next(steps)
                if self._listen():
                    self._steps = steps
                    return None
        except StopIteration as end:
            measured: Measured = end.value
            return measured
