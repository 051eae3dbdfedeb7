"""Captured work on the samples of a batch, with static memory for them; the common part of captured steps and evaluations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from argosy.stream.trees import flatten, unflatten
from argosy.training.device.devices import Backend
from argosy.training.device.recorders import Recorder, Recording, Uncaptured
from argosy.training.programs.fused.forward import PackInputs

__all__ = ["Replayed", "copy_into"]

Made = TypeVar("Made")


@dataclass(eq=False)
class Replayed(Generic[Made]):
    """Work that was captured once, for samples of one form."""

    recording: Recording
    _static_leaves: Sequence[Tensor]
    _data: PackInputs
    """Held to keep its memory allocated."""
    _made: Made

    @classmethod
    def record(
        cls, recorder: Recorder, data: PackInputs, device: torch.device, work: Callable[[PackInputs], Made]
    ) -> "Replayed[Made]":
        """Capture work on zeros of the form of these samples.

        So work that reads its samples from elsewhere gives other results when it is replayed with real samples. Raises Uncaptured,
        and the errors of the work.
        """
        leaves, structure = flatten(data.tree)
        if not all(isinstance(leaf, Tensor) and leaf.device == device for leaf in leaves):
            raise Uncaptured("its batches contain more than tensors on the device")
        static = [torch.zeros_like(leaf) for leaf in leaves]
        static_data = PackInputs(unflatten(static, structure), data.samples, data.apart)
        recording, result = recorder.record(lambda: work(static_data))
        return cls(recording, static, static_data, result)

    def leaves_of(self, data: PackInputs) -> Sequence[Tensor] | None:
        """Return the tensors of samples; None if the work was captured for samples of another form."""
        if data.samples != self._data.samples or data.apart != self._data.apart:
            return None
        leaves, static = flatten(data.tree)[0], self._static_leaves
        alike = len(leaves) == len(static) and all(
            leaf.shape == own.shape and leaf.dtype == own.dtype for leaf, own in zip(leaves, static, strict=True)
        )
        return leaves if alike else None

    # Kept minimal: the host's work around a replay takes longer than a small network's step takes on the device.
    def replay(self, leaves: Sequence[Tensor]) -> Made:
        """Repeat the work on these samples; the returned tensors are valid until the next replay."""
        for own, leaf in zip(self._static_leaves, leaves, strict=True):
            own.copy_(leaf)
        self.recording.replay()
        return self._made

    def close(self, backend: Backend) -> None:
        """Free the recording's memory, once no replay is running."""
        backend.synchronize()
        self.recording.close()


@torch.no_grad()
def copy_into(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy values into tensors, to restore or set the state of recorded work."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
