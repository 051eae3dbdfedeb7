"""TensorBoard: a folder for each member in ``tensorboard/`` of the run; look with ``tensorboard --logdir runs``."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.disk.files import open_append

__all__ = ["TensorBoard"]


class TensorBoard:
    """A `Tracker` that writes TensorBoard's files, open only while it writes: torch's writers each have a thread and an open file."""

    def __init__(self) -> None:
        self._folder = Path()
        self._files: dict[str, Path] = {}
        self._hyperparameters: dict[str, Mapping[str, Any]] = {}
        """Hyper-parameters of members that have no figures so far."""

    def open(self, directory: Path, group: str) -> None:
        """Set the folder of the run."""
        self._folder = directory / "tensorboard"

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """Create the member's file."""
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._files[member], self._hyperparameters[member] = self._folder / member / name, hyperparameters
        self._files[member].parent.mkdir(parents=True, exist_ok=True)
        self._append(member, file_version="brain.Event:2")

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures, and with the first ones the hyper-parameters."""
        from torch.utils.tensorboard import summary  # imports tensorboard

        make: Any = summary  # without types
        if member in self._hyperparameters:
            # The summary of hyper-parameters has to name the figures shown beside them.
            for one in make.hparams(dict(self._hyperparameters.pop(member)), dict(figures)):
                self._append(member, summary=one)
        for name, value in figures.items():
            self._append(member, summary=make.scalar(name, value), step=step)

    def end(self, member: str, status: str) -> None:
        """Forget the member's file."""
        self._files.pop(member)

    def _append(self, member: str, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # as above
        from tensorboard.summary.writer.record_writer import RecordWriter

        with open_append(self._files[member]) as file:
            RecordWriter(file).write(Event(wall_time=time.time(), **fields).SerializeToString())
