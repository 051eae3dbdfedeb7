"""The merged order, as pure decisions: the next move of a device that has shares of split members beside whole members.

A split member's step has two halves: a begin, which never waits for another device, and a finish, which waits until every rank
has begun. The begins of a device follow the stream: they are ordered by the element at which their batch is complete, ties by the
member's number in the study. Each device can compute this order alone, so all devices make the begins that they share in the same order.
A member is finished as late as possible: before its next begin, or when the section ends. If it must be finished but a peer has not
begun, the device makes a step of one of its whole members instead, and waits only if there is none.

No deadlock is possible. Suppose that some devices wait for a finish. Let b be the earliest batch that any of them waits for, in the order
of the begins over all blocks and members, and consider a peer that has not begun b. If this peer waited too, it would wait for a batch c
that it has begun. Since b is the earliest, c comes after b. But a device makes its begins in order, so the peer would have begun b before
c. Hence the peer does not wait. The block that it needs for b was announced to it before the current block of the waiting device, and its
work before b is finite, so it begins b. Forming a group waits only until the other ranks are assigned.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from argosy.stream.blocks import Block
from argosy.training.programs.shard.shard import Shard

__all__ = ["Begin", "Move", "moves", "next_move"]


class Begin(NamedTuple):
    """The begin of a split member's batch; ordered by its fields."""

    element: int
    """Element of the epoch's order at which the batch is complete."""
    number: int
    """Number of the member in the study."""
    member: str


class Move(Enum):
    """A move of a device."""

    BEGIN = "begin the next batch of a split member"
    FINISH = "finish a split member"
    WHOLE = "make a step of a whole member"
    WAIT = "wait for other devices"


def next_move(
    head: str | None, under_way: Collection[str], waits: Callable[[str], bool], *, whole: bool, ends: bool
) -> tuple[Move, str] | None:
    """Return the next move on a block, and its split member; None if nothing is left to do.

    `head` is the member of the block's next begin; `under_way` are members that have begun and not finished; `waits` returns whether a
    member's next half must wait for other devices. `whole` is whether a whole member has a step left, and `ends` whether the
    block ends a section of training.
    """
    if head is None and (whole or not ends or not under_way):
        # A finish that can be made during the next block is not waited for.
        return (Move.WHOLE, "") if whole else None
    member = next(iter(under_way)) if head is None else head
    if waits(member):
        return (Move.WHOLE if whole else Move.WAIT), member
    return (Move.FINISH if member in under_way else Move.BEGIN), member


def moves(splits: Mapping[str, Shard], block: Block, whole: Callable[[], bool]) -> Iterator[tuple[Move, str]]:
    """Yield the moves on a training block; each must be made before the next one is requested.

    Members may be removed from `splits` meanwhile. After an interruption, a new call yields the remaining moves of the block.
    """
    begins = deque(sorted(Begin(element, s.number, name) for name, s in splits.items() for element in s.ahead(block)))
    while True:
        while begins and begins[0].member not in splits:
            begins.popleft()
        under_way = [name for name, split in splits.items() if split.under_way]
        head = begins[0].member if begins else None
        move = next_move(head, under_way, lambda name: splits[name].waits, whole=whole(), ends=block.place.last)
        if move is None:
            return
        if move[0] is Move.BEGIN:
            begins.popleft()
        yield move
