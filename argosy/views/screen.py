"""The user's view of a run at one moment, as a value computed from the study, the fold and the workers' last messages."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.errors.wording import cause_of, differing_parameters, format_parameters
from argosy.protocol.events import Split
from argosy.results.diagnosis import Diagnosis, diagnose
from argosy.results.fold import FAILED_STATUSES, FINAL_STATUSES, MemberState, RunState
from argosy.results.legs import waiting_share
from argosy.results.ranking import rank
from argosy.results.repetitions import Leader, Repetitions
from argosy.stopping import mode_of
from argosy.study import Study
from argosy.tuning.trials import TrialResult, TrialsSoFar, leader_of, statuses
from argosy.views.news import News
from argosy.views.notices import format_lost_worker
from argosy.views.rungs import Rung, rungs_of_all

__all__ = ["DeviceRow", "ScreenContext", "Row", "Screen", "SearchProgress", "screen_of"]

LATELY_SECONDS = 300.0
"""Seconds for which the loss of a worker is shown."""
SECTIONS_COUNTED = 20
"""Last sections of a run from which the error of predictions is estimated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScreenContext:
    """Inputs of a screen that do not depend on events."""

    study: Study
    parameters: Mapping[str, Mapping[str, Any]]
    """Hyper-parameters by member."""
    directory: Path
    began: float
    done_before: float
    """Epochs of all members that an earlier driver had finished."""
    expected: Callable[[], float] | None
    """Function that returns the epochs to come; None if they follow from the members' rules alone."""
    shown: float = 0.0
    """Share of all epochs that an earlier screen of the run has shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One member."""

    name: str
    differs: str
    """For a member: its hyper-parameters that differ between members."""
    parameters: Mapping[str, Any]
    """For a trial: the parameters that it was built from and that differ between trials."""
    status: str
    epochs: float
    of: float | None
    """Largest number of epochs that it will train, if known."""
    loss: float | None
    """Training loss of its last batches."""
    metrics: Mapping[str, float]
    """Metrics of its best section so far, as the report has them; empty before there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRow:
    """One device."""

    device: str
    members: int
    flotilla: int | None
    """Number of its flotilla, if there are several at once."""
    samples_per_second: float
    """Samples/s of its members that it steps on, added up."""
    waiting: float
    """Share of its time without data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchProgress:
    """Progress of a search."""

    begun: int
    """Number of trials that have begun."""
    of: int | None
    """Number of trials that will begin, if known."""
    best: str
    """Parameters of the best trial, as far as trials differ in them."""
    rungs: tuple[Rung, ...]
    """Rungs of all brackets together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """The whole screen."""

    directory: Path
    phase: str
    seconds: float
    epochs: float
    """Epochs that all members together have trained."""
    to_come: float
    seconds_left: float | None
    counts: Mapping[str, int]
    """Members, or trials of a search, by status."""
    search: SearchProgress | None
    """Progress of the search; None if the run is not a search."""
    bottleneck: Diagnosis | None
    """None if it is too early to tell, and if it is training: nothing holds the members up then but their own steps."""
    devices: tuple[DeviceRow, ...]
    attention: tuple[str, ...]
    """What went wrong, newest first."""
    objective: str
    best: Leader | None
    """The best member, configuration or trial so far."""
    rows: tuple[Row, ...]
    """Members or trials by what they have reached, best first; then those that have reached nothing yet, and those that failed."""

    shown: float
    """Share of all epochs that an earlier screen of the run has shown."""

    @property
    def share(self) -> float:
        """Share of all epochs; never less than `shown`, though epochs not in any file may have to be trained again."""
        return max(self.epochs / max(self.epochs + self.to_come, 1e-9), self.shown)


def screen_of(question: ScreenContext, state: RunState, news: News, *, phase: str, now: float) -> Screen:
    """Return the screen at time `now`."""
    study, states = question.study, {name: state.members.get(name, MemberState(name)) for name in question.study.names}
    begun = {name: _begun_part(member, state, news) for name, member in states.items()}
    epochs_left = _epochs_left(study, states, begun, rules_alone=question.expected is None and study.ensemble is None)
    to_come = question.expected() if question.expected is not None else sum(epochs_left.values())
    epochs = sum(member.own_epochs + begun[name] for name, member in states.items())
    seconds, limit = now - question.began, diagnose(news.gauges.items())
    left_seconds = _seconds_by_plan(state, news, epochs_left, to_come, now)
    if left_seconds is None and epochs > question.done_before:
        since = question.began if news.trains_since is None else news.trains_since  # measuring members takes a while
        left_seconds = (now - since) / (epochs - question.done_before) * to_come
    trials = TrialsSoFar.of(state, states) if state.searches else None
    return Screen(
        directory=question.directory,
        phase=phase,
        seconds=seconds,
        epochs=epochs,
        to_come=to_come,
        seconds_left=left_seconds,
        counts=Counter(
            (member.status for member in states.values()) if trials is None else statuses(trials.rows, trials.numbers)
        ),
        search=None if trials is None else _search_progress(trials),
        bottleneck=limit if limit is not None and limit.stage != "training" else None,
        devices=_device_rows(states, news),
        attention=_attention(states, news, now),
        objective=study.objective,
        best=_leader(study, states) if trials is None else leader_of(trials.best, study.objective),
        rows=_rows(question, states, news, begun) if trials is None else _rows_of_trials(trials, study, news, begun),
        shown=question.shown,
    )


def _begun_part(member: MemberState, state: RunState, news: News) -> float:
    """Return the part of an epoch that a member has trained of its current section."""
    if member.status != "training" or state.started is None:
        return 0.0
    sections = state.started.validations_per_epoch
    whole = member.sections[-1].samples if member.sections else state.started.lengths["train"] / sections
    return min(news.samples_begun(member.name) / max(whole, 1), 1.0) / sections


def _epochs_left(
    study: Study, states: Mapping[str, MemberState], begun: Mapping[str, float], *, rules_alone: bool
) -> dict[str, float]:
    """Return the epochs left of members that have not ended, as far as their rules know; where these alone end members, also of those that
    are done under earlier rules, and go on when training begins."""
    bounds = {member.name: study.stop_of(member).max_epochs for member in study.members}
    longest = max((bound for bound in bounds.values() if bound is not None), default=1)
    epochs_left = {}
    for name, state in states.items():
        goes_on = (
            rules_alone and state.status == "done" and study.stop_of(study.member(name)).reason(state.history) is None
        )
        if goes_on or state.status not in FINAL_STATUSES:
            # Without a bound, the longest of the others counts, or twice what the member has done.
            bound = bounds[name]
            whole = max(longest, 2 * state.epochs) if bound is None else bound
            epochs_left[name] = max(whole - state.epochs - begun[name], 0.0)
    return epochs_left


def _seconds_by_plan(
    state: RunState, news: News, left: Mapping[str, float], to_come: float, now: float
) -> float | None:
    """Return the seconds to the end, by the planner's figures corrected by their error so far; None without a plan, and before the first samples.

    After members have joined others, of whom alone the plan tells, their rates count. The latest, which have none yet, count as the others on average.
    """
    if state.started is None:
        return None
    epochs_per_second, longest, length = 0.0, 0.0, state.started.lengths["train"]
    planned = {name for flotilla in news.flotillas for name in flotilla.members}
    training = [name for name, member in state.members.items() if name in left and member.status == "training"]
    if not planned.issuperset(training):
        paces = {name: rate / length for name in training if (rate := news.rate(name, now))}
        if not paces:
            return None
        together = sum(paces.values()) * len(training) / len(paces)
        return max(to_come / together, *(left[name] / pace for name, pace in paces.items()))
    rates: list[float] = []
    for flotilla in news.flotillas:
        live = [name for name in flotilla.members if name in left]
        if live:
            pace = flotilla.keeping(live).samples_per_second / length
            rates += [news.rate(name, now) for name in live]
            epochs_per_second += len(live) * pace
            longest = max(longest, max(left[name] for name in live) / pace)
    if not epochs_per_second:
        return None
    # A driver that goes on corrects by what the one before it saw, until a section has ended.
    lately = next((passed for passed in reversed(state.passed) if passed), [])[-SECTIONS_COUNTED:]
    passed = [section for section in lately if section.predicted_seconds]
    actual, predicted = (sum(getattr(p, name) for p in passed) for name in ("seconds", "predicted_seconds"))
    if not passed:
        # The first section can take hours, and the plan does not know how long its samples take to read and prepare.
        if not all(rates):
            return None
        actual, predicted = epochs_per_second, sum(rates) / length
    return max(to_come / epochs_per_second, longest) * (actual / predicted if predicted else 1.0)


def _device_rows(states: Mapping[str, MemberState], news: News) -> tuple[DeviceRow, ...]:
    numbers = {device: n for n, flotilla in enumerate(news.flotillas, start=1) for device in flotilla.devices}
    assigned: dict[str, list[float]] = {device: [] for device in numbers}
    for name, state in states.items():
        if state.status == "training":
            split = state.split or Split(member=name, devices=(state.device,), shares=(1.0,))
            for device, share in zip(split.devices, split.shares, strict=True):
                assigned.setdefault(device, []).append(share * news.rates.get(name, 0.0))
    return tuple(
        DeviceRow(
            device=device,
            members=len(rates),
            flotilla=numbers.get(device) if len(news.flotillas) > 1 else None,
            samples_per_second=sum(rates),
            waiting=waiting_share([news.gauges.get(device, {})]),
        )
        for device, rates in sorted(assigned.items())
    )


def _attention(states: Mapping[str, MemberState], news: News, now: float) -> tuple[str, ...]:
    wrong = [
        (news.changed.get(name, -math.inf), f"{name} {state.status}: {cause_of(state.reason)}")
        for name, state in states.items()
        if state.status in FAILED_STATUSES
    ]
    gone = [
        (when, format_lost_worker(worker, detail)) for when, worker, detail in news.lost if now - when < LATELY_SECONDS
    ]
    return tuple(text for _, text in sorted([*wrong, *gone], key=lambda item: item[0], reverse=True))


def _rows(
    question: ScreenContext, states: Mapping[str, MemberState], news: News, begun: Mapping[str, float]
) -> tuple[Row, ...]:
    study, names = question.study, differing_parameters(question.parameters)
    mode = mode_of(study.objective, study.mode)

    def place(state: MemberState) -> tuple[tuple[int, float], int]:
        value = None if state.best is None else state.best.metrics.get(study.objective, math.nan)
        return rank(value, mode, failed=state.status in FAILED_STATUSES), {
            "training": 0,
            "resting": 1,
            "waiting": 2,
        }.get(state.status, 3)

    return tuple(
        Row(
            name=state.name,
            differs=format_parameters(question.parameters[state.name], names),
            parameters={},
            status=state.status,
            epochs=state.epochs + begun[state.name],
            of=study.stop_of(study.member(state.name)).max_epochs,
            loss=news.losses.get(state.name),
            metrics=state.best.metrics if state.best is not None else {},
        )
        for state in sorted(states.values(), key=place)
    )


def _rows_of_trials(trials: TrialsSoFar, study: Study, news: News, begun: Mapping[str, float]) -> tuple[Row, ...]:
    by_trial = trials.parameters
    names = differing_parameters(by_trial)

    def row(of: TrialResult) -> Row:
        losses = [news.losses[name] for name in of.members if name in news.losses]
        parameters = by_trial.get(of.name, {})
        return Row(
            name=of.name,
            differs="",
            parameters={name: parameters[name] for name in names if name in parameters},
            status=of.status,
            epochs=of.epochs + sum(begun[name] for name in of.members) / len(of.members),
            of=study.stop_of(study.member(of.members[0])).max_epochs,
            loss=sum(losses) / len(losses) if losses else None,
            metrics=of.metrics,
        )

    return tuple(map(row, trials.rows))


def _search_progress(trials: TrialsSoFar) -> SearchProgress:
    parameters = trials.parameters
    return SearchProgress(
        begun=len({*trials.numbers.values()}),
        # A population begins clones as long as it lasts.
        of=None if trials.terms["scheduler"] == "pbt" else trials.terms["n_trials"],
        best=""
        if trials.best is None
        else format_parameters(parameters[trials.best.name], differing_parameters(parameters)),
        rungs=rungs_of_all(trials),
    )


def _leader(study: Study, states: Mapping[str, MemberState]) -> Leader | None:
    """Return the best so far, as `Report.leader` does; in means, members that still train count, and stopped ones do not."""
    reached, mode = _reached(study, states), mode_of(study.objective, study.mode)
    single = {one.name: reached[one.name] for one in study.members if one.repetition is None and one.name in reached}
    counted = {name: value for name, value in reached.items() if states[name].status != "stopped"}
    repeated = [
        (one.repetition, {study.objective: counted[one.name]} if one.name in counted else {})
        for one in study.members
        if one.repetition is not None
    ]
    return Repetitions.of(repeated, objective=study.objective, mode=mode).leader(single)


def _reached(study: Study, states: Mapping[str, MemberState]) -> dict[str, float]:
    """Return the objectives of members in their best sections."""
    best_of = {name: state.best for name, state in states.items() if state.status not in FAILED_STATUSES}
    return {name: best.metrics.get(study.objective, math.nan) for name, best in best_of.items() if best is not None}
