"""MLflow: an experiment for the study and a run for each member; look with
``MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri runs/x/mlruns``."""

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric

from argosy.errors import RunError

__all__ = ["MLflow"]

STATUSES = {"failed": "FAILED", "diverged": "FAILED", "stopped": "KILLED", "paused": "SCHEDULED"}
"""MLflow's status by the member's; FINISHED for all others."""


QUOTES = str.maketrans("'\"`\\", "’”’/")
"""Replaces quotes that would end the string in MLflow's query for an experiment's name."""


def _valid_name(name: str) -> str:
    """Return a name that MLflow accepts: other characters, such as the one in ``ndcg@10``, become ``_``."""
    return re.sub(r"[^\w./ :-]", "_", name)


def _all_pages(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield everything that a search finds, page by page."""
    page = search()
    yield from page
    while page.token:
        page = search(page_token=page.token)
        yield from page


class MLflow:
    """A `Tracker` that writes to an MLflow store."""

    def __init__(self, uri: str | None = None) -> None:
        self._uri = uri
        """URI of the store; by default MLFLOW_TRACKING_URI, else the folder ``mlruns`` of the run."""
        self._client: Any = None
        self._experiment = ""
        self._directory = ""
        self._runs: dict[str, str] = {}
        """MLflow's run of each member, also of those that an earlier driver has logged."""

    def open(self, directory: Path, group: str) -> None:
        """Find or create the study's experiment, and find its runs of this directory."""
        # Without it MLflow rejects folders and requires a database.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        own = (directory / "mlruns").as_uri()
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or own
        for file in directory.glob("mlruns/*/*/meta.yaml") if uri == own else ():
            if not file.stat().st_size:
                raise RunError(
                    f"{file} is empty, because the process that wrote it was killed, and MLflow cannot read the other runs beside it. Remove its "
                    f"folder: rm -r {shlex.quote(str(file.parent))}."
                )
        self._client, self._directory = MlflowClient(tracking_uri=uri), str(directory)
        group = group.translate(QUOTES)
        known = self._client.get_experiment_by_name(group)
        self._experiment = known.experiment_id if known else self._client.create_experiment(group)
        # MLflow reads every run for a search: one search for each member would take quadratic time.
        for run in _all_pages(partial(self._client.search_runs, [self._experiment])):
            # Another run directory may have members of the same names.
            if run.data.tags.get("argosy.directory") == self._directory:
                self._runs.setdefault(run.data.tags["argosy.member"], run.info.run_id)

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """Find the member's run, or create it with its hyper-parameters."""
        if member in self._runs:
            self._client.update_run(self._runs[member], status="RUNNING")
            return
        tags = {"argosy.member": member, "argosy.directory": self._directory}
        self._runs[member] = self._client.create_run(self._experiment, tags=tags, run_name=member).info.run_id
        for name, value in hyperparameters.items():
            self._client.log_param(self._runs[member], _valid_name(name), value)

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures as one batch."""
        now = int(time.time() * 1000)
        metrics = [Metric(_valid_name(name), value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._runs[member], metrics=metrics)

    def end(self, member: str, status: str) -> None:
        """Set the run's final status."""
        self._client.set_terminated(self._runs[member], STATUSES.get(status, "FINISHED"))
