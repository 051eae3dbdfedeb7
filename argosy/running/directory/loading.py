"""Read a run's directory."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from argosy.disk.files import user_path
from argosy.errors import RunError, StudyError
from argosy.protocol.events import Answered, Event
from argosy.results.fold import RunState
from argosy.results.member import Networks
from argosy.results.report import Report
from argosy.running.directory.journal import timeline
from argosy.running.directory.lock import has_driver
from argosy.running.directory.study_json import read_study, summarize
from argosy.study import Study
from argosy.tuning.report import SearchReport

__all__ = ["check_sections", "load_report", "load_timed", "read_timed", "search_report_of"]

Timeline = Sequence[tuple[float, Event]]
"""Events with seconds of drivers' work before them."""


def load_report(directory: str | Path, *, study: Study | None = None, compares: bool = True) -> Report:
    """Return the report of a run as `argosy.load` does, read from its directory; if `compares`, check networks against the trained ones."""
    return load_timed(directory, study=study, compares=compares)[0]


def read_timed(directory: Path) -> tuple[bool, Timeline]:
    """Return whether a driver is at work, and the events so far with their times as `timeline` yields them."""
    # In this order: a driver that ends meanwhile still counts as working; otherwise its run would seem to be interrupted.
    return has_driver(directory), [*timeline(directory)]


def load_timed(
    directory: str | Path,
    *,
    study: Study | None = None,
    compares: bool = True,
    read: tuple[bool, Timeline] | None = None,
) -> tuple[Report, Timeline]:
    """Return what `load_report` returns, and the events that it was made of; `read` is what `read_timed` returned before, if it did."""
    directory = user_path(directory)
    working, events = read or read_timed(directory)
    state = RunState.of(event for _, event in events)
    check_sections(state, directory)
    summary = read_study(directory)
    if summary is None and study is not None:
        # The run ended before its data was open.
        summary = summarize(study)
    if summary is None:
        how = (
            "is not open yet. Try again in a moment"
            if working
            else "was not open when the run ended, or the file was deleted. Run the same command again"
        )
        raise RunError(f"{directory} has no study.json: the data {how}.")

    changed: Mapping[str, Sequence[str]] = {}
    if study is not None:
        study = _with_clones(study, state.answered)
        changed = _changed(study, directory) if compares else {}
    networks = partial(_networks, study, state, directory, changed)
    return Report.of(state, directory=directory, summary=summary, networks=networks, at_work=working), events


def check_sections(state: RunState, directory: Path) -> None:
    """Raise RunError if the journal lacks a section of a member, without which its best section and stopping rules would be others."""
    per_epoch = state.started.validations_per_epoch if state.started is not None else 1
    for one in state.members.values():
        if (at := one.gap(per_epoch)) is not None:
            raise RunError(
                f"{directory / 'journal.jsonl'} lacks section {at + 1} of member {one.name!r}, although a later one is there: a "
                "line was removed. Restore a copy of the journal, or choose another directory."
            )


def search_report_of(report: Report, events: Timeline) -> SearchReport | None:
    """Return the report of a search, from what `load_timed` returns and without Optuna's study; None if it is no search."""
    return SearchReport.of(report, events, None) if report.is_search else None


def _with_clones(study: Study, answered: Iterable[Answered]) -> Study:
    """Return the study with the clones that joined the run; what `argosy add` brought is code, which reading a directory never executes."""
    from argosy.running.directory.clone import Clone  # as in `_changed`

    for command in (one.command for one in answered if one.command.get("command") == "clone" and not one.refused):
        clone = Clone.of(command)
        if clone.source in study.names and clone.name not in study.names:
            # A source that has changed since may no longer have what the clone changes.
            with contextlib.suppress(StudyError):
                study = replace(study, members=(*study.members, clone.member(study.member(clone.source))))
    return study


def _changed(study: Study, directory: Path) -> dict[str, list[str]]:
    from argosy.running.directory.identity import Identity  # imports torch, which the study has imported already
    from argosy.training.device.process_state import ProcessState

    return Identity(directory, {}, ProcessState.here()).changed_networks(study)


def _networks(study: Study | None, state: RunState, directory: Path, changed: Mapping[str, Sequence[str]]) -> Networks:
    from argosy.ensembling.trained import Trained  # imports torch, which a query of a run's state should not wait for

    return Trained(study, state, directory, changed)
