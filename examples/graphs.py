"""Graphs with different numbers of nodes and edges, such as molecules: `python examples/graphs.py`."""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn, optim

import argosy


def graph(number: int) -> tuple[dict[str, Tensor], int]:
    """Return a random tree of two kinds of atoms, and whether most of its bonds join unlike atoms; load your own graphs here.

    Nodes are features ``[N, 2]``; edges ``[E, 2]`` are pairs of nodes, in both directions (PyTorch Geometric's ``edge_index.T``).
    """
    draw = torch.Generator().manual_seed(number)
    size = int(torch.randint(4, 13, (), generator=draw))
    kinds = torch.randint(0, 2, (size,), generator=draw)
    bonds = torch.tensor([(int(torch.randint(0, node, (), generator=draw)), node) for node in range(1, size)])
    unlike = kinds[bonds[:, 0]] != kinds[bonds[:, 1]]
    nodes = nn.functional.one_hot(kinds, 2).float()
    return {"nodes": nodes, "edges": torch.cat([bonds, bonds.flip(1)])}, int(unlike.float().mean() > 0.5)


class GraphNet(nn.Module):
    """Message passing over the graphs of a batch, which are joined to one graph without the padding."""

    def __init__(self, hidden: int, rounds: int) -> None:
        super().__init__()
        widths = [2, *[hidden] * rounds]
        self.layers = nn.ModuleList(nn.Linear(2 * a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(hidden, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return logits ``[B, 2]``."""
        real = batch["is_node"].bool()  # [B, N]
        number = (real.flatten().cumsum(0) - 1).view(real.shape)  # each node's number in the joined graph
        of_graph, _ = real.nonzero(as_tuple=True)
        edges = batch["edges"]
        ends = number.gather(1, edges.clamp(min=0).flatten(1)).view(edges.shape)
        sender, receiver = ends[edges[..., 0] >= 0].T  # padding edges are -1
        x = batch["nodes"][real]
        for layer in self.layers:
            messages = torch.zeros_like(x).index_add(0, receiver, x[sender])
            x = layer(torch.cat([x, messages], 1)).relu()
        return self.head(x.new_zeros(len(real), x.shape[1]).index_add(0, of_graph, x))


member = partial(argosy.Member, batch_size=32, metrics={"accuracy": argosy.accuracy})
study = argosy.Study(
    data=argosy.Data(
        train=[graph(number) for number in range(1000)],
        val=[graph(number) for number in range(1000, 1200)],
        ragged=({"nodes": argosy.Ragged(12, mask="is_node"), "edges": argosy.Ragged(22, pad=-1)}, None),
    ),
    members=[
        member(f"{rounds}-rounds", model=partial(GraphNet, 16, rounds), optimizer=partial(optim.Adam, lr=0.01))
        for rounds in (1, 2, 3)
    ],
    stop=argosy.MaxEpochs(8),
)

if __name__ == "__main__":
    best = argosy.train(study, directory="runs/graphs").best()
    print(f"{best.name}: {best.metrics['val_accuracy']:.1%} of the graphs are classified correctly")
