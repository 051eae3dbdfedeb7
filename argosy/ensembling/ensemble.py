"""Several networks as one network."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from argosy.ensembling.answering import answer
from argosy.ensembling.combining import Combine, combined, quantiles, variance
from argosy.ensembling.opening import opened
from argosy.ensembling.preparing import InputPreparation
from argosy.errors import RunError
from argosy.study import Member
from argosy.training.member import checkpoint

__all__ = ["Ensemble"]


class Ensemble(nn.Module):
    """Networks that answer together: of classes the probabilities ``[B, classes]``, else the mean of their numbers.

    A module as any other: it moves to devices, has a ``state_dict``, is trained further or exported with ``torch.export``.
    """

    weights: Tensor
    temperatures: Tensor

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        *,
        combine: Combine,
        weights: Sequence[float],
        temperatures: Sequence[float],
        seeds: Sequence[int] = (),
        scores: Sequence[Mapping[str, Any]] = (),
        note: str = "",
        preparation: InputPreparation | None = None,
    ) -> None:
        super().__init__()
        self.names = tuple(networks)
        self.networks = nn.ModuleList(networks.values())
        self.combine: Combine = combine
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))
        self.register_buffer("temperatures", torch.tensor(temperatures, dtype=torch.float32))
        self.seeds = tuple(seeds)
        """Under which each was built, and is built again; of networks from elsewhere there are none."""
        self.scores = tuple(scores)
        """What it was found to be worth on the samples that it was made on: rows as of a table, its own first."""
        self.note = note
        """What these scores are of, or why there are none."""
        self.preparation = preparation
        """What it does first to inputs as the study's dataset has them; None where it takes them as `Data.on_device` returns them."""

    def forward(self, inputs: Any) -> Tensor:
        """What they say together."""
        return combined(self.outputs(inputs), self.weights, self.temperatures, self.combine)

    def outputs(self, inputs: Any) -> Tensor:
        """What each of them says, ``[members, B, …]``."""
        ready = inputs if self.preparation is None else self.preparation.inputs(inputs)
        return torch.stack([answer(network, ready) for network in self.networks])

    def variance(self, inputs: Any) -> Tensor:
        """How far they are apart, ``[B, …]``."""
        return variance(self.outputs(inputs), self.weights)

    def quantiles(self, inputs: Any, shares: Sequence[float]) -> Tensor:
        """For each share the least answer that so much of their weight lies at or below, ``[shares, B, …]``."""
        return quantiles(self.outputs(inputs), self.weights, shares)

    def save(self, path: str | Path) -> None:
        """Write it as plain data: under ``networks`` the state of each, by name, and beside it how they are combined."""
        states = {name: network.state_dict() for name, network in zip(self.names, self.networks, strict=True)}
        about = {"combine": self.combine, "scores": [dict(row) for row in self.scores], "note": self.note}
        numbers = {"weights": self.weights.tolist(), "temperatures": self.temperatures.tolist(), "seeds": self.seeds}
        checkpoint.save(
            checkpoint.plain(
                {"networks": states, **numbers, **about, "preprocesses": self.preparation is not None}, host=True
            ),
            Path(path),
        )

    @classmethod
    def load(
        cls, path: str | Path, members: Iterable[Member], *, preparation: InputPreparation | None = None
    ) -> "Ensemble":
        """Read what `save` wrote; members of the same names build the networks. Raises CheckpointError and RunError.

        The file has no code: an ensemble that prepares its inputs is given its `preparation` again.
        """
        found, by_name = checkpoint.load(Path(path).resolve()), {member.name: member for member in members}
        states = found.pop("networks")
        if missing := [name for name in states if name not in by_name]:
            raise RunError(
                f"{path} is an ensemble of {', '.join(states)}, and nothing says how to build {missing[0]!r}: give the members "
                "of its study, as in Ensemble.load(path, study.members)."
            )
        if found.pop("preprocesses", False) and preparation is None:
            raise RunError(
                f"{path} is an ensemble with preprocess=True, and Data.on_device is code that no file holds: give it again, as in "
                "Ensemble.load(path, study.members, preparation=preparation_of(study)), from argosy.ensembling.predict."
            )
        seeds = found.get("seeds") or [0] * len(states)
        networks = {
            name: opened(by_name[name], state, seed) for (name, state), seed in zip(states.items(), seeds, strict=True)
        }
        return cls(networks, **found, preparation=preparation).eval()
