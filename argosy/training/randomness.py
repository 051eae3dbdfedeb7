"""The random state that belongs to one member, so that its neighbours cannot change its result."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

__all__ = ["Randomness"]


class Randomness:
    """Torch's generators always; NumPy's and Python's for members that were seen to use them (they cost 60 us a swap)."""

    def __init__(self, torch_state: torch.Tensor, cuda_state: torch.Tensor | None, others: tuple[Any, Any]) -> None:
        self.torch_state = torch_state
        self.cuda_state = cuda_state
        self.others = others
        self.uses_others = False

    @classmethod
    def seeded(cls, seed: int, device: torch.device) -> "Randomness":
        """The state that follows from a seed, for every generator."""
        cuda_state = None
        if device.type == "cuda":
            cuda_state = torch.Generator(device).manual_seed(seed).get_state()
        numpy_state = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32]).get_state()
        return cls(
            torch.Generator().manual_seed(seed).get_state(),
            cuda_state,
            (numpy_state, random.Random(seed).getstate()),
        )

    def copy(self) -> "Randomness":
        """An equal state that moves on its own; it carries all generators."""
        clone = None if self.cuda_state is None else self.cuda_state.clone()
        twin = Randomness(self.torch_state.clone(), clone, self.others)
        twin.uses_others = True
        return twin

    @contextlib.contextmanager
    def active(self, *, everything: bool = False, keep: bool = False) -> Iterator[None]:
        """Draw from this state inside; with `keep`, the state afterwards is the one before."""
        others = self.uses_others or everything
        torch.default_generator.set_state(self.torch_state)
        if self.cuda_state is not None:
            torch.cuda.set_rng_state(self.cuda_state)
        if others:
            np.random.set_state(self.others[0])
            random.setstate(self.others[1])
        try:
            yield
        finally:
            if not keep:
                self.torch_state = torch.default_generator.get_state()
                if self.cuda_state is not None:
                    self.cuda_state = torch.cuda.get_rng_state()
                if others:
                    self.others = (np.random.get_state(), random.getstate())

    def others_equal(self, other: "Randomness") -> bool:
        """Whether NumPy's and Python's states are the same as another's."""
        ours, theirs = self.others[0], other.others[0]
        numpy_equal = np.array_equal(ours[1], theirs[1]) and tuple(ours[2:]) == tuple(theirs[2:])
        return bool(numpy_equal) and self.others[1] == other.others[1]

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        numpy_state = self.others[0]
        return {
            "torch": self.torch_state,
            "cuda": self.cuda_state,
            "numpy": [numpy_state[0], torch.from_numpy(numpy_state[1].astype(np.int64)), *numpy_state[2:]],
            "python": self.others[1],
            "uses_others": self.uses_others,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        name, keys, *rest = state["numpy"]
        version, words, gauss = state["python"]
        self.torch_state, self.cuda_state = state["torch"], state["cuda"]
        self.others = ((name, keys.numpy().astype(np.uint32), *rest), (version, tuple(words), gauss))
        self.uses_others = state["uses_others"]
