"""Rules for averaging a member's weights during training. Plain values; nothing here averages or imports torch."""

from dataclasses import dataclass
from typing import Any

from argosy.described import document_fields
from argosy.errors import StudyError
from argosy.errors.checks import check_number, check_whole, describe_value
from argosy.errors.spelling import known_keywords

__all__ = ["EMA", "SWA", "Average", "LastK", "check_average"]


@known_keywords("argosy.EMA")
@document_fields
@dataclass(frozen=True, slots=True)
class EMA:
    """Exponential moving average of the weights: after each step, ``average += (1 - decay) * (weights - average)`` (Polyak and Juditsky
    1992; `torch.optim.swa_utils.get_ema_multi_avg_fn`). It begins with the weights after the first step."""

    decay: float = 0.999
    """Share of the old average that a step keeps, below 1; 0.999 averages roughly the last thousand steps."""

    def __post_init__(self) -> None:
        check_number("EMA: decay", self.decay, above=0)
        if self.decay >= 1:
            raise StudyError(
                f"EMA: decay is {self.decay}; it must be less than 1, for example 0.999, because otherwise the average never moves."
            )


@known_keywords("argosy.SWA")
@document_fields
@dataclass(frozen=True, slots=True)
class SWA:
    """Stochastic weight averaging: mean of the weights at the end of every epoch from `from_epoch` on (Izmailov et al. 2018)."""

    from_epoch: int
    """First epoch that is averaged, counted from 1."""

    def __post_init__(self) -> None:
        check_whole("SWA: from_epoch", self.from_epoch, least=1)


@known_keywords("argosy.LastK")
@document_fields
@dataclass(frozen=True, slots=True)
class LastK:
    """Latest weight averaging: mean of the weights at the end of the last `epochs` epochs, or of all if there are fewer (Kaddour 2022). The
    weights of each of these epochs are kept on the member's device and in its checkpoints."""

    epochs: int = 5
    """Number of epochs that are averaged."""

    def __post_init__(self) -> None:
        check_whole("LastK: epochs", self.epochs, least=1)


Average = EMA | SWA | LastK


def check_average(what: str, rule: Any) -> None:
    """Raise StudyError unless the value is an averaging rule."""
    if not isinstance(rule, Average):
        raise StudyError(
            f"{what} is {describe_value(rule)}; it must be argosy.EMA(0.999), argosy.SWA(from_epoch=10) or argosy.LastK(5)."
        )
