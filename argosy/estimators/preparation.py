"""Prepares the rows of a table for a network: fitted to the training rows of a fold, and to them alone."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from argosy.estimators.columns import Columns, Rows

__all__ = ["Numbers", "TablePreparation"]

Numbers = Literal["quantile", "standard"]
"""How numbers are scaled: to a normal distribution by their quantiles, or to mean 0 and standard deviation 1."""
QUANTILES = 64
FARTHEST = 8.0
"""Number of standard deviations at which standardised numbers are clipped."""
MOST_WORDS = 64
"""Largest number of words of a column with an input each; less frequent words set none of these inputs."""


class TablePreparation(nn.Module):
    """Rows ``[N, columns]`` as an estimator encodes them -> inputs ``[N, width]`` of a network, in the same type.

    Numbers are scaled, and a missing one is put in the middle. Then come an indicator of each column with missing numbers, and one of
    each word. How many there are follows from the columns; indicators of what the training rows do not have stay 0.
    """

    knots: Tensor
    """``[numbers, Q]``, rising: where a number lies between two of them, its input lies between their `levels`."""
    levels: Tensor
    numbers: Tensor
    """Places of columns of numbers; likewise of those with missing ones, and of words, one place for each word."""
    gaps: Tensor
    word_columns: Tensor
    words: Tensor
    """Codes."""
    known_gaps: Tensor
    """Whether training rows have missing numbers in these columns."""

    def __init__(self, columns: Columns, rows: Rows, numbers: Numbers) -> None:
        super().__init__()
        places = [place for place, words in enumerate(columns.words) if words is None]
        fit = _fit_quantiles if numbers == "quantile" else _fit_line
        fitted = [fit(rows[~np.isnan(rows[:, place]), place]) for place in places]
        self._keep("numbers", places)
        self.register_buffer("knots", torch.tensor([knots for knots, _ in fitted], dtype=torch.float64))
        self.register_buffer("levels", torch.tensor([levels for _, levels in fitted], dtype=torch.float64))
        gaps = [place for place, has in enumerate(columns.gaps) if has]
        self._keep("gaps", gaps)
        self.register_buffer("known_gaps", torch.from_numpy(np.isnan(rows[:, gaps]).any(axis=0)))
        words = [
            (place, code)
            for place, words in enumerate(columns.words)
            if words is not None
            for code in _frequent(rows[:, place], len(words))
        ]
        self._keep("word_columns", [place for place, _ in words])
        self._keep("words", [code for _, code in words])

    @staticmethod
    def width(columns: Columns) -> int:
        """Return how many inputs there are, in every fold."""
        words = sum(min(len(words), MOST_WORDS) for words in columns.words if words is not None)
        return columns.words.count(None) + sum(columns.gaps) + words

    def _keep(self, name: str, values: Sequence[int]) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.int64))

    def forward(self, rows_NC: Tensor) -> Tensor:
        """Return the inputs."""
        numbers_ND = rows_NC[:, self.numbers]
        scaled_ND = torch.where(numbers_ND.isnan(), 0.0, self._scaled(numbers_ND))
        gaps_NG = rows_NC[:, self.gaps].isnan() & self.known_gaps
        words_NW = rows_NC[:, self.word_columns] == self.words
        return torch.cat([scaled_ND, gaps_NG.to(rows_NC), words_NW.to(rows_NC)], dim=1)

    def _scaled(self, numbers_ND: Tensor) -> Tensor:
        if not len(self.knots):
            return numbers_ND
        x_DN = numbers_ND.T.contiguous()
        upper = torch.searchsorted(self.knots, x_DN).clamp(1, self.knots.shape[1] - 1)
        low, high = self.knots.gather(1, upper - 1), self.knots.gather(1, upper)
        share = ((x_DN - low) / (high - low)).clamp(0, 1)
        return (self.levels.gather(1, upper - 1) * (1 - share) + self.levels.gather(1, upper) * share).T


def _fit_line(values: Rows) -> tuple[list[float], list[float]]:
    """Return the two ends of a straight line, or of a flat one at 0 if no two values differ: weights of such an input are not trained."""
    if not len(values) or values.min() == values.max():
        return [-1.0, 1.0], [0.0, 0.0]
    mean = values.mean()
    reach = FARTHEST * max(values.std(), np.spacing(abs(mean)))  # so that the ends differ
    return [mean - reach, mean + reach], [-FARTHEST, FARTHEST]


def _fit_quantiles(values: Rows) -> tuple[list[float], list[float]]:
    """Return quantiles of the values, each once, and those of the normal distribution; as many for any column."""
    if not len(values):
        return _pad_knots([0.0], [0.0])
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    knots, place = np.unique(np.quantile(values, shares), return_inverse=True)
    # What many rows have in common lies in the middle of its quantiles.
    middle = np.bincount(place, weights=shares) / np.bincount(place)
    levels = torch.special.ndtri(torch.from_numpy(middle)).tolist()
    return _pad_knots(knots.tolist(), levels)


def _pad_knots(knots: list[float], levels: list[float]) -> tuple[list[float], list[float]]:
    """Return as many knots as any column has; those that are added lie above the others, at the last level."""
    above = [knots[-1] + (number + 1) * max(abs(knots[-1]), 1.0) for number in range(QUANTILES - len(knots))]
    return [*knots, *above], [*levels, *[levels[-1]] * len(above)]


def _frequent(codes: Rows, words: int) -> list[int]:
    """Return the most frequent codes of a column, as many in every fold; -1, which no row has, in the place of those that the rows lack."""
    counts = np.bincount(codes.astype(np.int64), minlength=words + 1)[1:]
    chosen = np.argsort(-counts, kind="stable")[:MOST_WORDS]
    return [int(place) + 1 if counts[place] else -1 for place in sorted(chosen.tolist())]
