"""A device without values that stands for a GPU, torch's meta device: steps that would make the host wait for it raise `Waits`.

On a GPU the host runs ahead of the device. It waits if it reads a value from the device, or copies to it from memory that is not pinned.
Meta tensors have a device of their own, so both are detected; on CPU tensors (`late`) they would go unnoticed.
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
    """The host would wait for the device; no Exception, which a program may take for a member's error."""


class Pinning(TorchFunctionMode):
    """A mode that marks memory as pinned, which torch refuses without an accelerator."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        pins = kwargs.pop("pin_memory", False)
        made = args[0].clone() if function is Tensor.pin_memory else function(*args, **kwargs)
        if pins or function is Tensor.pin_memory:
            pinned[made.untyped_storage().data_ptr()] = made
        return made


class Making(TorchFunctionMode):
    """A mode that raises if numbers of the host become a tensor on the device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function in MADE_OF_DATA and made.is_meta:
            raise Waits(f"{function.__name__} copies numbers to the device")
        return made


class Watched(TorchDispatchMode):
    """A mode that raises for every operator that would make the host wait."""

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
"""Host tensors that were copied to the device inside `unwaiting`."""
pinned: dict[int, Tensor] = {}
"""Pinned tensors by the addresses of their storages; kept so that addresses are not reused."""


@contextmanager
def unwaiting() -> Iterator[None]:
    """Raise `Waits` inside this context whenever the host would wait for the device."""
    with Making(), Watched():
        yield


@dataclass(frozen=True, slots=True)
class Elsewhere(Late):
    """The device; like `Late` it has its own memory, but copies are never late and it has no generator."""

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
        """See `Backend.fetch`; returns zeros, because there are no values."""
        return torch.zeros(tensor.shape, dtype=tensor.dtype), PassedEvent()

    def random_state(self) -> None:
        """See `Backend.random_state`."""

    def seeded_state(self, seed: int) -> None:
        """See `Backend.seeded_state`."""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the test this device and return its name."""
    enabled = torch.is_autocast_enabled
    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda *kind: enabled(*("cpu" if one == "meta" else one for one in kind))
    )
    monkeypatch.setitem(kinds.KINDS, "meta", Elsewhere)
    with Pinning():
        yield "meta:0"
    pinned.clear()
    copied.clear()
