"""Reads the directory of a run or of a search, with the description that builds its networks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from argosy.disk.files import user_path
from argosy.errors import StudyError
from argosy.errors.checks import describe_value
from argosy.errors.spelling import known_keywords
from argosy.results.fold import RunState
from argosy.results.report import Report
from argosy.running.directory import loading
from argosy.study import Member, Study
from argosy.tuning.report import SearchReport
from argosy.tuning.search import Search

__all__ = ["load"]


@overload
def load(directory: str | Path, *, study: Study | Sequence[Study] | None = None) -> Report: ...
@overload
def load(directory: str | Path, *, study: Search) -> SearchReport: ...
@overload
def load(directory: str | Path, *, study: Sequence[Study | Search]) -> Report | SearchReport: ...
@known_keywords("argosy.load")
def load(
    directory: str | Path, *, study: Study | Search | Sequence[Study | Search] | None = None
) -> Report | SearchReport:
    """Return the report of a run, read from its directory; with `study`, its members can `load()` their networks.

    If ``argosy add`` brought members of other files, pass a list of the run's study and theirs. For a search, pass its `argosy.Search` in
    place of the run's study; the result is then the report that `argosy.tune` returned. Raises RunError if the directory holds no run yet, or
    another search.
    """
    search, *added = study if isinstance(study, list | tuple) and study else [study]
    if not isinstance(search, Search):
        return loading.load_report(directory, study=None if study is None else _together(study))
    from argosy.running.search.tuner import Tuner  # imports Optuna

    directory = user_path(directory)
    working, timed = loading.read_timed(directory)
    events = [event for _, event in timed]
    tuner = Tuner.of(search, events)
    state = RunState.of(events)
    tuner.replay(events, state)
    tuner.table.sweep(state)  # which trials are out may depend on others that failed, as the replay has found
    # A run that is measuring its first trials may end without any; the next driver proposes them again.
    known = _together([tuner.study, *added]) if tuner.table.members else None
    report, _ = loading.load_timed(directory, study=known, read=(working, timed))
    return SearchReport.of(report, timed, tuner.sampling.study)


def _together(given: Any) -> Study:
    """Return the study, or the first of several with the members of the others; raises StudyError for anything else."""
    studies = given if isinstance(given, list | tuple) else [given]
    if not studies or not all(isinstance(one, Study) for one in studies):
        raise StudyError(
            f"argosy.load: study is {describe_value(given)}; it must be the argosy.Study of the run or the argosy.Search of a search, or a list of "
            "it and the studies of added files."
        )
    first: Study = studies[0]
    members: dict[str, Member] = {}
    for one in (member for study in studies for member in study.members):
        members.setdefault(one.name, one)  # as `argosy add` ignores members that the run has
    return replace(first, members=tuple(members.values()))
