"""The protocol of programs: a program steps one or more members on the blocks of the stream (DESIGN.md §3.6, 4).

A trainer handles a training block, and a block of validation samples, like this:

    with program.active():                          with program.active(keep=True):
        for batch in program.cut(block):                for _ in program.evaluate(block):
            program.begin(batch)                            check for commands
            samples += program.finish()
            check for commands

It may leave either loop after any step and continue later with the same block, after the last finished batch. Members' positions
change in `finish`, their tallies and digests there or on exit from `active`, and their random states on exit. So between two
steps, outside of `active`, each member can be saved exactly where it is.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

from argosy.errors.traces import USER_ERRORS
from argosy.stream.blocks import Block
from argosy.training.member.live import LiveMember

__all__ = ["MemberFaults", "Program", "SharedProgram", "UnfitProgram", "collecting"]


class MemberFaults(Exception):  # noqa: N818
    """Errors raised by the code of single members in a step of several. The step was made, and the other members continue."""

    def __init__(self, errors: Mapping[str, BaseException]) -> None:
        super().__init__(", ".join(errors))
        self.errors = errors
        """Errors by member."""


@contextmanager
def collecting(faults: dict[str, BaseException], name: str) -> Iterator[None]:
    """Collect an error that a member's own code raises inside as the fault of this member."""
    try:
        yield
    except USER_ERRORS as error:  # boundary to members' code; each fault is raised again where its member ends
        # Without this generator's frame, by which the error holds itself since Python 3.12.
        faults[name] = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)


class UnfitProgram(Exception):  # noqa: N818
    """Raised for a member that cannot be fused because of its own behaviour."""


class Program(Protocol):
    """Steps one or more members; owns none of their state, and keeps nothing beyond a save."""

    @property
    def members(self) -> tuple[LiveMember, ...]:
        """The members that it steps."""

    def active(self, *, keep: bool = False) -> AbstractContextManager[None]:
        """Draw from the members' random states inside, and measure their time.

        `keep` is for validation: it disables gradients, and uses the validation's own random states, which the next block continues.
        """

    def cut(self, block: Block) -> Iterator[Any]:
        """Yield the input of each step that a training block completes, after the last finished one: a batch, or one for each member."""

    def begin(self, batch: Any) -> None:
        """Run the forward and backward pass, without waiting for another device."""

    def finish(self) -> int:
        """Clip gradients, step and commit; returns the number of samples in the batch begun, 0 if all are broken.

        Raises MemberFaults for errors that belong to single members.
        """

    def evaluate(self, block: Block) -> Iterator[None]:
        """Evaluate the batches that a block of validation samples completes, one per iteration."""

    def release(self) -> None:
        """Release everything but the members' states."""


@runtime_checkable
class SharedProgram(Protocol):
    """A program that steps several members by common code. Its errors belong to no single member, so other programs repeat the step."""

    def undo(self) -> None:
        """Undo a step whose `begin` or `finish` has raised."""
