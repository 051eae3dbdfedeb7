"""Captured evaluations: several members' pass over validation samples, captured once and replayed.

A pass of 64 different networks launches hundreds of kernels one by one; a replay is a single launch.

Contract. The results are those of `ProgramOfSeveral.evaluated`. That method computes batches of another form. It computes all
batches if a pass cannot be captured: members draw random numbers, the host reads a value, the captured pass would hold much
memory, or a replay gives other results.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.stream.trees import map_leaves
from argosy.training.device.attempts import attempt
from argosy.training.device.equivalence import ComparedPair, difference
from argosy.training.device.recorders import Recorder, Uncaptured, forked
from argosy.training.optim.parameter_buffer import restorer
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.several import ProgramOfSeveral
from argosy.training.programs.graphed.captured import Captured

__all__ = ["Evaluation"]

EAGER_PASSES = 16
"""Eager passes before one is captured: capturing empties the device's memory cache, which does not pay off in a short run."""
MAX_HELD_BYTES = 2**28
"""Bytes that a captured pass may hold: they are kept permanently, and for large passes the host's launches are not the bottleneck."""
MAX_DIFFERENCE = 1e-3
"""Allowed difference between a replayed and an eager pass, as a share of the largest number. A pass on other samples differs far more."""


class Evaluation:
    """Computes the losses and outputs of a program's members, as `ProgramOfSeveral.evaluated` does."""

    def __init__(self, program: ProgramOfSeveral, recorder: Recorder, buffers: Sequence[Tensor]) -> None:
        program.evaluation = self
        self._program = program
        self._recorder = recorder
        self._buffers = buffers
        """Buffers, which networks may change in evaluation too."""
        self._left = EAGER_PASSES
        """Eager passes left before one is captured."""
        self.captured: Captured[tuple[Tensor, Any]] = Captured(recorder, program.members[0].backend)
        """The pass."""

    def __call__(self, data: PackInputs) -> tuple[Tensor, Any]:
        """Return losses and outputs of the members; later passes do not overwrite them."""
        replayed = self.captured.replay(data)
        if replayed is not None:
            losses, output = replayed
            return losses.clone(), None if output is None else map_leaves(torch.clone, output)
        member = self._program.members[0].member
        if data.samples == (member.eval_batch_size or member.batch_size):
            self._left -= 1
            if not self._left:
                with attempt():  # after an error, this and all later passes run eagerly
                    return self._capture(data)
        return self._program.evaluated(data)

    def close(self) -> None:
        """Drop the captured pass; the program evaluates eagerly again."""
        self._program.evaluation = None
        self.captured.close()

    def _capture(self, data: PackInputs) -> tuple[Tensor, Any]:
        """Capture a pass, unless it would use too much memory; returns the results of an eager one."""
        restore = restorer(self._buffers)
        try:
            self._warm_up(data)
        finally:
            restore()
        result = self.captured.capture(self._made, data, self._buffers, agree=_agree)
        if self.captured.memory_bytes > MAX_HELD_BYTES:
            self.captured.close()
        return result

    def _warm_up(self, data: PackInputs) -> None:
        """Run passes on the capturing stream. Raises Uncaptured if members draw random numbers, or if the host waits for the device."""
        marks = self._program.marks()
        try:
            with forked(self._recorder):
                self._made(data)
                with self._recorder.strict():
                    self._made(data)
            drawn = self._program.drew_since(marks)
        finally:
            self._program.go_back(marks)
        if drawn:
            raise Uncaptured("its members draw random numbers in evaluation, each from its own state")

    def _made(self, data: PackInputs) -> tuple[Tensor, Any]:
        return self._program.evaluated(data, self._recorder.in_branches)


def _agree(eager: Sequence[Tensor], replayed: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    pairs = [ComparedPair.of("", one, other) for one, other in zip(eager, replayed, strict=True)]
    return difference(pairs, MAX_DIFFERENCE) is None
