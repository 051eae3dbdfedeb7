"""Values logged in training under the names that learning rates monitor, aggregated as Lightning does."""

import numbers
from collections.abc import Collection, Mapping
from typing import Any

import torch

from argosy.errors import StudyError
from argosy.training.member.tally import to_float64

__all__ = ["MEANS", "Monitored"]

MEANS = ("mean", "avg", torch.mean)
"""Values of ``reduce_fx`` that Lightning takes for the mean over batches."""

HOOKS = ("on_train_epoch_start", "training_step", "on_train_epoch_end")
"""Hooks in which a module may log in training. If several log one name, the last one's mean counts."""


class Monitored:
    """Means over the epoch, and last values.

    A value logged with ``on_epoch`` counts by its mean, weighted by samples; with ``on_step`` alone, by its last value.
    With both, the mean is also ``<name>_epoch``, and the last value is ``<name>_step``.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._sums: dict[str, tuple[Any, int]] = {}
        """By hook and name: the sum over samples, and their number."""
        self._last: dict[str, Any] = {}

    def add(
        self,
        name: str,
        value: Any,
        rows: int,
        *,
        hook: str,
        on_step: bool | None,
        on_epoch: bool | None,
        reduce_fx: Any,
    ) -> None:
        """Add a value of `rows` samples; None means the hook's default.

        Raises StudyError if a learning rate cannot monitor it.
        """
        in_step = hook == "training_step"
        by_step = in_step if on_step is None else on_step
        by_epoch = not in_step if on_epoch is None else on_epoch
        of_step, of_epoch = (f"{name}_step", f"{name}_epoch") if by_step and by_epoch else (name, name)
        if self._names.isdisjoint((name, of_step, of_epoch)):
            return
        a_number = isinstance(value, torch.Tensor | numbers.Number)
        if not a_number or (by_epoch and reduce_fx not in MEANS):
            how = f"with reduce_fx={reduce_fx!r}" if a_number else f"as an object of {type(value).__name__}"
            raise StudyError(
                f"its learning rate follows {name!r}, which {hook} logs {how}. From training, it can follow only "
                "numbers and their means. Log a number, or monitor a value of validation_step."
            )
        number = to_float64(value)
        if by_step:
            self._last[of_step] = number
        if by_epoch:
            for key in dict.fromkeys((f"{hook}.{name}", f"{hook}.{of_epoch}")):
                total, count = self._sums.get(key, (0.0, 0))
                self._sums[key] = total + number * rows, count + rows

    def mean(self, name: str) -> Any:
        """Return the mean over the epoch so far; None if it is not logged with ``on_epoch``."""
        sums = next((self._sums[f"{hook}.{name}"] for hook in reversed(HOOKS) if f"{hook}.{name}" in self._sums), None)
        return None if sums is None else sums[0] / sums[1]

    def last(self, name: str) -> Any:
        """Return the last value; None if it is not logged by step."""
        return self._last.get(name)

    def clear(self) -> None:
        """Clear the values at an epoch's end."""
        self._sums.clear()
        self._last.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint within an epoch."""
        sums = {key: (float(total), count) for key, (total, count) in self._sums.items()}
        return {"sums": sums, "last": {name: float(value) for name, value in self._last.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._sums, self._last = dict(state["sums"]), dict(state["last"])
