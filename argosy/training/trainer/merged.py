"""The merged order, as pure decisions: what a device does next that has shares of split members beside whole ones.

A split member's step has two halves: a begin, which never waits for another device, and a finish, which waits until every rank
has begun. The begins of a device follow the stream: they are ordered by the element at which their batch is complete, ties by the
member's number in the study. Each device can compute that alone, so all devices take the begins that they share in one order. A
member is finished as late as possible: before its next begin, or when the section ends. Where it is to be finished and a peer has
not begun, the device makes a step of one of its whole members, and waits only if there is none.

No deadlock is possible. Of all devices that wait for a finish, take the one that waits for the least batch b in the order of the
begins, over blocks and members, and a peer that has not begun b. If that peer waited too, it would be for a batch c that it has
begun; c comes after b, which is the least; but a device takes its begins in order, and would have begun b before c. So the peer
does not wait. The block that it needs for b was announced to it before the block that the waiting device is at, and its work before
b is finite: it begins b. Forming a group waits only until the other ranks are assigned.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from argosy.stream.blocks import Block
from argosy.training.programs.shard.shard import Shard

__all__ = ["Begin", "Move", "moves", "next_move"]


class Begin(NamedTuple):
    """A batch of a split member that is to be begun; ordered by its fields."""

    element: int
    """Element of the epoch's order up to which the batch needs the stream."""
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
    """Return the next move on a block and its split member; None where nothing is left to do.

    `head` is the member of the block's next begin; `under_way` are members begun and not finished; `waits` returns whether a
    member's next half has to wait for other devices. `whole` says whether a whole member has a step left, `ends` whether the
    block ends a section of training.
    """
    if head is None and (whole or not ends or not under_way):
        # A finish that the next block can make as well is not waited for.
        return (Move.WHOLE, "") if whole else None
    member = next(iter(under_way)) if head is None else head
    if waits(member):
        return (Move.WHOLE if whole else Move.WAIT), member
    return (Move.FINISH if member in under_way else Move.BEGIN), member


def moves(splits: Mapping[str, Shard], block: Block, whole: Callable[[], bool]) -> Iterator[tuple[Move, str]]:
    """Yield the moves on a training block; each must be made before the next is requested.

    Members may leave `splits` meanwhile. After an interruption, a new call yields the rest of the block's moves.
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
