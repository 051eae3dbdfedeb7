"""A module that replaces a function of torch when it is imported."""

from torch import Tensor
from torch.nn import functional

ORIGINAL = functional.softsign


def doubled(x: Tensor) -> Tensor:
    """Return twice the result of torch's function."""
    return 2 * ORIGINAL(x)


functional.softsign = doubled
