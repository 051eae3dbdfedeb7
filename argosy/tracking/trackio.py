"""Trackio: a run for each member in the project ``argosy``, grouped by study; look with ``trackio show --project argosy``."""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from typing import Any

import trackio

__all__ = ["Trackio", "quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Trackio from printing, for which it has no setting; redirecting `sys.stdout` would take the output of other threads too."""
    modules = [vars(module) for name, module in sys.modules.copy().items() if name.partition(".")[0] == "trackio"]
    for module in modules:
        module["print"] = lambda *_, **__: None
    try:
        yield
    finally:
        for module in modules:
            module.pop("print", None)


class Trackio:
    """A `Tracker` that writes to Trackio's folder: TRACKIO_DIR, else its own in the cache of Hugging Face."""

    delay_seconds = 1.0
    """Trackio's own thread writes twice a second."""

    def __init__(self, project: str = "argosy") -> None:
        self._project = project
        self._directory = Path()
        self._group = ""
        self._runs: dict[str, Any] = {}

    def open(self, directory: Path, group: str) -> None:
        """Set the directory and the group of the run."""
        self._directory, self._group = directory, group

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """Start the member's run, or continue it."""
        # Trackio identifies a run by its name, and another run directory may have members with the same names.
        digest = hashlib.sha256(f"{self._directory}/{member}".encode()).hexdigest()[:6]
        # Each run needs its own context, because Trackio ends the run in the current context when it starts another one.
        with quiet():
            self._runs[member] = Context().run(
                trackio.init,
                project=self._project,
                name=f"{member}-{digest}",
                group=self._group,
                config=dict(hyperparameters),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures with the step."""
        self._runs[member].log(dict(figures), step=step)

    def end(self, member: str, status: str) -> None:
        """Finish the member's run."""
        with quiet():
            self._runs.pop(member).finish()
