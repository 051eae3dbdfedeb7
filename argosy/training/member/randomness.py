"""The random state of one member, kept separate so that other members cannot change its result."""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from argosy.training.device.devices import Backend

__all__ = ["Mark", "Randomness"]

Made = TypeVar("Made")
Mark = tuple[Any, Any, Any]
"""Snapshot of the generators: torch, device, (NumPy, Python)."""


@dataclass(eq=False)
class Randomness:
    """Torch's generator states, and NumPy's and Python's for members that were observed to use them (swapping these takes 60 us)."""

    backend: Backend
    torch_state: Any
    device_state: Any
    others: tuple[Any, Any]
    built_state: Any = field(init=False)
    """Torch's state after the member was built; it is not saved for a member that draws nothing in its steps."""
    uses_others: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.built_state = self.torch_state

    @classmethod
    def seeded(cls, seed: int, backend: Backend) -> "Randomness":
        """Return the state of all generators for a seed."""
        numpy_state = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32]).get_state()
        return cls(
            backend,
            torch.Generator().manual_seed(seed).get_state(),
            backend.seeded_state(seed),
            (numpy_state, random.Random(seed).getstate()),
        )

    def copy(self) -> "Randomness":
        """Return an independent copy that covers all generators."""
        copied = self.clone()
        copied.uses_others = True
        return copied

    def clone(self) -> "Randomness":
        """Return an independent copy."""
        clone = None if self.device_state is None else self.device_state.clone()
        copied = Randomness(self.backend, self.torch_state.clone(), clone, self.others)
        copied.uses_others = self.uses_others
        return copied

    def mark(self) -> Mark:
        """Return a snapshot for `go_back`."""
        return self.torch_state, self.device_state, self.others

    def go_back(self, mark: Mark) -> None:
        """Return to a snapshot."""
        self.torch_state, self.device_state, self.others = mark

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Draw from every generator of this state inside; the state afterwards becomes `built_state`."""
        before, self.uses_others = self.uses_others, True
        try:
            with self.active():
                yield
        finally:
            self.uses_others, self.built_state = before, self.torch_state

    @contextlib.contextmanager
    def active(self, *, keep: bool = False) -> Iterator[None]:
        """Draw from this state inside; with `keep`, the state is unchanged afterwards."""
        self.set_generators(self.mark())
        try:
            yield
        finally:
            if not keep:
                self.go_back(self.here())

    def here(self) -> Mark:
        """Return the generators' snapshot, inside `active`."""
        return (
            torch.default_generator.get_state(),
            None if self.device_state is None else self.backend.random_state(),
            (np.random.get_state(), random.getstate()) if self.uses_others else self.others,
        )

    def unmoved(self, call: Callable[[], Made]) -> Made:
        """Return what a function returns; the generators are then as before. Called inside `active`."""
        mark = self.here()
        result = call()
        self.set_generators(mark)
        return result

    def set_generators(self, mark: Mark) -> None:
        """Set the process's generators to a snapshot."""
        torch_state, device_state, others = mark
        torch.default_generator.set_state(torch_state)
        if self.device_state is not None:
            self.backend.set_random_state(device_state)
        if self.uses_others:
            np.random.set_state(others[0])
            random.setstate(others[1])

    def others_equal(self, other: "Randomness") -> bool:
        """Return whether NumPy's and Python's states equal another's."""
        ours, theirs = self.others[0], other.others[0]
        numpy_equal = np.array_equal(ours[1], theirs[1]) and tuple(ours[2:]) == tuple(theirs[2:])
        return bool(numpy_equal) and self.others[1] == other.others[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; None for torch's generator if it has not drawn since the member was built."""
        drawn = not torch.equal(self.torch_state, self.built_state)
        name, keys, *rest = self.others[0]
        return {
            "torch": self.torch_state if drawn else None,
            "device": self.device_state,
            "numpy": [name, torch.from_numpy(keys.astype(np.int64)), *rest] if self.uses_others else None,
            "python": self.others[1] if self.uses_others else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a checkpoint's state into the same member, just built; on another kind of device the device's generator keeps its built state."""
        self.torch_state = self.built_state if state["torch"] is None else state["torch"]
        if self.device_state is not None and state["device"] is not None:
            self.device_state = state["device"]
        if state["numpy"] is not None:
            self.uses_others = True
            name, keys, *rest = state["numpy"]
            version, words, gauss = state["python"]
            self.others = ((name, keys.numpy().astype(np.uint32), *rest), (version, tuple(words), gauss))
