"""TensorBoard: a folder for each member in ``tensorboard/`` of the run; look with ``tensorboard --logdir runs``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["TensorBoard"]


class TensorBoard:
    """See `argosy.tracking.Tracker`."""

    def __init__(self) -> None:
        self._folder = Path()
        self._writers: dict[str, Any] = {}
        self._hyperparameters: dict[str, Mapping[str, Any]] = {}
        """Of members without figures so far."""

    def open(self, directory: Path, group: str) -> None:
        """See `Tracker.open`."""
        self._folder = directory / "tensorboard"

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """See `Tracker.begin`."""
        from torch.utils.tensorboard import SummaryWriter  # imports tensorboard

        self._writers[member] = SummaryWriter(str(self._folder / member))
        self._hyperparameters[member] = hyperparameters

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        from torch.utils.tensorboard.summary import hparams  # as above

        writer = self._writers[member]
        if member in self._hyperparameters:
            # Which of the figures are to stand beside them is part of what is written.
            made: Any = hparams
            for summary in made(dict(self._hyperparameters.pop(member)), dict(figures)):
                writer.file_writer.add_summary(summary)
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def end(self, member: str, status: str) -> None:
        """See `Tracker.end`."""
        self._writers.pop(member).close()
