"""The protocol of programs: a program steps one or more members on the blocks of the stream (DESIGN.md §3.6, 4).

A trainer handles a training block, and a block of validation samples, like this:

    with program.active():                          with program.active(keep=True):
        for batch in program.cut(block):                for _ in program.evaluate(block):
            program.begin(batch)                            check for commands
            samples += program.finish()
            check for commands

It may leave either loop after any step and continue with the same block later, after the last finished batch. Members' positions
move in `finish`, their tallies and digests there or when `active` is left, their random states when it is left. So between two
steps, outside of `active`, each member can be saved exactly where it is.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar, runtime_checkable

from argosy.stream.blocks import Block
from argosy.training.member.live import LiveMember

__all__ = ["OwnFaults", "Program", "Together", "UnfitProgram"]


class OwnFaults(Exception):  # noqa: N818
    """Errors raised by the code of single members in a step of several. The step was made: the other members go on."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        super().__init__(", ".join(errors))
        self.errors = errors
        """Errors by member."""


class UnfitProgram(Exception):  # noqa: N818
    """A member that, by its behaviour alone, cannot be fused."""


Cut = TypeVar("Cut")
"""Input of one step: a batch, or one for each of the program's members."""


class Program(Protocol[Cut]):
    """Steps one or more members; owns no member's state, and nothing that outlives a save."""

    @property
    def members(self) -> tuple[LiveMember, ...]:
        """The members that it steps."""

    def active(self, *, keep: bool = False) -> AbstractContextManager[None]:
        """Draw from the members' random states inside, and measure their time.

        With `keep`, for validation: without gradients, from random states of the validation's own, which goes on at the next block.
        """

    def cut(self, block: Block) -> Iterator[Cut]:
        """Yield the batches that a training block completes, after the last finished one."""

    def begin(self, batch: Cut) -> None:
        """Run the forward and backward pass; never waits for another device."""

    def finish(self) -> int:
        """Clip gradients, step, commit; returns the samples of the batch begun, 0 where all of them are broken.

        Raises OwnFaults for errors that belong to single members.
        """

    def evaluate(self, block: Block) -> Iterator[None]:
        """Evaluate on the batches that a block of validation samples completes, one per step."""

    def release(self) -> None:
        """Release everything but the members' states."""


@runtime_checkable
class Together(Protocol):
    """A program of common code; its errors belong to no single member, so other programs make the step again."""

    def undo(self) -> None:
        """Undo a step after its `begin` or `finish` has raised."""
