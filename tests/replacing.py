"""A module that has its own in the place of a function of torch's as soon as it is imported."""

from torch import Tensor
from torch.nn import functional

ORIGINAL = functional.softsign


def doubled(x: Tensor) -> Tensor:
    """Twice what torch's returns."""
    return 2 * ORIGINAL(x)


functional.softsign = doubled
