"""The program instances of a trainer, each with its assigned members.

An instance follows the stream as one: its members are in the same section of the same epoch, each at its own position within it. Where
members come or go, or change programs, new instances replace theirs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.protocol.trainer import GroupRank
from argosy.stream.blocks import Block, Place
from argosy.training.choice.fusion_group import ROUND_SECONDS, STEPS, FusionGroup, Kind
from argosy.training.choice.rehearsal import program_of
from argosy.training.programs.fused.compiled import Compilation
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.graphed.graphed import Graphed, refusal
from argosy.training.programs.program import Program, Together
from argosy.training.programs.shard.ends import sums_on
from argosy.training.programs.shard.parallel import Group
from argosy.training.programs.shard.shard import Shard
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.watch import InputWatch

__all__ = ["ProgramInstance", "Round"]


@dataclass(slots=True)
class Round:
    """Steps of an instance that are timed, before it waits for the other instances of its fusion group."""

    steps_left: int = STEPS
    seconds: float = 0.0
    samples: int = 0
    need: int | None = None
    """Most bytes that a step took per member, beyond the members' states; None where the device does not count them."""


@dataclass(kw_only=True, slots=True, eq=False)
class ProgramInstance:
    """One program instance of a trainer."""

    program: Program[Any]
    assignment: tuple[AssignedMember, ...]
    """Its members, in the order in which they were given."""
    fusion_group: FusionGroup | None = None
    """Group of members that may share a program."""
    kind: Kind = "plain"
    """Kind of its program."""
    samples: int = 0
    """Samples stepped on since it was made, summed over its members."""
    round: Round | None = None
    """The timed round that it is in; without one, it makes all steps of a block."""
    broke: bool = False
    """Whether its step has raised, and is left to other programs."""
    through: Place | None = None
    """Place of the last block of which it has made all steps."""
    watch: InputWatch = field(default_factory=InputWatch)
    together: bool = field(init=False)
    """Whether common code steps its members, so that its errors belong to no single one."""

    def __post_init__(self) -> None:
        self.together = isinstance(self.program, Together)

    @classmethod
    def of(
        cls,
        assignment: Sequence[AssignedMember],
        fusion_group: FusionGroup | None = None,
        compilation: Compilation | None = None,
    ) -> "ProgramInstance":
        """Make an instance of several members, or of one, with the kind of program that their fusion group has."""
        lives, group = [assigned.live for assigned in assignment], fusion_group or FusionGroup()
        kind = group.now.kind
        program = Fused.of(lives, compilation) if kind == "compiled" else program_of(lives, kind, group.lengths)
        if kind == "graphed" or (isinstance(program, Grouped) and refusal(program) is None):
            try:
                program = Graphed.of(program)
            except BaseException:
                program.release()  # whose members are to be in others
                raise
        return cls(program=program, assignment=tuple(assignment), fusion_group=fusion_group, kind=kind)

    @classmethod
    def of_rank(cls, assigned: AssignedMember, group_rank: GroupRank) -> "ProgramInstance":
        """Make the instance of one rank of a split member; its group begins to form."""
        on = sums_on(assigned.live.backend.device)
        group = Group.form(group_rank.rendezvous, group_rank.rank, len(group_rank.shares), on=on)
        return cls(
            program=Shard(assigned.live, group, group_rank.shares, number=group_rank.number), assignment=(assigned,)
        )

    @property
    def shard(self) -> Shard | None:
        """Its program, if that is a rank of a split member."""
        return self.program if isinstance(self.program, Shard) else None

    @property
    def rests(self) -> bool:
        """Whether it makes no further step in this pass."""
        return self.broke or (self.round is not None and not self.round.steps_left)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its members."""
        return tuple(assigned.name for assigned in self.assignment)

    @property
    def words(self) -> str:
        """Its members, in the words of a status message."""
        return f"member{'s' * (len(self.assignment) > 1)} {', '.join(map(repr, self.names))}"

    def follow(self, place: Place) -> bool:
        """Follow the stream into another epoch; False for a block that its members have finished."""
        followed = [assigned.follow(place) for assigned in self.assignment]
        return all(followed)

    def step(self, block: Block, called: Callable[[], bool]) -> bool:
        """Run the steps that a training block completes; False where it was `called` after one, or has no steps left."""
        timed = self.round
        if timed is None:
            return self._step(block, called)
        if not timed.steps_left:
            return False
        backend, before = self.assignment[0].live.backend, self.samples
        backend.synchronize()
        backend.reset_peak()
        held, started = backend.memory_in_use(), time.perf_counter()
        until = started + ROUND_SECONDS - timed.seconds

        def over() -> bool:
            timed.steps_left = 0 if time.perf_counter() > until else timed.steps_left - 1
            return called() or not timed.steps_left

        through = self._step(block, over)
        backend.synchronize()
        timed.seconds += time.perf_counter() - started
        timed.samples += self.samples - before
        if held is not None:
            taken = (backend.peak_memory() or 0) - held + self.kept_bytes
            timed.need = max(timed.need or 0, -(-taken // len(self.assignment)))
        return through

    def _step(self, block: Block, over: Callable[[], bool]) -> bool:
        """Run steps until it is `over` after one; returns whether they were all that the block completes."""
        with self.program.active():
            for batch in self.program.cut(block):
                self.program.begin(batch)
                self.samples += self.program.finish()
                if over():
                    return False
        return True

    @property
    def kept_bytes(self) -> int:
        """Device memory that its captured steps keep."""
        return self.program.memory_bytes if isinstance(self.program, Graphed) else 0

    def evaluate(self, block: Block, called: Callable[[], bool]) -> bool:
        """Evaluate on the batches of a block of validation samples; False where it was `called` after one."""
        with self.program.active(keep=True):
            for _ in self.program.evaluate(block):
                if called():
                    return False
        return True

    def undo(self) -> None:
        """Undo the step of common code that has raised."""
        assert isinstance(self.program, Together)
        self.program.undo()
