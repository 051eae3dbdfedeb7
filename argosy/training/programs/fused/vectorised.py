"""`torch.vmap` reduced to what programs need: it vectorises a function of one member's tensors over all members.

`torch.vmap` handles nested arguments and results of any kind, which takes longer than a small network's forward pass. This module
calls the same underlying functions, which have no public names.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor
from torch._C import _functorch
from torch._functorch.predispatch import lazy_load_decompositions

__all__ = ["Level", "vectorise"]


def vectorise(function: Callable[..., Iterable[Tensor]], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Compute a function of one member's tensors for all members; tensors are ``[members, …]``. Random functions raise."""
    lazy_load_decompositions()
    members = len(tensors[0])
    level = _functorch._vmap_increment_nesting(members, "error")
    try:
        results = function(*[_functorch._add_batch_dim(tensor, 0, level) for tensor in tensors])
        return [_functorch._remove_batch_dim(one, level, members, 0) for one in results]
    finally:
        _functorch._vmap_decrement_nesting()


class Level:
    """The vmap level of the running function; gives access to all members' tensors from inside it."""

    def __init__(self) -> None:
        self._number = _functorch.current_level()

    @property
    def innermost(self) -> bool:
        """Whether no other functorch transformation was started inside this one."""
        return _functorch.current_level() == self._number

    def stacked(self, tensor: Tensor) -> tuple[Tensor, int | None]:
        """Return the tensor of all members and its member dimension, which is None if they share the tensor."""
        return _functorch._unwrap_batched(tensor, self._number)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Suspend vectorisation inside, so that torch computes on the stacked tensors."""
        layer = _functorch.pop_dynamic_layer_stack()
        try:
            yield
        finally:
            _functorch.push_dynamic_layer_stack(layer)

    def one(self, stacked: Tensor, members: int = 0) -> Tensor:
        """Return stacked tensors as one member's tensor; `members` is the member dimension."""
        return _functorch._add_batch_dim(stacked, members, self._number)
