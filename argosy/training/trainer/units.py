"""What a trainer steps: a unit is one program, with its members' places aboard.

A unit follows the stream as one, so that its members stand at the same section of the same epoch; how far they are within
it is their own. Where members come or go, or are stepped by another program, other units take the place of theirs.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.protocol.trainer import Seat
from argosy.stream.blocks import Block, Place
from argosy.training.choice.fusion_group import ALONE, TURNS, FusionGroup, Kind
from argosy.training.programs.fused.compiled import Compilation
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.graphed.graphed import Graphed
from argosy.training.programs.program import Program, Together
from argosy.training.programs.shard.ends import sums_on
from argosy.training.programs.shard.parallel import Group
from argosy.training.programs.shard.shard import Shard
from argosy.training.programs.solo import Solo
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.watch import InputWatch

__all__ = ["Unit"]


@dataclass(kw_only=True, slots=True, eq=False)
class Unit:
    """One program of a trainer."""

    program: Program[Any]
    assignment: tuple[AssignedMember, ...]
    """Its members, in the order in which they came aboard."""
    fusion_group: FusionGroup | None = None
    """What its members have in common with others of the trainer."""
    kind: Kind = "plain"
    """Of its program."""
    samples: int = 0
    """Stepped on since it is there, summed over its members."""
    turns: int | None = None
    """That it may make before the others of its fusion_group have made as many, in a round that is timed; None without limit."""
    seconds: float = 0.0
    """Of its turns in the round, ..."""
    in_round: int = 0
    """... and the samples that it was stepped on in them."""
    step_bytes: int | None = None
    """What a step of it took at most beyond its members' states, in the round; None where the device does not count that."""
    broke: bool = False
    """Whether its step has raised, and is left to others."""
    watch: InputWatch = field(default_factory=InputWatch)
    together: bool = field(init=False)
    """Whether common code steps its members: what that raises is nobody's yet."""

    def __post_init__(self) -> None:
        self.together = isinstance(self.program, Together)

    @classmethod
    def of(
        cls,
        assignment: Sequence[AssignedMember],
        fusion_group: FusionGroup | None = None,
        compilation: Compilation | None = None,
    ) -> "Unit":
        """Members that are stepped as one, or a single one by itself, by the kind of program that their fusion_group has."""
        lives, kind = (
            [assigned.live for assigned in assignment],
            ALONE.kind if fusion_group is None else fusion_group.now.kind,
        )
        program: Program[Any]
        if kind == "compiled":
            program = Fused.of(lives, compilation)
        else:
            program = Solo(lives[0]) if len(lives) == 1 else Fused.of(lives)
        if kind == "graphed":
            program = Graphed.of(program)
        return cls(program=program, assignment=tuple(assignment), fusion_group=fusion_group, kind=kind)

    @classmethod
    def seated(cls, assigned: AssignedMember, seat: Seat) -> "Unit":
        """A device's share of a member that several carry; their group begins to form."""
        on = sums_on(assigned.live.backend.device)
        group = Group.form(seat.rendezvous, seat.rank, len(seat.shares), on=on)
        return cls(program=Shard(assigned.live, group, seat.shares, number=seat.number), assignment=(assigned,))

    @property
    def shard(self) -> Shard | None:
        """Its program, where that is a share of a split member."""
        return self.program if isinstance(self.program, Shard) else None

    @property
    def compiles(self) -> bool:
        """Whether a step may take as long as torch's compiler does."""
        return self.kind == "compiled"

    @property
    def rests(self) -> bool:
        """Whether it makes no further step before others have made theirs."""
        return self.broke or self.turns == 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of its members."""
        return tuple(assigned.name for assigned in self.assignment)

    @property
    def words(self) -> str:
        """Its members, for somebody who asks what is being done."""
        return f"member{'s' * (len(self.assignment) > 1)} {', '.join(map(repr, self.names))}"

    def follow(self, place: Place) -> bool:
        """Go with the stream into another epoch; False for a block that its members have behind them."""
        followed = [assigned.follow(place) for assigned in self.assignment]
        return all(followed)

    def step(self, block: Block, called: Callable[[], bool]) -> bool:
        """Run the steps that a training block completes; False where it was `called` after one, or has no turns left."""
        if self.turns is None:
            return self._step(block, called)
        if self.turns == 0:
            return False
        backend, before = self.assignment[0].live.backend, self.samples
        backend.synchronize()
        backend.reset_peak()
        held, started = backend.memory_in_use(), time.perf_counter()
        through = self._step(block, called)
        backend.synchronize()
        self.seconds += time.perf_counter() - started
        self.in_round += self.samples - before
        if held is not None:
            self.step_bytes = max(self.step_bytes or 0, (backend.peak_memory() or 0) - held + self.kept_bytes)
        return through

    def _step(self, block: Block, called: Callable[[], bool]) -> bool:
        program, turns, wanted = self.program, 0, False
        with program.active():
            for batch in itertools.islice(program.cut(block), self.turns):
                program.begin(batch)
                self.samples += program.finish()
                turns += 1
                if wanted := called():
                    break
        if self.turns is not None:
            self.turns -= turns
        return not wanted and self.turns != 0

    def begin_round(self, *, measures: bool) -> None:
        """Be timed for some turns, or go on without limit."""
        self.turns, self.seconds, self.in_round, self.step_bytes = TURNS if measures else None, 0.0, 0, None

    @property
    def kept_bytes(self) -> int:
        """Of the device's memory, in which captured steps are made and nothing else."""
        return self.program.memory_bytes if isinstance(self.program, Graphed) else 0

    @property
    def need(self) -> int | None:
        """Bytes that a step took for each of its members, in the round."""
        return None if self.step_bytes is None else -(-self.step_bytes // len(self.assignment))

    def evaluate(self, block: Block, called: Callable[[], bool]) -> bool:
        """Evaluate on the batches of a block of validation samples; False where it was `called` after one."""
        with self.program.active(keep=True):
            for _ in self.program.evaluate(block):
                if called():
                    return False
        return True

    def undo(self) -> None:
        """Let the step of common code that has raised not have been."""
        assert isinstance(self.program, Together)
        self.program.undo()
