"""A member's answers to validation samples: the one number per target that an ensemble needs to compute its loss.

For classes it is the probability of the right class: the loss of an ensemble that averages probabilities depends only on the mean of these
numbers. For numeric targets it is the error. All members see the validation samples in one order, so their answers match by position.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from argosy.errors import StudyError
from argosy.study import Member, ignored_class, own_loss
from argosy.training.device.devices import Backend, DeviceEvent

__all__ = ["NO_CLASS", "Answers", "Kind", "answer_kind"]

Kind = Literal["classes", "numbers"]
OF_NUMBERS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
MAX_VALUES = 4096
"""Most values kept of one validation; if there are more, evenly spaced samples are taken."""
NO_CLASS = 2.0
"""Stands for the probability if a target has no class, for example a padded token."""
LEAST = torch.finfo(torch.float32).tiny
MAX_TARGETS = 16
"""Most targets kept of one sample; if there are more, for example pixels, evenly spaced ones are taken."""


def answer_kind(member: Member) -> Kind | None:
    """Return the kind of a member's outputs; None if its loss does not determine it."""
    loss = own_loss(member.loss)
    if isinstance(loss, OF_NUMBERS):
        return "numbers"
    if member.step is None and (loss is None or isinstance(loss, nn.CrossEntropyLoss)):
        return "classes"
    return None


@dataclass(slots=True)
class Answers:
    """Answers to the samples of one validation."""

    member: Member
    backend: Backend
    _parts: list[tuple[Tensor, DeviceEvent]] = field(default_factory=list)

    def add(self, output: Any, target: Any) -> None:
        """Add a batch. Raises StudyError for outputs that an ensemble cannot use."""
        self._parts.append(self.backend.fetch(self._reduced(output, target)))

    def whole(self) -> tuple[int, bytes] | None:
        """Return the number of values per sample, and all values ``[samples, values]`` as float32 bytes; None without samples.

        Waits for the device.
        """
        for _, event in self._parts:
            event.synchronize()
        if not self._parts:
            return None
        values_NK = torch.cat([part for part, _ in self._parts])
        chosen_NK = values_NK[:: _stride(values_NK.numel(), MAX_VALUES)]
        return chosen_NK.shape[1], chosen_NK.numpy().tobytes()

    def _reduced(self, output: Any, target: Any) -> Tensor:
        """Return the answers to a batch, ``[B, values]``."""
        kind = answer_kind(self.member)
        if isinstance(output, Tensor) and isinstance(target, Tensor):
            if kind == "numbers" and output.shape == target.shape:
                return _thin_out((output.detach() - target).float())
            whole = not target.is_floating_point()
            if kind == "classes" and whole and output.shape[:1] + output.shape[2:] == target.shape:
                known = target != ignored_class(self.member.loss)
                classes = target.long().where(known, 0)
                right = output.detach().float().softmax(dim=1).gather(1, classes[:, None])[:, 0]
                # The minimum keeps the logarithm finite.
                return _thin_out(torch.where(known, right.clamp(min=LEAST), NO_CLASS))
        raise StudyError(
            f"member {self.member.name!r}: {_format_output('its output', output)} and {_format_output('its target', target)}. "
            "Study.ensemble needs logits [batch, classes, …] with class numbers [batch, …] under cross-entropy, "
            "or numbers and targets of the same shape under a loss such as nn.MSELoss(). Use such a loss and such "
            "outputs, or omit ensemble."
        )


def _thin_out(values: Tensor) -> Tensor:
    values_BK = values.reshape(len(values), -1)
    return values_BK[:, :: _stride(values_BK.shape[1], MAX_TARGETS)]


def _stride(count: int, most: int) -> int:
    return max(math.ceil(count / most), 1)


def _format_output(what: str, value: Any) -> str:
    of = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    return f"{what} is {of}"
