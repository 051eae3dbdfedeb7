"""Fit and predict over arrays."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

import argosy
from argosy.errors import StudyError

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
    best = fitted.report.best().load()
    assert torch.equal(best.weight, fitted.network.weight)
    assert fitted.report.best().metrics["val_loss"] < 0.4


def test_numbers_are_predicted_without_a_directory_and_without_validation(tmp_path: Path) -> None:
    wanted = X[:, :1] * 2.0
    regression = member(outputs=1, loss=nn.MSELoss())
    fitted = argosy.fit(X, wanted, regression, launcher="inline", devices="cpu:1", validation=0.0)
    assert np.abs(fitted.predict(X) - wanted).max() < 0.5
    assert not fitted.report.directory.exists()
    with pytest.raises(StudyError, match="needs classes"):
        fitted.predict_proba(X)
