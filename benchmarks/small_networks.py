"""Many small networks on one table of numbers: the members of `conversation.py` and `crews.py` on both sides."""

import hashlib

import torch
from torch import Tensor, nn

__all__ = ["BATCH", "SEED", "learning_rate", "member_seed", "network", "table", "weights_sum"]

BATCH, FEATURES, HIDDEN, CLASSES = 64, 20, 16, 4
SEED = 0


def table(length: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return samples ``[length, FEATURES]`` and their classes ``[length]``."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, FEATURES, generator=generator)
    return x, x[:, :CLASSES].argmax(dim=1)


def network() -> nn.Sequential:
    """Return an MLP with one hidden layer."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def learning_rate(name: str) -> float:
    """Return a member's own learning rate."""
    return 0.02 * (1 + hashlib.sha256(name.encode()).digest()[0] / 256)


def member_seed(name: str) -> int:
    """Return a member's published seed (docs/internals/stream.md)."""
    return int.from_bytes(hashlib.sha256(f"{SEED}/{name}".encode()).digest()[:8], "big") >> 1


def weights_sum(model: dict[str, Tensor]) -> str:
    """Return the SHA-256 of a model's tensors."""
    digest = hashlib.sha256()
    for tensor in model.values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
