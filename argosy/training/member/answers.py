"""What a member answers to validation samples, reduced to what the loss of an ensemble needs of it: one number for each target.

Of classes it is the probability of the right one, since the mean of members' probabilities has the loss of the mean of these; of numbers
it is the error. Validation samples come in one order for all members, so answers of two members belong together by their places.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from argosy.errors import StudyError
from argosy.study import Member
from argosy.training.device.devices import Backend, DeviceEvent

__all__ = ["Answers", "Kind", "kind_of"]

Kind = Literal["classes", "numbers"]
OF_NUMBERS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
MOST = 4096
"""Values of one validation: of more, as many are taken at even distances."""


def kind_of(member: Member) -> Kind | None:
    """Return what a member's outputs are, as far as its loss tells."""
    if isinstance(member.loss, OF_NUMBERS):
        return "numbers"
    return (
        "classes"
        if member.step is None and (member.loss is None or isinstance(member.loss, nn.CrossEntropyLoss))
        else None
    )


@dataclass(slots=True)
class Answers:
    """Answers to the samples of one validation."""

    member: Member
    backend: Backend
    _parts: list[tuple[Tensor, DeviceEvent]] = field(default_factory=list)

    def add(self, output: Any, target: Any) -> None:
        """Add a batch. Raises StudyError for outputs that an ensemble cannot be made of."""
        self._parts.append(self.backend.fetch(self._reduced(output, target)))

    def whole(self) -> bytes:
        """Return all of them, as float32. Waits for the device."""
        for _, event in self._parts:
            event.synchronize()
        values = torch.cat([part for part, _ in self._parts]) if self._parts else torch.empty(0)
        return values[:: math.ceil(len(values) / MOST) or 1].numpy().tobytes()

    def _reduced(self, output: Any, target: Any) -> Tensor:
        kind = kind_of(self.member)
        if isinstance(output, Tensor) and isinstance(target, Tensor):
            if kind == "numbers" and output.shape == target.shape:
                return (output.detach() - target).float().reshape(-1)
            if (
                kind == "classes"
                and not target.is_floating_point()
                and output.shape[:1] + output.shape[2:] == target.shape
            ):
                known = target >= 0  # as the targets that cross-entropy ignores are not
                right = output.detach().float().softmax(dim=1).gather(1, target.long().clamp(min=0)[:, None])[:, 0]
                return right[known]
        raise StudyError(
            f"member {self.member.name!r}: {_said('its output', output)} and {_said('its target', target)}, and Study.ensemble is made of "
            "logits [batch, classes, …] with numbers of classes [batch, …], under cross-entropy, or of numbers and targets of one shape, "
            "under a loss as nn.MSELoss(). Give such a loss and such outputs, or leave out ensemble."
        )


def _said(what: str, value: Any) -> str:
    return (
        f"{what} is {value.dtype} {list(value.shape)}"
        if isinstance(value, Tensor)
        else f"{what} is {type(value).__name__}"
    )
