"""What the scripts of this folder share: the data, the network, and, for theirs_*.py, Argosy's published orders and seeds."""

import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Sampler, TensorDataset

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
train, val = (x[:1200], y[:1200]), (x[1200:], y[1200:])
train_set, val_set = TensorDataset(*train), TensorDataset(*val)


def mlp(hidden):
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


class Published(Sampler):
    """Argosy's order of samples, for a DataLoader: the order of epoch t depends only on the study's seed and t."""

    def __init__(self, length, seed=0):
        self.length, self.seed, self.epoch = length, seed, -1

    def __len__(self):
        return self.length

    def __iter__(self):
        self.epoch += 1
        return iter(np.random.RandomState([self.seed, 0, self.epoch]).permutation(self.length).tolist())


def trial_seed(number, seed=0):
    """Return Argosy's seed of a trial, for a sampler of Optuna: a search that was killed proposes the same parameters again."""
    return random.Random(f"{seed}/{number}").getrandbits(32)
