"""MLflow: an experiment for the study and a run for each member; look with ``mlflow ui --backend-store-uri runs/x/mlruns``."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric

__all__ = ["MLflow"]

STATUSES = {"failed": "FAILED", "diverged": "FAILED", "stopped": "KILLED", "paused": "SCHEDULED"}
"""By a member's; FINISHED otherwise."""


QUOTES = str.maketrans("'\"`\\", "’”’/")
"""MLflow asks its stores for an experiment in words that these would end."""


def _all(search: Callable[..., Any]) -> Iterator[Any]:
    """Everything that a search finds, page by page."""
    page = search()
    yield from page
    while page.token:
        page = search(page_token=page.token)
        yield from page


class MLflow:
    """See `argosy.tracking.Tracker`."""

    def __init__(self, uri: str | None = None) -> None:
        self._uri = uri
        """By default MLFLOW_TRACKING_URI, else the folder ``mlruns`` of the run."""
        self._client: Any = None
        self._experiment = ""
        self._directory = ""
        self._runs: dict[str, str] = {}

    def open(self, directory: Path, group: str) -> None:
        """See `Tracker.open`."""
        # Without it MLflow keeps runs in no folder, but wants a database.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or (directory / "mlruns").as_uri()
        self._client, self._directory = MlflowClient(tracking_uri=uri), str(directory)
        group = group.translate(QUOTES)
        known = self._client.get_experiment_by_name(group)
        self._experiment = known.experiment_id if known else self._client.create_experiment(group)

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        """See `Tracker.begin`."""
        # A run is known by both: another run directory may have members of these names.
        own = {"argosy.member": member, "argosy.directory": self._directory}
        runs = _all(partial(self._client.search_runs, [self._experiment], f"tags.`argosy.member` = '{member}'"))
        earlier = [run.info.run_id for run in runs if run.data.tags.get("argosy.directory") == self._directory]
        if earlier:
            self._runs[member] = earlier[0]
            self._client.update_run(self._runs[member], status="RUNNING")
            return
        run = self._client.create_run(self._experiment, tags=own, run_name=member)
        self._runs[member] = run.info.run_id
        for name, value in hyperparameters.items():
            self._client.log_param(self._runs[member], name, value)

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._runs[member], metrics=metrics)

    def end(self, member: str, status: str) -> None:
        """See `Tracker.end`."""
        self._client.set_terminated(self._runs.pop(member), STATUSES.get(status, "FINISHED"))
