"""Which node prepares which block, and how the block reaches the other nodes: the pipelines of SC'18 (§IV, Figs 5-7).

Contract. The unit of sharing is a block of the stream. The p preparing nodes take turns: block k of a leg is prepared only by
the node of turn k mod p. So the partitions are exclusive, and every node has the same blocks in the
same order, whatever the pipeline. A block is sent as its bytes in the ring, in one broadcast per hop, directly
from slot to slot. A pipeline is a value: a new one is one function and one line in ``PIPELINES``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

__all__ = ["PIPELINES", "Hop", "Pipeline", "Turn", "candidates"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """One broadcast of a block within one group."""

    group: int
    """Number of the group in its pipeline."""
    root: int
    """Rank of the node that sends the block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """The node that prepares a block, and the successive broadcasts that send it to the others."""

    owner: int
    hops: tuple[Hop, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """How a number of nodes share one stream."""

    groups: tuple[tuple[int, ...], ...]
    """Ranks of each communication group; groups may overlap."""
    turns: tuple[Turn, ...]
    """Turns of the blocks of a leg, repeated cyclically."""

    def seen_by(self, rank: int) -> Iterator[tuple[bool, tuple[Hop, ...]]]:
        """Return for each block of a leg whether this node prepares it, and those hops in which the node takes part."""
        return cycle(
            (turn.owner == rank, tuple(hop for hop in turn.hops if rank in self.groups[hop.group]))
            for turn in self.turns
        )

    def share(self, rank: int) -> float:
        """Return the share of the blocks that this node prepares."""
        return sum(turn.owner == rank for turn in self.turns) / len(self.turns)


def all_shared(nodes: int) -> Pipeline:
    """Let every node prepare, and all nodes gather the blocks.

    The all-gather consists of one broadcast per block, several in progress at a time. gloo's own all-gather takes three times as
    long for the same bytes.
    """
    all_ranks = tuple(range(nodes))
    turns = tuple(Turn(owner=rank, hops=(Hop(group=0, root=rank),)) for rank in all_ranks)
    return Pipeline(groups=(all_ranks,), turns=turns)


def single_broadcast(nodes: int, preparing: int) -> Pipeline:
    """Let the first p nodes prepare and gather among themselves, and the last of them broadcast to the rest."""
    leader = preparing - 1
    gathering, rest = tuple(range(preparing)), tuple(range(leader, nodes))

    def hops(owner: int) -> Iterator[Hop]:
        if len(gathering) > 1:
            yield Hop(group=0, root=owner)
        if len(rest) > 1:
            yield Hop(group=1, root=leader)

    turns = tuple(Turn(owner=rank, hops=tuple(hops(rank))) for rank in gathering)
    return Pipeline(groups=(gathering, rest), turns=turns)


def multi_broadcast(nodes: int, preparing: int) -> Pipeline:
    """Let the first p nodes prepare, and each broadcast its own blocks to all nodes in a group of its own."""
    all_ranks = tuple(range(nodes))
    turns = tuple(Turn(owner=rank, hops=(Hop(group=rank, root=rank),)) for rank in range(preparing))
    return Pipeline(groups=(all_ranks,) * preparing, turns=turns)


PIPELINES: dict[str, Callable[[int, int], Pipeline]] = {
    "all-shared": lambda nodes, _: all_shared(nodes),  # nodes that joined later prepare too
    "single-broadcast": single_broadcast,
    "multi-broadcast": multi_broadcast,
}
"""Name -> (nodes, preparing nodes) -> pipeline. ``local`` needs no pipeline: every node prepares every block."""


def candidates(nodes: int) -> list[tuple[str, int]]:
    """Return the (pipeline, preparing nodes) worth measuring: all nodes prepare, or one, or about half of them."""
    few = sorted({1, (nodes + 1) // 2} - {nodes})
    shared = [(name, preparing) for name in ("single-broadcast", "multi-broadcast") for preparing in few]
    # With one preparing node, single and multi-broadcast are the same.
    return [("all-shared", nodes), *(pair for pair in shared if pair != ("multi-broadcast", 1))]
