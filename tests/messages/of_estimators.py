"""Errors in tables, and in the members to train on them."""

from datetime import date
from functools import partial
from typing import Any

import numpy as np
from pandas import DataFrame
from torch import nn
from torch.optim import SGD

import argosy

__all__ = ["CASES"]

TABLE = DataFrame({"size": np.arange(40.0), "colour": ["red", "blue"] * 20})
LABELS = np.arange(40) % 2


def member(name: str = "net", *, inputs: int = 3, outputs: int = 2, **rest: Any) -> argosy.Member:
    """A member for the table, whose two words have one input each."""
    model, optimizer = partial(nn.Linear, inputs, outputs), partial(SGD, lr=0.1)
    return argosy.Member(name, model=model, optimizer=optimizer, batch_size=10, stop=argosy.MaxEpochs(1), **rest)


def classifier(*members: Any, table: DataFrame = TABLE, **fit: Any) -> argosy.Classifier:
    """A classifier fitted to the table."""
    return argosy.Classifier(list(members) or member(), folds=2, random_state=0).fit(table, LABELS, **fit)


def loss(output: Any, target: Any) -> Any:
    """The loss of a whole batch."""
    return nn.functional.cross_entropy(output, target)


CASES = {
    "a classifier with a string as member": lambda: classifier("mlp"),
    "a classifier without members": lambda: argosy.Classifier([]).fit(TABLE, LABELS),
    "a classifier with argosy.tabular, without a call": lambda: classifier(argosy.tabular),
    "a classifier whose network does not fit the table": lambda: classifier(member(inputs=4)),
    "a classifier whose network has more outputs than classes": lambda: classifier(member(outputs=3)),
    "sample_weight with a member that has its own step": lambda: classifier(
        member(step=lambda model, batch: model(batch[0]).sum()), sample_weight=LABELS + 1
    ),
    "sample_weight with a loss of a whole batch": lambda: classifier(
        member(), member("of-a-batch", loss=loss), sample_weight=LABELS + 1
    ),
    "a column of dates": lambda: classifier(table=TABLE.assign(day=[date(2020, 1, 1)] * 40)),
    "a column of numbers with thousands separators": lambda: classifier(table=TABLE.assign(price=["1,234"] * 40)),
    "a regressor of durations": lambda: argosy.Regressor().fit(TABLE, LABELS.astype("timedelta64[D]")),
    "a regressor of a number that stands for infinity": lambda: argosy.Regressor().fit(TABLE, [1e300, *LABELS[1:]]),
    "a column with an infinite number": lambda: classifier(table=TABLE.assign(size=np.inf)),
    "numbers in a column that held words in fit": lambda: classifier().predict(TABLE.assign(colour=1.0)),
}
