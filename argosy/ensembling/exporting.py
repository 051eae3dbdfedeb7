"""Prepares a run's network for `argosy.export`: adds example inputs, and a description for readers of the file."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from argosy.data.features import Features, Unfrozen
from argosy.ensembling.answering import takes_keywords
from argosy.ensembling.ensemble import Ensemble
from argosy.ensembling.predict import features_of, few_inputs
from argosy.ensembling.preparing import Prepared, prepares_itself
from argosy.export.exported import About, Combination, Exported, InputLeaf
from argosy.results.member import MemberResult, best_epochs
from argosy.stream.trees import flatten
from argosy.study import Study
from argosy.version import __version__

__all__ = ["build_exported"]


def build_exported(study: Study, samples: Mapping[str, int], network: nn.Module, row: MemberResult | None) -> Exported:
    """Return a network of the study for export; `samples` is the number by split, `row` the result of the network's member, if it has one."""
    prepares = prepares_itself(network)
    bare = network.network if isinstance(network, Prepared) else network
    # If samples vary in length, the same ones with another length show which sizes differ.
    varied = (False,) if study.data.ragged is None else (False, True)
    inputs, *others = [few_inputs(study, prepared=not prepares, other_lengths=other) for other in varied]
    if isinstance(network, Unfrozen):
        inputs = network.own(inputs)  # only the inputs at its own cut, not those of other cuts
    features = features_of(study)
    by_name = isinstance(inputs, Mapping) and takes_keywords(network, inputs)
    about = About(
        name=row.name if row is not None else type(bare).__name__.lower(),
        network=type(bare).__name__,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        inputs=_leaves(inputs, others),
        preprocessing=prepares,
        trunk="" if features is None else _trunk(features, network),
        dataset=_dataset(study),
        samples=samples,
        figures=_scores(bare) if row is None else row.metrics,
        epochs=None if row is None else best_epochs(row),
        hyperparameters={} if row is None else row.hyperparameters,
        ensemble=_combination(bare) if isinstance(bare, Ensemble) else None,
        argosy=__version__,
    )
    return Exported(
        network=network, arguments=() if by_name else (inputs,), keywords=inputs if by_name else {}, about=about
    )


def _leaves(inputs: Any, others: Sequence[Any]) -> tuple[InputLeaf, ...]:
    leaves, _ = flatten(inputs)
    shapes = [[tuple(leaf.shape[1:]) for leaf in flatten(one)[0]] for one in (inputs, *others)]
    sizes = [zip(*of_leaf, strict=True) for of_leaf in zip(*shapes, strict=True)]
    free = [["length" if len({*axis}) > 1 else axis[0] for axis in axes] for axes in sizes]
    flat = isinstance(inputs, Mapping) and len(inputs) == len(leaves)
    names = list(inputs) if flat else [f"inputs_{number}" if number else "inputs" for number in range(len(leaves))]
    return tuple(
        InputLeaf(name=name, dtype=str(leaf.dtype).removeprefix("torch."), shape=("batch", *shape))
        for name, leaf, shape in zip(names, leaves, free, strict=True)
    )


def _trunk(features: Features, network: nn.Module) -> str:
    """Return the class of the frozen network, and which part of it must run before this network."""
    layers = len(network.tail) if isinstance(network, Unfrozen) else 0
    return f"{type(features.network).__name__}{f'[:-{layers}]' if layers else ''}"


def _dataset(study: Study) -> str:
    """Return the name of the training data's class or function."""
    dataset = study.data.train
    # Features, and samples with a teacher's answers, hold the user's Dataset.
    while type(dataset).__module__.startswith("argosy.") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    factory = getattr(dataset, "func", dataset)
    return "arrays" if dataset is None else getattr(factory, "__qualname__", type(factory).__qualname__)


def _scores(network: nn.Module) -> dict[str, float]:
    """Return the scores of an ensemble; empty for folds, whose scores do not belong to an ensemble."""
    rows = [row for row in getattr(network, "scores", ()) if row["network"] == "ensemble"]
    return {name: value for row in rows for name, value in row.items() if name not in ("network", "weight", "samples")}


def _combination(ensemble: Ensemble) -> Combination:
    return Combination(
        members=ensemble.names,
        combine=ensemble.combine,
        weights=tuple(ensemble.weights.tolist()),
        temperatures=tuple(ensemble.temperatures.tolist()),
    )
