"""Tests fit and predict on arrays."""

import fcntl
import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn
from torch.optim import SGD

import argosy
from argosy.disk.scratch import scratch
from argosy.errors import CheckpointError, MemberError, MemberFailed, StudyError

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(120, 4))
WORDS = np.where(X[:, 0] > 0, "yes", "no")


def linear(outputs: int) -> nn.Module:
    return nn.Linear(4, outputs)


def member(name: str = "net", outputs: int = 2, **rest: object) -> argosy.Member:
    model, optimizer = partial(linear, outputs), partial(SGD, lr=0.3)
    return argosy.Member(name, model=model, optimizer=optimizer, batch_size=16, **rest)


def test_classes_of_any_kind_are_predicted(tmp_path: Path) -> None:
    how = {"launcher": "inline", "devices": "cpu:1", "directory": tmp_path, "stop": argosy.MaxEpochs(8)}
    fitted = argosy.fit(X, WORDS, [member("a"), member("b")], **how)
    found, shares = fitted.predict(X), fitted.predict_proba(X)
    assert (found == WORDS).mean() > 0.9
    assert list(fitted.classes) == ["no", "yes"]
    assert shares.shape == (120, 2)
    assert np.allclose(shares.sum(1), 1)
    assert (fitted.classes[shares.argmax(1)] == found).all()
    few = np.ones((2, X.shape[1]))
    assert (fitted.predict_proba(few.astype(int)) == fitted.predict_proba(few)).all(), "integer rows give the same"
    best = fitted.report.best().load()
    assert torch.equal(best.weight, fitted.network.weight)
    assert fitted.report.best().metrics["val_loss"] < 0.4
    first = fitted.report.best()
    assert f"{fitted}" == f"Fitted: {first.name}, val_loss {first.metrics['val_loss']:.4g}, the best of 2"


def test_numbers_are_predicted_without_a_directory_and_without_validation(tmp_path: Path) -> None:
    wanted = X[:, :1] * 2.0
    regression = member(outputs=1, loss=nn.MSELoss())
    fitted = argosy.fit(X, wanted, regression, launcher="inline", devices="cpu:1", validation=0.0)
    assert np.abs(fitted.predict(X) - wanted).max() < 0.5
    assert not fitted.report.directory.exists()
    told = f"{fitted.report}"
    assert told.startswith("Best: net, train_loss ")
    assert told.endswith(": 1 done. The files of the run are deleted.")
    assert f"{fitted.report.directory}" not in told
    with pytest.raises(StudyError, match="needs classes"):
        fitted.predict_proba(X)


HOW = {"launcher": "inline", "devices": "cpu:1", "stop": argosy.MaxEpochs(1)}


def interrupting(batch: Any) -> Any:
    """Interrupt the run as a person would, from within `Member.augment`."""
    signal.raise_signal(signal.SIGUSR1)
    return batch


@pytest.mark.parametrize("estimator", [True, False])
def test_a_signal_ends_a_fit_which_returns_no_network_that_has_trained_for_less(estimator: bool) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"SIGUSR1$"):
            if estimator:
                argosy.Classifier(member(augment=interrupting), folds=2).fit(X, WORDS)
            else:
                argosy.fit(X, WORDS, member(augment=interrupting), **HOW)
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupting_twice(batch: Any) -> Any:
    """Interrupt the run as an impatient person would."""
    for _ in range(2):
        signal.raise_signal(signal.SIGINT)
    return batch


def test_a_fit_that_is_interrupted_twice_does_not_say_that_it_can_be_resumed() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            argosy.fit(X, WORDS, member(augment=interrupting_twice), **HOW)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_a_fit_has_reached_within_its_time_limit_is_returned() -> None:
    how = {**HOW, "stop": argosy.MaxEpochs(100_000), "time_limit": 1.5}
    assert argosy.fit(X, WORDS, member(), **how).report.status == "paused"


@pytest.mark.parametrize("kept", [True, False])
def test_why_no_member_finished_an_epoch_is_told(tmp_path: Path, kept: bool) -> None:
    whole = np.arange(480).reshape(120, 4)
    words = r"'net' has failed:(.|\n)*same dtype(.|\n)*pass X as floats"
    advice = "retry_failed=True" if kept else r"\. Fix the cause, and fit again"
    warned = pytest.warns(MemberFailed, match=rf"'net' failed(?!.*argosy-fit).*{advice}\.$")
    with warned, pytest.raises(MemberError, match=words) as told:
        argosy.fit(whole, WORDS, member(), directory=tmp_path if kept else None, **HOW)
    assert "argosy status" not in str(told.value)


def test_what_scikit_learn_takes_and_fit_does_not_is_told() -> None:
    with pytest.raises(StudyError, match=r"X is an instance of csr_matrix; .* a sparse matrix, pass X.toarray\(\)"):
        argosy.fit(csr_matrix(X), WORDS, member(), **HOW)
    with pytest.raises(StudyError, match=r"no keyword sample_weight=: fit of argosy.Classifier and argosy.Regressor"):
        argosy.fit(X, WORDS, member(), sample_weight=X[:, 0])
    with pytest.warns(MemberFailed), pytest.raises(MemberError, match=r"array.astype\('int64'\)\.\nFix the member\.$"):
        argosy.fit(X, (X[:, 0] > 0).astype(float), member(), **HOW)
    with pytest.raises(CheckpointError, match=r"argosy.fit without directory= deletes its files"):
        argosy.fit(X, WORDS, member(), **HOW).report.ensemble()


def test_missing_values_of_a_table_are_told_of() -> None:
    words = r"Fix X: 3 of its 120 rows have missing values"
    with pytest.warns(MemberFailed, match="'net' diverged"), pytest.raises(MemberError, match=words):
        argosy.fit(np.where(np.arange(120)[:, None] % 50, X, np.nan), WORDS, member(), **HOW)


def of_one_logit(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output[:, 0], target.float())


@pytest.mark.parametrize(("outputs", "loss"), [(1, of_one_logit), (5, None)])
def test_a_network_without_one_output_per_class_is_refused(outputs: int, loss: Any) -> None:
    with pytest.raises(StudyError, match=rf"y has 2 classes, but the network of member 'net' returns \[{outputs}\]"):
        argosy.fit(X, WORDS, member(outputs=outputs, loss=loss), **HOW)


def test_a_table_of_numbers_and_flags_is_one_of_numbers(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": X[:, 0], "flag": X[:, 1] > 0, "whole": np.arange(120), "c": X[:, 3]})
    fitted = argosy.fit(table, WORDS, member(), directory=tmp_path, **HOW)
    plain = table.astype("float64").to_numpy()
    with pytest.warns(UserWarning, match="the X of argosy.fit has column names and X has none"):
        shares = fitted.predict_proba(plain)
    assert np.array_equal(fitted.predict_proba(table), shares)
    assert np.array_equal(fitted.predict_proba(table.astype(object)), shares)
    table["city"], table["missing"] = WORDS, pandas.array([None, *range(119)], dtype="Int64")
    table["code"] = "7"
    with pytest.raises(StudyError, match="not numbers in 3 of its 7 columns: 'city', 'missing', 'code'"):
        argosy.fit(table, WORDS, member(), **HOW)
    words = table[["a", "flag", "whole", "city"]].rename(columns={"city": "c"})
    with pytest.raises(StudyError, match="not numbers in 1 of its 4 columns: 'c'"):
        fitted.predict(words)


@pytest.mark.parametrize("unit", ["ns", "D"])
def test_durations_are_not_taken_for_whole_numbers(unit: str) -> None:
    spent = np.arange(6).astype(f"timedelta64[{unit}]")[:, None]
    with pytest.raises(StudyError, match="not numbers in 1 of its 1 columns"):
        argosy.fit(spent, [0, 1] * 3, member(), **HOW)


def test_columns_are_told_by_their_names(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["age", "size", "weight", "height"])
    fitted = argosy.fit(table, WORDS, member(), directory=tmp_path, **HOW)
    assert list(fitted.feature_names_in_) == ["age", "size", "weight", "height"]
    shares = fitted.predict_proba(table)
    assert np.array_equal(fitted.predict_proba(table[fitted.feature_names_in_]), shares)
    for use in (fitted.predict, fitted.predict_proba):
        with pytest.raises(StudyError, match=r"in a different order, 'size', 'age', 'weight', 'height'"):
            use(table[["size", "age", "weight", "height"]])
        with pytest.raises(StudyError, match=r"missing 'size'\. Pass"):
            use(table.drop(columns="size"))
        with pytest.raises(StudyError, match=r"new 'mass'; missing 'weight'"):
            use(table.rename(columns={"weight": "mass"}))
        with pytest.raises(StudyError, match=r"new 'more'\. Pass"):
            use(table.assign(more=0.0))
    for report_of in (fitted.report.predict, lambda table: fitted.report.predict((table,))):
        with pytest.raises(StudyError, match="columns by position, not by name"):
            report_of(table)


def test_columns_of_an_arrow_table_are_told_by_their_names() -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = arrow.table(dict(zip("abcd", X.T, strict=True)))
    fitted = argosy.fit(table, WORDS, member(), **HOW)
    assert list(fitted.feature_names_in_) == ["a", "b", "c", "d"]
    assert list(fitted.predict(table[:5])) == list(fitted.predict(table)[:5])
    with pytest.raises(StudyError, match="in a different order, 'b', 'a', 'c', 'd'"):
        fitted.predict(table.select(["b", "a", "c", "d"]))
    with pytest.raises(StudyError, match="not numbers in 1 of its 5 columns: 'word'"):
        argosy.fit(table.append_column("word", [WORDS]), WORDS, member(), **HOW)


def test_a_column_of_a_table_may_have_the_name_of_an_attribute_of_arrow_tables() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["a", "b", "columns", "column_names"])
    fitted = argosy.fit(table, WORDS, member(), **HOW)
    assert list(fitted.feature_names_in_) == [*table]
    assert list(fitted.predict(table[:5])) == list(fitted.predict(table)[:5])
    assert argosy.data.table(table.assign(word=WORDS), target="word").features == tuple(table)


def test_columns_without_names_are_read_by_place(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    fitted = argosy.fit(X, WORDS, member(), directory=tmp_path, **HOW)
    assert fitted.feature_names_in_ is None
    shares = fitted.predict_proba(X)
    assert np.array_equal(fitted.predict_proba(pandas.DataFrame(X)), shares)
    for named in (pandas.DataFrame(X, columns=list("abcd")), pandas.DataFrame(X)[[3, 1, 0, 2]]):
        with pytest.warns(UserWarning, match="X has column names and the X of argosy.fit has none"):
            fitted.predict(named)


def test_what_a_killed_fit_has_left_goes_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, held, young, other = (
        tmp_path / f"argosy-{name}" for name in ("fit-left", "fit-held", "fit-young", "node-left")
    )
    for folder in (left, held, young, other):
        (folder / "members").mkdir(parents=True)
        os.utime(folder, (0, time.time() if folder is young else 0))
    (tmp_path / "argosy-fit-link").symlink_to(other)
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with scratch("fit") as mine, scratch("fit") as another:
        os.utime(mine, (0, 0))
        assert {path for path in tmp_path.iterdir() if not path.is_symlink()} == {held, young, other, mine, another}
    assert {path for path in tmp_path.iterdir() if not path.is_symlink()} == {held, young, other}
    os.close(lock)
    with scratch("fit") as mine:
        assert {path for path in tmp_path.iterdir() if not path.is_symlink()} == {young, other, mine}
