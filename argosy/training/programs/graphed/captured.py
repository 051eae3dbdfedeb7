"""Work on the samples of a batch that is captured once and replayed: the common part of captured steps and evaluations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from argosy.stream.trees import flatten, unflatten
from argosy.training.device.devices import Backend
from argosy.training.device.recorders import Recorder, Recording, Uncaptured
from argosy.training.optim.parameter_buffer import copy_into
from argosy.training.programs.fused.forward import PackInputs

__all__ = ["Captured"]

Made = TypeVar("Made")
Agree = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], bool]
"""Returns whether eager and replayed results agree. The last results are the moving tensors, whose values before are the third argument."""


class HeldCapture(NamedTuple, Generic[Made]):
    """What captured work holds in memory."""

    recording: Recording
    leaves: Sequence[Tensor]
    """The tensors of its samples, which replays fill."""
    data: PackInputs
    made: Made


@dataclass(eq=False)
class Captured(Generic[Made]):
    """Work of one program that is captured for samples of one form."""

    _recorder: Recorder
    _backend: Backend
    _held: HeldCapture[Made] | None = None

    @property
    def replays(self) -> bool:
        """Whether the work is captured."""
        return self._held is not None

    @property
    def memory_bytes(self) -> int:
        """Device memory that the captured work holds."""
        return 0 if self._held is None else self._held.recording.memory_bytes

    def capture(
        self,
        work: Callable[[PackInputs], Made],
        data: PackInputs,
        moving: Sequence[Tensor],
        *,
        rewind: Callable[[], object] = lambda: None,
        agree: Agree,
    ) -> Made:
        """Capture work, and verify one replay against an eager run on these samples, whose result is returned.

        Both begin after `rewind` and with the same values of the `moving` tensors, which an error restores. Raises Uncaptured, and the
        errors of the work.
        """
        before = [tensor.clone() for tensor in moving]
        try:
            self._record(work, data)
            rewind()
            replayed = [tensor.clone() for tensor in (*_tensors(self.replay(data)), *moving)]
            copy_into(before, moving)
            rewind()
            made = work(data)
            if not agree([*_tensors(made), *moving], replayed, before):
                raise Uncaptured("when replayed, its step gives a different result")
        except BaseException:
            copy_into(before, moving)
            self.close()
            raise
        return made

    def _record(self, work: Callable[[PackInputs], Made], data: PackInputs) -> None:
        """Capture work on zeros of the form of these samples.

        So work that reads its samples from elsewhere gives other results when it is replayed with real samples.
        """
        leaves, structure = flatten(data.tree)
        if not all(isinstance(leaf, Tensor) and leaf.device == self._backend.device for leaf in leaves):
            raise Uncaptured("its batches contain more than tensors on the device")
        zeros = [torch.zeros_like(leaf) for leaf in leaves]
        shown = PackInputs(unflatten(zeros, structure), data.samples, data.apart)
        recording, made = self._recorder.record(lambda: work(shown))
        self._held = HeldCapture(recording, zeros, shown, made)

    # Kept minimal: the host's work around a replay takes longer than a small network's step takes on the device.
    def replay(self, data: PackInputs) -> Made | None:
        """Repeat the work on these samples; None if it is not captured for samples of their form. Results are valid until the next replay."""
        held = self._held
        if held is None or data.samples != held.data.samples or data.apart != held.data.apart:
            return None
        leaves = flatten(data.tree)[0]
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != [(own.shape, own.dtype) for own in held.leaves]:
            return None
        for own, leaf in zip(held.leaves, leaves, strict=True):
            own.copy_(leaf)
        held.recording.replay()
        return held.made

    def close(self) -> None:
        """Free the memory of captured work, once no replay is running."""
        held, self._held = self._held, None
        if held is not None:
            self._backend.synchronize()
            held.recording.close()


def _tensors(made: Any) -> Sequence[Tensor]:
    return [leaf for leaf in flatten(made)[0] if leaf is not None]
