"""Averages of a member's weights over its training, by their rules. Values only; nothing here averages or imports torch."""

from dataclasses import dataclass
from typing import Any

from argosy.described import described
from argosy.errors import StudyError
from argosy.errors.checks import check_number, check_whole, shown
from argosy.errors.spelling import known_keywords

__all__ = ["EMA", "SWA", "Average", "LastK", "check_average"]


@known_keywords("argosy.EMA")
@described
@dataclass(frozen=True, slots=True)
class EMA:
    """Average over all steps, of which a step counts `decay` times as much as the next one: after each of them the average moves by
    ``1 - decay`` of its way to the weights (Polyak and Juditsky 1992; `torch.optim.swa_utils.get_ema_multi_avg_fn`)."""

    decay: float = 0.999
    """Share of the average that a step leaves as it is, below 1; as 0.999, for the last thousand steps or so."""

    def __post_init__(self) -> None:
        check_number("EMA: decay", self.decay, above=0)
        if self.decay >= 1:
            raise StudyError(f"EMA: decay is {self.decay}; it must be below 1, as 0.999, or the average never moves.")


@known_keywords("argosy.SWA")
@described
@dataclass(frozen=True, slots=True)
class SWA:
    """Mean of the weights at the ends of all epochs from one on (stochastic weight averaging, Izmailov et al. 2018)."""

    from_epoch: int
    """First epoch whose weights count, from 1."""

    def __post_init__(self) -> None:
        check_whole("SWA: from_epoch", self.from_epoch, least=1)


@known_keywords("argosy.LastK")
@described
@dataclass(frozen=True, slots=True)
class LastK:
    """Mean of the weights at the ends of the last `epochs` epochs, or of all while there are fewer (latest weight averaging, Kaddour
    2022). The weights of each are kept, on the member's device and in its checkpoints."""

    epochs: int = 5
    """Number of epochs."""

    def __post_init__(self) -> None:
        check_whole("LastK: epochs", self.epochs, least=1)


Average = EMA | SWA | LastK


def check_average(what: str, rule: Any) -> None:
    """Raise StudyError for anything but a rule of an average."""
    if not isinstance(rule, Average):
        raise StudyError(
            f"{what} is {shown(rule)}; it must be argosy.EMA(0.999), argosy.SWA(from_epoch=10) or argosy.LastK(5)."
        )
