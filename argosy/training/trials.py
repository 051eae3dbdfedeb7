"""Members that are built and measured before they board, on the first block that comes."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from argosy.commands import Measure
from argosy.stream.blocks import Block
from argosy.stream.pulse import Pulse
from argosy.training.devices import Backend
from argosy.training.guard import Guard
from argosy.training.measure import measure
from argosy.training.member import LiveMember

__all__ = ["Trials"]


class Trials:
    """Of one trainer."""

    def __init__(
        self,
        build: Callable[[str], LiveMember],
        guarded: Guard,
        emit: Callable[[Any], None],
        backend: Backend,
        pulse: Pulse,
    ) -> None:
        self._build = build
        self._guarded = guarded
        self._emit = emit
        self._backend = backend
        self._pulse = pulse
        self.wanted: Measure | None = None
        self.built: dict[str, LiveMember] = {}
        """Members that have not boarded yet."""

    def want(self, command: Measure) -> None:
        """Measure these as well as those that are still to be measured on the same block."""
        earlier = self.wanted
        if earlier is not None and earlier.crew == command.crew:
            accumulate = {**earlier.accumulate, **command.accumulate}
            command = replace(command, members=(*earlier.members, *command.members), accumulate=accumulate)
        self.wanted = command

    def forget(self, *, crew_of_its_own: bool = False) -> None:
        """Nobody boards who was built; with `crew_of_its_own`, who is to be measured beside a crew still is."""
        self.built.clear()
        if not crew_of_its_own or (self.wanted is not None and self.wanted.crew is not None):
            self.wanted = None

    def take(self, name: str) -> LiveMember:
        """A member to board, as it was built."""
        return self.built.pop(name, None) or self.build(name)

    def build(self, name: str) -> LiveMember:
        """A member at its beginning."""
        with self._pulse.busy(f"building member {name!r}", opaque=True):
            return self._build(name)

    def measure(self, block: Block, *, validates: bool) -> None:
        """Measure all that are wanted; with `validates`, on samples that a validation could be of."""
        command, self.wanted = self.wanted, None
        assert command is not None
        # All are built before the first is measured: weights would lie scattered over the memory that steps take and give
        # back, and a gap between two of them serves only tensors that fit into it.
        for name in command.members:
            live = self._guarded(name, partial(self.build, name), again=True)
            if live is not None:
                live.member = replace(live.member, accumulate=command.accumulate.get(name, live.member.accumulate))
                self.built[name] = live
        for name in command.members:
            if name in self.built:
                steps = partial(
                    measure,
                    self.built[name],
                    block,
                    self._backend,
                    thorough=command.thorough,
                    groups=command.groups,
                    validates=validates,
                )
                with self._pulse.busy(f"measuring member {name!r}", opaque=True), warnings.catch_warnings():
                    # Of a twin's schedule, which cannot know that the twin's optimizer steps before it.
                    warnings.filterwarnings("ignore", "Seems like `optimizer.step")
                    measured = self._guarded(name, steps, again=True)
                if measured is not None:
                    self._emit(measured)
