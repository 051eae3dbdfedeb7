"""A function of one member's tensors, computed for all members at once: `torch.vmap`, cut down to what programs need.

Torch's own looks through nested arguments and results of any kind, which takes longer than a small network's forward pass. What
is left of it here are the same functions of torch underneath, which have no public names.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor
from torch._C import _functorch
from torch._functorch.predispatch import lazy_load_decompositions

__all__ = ["Level", "vectorised"]


def vectorised(function: Callable[..., Iterable[Tensor]], tensors: Sequence[Tensor]) -> list[Tensor]:
    """What a function of one member's tensors gives, from those of all members: each ``[members, …]``. What draws raises."""
    lazy_load_decompositions()
    members = len(tensors[0])
    level = _functorch._vmap_increment_nesting(members, "error")
    try:
        made = function(*[_functorch._add_batch_dim(tensor, 0, level) for tensor in tensors])
        return [_functorch._remove_batch_dim(one, level, members, 0) for one in made]
    finally:
        _functorch._vmap_decrement_nesting()


class Level:
    """The vectorised function that is running, seen from inside: what its tensors are for all members."""

    def __init__(self) -> None:
        self._number = _functorch.current_level()

    @property
    def innermost(self) -> bool:
        """Whether no other transformation of torch's was begun inside."""
        return _functorch.current_level() == self._number

    def stacked(self, tensor: Tensor) -> tuple[Tensor, int | None]:
        """The tensor of all members, and which of its dimensions they are; None where they share it."""
        return _functorch._unwrap_batched(tensor, self._number)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Inside, torch knows of no vectorised function: it computes what stands there, as it stands there."""
        layer = _functorch.pop_dynamic_layer_stack()
        try:
            yield
        finally:
            _functorch.push_dynamic_layer_stack(layer)

    def one(self, stacked: Tensor) -> Tensor:
        """One member's tensor of those of all ``[members, …]``."""
        return _functorch._add_batch_dim(stacked, 0, self._number)
