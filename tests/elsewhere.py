"""A device that is elsewhere and holds no values: torch's meta device as an accelerator, on which a step that waits raises.

On a GPU the host runs ahead of the device. It stops where it reads a value of the device, or copies to it from memory that is not pinned.
Of these tensors torch knows where they lie, so both are seen; a device of CPU tensors (`late`) would hide them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from late import Late
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from argosy.training.device import devices as kinds
from argosy.training.device.devices import PassedEvent

__all__ = ["Elsewhere", "Waits", "copied", "elsewhere", "unwaiting"]

ATEN = torch.ops.aten
READS = {ATEN._local_scalar_dense.default, ATEN.nonzero.default, ATEN.equal.default}
MADE_OF_DATA = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}


class Waits(BaseException):
    """The host waits for the device. Not an Exception, which a program may take for the fault of a member."""


class Pinning(TorchFunctionMode):
    """Pins memory, which torch refuses where it has no accelerator."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        pins = kwargs.pop("pin_memory", False)
        made = args[0].clone() if function is Tensor.pin_memory else function(*args, **kwargs)
        if pins or function is Tensor.pin_memory:
            pinned[made.untyped_storage().data_ptr()] = made
        return made


class Making(TorchFunctionMode):
    """Raises where a tensor of the device is made of the host's numbers."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function in MADE_OF_DATA and made.is_meta:
            raise Waits(f"{function.__name__} copies numbers to the device")
        return made


class Watched(TorchDispatchMode):
    """Raises for every operation of torch's that waits."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_host = [tensor for tensor in tensors if not tensor.is_meta]
        if function in READS and not on_host:
            raise Waits(f"{function} reads a value of the device")
        if function is ATEN._to_copy.default:
            _see_copy(args[0], kwargs.get("device") or args[0].device, asked=kwargs.get("non_blocking", False))
        elif function is ATEN.copy_.default:
            _see_copy(args[1], args[0].device, asked=args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        elif len(on_host) < len(tensors) and any(tensor.dim() for tensor in on_host):
            raise Waits(f"{function} mixes tensors of the host and of the device")
        return function(*args, **kwargs)


def _see_copy(source: Tensor, target: torch.device, *, asked: bool) -> None:
    crosses = source.device.type != torch.device(target).type
    if crosses and not (asked and source.untyped_storage().data_ptr() in pinned):
        raise Waits(f"a copy from {source.device} to {target} is not from pinned memory, or not without waiting")
    if crosses:
        copied.append(source)


copied: list[Tensor] = []
"""What went to the device inside of `unwaiting`."""
pinned: dict[int, Tensor] = {}
"""Pinned tensors by the addresses of their storages, which they keep."""


@contextmanager
def unwaiting() -> Iterator[None]:
    """Raise `Waits` inside, where the host would wait for the device."""
    with Making(), Watched():
        yield


@dataclass(frozen=True, slots=True)
class Elsewhere(Late):
    """The device: as far away as `Late`, on time, and without a generator of its own."""

    @classmethod
    def open(cls, name: str) -> "Elsewhere":
        """See `Backend.open`."""
        return cls(name, torch.device("meta"))

    def activate(self) -> None:
        """See `Backend.activate`."""

    def copy(self, tensors: Any) -> Any:
        """See `Backend.copy`."""
        return [tensor.to(self.device) for tensor in tensors], PassedEvent()

    def follow(self, event: Any, tensors: Any) -> None:
        """See `Backend.follow`."""

    def fetch(self, tensor: Tensor) -> Any:
        """See `Backend.fetch`: zeros, for want of values."""
        return torch.zeros(tensor.shape, dtype=tensor.dtype), PassedEvent()

    def random_state(self) -> None:
        """See `Backend.random_state`."""

    def seeded_state(self, seed: int) -> None:
        """See `Backend.seeded_state`."""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of the device, which this test has."""
    enabled = torch.is_autocast_enabled
    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda *kind: enabled(*("cpu" if one == "meta" else one for one in kind))
    )
    monkeypatch.setitem(kinds.KINDS, "meta", Elsewhere)
    with Pinning():
        yield "meta:0"
    pinned.clear()
    copied.clear()
