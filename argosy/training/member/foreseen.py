"""Labels to come, compared with networks' outputs on the host, a block at a time, before an accelerator meets them.

A kernel that met one without an output would assert, and the device be of no more use to its process. What is compared
are the class numbers that a block brought along: none where a member makes others of them, or has a step of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.errors import StudyError
from argosy.stream.batches import Cutter
from argosy.stream.blocks import Block
from argosy.training.member.checks import check_labels, wants_classes
from argosy.training.member.live import LiveMember

__all__ = ["Foreseen"]


class Foreseen:
    """Of members with one loss."""

    def __init__(self, lives: Sequence[LiveMember]) -> None:
        self._lives = lives
        self._are_classes = lives[0].member.step is None and wants_classes(lives[0].member.loss)
        self._labels: list[tuple[Sequence[LiveMember], Tensor]] = []
        """Not compared yet, with those to whom they come."""

    @property
    def pending(self) -> bool:
        """Whether some are not compared yet."""
        return bool(self._labels)

    def note(self, block: Block, cutters: Sequence[Cutter], *, augment: bool) -> None:
        """Those of a block, of each different cutter once; not those that members `augment`, where that is done."""
        if block.labels is None or not self._are_classes:
            return
        sharing: dict[int, tuple[Cutter, list[LiveMember]]] = {}
        for live, cutter in zip(self._lives, cutters, strict=True):
            if not (augment and live.member.augment):
                sharing.setdefault(id(cutter), (cutter, []))[1].append(live)
        self._labels += [(alike, torch.from_numpy(cutter.labels(block))) for cutter, alike in sharing.values()]

    def errors(self) -> Mapping[str, StudyError]:
        """Compare them with outputs that were seen before, if any were: what there is to say, by member."""
        outputs = (
            next((live.outputs for live in self._lives if live.outputs is not None), None) if self._labels else None
        )
        return {} if outputs is None else self._compared(outputs)

    def look(self, output: Any) -> None:
        """Compare them with what one of the networks has just made, which they have not met yet. Raises StudyError."""
        if not self._labels:
            return
        if isinstance(output, Tensor):
            outputs = torch.empty(output.shape, device="meta")
            for live in self._lives:
                live.outputs = outputs
            for error in self._compared(outputs).values():
                raise error
        self._labels.clear()

    def clear(self) -> None:
        """They come to others."""
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
                    break  # nor is there anything to say to the others, whose loss is the same
        return errors
