"""An ensemble: several networks as one `nn.Module`."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from argosy.disk.files import user_path
from argosy.disk.settled import delete_if_refused
from argosy.ensembling.answering import answer
from argosy.ensembling.combining import (
    Combine,
    Combines,
    averaged_terms,
    combine_outputs,
    combine_per_output,
    quantiles,
    stack_outputs,
    variance,
)
from argosy.ensembling.opening import network_with_weights
from argosy.ensembling.preparing import InputPreparation, Preparing
from argosy.errors import RunError, StudyError
from argosy.stream.trees import flatten, unflatten
from argosy.study import Member, Study
from argosy.training.member import checkpoint

__all__ = ["Ensemble", "member_of", "snapshot_name"]


class Ensemble(Preparing):
    """Networks that predict together: probabilities of classes ``[B, classes]``, or the mean of their numbers.

    If the networks return several outputs, in a tuple or a dict, the ensemble returns the same structure, and combines each output separately.

    It is an ordinary module: it moves to devices, has a ``state_dict``, and can be trained further or exported with ``torch.export``.
    """

    weights: Tensor
    temperatures: Tensor

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        *,
        combine: Combines,
        weights: Sequence[float],
        temperatures: Sequence[float],
        seeds: Sequence[int] = (),
        scores: Sequence[Mapping[str, Any]] = (),
        note: str = "",
        preparation: InputPreparation | None = None,
    ) -> None:
        super().__init__()
        self.names: tuple[str, ...] = tuple(networks)
        self.networks: nn.ModuleList = nn.ModuleList(networks.values())
        self.combine: Combines = combine
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))
        self.register_buffer("temperatures", torch.tensor(temperatures, dtype=torch.float32))
        self.seeds: tuple[int, ...] = tuple(seeds)
        """Seed with which each network is built, also when loaded; empty if the networks do not come from a run."""
        self.scores: tuple[Mapping[str, Any], ...] = tuple(scores)
        """Scores on the samples from which the ensemble was made, as rows of a table; the first row is the ensemble's."""
        self.note = note
        """The samples on which scores were computed, or why there are no scores."""
        self.preparation = preparation
        """Preparation of inputs as the study's dataset returns them; None if inputs are passed as `Data.on_device` returns them."""

    def forward(self, inputs: Any) -> Any:
        """Return the combined prediction."""
        return self._each_output(
            inputs, lambda output_MB, how: combine_outputs(output_MB, self.weights, self.temperatures, how)
        )

    def outputs(self, inputs: Any) -> Any:
        """Return the output of each network, ``[members, B, …]``."""
        ready = inputs if self.preparation is None else self.preparation.inputs(inputs)
        return stack_outputs({name: answer(one, ready) for name, one in zip(self.names, self.networks, strict=True)})

    def variance(self, inputs: Any) -> Any:
        """Return the weighted variance of what the ensemble averages, ``[B, …]``: of the networks' numbers, or of the probabilities (with
        ``combine="logits"`` logits, with ``"votes"`` votes) that they give to each class."""
        return self._each_output(inputs, lambda output_MB, how: variance(self._terms(output_MB, how), self.weights))

    def quantiles(self, inputs: Any, shares: Sequence[float]) -> Any:
        """Return, for each share, the smallest number at or below which that share of the weight lies, ``[shares, B, …]``; the numbers are
        those of `variance`."""
        if isinstance(shares, int | float) or not all(0 <= share <= 1 for share in shares):
            raise StudyError(
                f"quantiles: shares is {shares}; it must be a list of numbers from 0 to 1. Pass [0.9] for 90 %."
            )
        return self._each_output(
            inputs, lambda output_MB, how: quantiles(self._terms(output_MB, how), self.weights, shares)
        )

    def _terms(self, output_MB: Tensor, how: Combine) -> Tensor:
        return averaged_terms(output_MB, self.temperatures, how)

    def _each_output(self, inputs: Any, work: Callable[[Tensor, Combine], Tensor]) -> Any:
        """Return what a function makes of each output of all networks, given how it is combined."""
        outputs, tree = flatten(self.outputs(inputs))
        return unflatten(list(map(work, outputs, combine_per_output(self.combine, tree))), tree)

    def save(self, path: str | Path) -> None:
        """Write the ensemble as plain data: the state of each network, by name under ``networks``, and how they are combined.

        Missing folders are created."""
        about = {"combine": self.combine, "scores": [dict(row) for row in self.scores], "note": self.note}
        numbers = {"weights": self.weights.tolist(), "temperatures": self.temperatures.tolist(), "seeds": self.seeds}
        with checkpoint.unmerge_weights(self.networks):
            states = {name: network.state_dict() for name, network in zip(self.names, self.networks, strict=True)}
            state = {"networks": states, **numbers, **about, "preprocesses": self.preparation is not None}
            copied = checkpoint.to_plain(state, host=True)
        path = user_path(path)
        with delete_if_refused((), path):
            path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(copied, path)

    @classmethod
    def load(
        cls, path: str | Path, members: Iterable[Member], *, preparation: InputPreparation | None = None
    ) -> "Ensemble":
        """Read a file that `save` wrote; the `members` build the networks of the same names. Raises CheckpointError, RunError and StudyError.

        The file contains no code, so for an ensemble that prepares its inputs, pass `preparation` again.
        """
        if isinstance(members, Study):
            raise StudyError("Ensemble.load: members is a Study; it must be a list. Pass study.members.")
        content = checkpoint.load(Path(os.path.realpath(user_path(path))), key="networks")
        by_name = {member.name: member for member in members}
        states = content.pop("networks")
        if missing := [name for name in map(member_of, states) if name not in by_name]:
            raise RunError(
                f"{path} is an ensemble of {', '.join(states)}, but no given member builds {missing[0]!r}. Pass the "
                "members of its study: Ensemble.load(path, study.members)."
            )
        if content.pop("preprocesses", False) and preparation is None:
            raise RunError(
                f"{path} is an ensemble with preprocess=True, but Data.on_device is code, which the file does not "
                "hold. Pass it again: Ensemble.load(path, study.members, preparation=preparation_of(study)), from "
                "argosy.ensembling.predict."
            )
        seeds = content.get("seeds") or [0] * len(states)
        networks = {
            name: network_with_weights(by_name[member_of(name)], state, seed)
            for (name, state), seed in zip(states.items(), seeds, strict=True)
        }
        return cls(networks, **content, preparation=preparation).eval()


def snapshot_name(member: str, epochs: float) -> str:
    """Return the name of a member's network after this many epochs; no member can have such a name."""
    return f"{member}@{epochs:.6f}".rstrip("0").rstrip(".")


def member_of(network: str) -> str:
    """Return the member to which a network or snapshot of this name belongs."""
    return network.partition("@")[0]
