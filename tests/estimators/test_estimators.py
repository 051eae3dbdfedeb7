"""Tests fleets as estimators of scikit-learn."""

import ast
import copy
import inspect
import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disks import fill_up
from pandas import NA, ArrowDtype, Categorical, CategoricalDtype, DataFrame, MultiIndex, Series, cut
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn
from torch.optim import AdamW

import argosy
from argosy.errors import StudyError
from argosy.estimators import bagging, scikit
from argosy.estimators.columns import Columns
from argosy.estimators.preparation import TablePreparation
from argosy.estimators.tabular import Shape

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(120, 4))
WORDS = np.where(X[:, 0] > 0, "yes", "no")
SMALL = argosy.tabular(networks=["mlp"], width=32, epochs=10, dropout=0.0)
TINY = argosy.tabular(networks=["mlp"], width=8, epochs=2)
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is one row of a batch, and in one fold, where a repeated row is two: "
    "weights are equal to repetitions in expectation only"
}
"""Checks of scikit-learn that are expected to fail, with the reason."""


SHAPE = Shape(samples=100, inputs=4, outputs=2, of_classes=True)


def own(shape: Shape) -> argosy.Member:
    """Return a member with a linear network and a loss for classes or numbers."""
    return argosy.Member(
        "linear",
        model=partial(nn.Linear, shape.inputs, shape.outputs),
        loss=None if shape.of_classes else nn.MSELoss(),
        optimizer=partial(AdamW, lr=0.05),
        batch_size=16,
        stop=argosy.MaxEpochs(10),
    )


@parametrize_with_checks(
    [argosy.Classifier(SMALL, folds=2), argosy.Regressor(SMALL, folds=2)],
    expected_failed_checks=lambda estimator: EXPECTED,
    xfail_strict=True,
)
def test_the_contract_of_scikit_learn(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some checks cause warnings on purpose
        check(estimator)


def test_a_line_makes_a_calibrated_ensemble_of_a_table() -> None:
    x, y = load_breast_cancer(return_X_y=True, as_frame=True)
    found = argosy.Classifier(random_state=0).fit(x[::2], y[::2])
    assert found.score(x[1::2], y[1::2]) > 0.95
    rows = {row["network"]: row for row in found.ensemble_.scores}
    assert set(rows) == {"ensemble", "mlp", "resnet", "tabm"}
    assert rows["ensemble"]["nll"] <= min(row["nll"] for row in rows.values())
    truth = np.eye(2)[y[1::2]]
    assert -np.log((found.predict_proba(x[1::2]) * truth).sum(1)).mean() < 0.15
    assert list(found.feature_names_in_) == list(x.columns)


def test_numbers_come_back_in_the_units_of_the_targets() -> None:
    x, y = load_diabetes(return_X_y=True)
    both = np.stack([y, 1e6 - 1000 * y], axis=1)
    found = argosy.Regressor(SMALL, folds=3, random_state=0).fit(x[::2], both[::2])
    first, second = found.predict(x[1::2]).T
    assert 1 - ((first - y[1::2]) ** 2).mean() / y.var() > 0.35
    assert np.corrcoef(first, second)[0, 1] < -0.9
    assert abs(second.mean() - both[:, 1].mean()) < 3e4


class Second(nn.Linear):
    """Learns the second of two targets only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.tensor([0.0, 1.0]).to(x)


def test_no_target_outweighs_another_one_by_its_unit_when_members_are_selected() -> None:
    y = X[:, :2] * [1e-6, 1e3]
    members = [
        replace(
            own(replace(SHAPE, of_classes=False)),
            name=name,
            model=partial(network, 4, 2),
            stop=argosy.MaxEpochs(epochs),
        )
        for name, network, epochs in (("both", nn.Linear, 8), ("second", Second, 20))
    ]
    found = argosy.Regressor(members, folds=2, random_state=0).fit(X, y)
    assert r2_score(y, found.predict(X), multioutput="raw_values").min() > 0.9


@pytest.mark.parametrize("value", [2.0**-20, 0.1])
def test_a_target_that_never_varies_is_predicted_exactly(value: float) -> None:
    y = np.stack([X[:, 0], np.full(120, value)], axis=1)
    assert (argosy.Regressor(TINY, folds=2, random_state=0).fit(X, y).predict(X)[:, 1] == value).all()


@pytest.mark.parametrize("scale", [1e160, 1e-170])
def test_targets_whose_squares_float64_cannot_hold_are_refused(scale: float) -> None:
    y = np.stack([X[:, 0] * scale, X[:, 1]], axis=1)
    with pytest.raises(StudyError, match=r"up to \S+e[+-]1\d\d, whose squares are too large or too small for float64"):
        argosy.Regressor(TINY, folds=2).fit(X, y)


def test_one_seed_gives_one_ensemble_and_a_copy_of_it_needs_no_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bagging, "MEMORY", tmp_path)
    one, again, other = (argosy.Classifier(TINY, folds=2, random_state=seed).fit(X, WORDS) for seed in (3, 3, 4))
    assert not list(tmp_path.iterdir())
    probabilities = one.predict_proba(X)
    assert np.array_equal(probabilities, again.predict_proba(X))
    assert not np.array_equal(probabilities, other.predict_proba(X))
    for same in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert np.array_equal(probabilities, same.predict_proba(X))
    assert not hasattr(clone(one), "ensemble_")
    assert set(one.predict(X)) <= {"yes", "no"}


@pytest.mark.parametrize("kind", [argosy.Classifier, argosy.Regressor])
def test_a_fit_that_fails_leaves_nothing_of_an_earlier_one(kind: type) -> None:
    found = kind(TINY, folds=2, random_state=0).fit(X, [0, 1] * 60)
    with pytest.raises(StudyError, match="members is an empty list"):
        found.set_params(members=[]).fit(X, [2, 3] * 60)
    with pytest.raises(NotFittedError):
        found.predict(X)


def test_memory_without_room_is_not_written_into(monkeypatch: pytest.MonkeyPatch, small_disk: Path) -> None:
    monkeypatch.setattr(bagging, "MEMORY", small_disk)
    fill_up(small_disk)
    assert argosy.Classifier(TINY, folds=2).fit(X, WORDS).score(X, WORDS) > 0


def test_fits_of_two_threads_draw_as_alone() -> None:
    """Fits in two threads give the same results as alone; joblib runs nested jobs of scikit-learn in threads."""

    def fitted(_: int) -> Any:
        return argosy.Classifier(TINY, folds=2, random_state=0).fit(X, WORDS).predict_proba(X)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(fitted, range(2))
    assert np.array_equal(one, fitted(0))
    assert np.array_equal(other, one)


def table(rows: int = 120) -> tuple[DataFrame, Any]:
    """Return a table of numbers and words, both with missing values, and labels that depend on the word and on whether a number is missing."""
    random = np.random.RandomState(1)
    words, size = random.choice(["red", "green", "blue"], rows), random.normal(size=rows)
    size[::3] = np.nan
    y = (words == "red") ^ np.isnan(size)
    colour = Categorical(words, categories=["blue", "green", "red", "never"])
    note = np.where(random.rand(rows) < 0.1, None, "seen")
    return DataFrame({"colour": colour, "size": size, "kind": random.randint(5, size=rows), "note": note}), y


def test_words_and_what_is_missing_are_learnt_from() -> None:
    x, y = table(300)
    members = argosy.tabular(networks=["mlp"], width=32, epochs=30, dropout=0.0)
    found = argosy.Classifier(members, folds=3, random_state=0).fit(x[:200], y[:200])
    assert found.score(x[200:], y[200:]) > 0.95
    with pytest.warns(UserWarning, match=r"^no word of column 'colour' occurred in fit, .*\.$") as warned:
        assert found.predict(x[200:].assign(colour="purple", note=None)).shape == (100,)
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.raises(ValueError, match="feature names"):
        found.predict(x[["size", "colour", "kind", "note"]])


WHOLE = CategoricalDtype(range(6))


@pytest.mark.parametrize("missing", [[], [7], [399]], ids=["none", "in training", "in prediction"])
def test_categories_of_whole_numbers_are_the_same_words_beside_a_missing_one(missing: list[int]) -> None:
    codes = np.random.RandomState(0).randint(6, size=400)
    x = DataFrame({"code": Series(codes, dtype=WHOLE), "noise": RANDOM.normal(size=400)})
    x.loc[missing, "code"] = None
    found = argosy.Classifier(SMALL, folds=2, random_state=0).fit(x[:300], codes[:300] % 2)
    assert found.columns_.words[0] == tuple("012345") + ("<missing>",) * (missing == [7])
    assert found.score(x[300:], codes[300:] % 2) > 0.95


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (Categorical([1.0, 2.5, None]), {"1", "2.5", "<missing>"}),
        (Categorical([2**53 + 1, None]), {str(2**53 + 1), "<missing>"}),
        (Categorical([True, None]), {"True", "<missing>"}),
        (np.array([1, 1.0, np.float32(1), "1", "a"], object), {"1", "a"}),
        (np.array([float("inf"), "a"], object), {"inf", "a"}),
        (cut(np.array([0.5, 1.5, np.nan]), [0, 1, 2]), {"(0, 1]", "(1, 2]", "<missing>"}),
    ],
)
def test_a_word_is_spelt_in_one_way(values: Any, words: set[str]) -> None:
    assert Columns.of(DataFrame({"word": values})).words == (tuple(sorted(words)),)


@pytest.mark.parametrize("cell", [1, "2024-01-01", "1.5"])
def test_rows_of_a_column_of_words_are_words_whatever_they_look_like(cell: Any) -> None:
    """Among the rows of `fit` there are words; of the rows to predict, each may look like a number or a date."""
    x = DataFrame({"code": Series([cell, "none"] * 10, dtype=object)})
    columns = Columns.of(x)
    assert np.array_equal(columns.rows(x[::2]), columns.rows(x)[::2])


@pytest.mark.parametrize("later", [["a", None], [5.0, np.nan], np.array([5, "a"], object)])
@pytest.mark.parametrize("empty", [None, np.nan, Series([None] * 120, dtype="string")])
def test_a_column_without_a_value_in_fit_is_left_out(empty: Any, later: Any) -> None:
    x = DataFrame({"size": X[:, 0], "note": empty})
    found = argosy.Classifier(TINY, folds=2, numbers="standard", random_state=0).fit(x, WORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no word occurred in fit
        assert np.array_equal(found.predict_proba(x.assign(note=[*later] * 60)), found.predict_proba(x))


@pytest.mark.parametrize("values", [[0.5] * 100, [0.1] * 100, [np.nan] * 99 + [0.1]])
@pytest.mark.parametrize("numbers", ["quantile", "standard"])
def test_a_column_of_one_value_says_nothing(values: list[float], numbers: Any) -> None:
    """No weight of its input would be trained, so another value in a row to predict must not change the input."""
    column = np.array(values)[:, None]
    prepared = TablePreparation(Columns.of(column), column, numbers)
    assert (prepared(torch.tensor([[0.1], [0.2], [1e6]]))[:, 0] == 0).all()


def test_values_that_differ_by_rounding_are_scaled() -> None:
    column = np.full((10_000, 1), 0.3)
    column[0] = 0.1 + 0.2
    scaled = TablePreparation(Columns.of(column), column, "standard")(torch.from_numpy(column))
    assert scaled[0] > 0
    assert (scaled[1:] == 0).all()


@pytest.mark.parametrize("names", [range(4), [7, 1, 5, 3], MultiIndex.from_product([["a", "b"], [1, 2]])], ids=repr)
def test_columns_that_strings_do_not_name_are_not_matched_by_position(names: Any) -> None:
    table = DataFrame(X, columns=names)
    columns, other = Columns.of(table), table[table.columns[[1, 0, 2, 3]]]
    with pytest.raises(StudyError, match="in a different order"):
        columns.rows(other)
    assert np.array_equal(columns.rows(other[list(columns.names or ())]), X)
    assert np.array_equal(columns.rows(X), X)


def test_decimals_are_numbers() -> None:
    x = DataFrame({"price": [Decimal("1.5"), None, Decimal(2)]})
    columns = Columns.of(x)
    assert columns.words == (None,)
    assert np.array_equal(columns.rows(x), [[1.5], [np.nan], [2.0]], equal_nan=True)


def test_flags_of_numpy_among_objects_are_numbers() -> None:
    x = DataFrame({"member": Series([np.True_, None, np.False_], dtype=object)})
    columns = Columns.of(x)
    assert columns.words == (None,)
    assert np.array_equal(columns.rows(x), [[1], [np.nan], [0]], equal_nan=True)


@pytest.mark.parametrize(
    ("cell", "really"),
    [
        ("1,065", "numbers"),
        ("$9", "numbers"),
        ("12.5", "numbers"),
        ("2024-03-01", "dates"),
        ("0123", None),
        ("a1", None),
    ],
)
def test_numbers_and_dates_as_texts_are_no_categories(cell: str, really: str | None) -> None:
    x = DataFrame({"price": [cell] * 12})
    assert Columns.of(x.astype("category")).words == ((cell,),)
    if really is None:
        assert Columns.of(x).words == ((cell,),)
    else:
        with pytest.raises(StudyError, match=f"column 'price' holds {really} as texts, such as '{re.escape(cell)}'"):
            Columns.of(x)


def test_an_arrow_table_is_a_table() -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    x, y = table()
    x = arrow.table({"size": x["size"].to_numpy(), "colour": x["colour"].astype(object).to_list()})
    found = argosy.Classifier(TINY, folds=2, random_state=0).fit(x, y, np.arange(len(y)) % 2)
    assert found.columns_.words == (None, ("blue", "green", "red"))
    assert found.predict(x).shape == (120,)


def test_the_dictionaries_of_arrow_are_categories() -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    x = DataFrame({"code": Categorical([1, 3, None]), "word": Categorical(["a", None, "b"])})
    columns, whole = Columns.of(x), arrow.Table.from_pandas(x)
    for same in (whole, arrow.concat_tables([whole[:1], whole[1:]]), whole.to_pandas(types_mapper=ArrowDtype)):
        assert Columns.of(same) == columns
        assert np.array_equal(columns.rows(same), columns.rows(x))


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.parametrize("kind", ["datetime64", "timedelta64"])
@pytest.mark.parametrize("form", [None, object, "category"], ids=str)
def test_dates_and_durations_are_refused_in_every_unit(unit: str, kind: str, form: Any) -> None:
    values = Series(np.array([None, 3, 4], f"{kind}[{unit}]"))
    with pytest.raises(StudyError, match=r"column 'day' holds .*which is neither a number nor a word"):
        Columns.of(DataFrame({"day": values if form is None else values.astype(form)}))


@pytest.mark.parametrize("kind", ["datetime64[ns]", "timedelta64[D]"])
def test_arrays_of_dates_and_durations_are_not_taken_for_whole_numbers(kind: str) -> None:
    times = np.arange(120).astype(kind)
    for call in (lambda: argosy.Classifier().fit(times[:, None], WORDS), lambda: argosy.Regressor().fit(X, times)):
        with pytest.raises(StudyError, match=r"[Xy] holds dates or durations"):
            call()
    times[7] = np.array("NaT", kind)
    with pytest.raises(StudyError, match=r"y has no value for 1 of its 120 samples \(row 7"):
        argosy.Classifier().fit(X, times)


def test_durations_among_objects_are_refused() -> None:
    with pytest.raises(StudyError, match="of type timedelta64"):
        Columns.of(DataFrame({"day": Series([np.timedelta64(3, "ns"), None], dtype=object)}))


class Frame(dict[str, Any]):
    """A table whose columns may have several numbers per row, as those of Polars of type Struct and Array have in NumPy."""

    columns = property(list)


def test_a_column_of_several_numbers_per_row_is_named() -> None:
    with pytest.raises(StudyError, match=r"column 'place' holds .* of type list, which is neither a number nor a word"):
        Columns.of(Frame(size=X[:, 0], place=X[:, :2]))


def prepared(found: argosy.Classifier) -> list[dict[str, torch.Tensor]]:
    """Return the state of the preprocessing that was fitted for each fold's networks."""
    (bag,) = found.ensemble_.networks
    return [network[0].state_dict() for network in bag.networks]


@pytest.mark.parametrize("numbers", ["quantile", "standard"])
def test_nothing_of_a_fold_is_in_what_its_networks_are_prepared_by(numbers: str) -> None:
    """Changing the rows that the first fold holds out changes the preprocessing of the other folds only."""
    x, y = table()
    cut = argosy.kfold(own(Shape(samples=1, inputs=1, outputs=2, of_classes=True)), 3, stratify=y, seed=seed_of(0))
    changed = x.copy()
    out = list(cut[0].val_subset)
    changed.loc[out, "size"] = 1000.0 + np.arange(len(out))
    changed.loc[out, "kind"] = 1000 + np.arange(len(out))
    changed.loc[out, "colour"] = "green"
    changed.loc[out[0], "size"] = np.nan
    how: dict[str, Any] = {"folds": 3, "numbers": numbers, "random_state": 0}
    before, after = (prepared(argosy.Classifier(TINY, **how).fit(rows, y)) for rows in (x, changed))
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    for fold in (1, 2):
        assert not torch.equal(before[fold]["knots"], after[fold]["knots"])


def seed_of(random_state: int) -> int:
    """Return the seed of the run and of its folds."""
    return int(np.random.RandomState(random_state).randint(2**31 - 1))


def test_weights_count() -> None:
    x = RANDOM.normal(size=(200, 2))
    y = np.tile([0, 1], 100)  # independent of x
    weights = np.where(y == 1, 9.0, 1.0)
    probabilities = argosy.Classifier(own, folds=2, random_state=0).fit(x, y, sample_weight=weights).predict_proba(x)
    assert abs(argosy.Classifier(own, folds=2, random_state=0).fit(x, y).predict_proba(x)[:, 1].mean() - 0.5) < 0.1
    assert probabilities[:, 1].mean() > 0.75
    some = x[:, 0] > 0
    kept = argosy.Regressor(own, folds=2, random_state=0).fit(x, x[:, 1], sample_weight=some)
    assert np.allclose(
        kept.predict(x),
        argosy.Regressor(own, folds=2, random_state=0).fit(x[some], x[some, 1], np.ones(some.sum())).predict(x),
    )


def test_rules_may_follow_metrics_beside_weights() -> None:
    def watched(shape: Shape) -> argosy.Member:
        stop = argosy.MaxEpochs(3) | argosy.Plateau("val_accuracy", patience=1)
        return replace(own(shape), metrics={"accuracy": argosy.accuracy}, stop=stop)

    found = argosy.Classifier(watched, folds=2, random_state=0).fit(X, WORDS, np.ones(len(X)))
    assert found.score(X, WORDS) > 0.7


def test_a_network_has_an_output_for_each_class() -> None:
    """A network with more outputs than classes is refused; `predict_proba` would have columns that are not in `classes_`."""
    with pytest.raises(StudyError, match=r"member 'linear' returns \[3\] per row, but the table needs \[2\]"):
        argosy.Classifier(lambda shape: own(replace(shape, outputs=3)), folds=2, random_state=0).fit(X, WORDS)


def test_a_member_of_ones_own_without_a_loss_learns_numbers_by_their_squared_error() -> None:
    def mine(shape: Shape) -> argosy.Member:
        return replace(own(shape), loss=None)

    y = X[:, :2] * 3 + 10
    for targets, weights in ((y[:, 0], None), (y, None), (y, np.ones(len(y)))):
        assert argosy.Regressor(mine, folds=2, random_state=0).fit(X, targets, weights).score(X, targets) > 0.95


def test_probabilities_sum_to_one_as_scikit_learn_asks_of_float64() -> None:
    members = argosy.tabular(networks=["mlp"], width=[4, 8, 16], epochs=1)
    found = argosy.Classifier(members, ensemble="all", folds=2, random_state=0).fit(X, WORDS).predict_proba(X)
    assert np.abs(found.sum(axis=1) - 1).max() < 1e-14


def test_an_ensemble_that_was_trained_further_predicts_without_dropout() -> None:
    found = argosy.Classifier(TINY, folds=2, random_state=0).fit(X, WORDS)
    probabilities = found.predict_proba(X)
    found.ensemble_.train()
    assert np.array_equal(found.predict_proba(X), probabilities)


def test_the_state_of_an_ensemble_is_all_that_its_predictions_depend_on() -> None:
    one, other = (argosy.Classifier(TINY, folds=2, random_state=seed).fit(X, WORDS) for seed in (0, 1))
    other.ensemble_.load_state_dict(one.ensemble_.state_dict())
    assert np.array_equal(other.predict_proba(X), one.predict_proba(X))


def test_numbers_of_numpy_are_those_of_python() -> None:
    plain = argosy.tabular(width=[16, 32], lr=[0.25, 0.5], batch_size=8, dropout=0.5)
    assert (
        argosy.tabular(
            width=range(16, 33, 16), lr=np.array([0.25, 0.5]), batch_size=np.int64(8), dropout=np.float32(0.5)
        )
        == plain
    )
    assert argosy.tabular(networks="mlp")(SHAPE)[0].name == "mlp"
    search = GridSearchCV(
        argosy.Classifier(TINY, random_state=0), {"folds": np.arange(2, 3)}, cv=2, error_score="raise"
    )
    assert search.fit(X, WORDS).best_params_ == {"folds": 2}


def test_it_is_a_step_of_pipelines_and_searches() -> None:
    pipeline = make_pipeline(StandardScaler(), argosy.Classifier(TINY, folds=2, random_state=0))
    assert cross_val_score(pipeline, X, WORDS, cv=2).shape == (2,)
    search = GridSearchCV(pipeline, {"classifier__ensemble": ["greedy", "all"]}, cv=2).fit(X, WORDS)
    assert search.best_params_["classifier__ensemble"] in ("greedy", "all")


def test_a_space_of_members_is_all_of_its_points_and_own_members_stand_beside_them() -> None:
    space = argosy.tabular(networks=["mlp", "tabm"], width=[8, 16], lr=0.01)
    names = [member.name for member in space(SHAPE)]
    assert names == ["mlp-width=8", "mlp-width=16", "tabm-width=8", "tabm-width=16"]
    found = argosy.Classifier([TINY, own], ensemble="all", folds=2, random_state=0).fit(X, WORDS)
    assert found.ensemble_.names == ("mlp", "linear")
    assert found.ensemble_.weights.tolist() == [0.5, 0.5]


def test_two_spaces_of_the_same_networks_stand_beside_each_other() -> None:
    members = [TINY, argosy.tabular(networks=["mlp"], width=4, epochs=2)]
    found = argosy.Classifier(members, ensemble="all", folds=2, random_state=0).fit(X, WORDS)
    assert found.ensemble_.names == ("mlp", "mlp-2")


def test_networks_of_another_default_type_are_trained_in_it() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert argosy.Regressor(TINY, folds=2, random_state=0).fit(X, X[:, 0], np.ones(120)).predict(X).shape == (120,)
        how = {"stop": argosy.MaxEpochs(1), "launcher": "inline"}
        member = argosy.Member("net", model=partial(nn.Linear, 4, 2), optimizer=partial(AdamW), batch_size=16)
        assert argosy.fit(X, WORDS, member, **how).network.weight.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


class Float32(nn.Linear):
    """Casts its inputs to the type that networks are trained in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.float())


def test_a_network_that_cannot_predict_in_float64_is_told_how_to() -> None:
    member = replace(own(SHAPE), model=partial(Float32, 4, 2), stop=argosy.MaxEpochs(1))
    with pytest.raises(StudyError, match=r"(?s)'linear', which predicts in float64, raised.*x.float.*dtype=x.dtype"):
        argosy.Classifier(member, folds=2).fit(X, WORDS)


def test_a_member_that_fails_is_left_out() -> None:
    with pytest.warns(argosy.errors.MemberFailed):
        found = argosy.Classifier([TINY, broken], folds=2, random_state=0).fit(X, WORDS)
    assert found.ensemble_.names == ("mlp",)


def test_members_that_all_fail_are_told_with_advice_that_can_be_followed() -> None:
    with pytest.raises(argosy.errors.MemberError, match=r"shapes cannot be multiplied(.|\n)*fit again\.$") as told:
        argosy.Classifier(broken, folds=3, random_state=0).fit(X, WORDS)
    assert "retry" not in str(told.value)


def broken(shape: Shape) -> argosy.Member:
    """Return a member whose network takes more inputs than the table has."""
    return argosy.Member("broken", model=partial(nn.Linear, 99, 2), optimizer=partial(AdamW), batch_size=16)


def test_classes_that_are_too_few_for_every_fold_are_learnt_all_the_same() -> None:
    labels = np.where(np.arange(120) < 2, "rare", WORDS)
    found = argosy.Classifier(TINY, folds=4, random_state=0).fit(X, labels)
    assert found.predict_proba(X).shape == (120, 3)


@pytest.mark.parametrize("wrong", [{"ensemble": "best"}, {"numbers": "minmax"}, {"folds": 1}])
def test_wrong_parameters_are_told_by_fit(wrong: dict[str, Any]) -> None:
    estimator = argosy.Classifier(TINY, **wrong)
    with pytest.raises(StudyError, match=next(iter(wrong))):
        estimator.fit(X, WORDS)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([], "members is an empty list"),
        (lambda shape: [], "functions returned no members for Shape"),
        (lambda shape: None, "members has None"),
        (argosy.tabular, r"members has the class Tabular, .* Pass an instance of it, for example argosy.tabular\(\)"),
        (
            [own, argosy.tabular],
            r"members has the class Tabular, .* Pass an instance of it, for example argosy.tabular\(\)",
        ),
    ],
)
def test_what_makes_no_members_is_told_by_fit(members: Any, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        argosy.Classifier(members, folds=2).fit(X, WORDS)


def test_a_table_without_columns_is_refused_as_an_array_is() -> None:
    for rows in (DataFrame(X)[[]], X[:, :0]):
        with pytest.raises(ValueError, match=r"Found array with 0 feature\(s\) \(shape=\(120, 0\)\) while a minimum"):
            argosy.Classifier(TINY).fit(rows, WORDS)


def test_masked_values_are_refused() -> None:
    masked = np.ma.masked_array(X, mask=X > 1)
    found = argosy.Regressor(TINY, folds=2).fit(DataFrame(X, columns=["filled", "b", "c", "d"]), X[:, 0])
    for call in (lambda: found.fit(masked, X[:, 0]), lambda: found.fit(X, masked[:, 0]), lambda: found.predict(masked)):
        with pytest.raises(StudyError, match=r"argosy.Regressor: [Xy] is a masked array"):
            call()


@pytest.mark.parametrize("gone", [None, float("nan"), NA])
def test_missing_labels_are_named_by_their_rows(gone: Any) -> None:
    labels = Series(WORDS, dtype=object)
    labels[3] = gone
    with pytest.raises(StudyError, match=r"argosy.Classifier: y has no value for 1 of its 120 samples \(row 3;"):
        argosy.Classifier(TINY).fit(X, labels)
    with pytest.raises(StudyError, match="y has no value for 1 of its 120 samples"):
        argosy.Classifier(TINY).fit(X, labels.tolist())


def test_words_of_other_libraries_are_told_what_there_is() -> None:
    with pytest.raises(StudyError, match=r"^argosy.Classifier has no keyword class_weight=: .* sample_weight"):
        argosy.Classifier(class_weight="balanced")
    with pytest.raises(StudyError, match=r"^argosy.Regressor has no keyword n_splits=. Use folds="):
        argosy.Regressor(n_splits=3)
    with pytest.raises(StudyError, match=r"has no keyword epochs=. Pass members=argosy.tabular\(epochs=...\)\.$"):
        argosy.Classifier(epochs=100)
    with pytest.raises(StudyError, match=r"has no keyword seed=. Use random_state="):
        argosy.Regressor(seed=0)


def test_a_table_without_rows_is_refused_as_an_array_is() -> None:
    x = DataFrame(X, columns=list("abcd"))
    for found in (argosy.Classifier(TINY, folds=2).fit(x, WORDS), argosy.Regressor(TINY, folds=2).fit(x, X[:, 0])):
        for rows in (x[:0], x.to_numpy()[:0]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # an array has no column names
                with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\) \(shape=\(0, 4\)\) while a min"):
                    found.predict(rows)


def test_no_more_rows_are_in_a_network_at_once_than_in_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    class Watched(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            sizes.append(len(input))
            return super().forward(input)

    monkeypatch.setattr(bagging, "ROWS", 16)
    member = replace(own(SHAPE), model=partial(Watched, 4, 2), eval_batch_size=16)
    argosy.Classifier(member, folds=2, random_state=0).fit(X, WORDS).predict(X)
    assert max(sizes) == 16


def test_processes_train_the_same() -> None:
    here, there = (
        argosy.Regressor(TINY, folds=2, launcher=launcher, random_state=0).fit(X, X[:, 0]).predict(X)
        for launcher in ("inline", "processes")
    )
    assert np.allclose(here, there, atol=1e-5)


@pytest.mark.parametrize("base", [BaseEstimator, ClassifierMixin, RegressorMixin])
def test_what_type_checkers_are_told_of_a_base_is_what_scikit_learn_has(base: type) -> None:
    told = next(
        node
        for node in ast.walk(ast.parse(inspect.getsource(scikit)))
        if isinstance(node, ast.ClassDef) and node.name == base.__name__
    )
    methods = [node for node in told.body if isinstance(node, ast.FunctionDef)]
    assert methods
    for method in methods:
        has = inspect.signature(getattr(base, method.name)).parameters
        defaults = [None] * (len(method.args.args) - len(method.args.defaults)) + method.args.defaults
        said = {
            one.arg: inspect.Parameter.empty if default is None else ast.literal_eval(default)
            for one, default in zip(method.args.args, defaults, strict=True)
        }
        said |= {method.args.kwarg.arg: inspect.Parameter.empty} if method.args.kwarg else {}
        assert {name: one.default for name, one in has.items()} == said, f"{base.__name__}.{method.name}"
