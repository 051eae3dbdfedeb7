"""Weights & Biases, offline: files in ``wandb/`` of the run, which ``wandb sync`` brings to a server."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import wandb

__all__ = ["WandB"]


class WandB:
    """See `argosy.tracking.Tracker`."""

    def __init__(self, project: str = "argosy", mode: Literal["offline", "online"] = "offline") -> None:
        self._project = project
        self._mode = mode
        self._directory = Path()
        self._group = ""
        self._runs: dict[str, Any] = {}

    def open(self, directory: Path, group: str) -> None:
        """See `Tracker.open`."""
        self._directory, self._group = directory, group

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """See `Tracker.begin`."""
        # The same whenever the run goes on; what two drivers write offline is one run when it is brought to a server.
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
        # Not wandb's own steps, which may not go back: a section that a fault took away comes again.
        run.define_metric("*", step_metric="steps")
        self._runs[member] = run

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._runs[member].log({**figures, "steps": step})

    def end(self, member: str, status: str) -> None:
        """See `Tracker.end`."""
        self._runs.pop(member).finish(exit_code=int(status in ("failed", "diverged")))
