"""Reads the directory of a run or of a search, with the description that builds its networks."""

from pathlib import Path
from typing import overload

from argosy.disk.files import user_path
from argosy.errors.spelling import known_keywords
from argosy.results.fold import RunState
from argosy.results.report import Report
from argosy.running.directory import loading
from argosy.running.directory.journal import read_journal
from argosy.study import Study
from argosy.tuning.report import SearchReport
from argosy.tuning.search import Search

__all__ = ["load"]


@overload
def load(directory: str | Path, *, study: Study | None = None) -> Report: ...
@overload
def load(directory: str | Path, *, study: Search) -> SearchReport: ...
@known_keywords("argosy.load")
def load(directory: str | Path, *, study: Study | Search | None = None) -> Report | SearchReport:
    """Return the report of a run, read from its directory; with `study`, its members can `load()` their networks.

    For a search, pass its `argosy.Search` as `study`; the result is then the report that `argosy.tune` returned. Raises RunError if
    the directory holds no run yet, or another search.
    """
    if not isinstance(study, Search):
        return loading.load_report(directory, study=study)
    from argosy.running.search.tuner import Tuner  # imports Optuna

    directory = user_path(directory)
    events = read_journal(directory)
    tuner = Tuner.of(study, events)
    tuner.replay(events, RunState.of(events))
    report, timed = loading.load_timed(directory, study=tuner.study)
    return SearchReport.of(report, timed, tuner.sampling.study)
