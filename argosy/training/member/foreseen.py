"""Checks the labels of a block on the host, against the networks' number of outputs, before a device uses them.

On an accelerator a label without an output fails an assertion in a kernel, after which the process can no longer use the device. On any
device a sample without a label would count with a loss of 0. Only class numbers that come with a block are checked, not those of members
that augment them or have their own step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.errors import StudyError
from argosy.stream.batches import Cutter
from argosy.stream.blocks import Block
from argosy.training.member.checks import check_labels, takes_classes
from argosy.training.member.live import LiveMember

__all__ = ["PendingLabels"]


class PendingLabels:
    """Unchecked labels of members with one loss."""

    def __init__(self, lives: Sequence[LiveMember]) -> None:
        self._lives = lives
        self._are_classes = lives[0].member.step is None and takes_classes(lives[0].member.loss)
        self._labels: list[tuple[Sequence[LiveMember], Tensor]] = []
        """Unchecked labels, with the members that will see them."""

    @property
    def pending(self) -> bool:
        """Whether some labels are not checked yet."""
        return bool(self._labels)

    def note(self, block: Block, cutters: Sequence[Cutter], *, augment: bool) -> None:
        """Add a block's labels, once per distinct cutter; if `augment`, members that augment are left out."""
        if block.labels is None or not self._are_classes:
            return
        sharing: dict[int, tuple[Cutter, list[LiveMember]]] = {}
        for live, cutter in zip(self._lives, cutters, strict=True):
            if not (augment and live.member.augment):
                sharing.setdefault(id(cutter), (cutter, []))[1].append(live)
        self._labels += [(alike, torch.from_numpy(cutter.labels(block))) for cutter, alike in sharing.values()]

    def errors(self) -> Mapping[str, StudyError]:
        """Check the labels against earlier outputs, if there are any; returns the errors by member."""
        known = (live.outputs for live in self._lives if live.outputs is not None)
        outputs = next(known, None) if self._labels else None
        return {} if outputs is None else self._compared(outputs)

    def check_output(self, output: Any) -> None:
        """Check the labels against an output that a network has just returned, before its loss. Raises StudyError."""
        if not self._labels:
            return
        if isinstance(output, Tensor):
            outputs = torch.empty(output.shape, device="meta")
            for live in self._lives:
                live.outputs = outputs
            for error in self._compared(outputs).values():
                raise error
        self._labels.clear()

    def _compared(self, outputs: Tensor) -> dict[str, StudyError]:
        labels, self._labels = self._labels, []
        errors: dict[str, StudyError] = {}
        for lives, of_cutter in labels:
            for live in lives:
                try:
                    check_labels(live.member, outputs, of_cutter)
                except StudyError as error:
                    errors[live.member.name] = error
                else:
                    break  # the others, with the same loss, would pass as well
        return errors
