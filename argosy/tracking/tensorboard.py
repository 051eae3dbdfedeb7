"""TensorBoard: a folder for each member in ``tensorboard/`` of the run; look with ``tensorboard --logdir runs``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["TensorBoard"]


class TensorBoard:
    """A `Tracker` that writes TensorBoard's files."""

    def __init__(self) -> None:
        self._folder = Path()
        self._writers: dict[str, Any] = {}
        self._hyperparameters: dict[str, Mapping[str, Any]] = {}
        """Hyper-parameters of members that have no figures so far."""

    def open(self, directory: Path, group: str) -> None:
        """Set the folder of the run."""
        self._folder = directory / "tensorboard"

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """Create the member's writer."""
        from torch.utils.tensorboard import SummaryWriter  # imports tensorboard

        self._writers[member] = SummaryWriter(str(self._folder / member))
        self._hyperparameters[member] = hyperparameters

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures, and with the first ones the hyper-parameters."""
        from torch.utils.tensorboard.summary import hparams  # as above

        writer = self._writers[member]
        if member in self._hyperparameters:
            # The summary of hyper-parameters has to name the figures shown beside them.
            make_summaries: Any = hparams
            for summary in make_summaries(dict(self._hyperparameters.pop(member)), dict(figures)):
                writer.file_writer.add_summary(summary)
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def end(self, member: str, status: str) -> None:
        """Close the member's writer."""
        self._writers.pop(member).close()
