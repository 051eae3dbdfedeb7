"""The program instances of a trainer, each with its assigned members.

An instance follows the stream as one: its members are in the same section of the same epoch, each at its own position within it. When
members are added or removed, or change programs, new instances replace the old ones.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from argosy.protocol.trainer import GroupRank
from argosy.stream.blocks import Block, Place
from argosy.training.choice.fusion_group import ROUND_SECONDS, STEPS, FusionGroup, Kind
from argosy.training.choice.rehearsal import make_program
from argosy.training.device.clock import Stopwatch
from argosy.training.programs.fused.compiled import Compilation
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.graphed.capturable import why_not_captured
from argosy.training.programs.graphed.graphed import Graphed
from argosy.training.programs.program import Program, SharedProgram
from argosy.training.programs.shard.ends import sum_device
from argosy.training.programs.shard.parallel import Group
from argosy.training.programs.shard.shard import Shard
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.watch import InputWatch

__all__ = ["ProgramInstance", "Round"]


@dataclass(slots=True)
class Round:
    """Timed steps of an instance, after which it waits for the other instances of its fusion group."""

    steps_left: int = STEPS
    seconds: float = 0.0
    samples: int = 0
    need: int | None = None
    """Most bytes that a step took per member, beyond the members' states; None if the device does not count them."""


@dataclass(kw_only=True, slots=True, eq=False)
class ProgramInstance:
    """One program instance of a trainer."""

    program: Program
    assignment: tuple[AssignedMember, ...]
    """Members, in the given order."""
    fusion_group: FusionGroup | None = None
    """Group of members that may share a program."""
    kind: Kind = "plain"
    """Kind of the program."""
    samples: int = 0
    """Samples stepped on since the instance was made, summed over its members."""
    round: Round | None = None
    """The current timed round; without one, the instance makes all steps of a block."""
    broke: bool = False
    """Whether a step has raised, and is left to other programs."""
    through: Place | None = None
    """Place of the last block whose steps are all made."""
    watch: InputWatch = field(default_factory=InputWatch)
    together: bool = field(init=False)
    """Whether common code steps the members, so that an error cannot be attributed to one of them."""
    names: tuple[str, ...] = field(init=False)
    """Names of the members."""
    description: str = field(init=False)
    """Description of the members for status messages."""

    def __post_init__(self) -> None:
        self.together = isinstance(self.program, SharedProgram)
        self.names = tuple(assigned.name for assigned in self.assignment)
        self.description = f"member{'s' * (len(self.names) > 1)} {', '.join(map(repr, self.names))}"

    @classmethod
    def of(
        cls,
        assignment: Sequence[AssignedMember],
        fusion_group: FusionGroup | None = None,
        compilation: Compilation | None = None,
    ) -> "ProgramInstance":
        """Make an instance of one or several members, with the kind of program that their fusion group uses."""
        lives, group = [assigned.live for assigned in assignment], fusion_group or FusionGroup()
        kind = group.now.kind
        program = Fused.of(lives, compilation) if kind == "compiled" else make_program(lives, kind, group.lengths)
        if kind == "graphed" or (isinstance(program, Grouped) and why_not_captured(program) is None):
            try:
                program = Graphed.of(program)
            except BaseException:
                program.release()  # so that its members can be in other programs
                raise
        return cls(program=program, assignment=tuple(assignment), fusion_group=fusion_group, kind=kind)

    @classmethod
    def of_rank(cls, assigned: AssignedMember, group_rank: GroupRank) -> "ProgramInstance":
        """Make the instance of one rank of a split member; its group begins to form."""
        on = sum_device(assigned.live.backend.device)
        group = Group.form(group_rank.rendezvous, group_rank.rank, len(group_rank.shares), on=on)
        program = Shard(assigned.live, group, group_rank.shares, number=group_rank.number)
        return cls(program=program, assignment=(assigned,))

    @property
    def shard(self) -> Shard | None:
        """The program, if it is a rank of a split member."""
        return self.program if isinstance(self.program, Shard) else None

    @property
    def rests(self) -> bool:
        """Whether the instance makes no further step in this pass."""
        return self.broke or (self.round is not None and not self.round.steps_left)

    def follow(self, place: Place) -> bool:
        """Follow the stream into another epoch; returns False for a block that the members have finished."""
        followed = [assigned.follow(place) for assigned in self.assignment]
        return all(followed)

    def step(self, block: Block, called: Callable[[], bool]) -> bool:
        """Run the steps whose batches a training block completes; returns False if it was `called` after one, or if its round has no steps left."""
        timed = self.round
        if timed is None:
            return self._step(block, called)
        if not timed.steps_left:
            return False
        backend, before = self.assignment[0].live.backend, self.samples
        backend.synchronize()
        backend.reset_peak()
        memory_before, watch = backend.memory_in_use(), Stopwatch(backend)
        until = time.perf_counter() + ROUND_SECONDS - timed.seconds

        def over() -> bool:
            timed.steps_left = 0 if time.perf_counter() > until else timed.steps_left - 1
            return called() or not timed.steps_left

        through = self._step(block, over)
        backend.synchronize()
        timed.seconds += watch.seconds
        timed.samples += self.samples - before
        if memory_before is not None:
            taken = (backend.peak_memory() or 0) - memory_before + self.kept_bytes
            timed.need = max(timed.need or 0, -(-taken // len(self.assignment)))
        return through

    def _step(self, block: Block, over: Callable[[], bool]) -> bool:
        """Run steps until `over` returns true after one; returns whether all steps of the block are made."""
        with self.program.active():
            for batch in self.program.cut(block):
                self.program.begin(batch)
                self.samples += self.program.finish()
                if over():
                    return False
        return True

    @property
    def kept_bytes(self) -> int:
        """Device memory held by captured steps."""
        return self.program.memory_bytes if isinstance(self.program, Graphed) else 0

    def evaluate(self, block: Block, called: Callable[[], bool]) -> bool:
        """Evaluate on the batches of a block of validation samples; returns False if it was `called` after one."""
        with self.program.active(keep=True):
            for _ in self.program.evaluate(block):
                if called():
                    return False
        return True

    def undo(self) -> None:
        """Undo a step of common code that has raised."""
        assert isinstance(self.program, SharedProgram)
        self.program.undo()
