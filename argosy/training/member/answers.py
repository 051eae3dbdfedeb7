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

__all__ = ["NO_CLASS", "Answers", "Kind", "kind_of"]

Kind = Literal["classes", "numbers"]
OF_NUMBERS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
MOST = 4096
"""Values of one validation: of more samples, as many are taken at even distances."""
NO_CLASS = 2.0
"""In the place of the probability of a target without a class, as padded tokens have none."""
LEAST = torch.finfo(torch.float32).tiny
EACH = 16
"""Targets of a sample: of more, as the pixels of a picture, as many are taken at even distances."""


def kind_of(member: Member) -> Kind | None:
    """Return what a member's outputs are, as far as its loss tells."""
    if isinstance(member.loss, OF_NUMBERS):
        return "numbers"
    if member.step is None and (member.loss is None or isinstance(member.loss, nn.CrossEntropyLoss)):
        return "classes"
    return None


@dataclass(slots=True)
class Answers:
    """Answers to the samples of one validation."""

    member: Member
    backend: Backend
    _parts: list[tuple[Tensor, DeviceEvent]] = field(default_factory=list)

    def add(self, output: Any, target: Any) -> None:
        """Add a batch. Raises StudyError for outputs that an ensemble cannot be made of."""
        self._parts.append(self.backend.fetch(self._reduced(output, target)))

    def whole(self) -> tuple[int, bytes] | None:
        """Return the values of a sample, and the float32 of all ``[samples, values]``; None without a sample. Waits for the device."""
        for _, event in self._parts:
            event.synchronize()
        if not self._parts:
            return None
        values_NK = torch.cat([part for part, _ in self._parts])
        chosen_NK = values_NK[:: _stride(values_NK.numel(), MOST)]
        return chosen_NK.shape[1], chosen_NK.numpy().tobytes()

    def _reduced(self, output: Any, target: Any) -> Tensor:
        """Return values of a batch, ``[B, values]``."""
        kind = kind_of(self.member)
        if isinstance(output, Tensor) and isinstance(target, Tensor):
            if kind == "numbers" and output.shape == target.shape:
                return _few((output.detach() - target).float())
            whole = not target.is_floating_point()
            if kind == "classes" and whole and output.shape[:1] + output.shape[2:] == target.shape:
                known = target >= 0  # as the targets that cross-entropy ignores are not
                right = output.detach().float().softmax(dim=1).gather(1, target.long().clamp(min=0)[:, None])[:, 0]
                # The logarithm of one that is ruled out stays a number.
                return _few(torch.where(known, right.clamp(min=LEAST), NO_CLASS))
        raise StudyError(
            f"member {self.member.name!r}: {_said('its output', output)} and {_said('its target', target)}, and Study.ensemble is made of "
            "logits [batch, classes, …] with numbers of classes [batch, …], under cross-entropy, or of numbers and targets of one shape, "
            "under a loss as nn.MSELoss(). Give such a loss and such outputs, or leave out ensemble."
        )


def _few(values: Tensor) -> Tensor:
    values_BK = values.reshape(len(values), -1)
    return values_BK[:, :: _stride(values_BK.shape[1], EACH)]


def _stride(count: int, most: int) -> int:
    return max(math.ceil(count / most), 1)


def _said(what: str, value: Any) -> str:
    of = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    return f"{what} is {of}"
