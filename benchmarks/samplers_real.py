"""Compares samplers by what searches find on real trainings: MLPs on data sets that packages contain or generate.

Each search is `argosy.tune` with trials that train to the end, in waves, on one data set and seed; all samplers have
equal trials. What a search finds is its least validation loss. Losses of different sets are compared by the logarithms
of their ratios to the least that any search of the set and seed has found. The paired test is Wilcoxon's, over sets and
seeds.
"""

import itertools
import math
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch
from measuring import arguments, finish, target
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from scipy.stats import wilcoxon
from steered import SETS, parts
from torch import nn

import argosy
from argosy.tuning.thompson import ThompsonSampler

TRIALS, WAVE, EPOCHS = 40, 8, 6
SAMPLERS: dict[str, Any] = {
    "default": ThompsonSampler,
    "TPE": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
}
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
SPACE: dict[str, BaseDistribution] = {
    "lr": FloatDistribution(1e-5, 1.0, log=True),
    "weight_decay": FloatDistribution(1e-6, 1.0, log=True),
    "beta": FloatDistribution(0.5, 0.99),
    "width": IntDistribution(4, 128, log=True),
    "depth": IntDistribution(1, 4),
    "dropout": FloatDistribution(0.0, 0.8),
    "activation": CategoricalDistribution([*ACTIVATIONS]),
}


def mlp(inputs: int, outputs: int, width: int, depth: int, dropout: float, activation: str) -> nn.Sequential:
    """Return an MLP with `depth` hidden layers."""
    layers: list[nn.Module] = []
    for first, second in itertools.pairwise([inputs, *[width] * depth]):
        layers += [nn.Linear(first, second), ACTIVATIONS[activation](), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def found_by(sampler: Any, name: str, seed: int) -> float:
    """Return the least validation loss of a search."""
    (x, y), validation, _ = parts(name, seed)
    classes = SETS[name][1]

    def build(parameters: dict[str, Any]) -> argosy.Member:
        of_model = {key: parameters[key] for key in ("width", "depth", "dropout", "activation")}
        optimizer = partial(
            torch.optim.AdamW,
            lr=parameters["lr"],
            weight_decay=parameters["weight_decay"],
            betas=(parameters["beta"], 0.999),
        )
        return argosy.Member(
            "mlp",
            model=partial(mlp, x.shape[1], classes or 1, **of_model),
            optimizer=optimizer,
            loss=None if classes else nn.MSELoss(),
            batch_size=32,
        )

    with tempfile.TemporaryDirectory() as folder:
        report = argosy.tune(
            build,
            SPACE,
            data=argosy.Data(arrays=(x, y), val_arrays=validation),
            max_epochs=EPOCHS,
            scheduler="random",
            n_trials=TRIALS,
            at_once=WAVE,
            sampler=sampler,
            seed=seed,
            launcher="inline",
            quiet=True,
            directory=Path(folder) / "search",
        )
        return report.best_trial.metrics["val_loss"]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sets", nargs="*", default=[name for name in SETS if name != "mnist1d"], choices=list(SETS))
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logs: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    for name in options.sets:
        of_set: dict[str, list[float]] = {sampler: [] for sampler in SAMPLERS}
        for seed in range(options.seeds):
            losses = {key: found_by(sampler, name, seed) for key, sampler in SAMPLERS.items()}
            for key, loss in losses.items():
                of_set[key].append(math.log(loss / min(losses.values())))
        print(name, *(f"{key} {statistics.fmean(values):.4f}" for key, values in of_set.items()), flush=True)
        for key, values in of_set.items():
            logs[key] += values
    worse = float(wilcoxon(logs["default"], logs["TPE"], alternative="greater").pvalue)
    better = float(wilcoxon(logs["default"], logs["random"], alternative="less").pvalue)
    judged = [
        target("p of the default being no worse than TPE", [worse], at_least=0.05),
        target("p of the default being no better than random", [better], at_most=0.05),
    ]
    figures = {key: statistics.fmean(values) for key, values in logs.items()}
    finish("samplers_real", figures, judged, as_json=options.json)


if __name__ == "__main__":
    main()
