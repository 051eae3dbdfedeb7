"""A run that its ensemble steers beside one that trains all members to their ends and chooses afterwards, as people do.

Five data sets that packages ship or make, 64 unlike members each, several seeds; both sides have the same members, data and order. The
ensembles of both are chosen on all validation samples and compared on test samples that neither run has seen: the steered run's as its report
makes it, of best sections and of others that members keep, and the other one's from best sections, which is what people keep. Both are
also chosen in the other's way, to tell what steering costs from what the choice gives. Steered members are checked against those of the other run: their sections are the same ones, as far as
they trained.
"""

import itertools
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import arguments, finish, hardware, target
from scipy.stats import ttest_1samp, wilcoxon
from sklearn import datasets
from torch import Tensor, nn

import argosy
from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal

MEMBERS, EPOCHS, SEEDS = 64, 30, 10
MOST_STEPS = 0.6
LARGEST_P = 0.05
Arrays = tuple[Tensor, Tensor]


def mnist1d() -> tuple[Any, Any]:
    """Made by the package mnist1d, 4,000 signals of 40 numbers."""
    from mnist1d.data import get_dataset_args, make_dataset

    made = make_dataset(get_dataset_args())
    return made["x"], made["y"]


def california() -> tuple[Any, Any]:
    """Like California's houses: eight features, of which some matter together."""
    return datasets.make_friedman1(2000, 8, noise=1.0, random_state=0)


SETS: dict[str, tuple[Callable[[], tuple[Any, Any]], int]] = {
    "digits": (partial(datasets.load_digits, return_X_y=True), 10),
    "breast cancer": (partial(datasets.load_breast_cancer, return_X_y=True), 2),
    "diabetes": (partial(datasets.load_diabetes, return_X_y=True), 0),
    "like california": (california, 0),
    "mnist1d": (mnist1d, 10),
}
"""By name: the samples, and the number of classes or 0 for a regression."""


def parts(name: str, seed: int) -> list[Arrays]:
    """Training, validation and test samples, standardised by the first."""
    load, classes = SETS[name]
    x, y = load()
    order = np.random.RandomState(seed).permutation(len(x))
    first, second = int(0.55 * len(x)), int(0.78 * len(x))
    found = order[:first], order[first:second], order[second:]
    spread = x[found[0]].std(0)
    x = (x - x[found[0]].mean(0)) / np.where(spread > 0, spread, 1.0)  # some pixels of digits are always empty
    y = y if classes else ((y - y[found[0]].mean()) / y[found[0]].std())[:, None]
    as_y = torch.long if classes else torch.float32
    return [(torch.tensor(x[at], dtype=torch.float32), torch.tensor(y[at], dtype=as_y)) for at in found]


def mlp(inputs: int, outputs: int, width: int, depth: int, dropout: float) -> nn.Sequential:
    """A network of so many hidden layers."""
    widths = [inputs, *[width] * depth]
    layers = [
        layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout))
    ]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def members(inputs: int, classes: int, count: int, seed: int) -> list[argosy.Member]:
    """Unlike members, drawn from a space as a person would write it."""
    draw, found = random.Random(seed), []
    for number in range(count):
        rate = 10 ** draw.uniform(-2.5, -0.5)
        optimizer: Any = partial(torch.optim.SGD, lr=rate, momentum=0.9)
        if draw.random() < 0.5:
            optimizer = partial(torch.optim.Adam, lr=rate / 10)
        widths = {"width": draw.choice([16, 32, 64]), "depth": draw.choice([1, 2, 3])}
        model = partial(mlp, inputs, classes or 1, dropout=draw.choice([0.0, 0.1, 0.3]), **widths)
        loss = None if classes else nn.MSELoss()
        member = argosy.Member(
            f"m{number:02d}", model=model, optimizer=optimizer, batch_size=draw.choice([16, 32, 64]), loss=loss
        )
        found.append(member)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A run's steps, and losses of ensembles on the test samples."""

    steps: int
    of_best: float
    """Chosen from each member's best section, greedily."""
    of_all: float
    """Chosen also from other sections that members keep, bagged."""
    networks: int
    """In the latter."""
    state: RunState


def train(study: argosy.Study, directory: Path, test: Arrays) -> Trained:
    """Train a study, and choose ensembles."""
    report = argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", quiet=True)
    state = RunState.of(read_journal(directory))
    steps = sum(int(member.history[-1]["steps"]) for member in state.members.values() if member.history)
    names = [row.name for row in report.rows if row.counts]
    best = report.ensemble(members=names, select="greedy", snapshots=False)
    every = report.ensemble(members=names, select="bagged")
    return Trained(
        steps=steps,
        of_best=loss(best, test),
        of_all=loss(every, test),
        networks=len(every.names),
        state=state,
    )


def loss(ensemble: Any, test: Arrays) -> float:
    """Mean squared error, or negative log-likelihood."""
    with torch.no_grad():
        predicted = ensemble(test[0])
    if test[1].is_floating_point():
        return float((predicted - test[1]).pow(2).mean())
    return float(-predicted.gather(1, test[1][:, None]).clamp(min=1e-12).log().mean())


def same_sections(steered: RunState, whole: RunState) -> bool:
    """Whether each member's sections are those that it has in the other run, as far as it trained."""
    return all(
        [row.digest for row in member.sections]
        == [row.digest for row in whole.members[name].sections][: len(member.sections)]
        for name, member in steered.members.items()
    )


def compared(name: str, seeds: Sequence[int], count: int, epochs: int, patience: int) -> dict[str, Any]:
    """One data set: shares of steps and both sides' losses, a seed each."""
    shares, losses, networks, same = [], [], [], True
    alike: dict[str, list[float]] = {"best": [], "all": []}
    for seed in seeds:
        train_samples, val, test = parts(name, seed)
        study = argosy.Study(
            data=argosy.Data(arrays=train_samples, val_arrays=val),
            members=members(train_samples[0].shape[1], SETS[name][1], count, seed),
            stop=argosy.MaxEpochs(epochs),
            ensemble=argosy.EnsemblePlateau(patience=epochs),  # ends nobody
            seed=seed,
        )
        with tempfile.TemporaryDirectory() as folder:
            whole = train(study, Path(folder, "all"), test)
            steered_study = replace(study, ensemble=argosy.EnsemblePlateau(patience=patience))
            steered = train(steered_study, Path(folder, "steered"), test)
        same = same and same_sections(steered.state, whole.state)
        shares.append(steered.steps / whole.steps)
        losses.append((steered.of_all, whole.of_best))
        alike["best"].append(steered.of_best / whole.of_best)
        alike["all"].append(steered.of_all / whole.of_all)
        networks.append(steered.networks)
        print(
            f"{name} seed {seed}: steps {shares[-1]:.2f}, loss {steered.of_all:.4f} ({steered.networks} networks) and {whole.of_best:.4f}; "
            f"both of best sections {alike['best'][-1]:.3f}, both of all {alike['all'][-1]:.3f}",
            flush=True,
        )
    return {"shares": shares, "losses": losses, "alike": alike, "networks": networks, "same_sections": same}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--patience", type=int, default=argosy.EnsemblePlateau().patience)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    options = parser.parse_args()
    print(hardware(), flush=True)
    targets, figures = [], {}
    for name in options.sets:
        found = figures[name] = compared(name, range(options.seeds), options.members, options.epochs, options.patience)
        ratios = [math.log(steered / whole) for steered, whole in found["losses"]]
        worse = found["p_worse"] = float(ttest_1samp(ratios, 0.0, alternative="greater").pvalue)
        signs = found["p_worse_signed_rank"] = float(
            wilcoxon(ratios, alternative="greater", zero_method="zsplit").pvalue
        )
        of_best, of_all = (statistics.median(found["alike"][way]) for way in ("best", "all"))
        print(
            f"{name}: both chosen from best sections {of_best:.3f}, both from all that are kept {of_all:.3f}",
            flush=True,
        )
        print(
            f"{name}: paired over {len(ratios)} seeds, worse with p {worse:.3f} (t), {signs:.3f} (signed ranks)",
            flush=True,
        )
        targets += [
            target(f"{name}: member-steps, all members to their ends = 1", found["shares"], at_most=MOST_STEPS),
            target(
                f"{name}: loss of the ensemble on test samples, chosen after = 1",
                [math.exp(r) for r in ratios],
                at_most=1.0,
            ),
            target(f"{name}: p of a one-sided paired t test that it is worse", [worse], at_least=LARGEST_P),
            target(
                f"{name}: sections are those of the other run (1 = yes)", [float(found["same_sections"])], at_least=1.0
            ),
        ]
    finish("steered", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
