"""A grid of six trials with skorch and scikit-learn, each validated on the same samples."""

import numpy as np
import torch
from mine import Published, train, val
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from skorch import NeuralNetClassifier
from torch import nn, optim


class Mlp(nn.Sequential):
    def __init__(self, hidden):
        torch.manual_seed(0)
        super().__init__(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


net = NeuralNetClassifier(
    Mlp,
    criterion=nn.CrossEntropyLoss,
    optimizer=optim.Adam,
    batch_size=32,
    max_epochs=4,
    train_split=None,
    iterator_train__sampler=Published(len(train[0])),
)
validated = np.concatenate([np.full(len(train[0]), -1), np.zeros(len(val[0]), int)])
search = GridSearchCV(
    net,
    {"module__hidden": [16, 64, 256], "optimizer__lr": [0.01, 0.001]},
    scoring="neg_log_loss",
    cv=PredefinedSplit(validated),
    refit=False,
)
search.fit(torch.cat([train[0], val[0]]).numpy(), torch.cat([train[1], val[1]]).numpy())
print(f"best: {search.best_params_}, {-search.best_score_:.4f}")
