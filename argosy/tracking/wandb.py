"""Weights & Biases, offline: files in ``wandb/`` of the run, which ``wandb sync`` brings to a server."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import wandb

__all__ = ["WandB"]


class WandB:
    """A `Tracker` that writes Weights & Biases runs."""

    delay_seconds = 20.0
    """W&B writes its files every 15 seconds."""

    def __init__(self, project: str = "argosy", mode: Literal["offline", "online"] = "offline") -> None:
        self._project = project
        self._mode = mode
        self._directory = Path()
        self._group = ""
        self._runs: dict[str, Any] = {}

    def open(self, directory: Path, group: str) -> None:
        """Set the folder and the group of the run."""
        self._directory, self._group = directory, group

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """Start the member's run."""
        # The same id each time the run continues, so that what two drivers write offline becomes one run on a server.
        identity = hashlib.sha256(f"{self._directory}/{member}".encode()).hexdigest()[:16]
        run = wandb.init(
            project=self._project,
            group=self._group,
            name=member,
            id=identity,
            resume="allow" if self._mode == "online" else None,
            config=dict(hyperparameters),
            dir=str(self._directory),
            mode=self._mode,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        # wandb's own steps may not decrease, but a section that is repeated with other results is logged again.
        run.define_metric("*", step_metric="steps")
        self._runs[member] = run

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures with the step."""
        self._runs[member].log({**figures, "steps": step})

    def end(self, member: str, status: str) -> None:
        """Finish the member's run; its exit code is 1 if it failed or diverged."""
        self._runs.pop(member).finish(exit_code=int(status in ("failed", "diverged")))
