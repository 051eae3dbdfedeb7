"""Compares one line of `argosy.Classifier` or `argosy.Regressor` with scikit-learn's HistGradientBoosting and MLP at their defaults, on ten tables.

Nine tables come with scikit-learn and statsmodels; the tenth is made by scikit-learn's `make_friedman1`, with noise,
words and missing numbers. Rivals get words as one column each, and MLP, which takes no missing numbers, gets the median
for these. Each table is split three times with different seeds. In each split, sides are ranked by their loss (log loss
or squared error) on the quarter that none was trained on; a mean rank is over all splits. The seconds are of fitting,
in turn, with whatever else the machine does.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from measuring import arguments, finish, target
from sklearn import datasets
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from statsmodels import datasets as econometric

import argosy

SIDES = ("argosy", "boosting", "mlp")


def tables() -> Iterator[tuple[str, pd.DataFrame, Any]]:
    """Yield name, columns and targets of each table; a table with float targets is a regression."""
    for load in (datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer, datasets.load_digits):
        found = load(as_frame=True)
        yield load.__name__.removeprefix("load_"), found.data, found.target.to_numpy()
    diabetes = datasets.load_diabetes(as_frame=True)
    yield "diabetes", diabetes.data, diabetes.target.to_numpy(float)
    women = econometric.fair.load_pandas().data
    yield "fair", women.drop(columns="affairs"), (women["affairs"] > 0).to_numpy().astype(int)
    voters = econometric.anes96.load_pandas().data
    yield "anes96", voters.drop(columns="vote"), voters["vote"].to_numpy().astype(int)
    visits = econometric.randhie.load_pandas().data.sample(4000, random_state=0)
    yield "randhie", visits.drop(columns="mdvis"), np.log1p(visits["mdvis"]).to_numpy(float)
    schools = econometric.star98.load_pandas().data
    yield (
        "star98",
        schools.drop(columns=["NABOVE", "NBELOW"]),
        (schools["NABOVE"] / (schools["NABOVE"] + schools["NBELOW"])).to_numpy(float),
    )
    yield "friedman", *friedman()


def friedman() -> tuple[pd.DataFrame, Any]:
    """Return a table with words and missing numbers."""
    x, y = datasets.make_friedman1(1500, n_features=8, noise=1.0, random_state=0)
    table, random = pd.DataFrame(x).add_prefix("x"), np.random.RandomState(0)
    table["x3"] = np.array(["low", "middle", "high"])[np.digitize(x[:, 3], [0.3, 0.7])]
    return table.mask(random.rand(*table.shape) < 0.05), y


def rival(estimator: Any) -> Any:
    """Return the estimator behind the preprocessing that it needs for such a table."""
    words = make_column_selector(dtype_include=["object", "str"])
    numbers = make_column_selector(dtype_include="number")
    encode = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    fill = "passthrough" if "Hist" in type(estimator).__name__ else SimpleImputer(strategy="median")
    return make_pipeline(make_column_transformer((encode, words), (fill, numbers)), estimator)


def sides(classes: bool, seed: int) -> dict[str, Any]:
    """Return the three sides at their defaults."""
    if classes:
        boosting, mlp = HistGradientBoostingClassifier(random_state=seed), MLPClassifier(random_state=seed)
        return {"argosy": argosy.Classifier(random_state=seed), "boosting": rival(boosting), "mlp": rival(mlp)}
    boosting, mlp = HistGradientBoostingRegressor(random_state=seed), MLPRegressor(random_state=seed)
    return {"argosy": argosy.Regressor(random_state=seed), "boosting": rival(boosting), "mlp": rival(mlp)}


def measured(fit: Callable[[], Any]) -> tuple[Any, float]:
    """Return what was fitted, and the seconds."""
    began = time.perf_counter()
    return fit(), time.perf_counter() - began


def split(x: pd.DataFrame, y: Any, seed: int) -> dict[str, dict[str, float]]:
    """Return losses and seconds of each side on one split."""
    classes = y.dtype.kind != "f"
    parts = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=y if classes else None)
    found, names = {}, list(SIDES)
    for name in names[seed % 3 :] + names[: seed % 3]:
        made, seconds = measured(partial(sides(classes, seed)[name].fit, parts[0], parts[2]))
        if classes:
            loss = log_loss(parts[3], made.predict_proba(parts[1]), labels=made.classes_)
        else:
            loss = mean_squared_error(parts[3], made.predict(parts[1]))
        found[name] = {"loss": float(loss), "score": made.score(parts[1], parts[3]), "seconds": seconds}
    return found


def main() -> None:
    asked = arguments(__doc__ or "").parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    rows: dict[str, list[dict[str, dict[str, float]]]] = {}
    ranks: dict[str, list[int]] = {side: [] for side in SIDES}
    for name, x, y in tables():
        rows[name] = [split(x, y, seed) for seed in range(asked.rounds)]
        for found in rows[name]:
            order = sorted(SIDES, key=lambda side: found[side]["loss"])
            for side in SIDES:
                ranks[side].append(1 + order.index(side))
        middle = {
            side: [
                statistics.median(found[side][what] for found in rows[name]) for what in ("loss", "score", "seconds")
            ]
            for side in SIDES
        }
        print(
            f"{name} {x.shape}: " + "; ".join(f"{s} {a:.4g} ({b:.3f}, {c:.1f} s)" for s, (a, b, c) in middle.items()),
            flush=True,
        )
    means = {side: statistics.mean(found) for side, found in ranks.items()}
    print("mean ranks:", ", ".join(f"{side} {mean:.2f}" for side, mean in means.items()))
    best = min(means["boosting"], means["mlp"])
    held = target("mean rank of Argosy less that of the better rival", [means["argosy"] - best], at_most=0.0)
    finish("tables", {"splits": rows, "mean_ranks": means}, [held], as_json=asked.json)


if __name__ == "__main__":
    main()
