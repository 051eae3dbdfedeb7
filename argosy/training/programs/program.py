"""What a trainer runs: a program steps the members of one pack entry on the blocks of the stream (DESIGN.md §3.6, 4).

What a trainer does with a training block, and with one of validation samples:

    with program.active():                          with program.active(keep=True):
        for batch in program.cut(block):                for _ in program.evaluate(block):
            program.begin(batch)                            look at the connections
            samples += program.finish()
            look at the connections

It may leave either loop at any turn and take the same block up again later: that goes on behind the last batch that was
finished. Members' positions move in `finish`, their tallies and digests there or when `active` is left, their random states
then, so that between two turns, outside of `active`, each of them can be saved exactly where it is.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar, runtime_checkable

from argosy.stream.batches import Batch
from argosy.stream.blocks import Block
from argosy.training.member.live import LiveMember

__all__ = ["OwnFaults", "Program", "SplitProgram", "Together"]


class OwnFaults(Exception):  # noqa: N818
    """What the code of single members has raised in a step of several, which is made: the others go on."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        super().__init__(", ".join(errors))
        self.errors = errors
        """By member."""


Cut = TypeVar("Cut")
"""What a program steps on at once: a batch, or one for each of its members."""


class Program(Protocol[Cut]):
    """Steps some members; owns nothing that outlives a save, and no member's state."""

    @property
    def members(self) -> tuple[LiveMember, ...]:
        """Those that it steps."""
        ...

    def active(self, *, keep: bool = False) -> AbstractContextManager[None]:
        """Inside, the process draws from its members' random states, and their time runs.

        With `keep`, for validation: without gradients, and it leaves no trace in the states.
        """
        ...

    def cut(self, block: Block) -> Iterator[Cut]:
        """The batches that a training block completes, behind the last one that was finished."""
        ...

    def begin(self, batch: Cut) -> None:
        """Forward and backward; never waits for another device."""
        ...

    def finish(self) -> int:
        """Clip, step, commit; returns the samples of the batch begun, 0 where all of them are broken.

        Raises OwnFaults where the error is that of some of its members.
        """
        ...

    def evaluate(self, block: Block) -> Iterator[None]:
        """Evaluate on the batches that a block of validation samples completes, one a turn."""
        ...

    def release(self) -> None:
        """Let go of everything but the members' states."""
        ...


@runtime_checkable
class Together(Protocol):
    """A program of common code: what that raises is nobody's yet, so others make the step again."""

    def undo(self) -> None:
        """Let the step whose beginning or end has raised not have been."""
        ...


class SplitProgram(Program[Batch], Protocol):
    """The program of one member on one of several devices, whose steps `argosy.training.trainer.merged` orders.

    Its batch may be under way while others step, also over the end of a block. It is begun and finished when nothing waits.
    """

    @property
    def number(self) -> int:
        """Of the member, in the study."""
        ...

    @property
    def under_way(self) -> bool:
        """Whether a batch is begun and not finished."""
        ...

    @property
    def waits(self) -> bool:
        """Whether the next half has to wait for other devices; for the driver's word where one of them is gone."""
        ...

    def ahead(self, block: Block) -> list[int]:
        """Of each batch that the block completes and that is not begun, the element up to which it needs the stream."""
        ...
