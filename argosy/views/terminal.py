"""What a person sees while a run goes on: one table, one bar, one estimate; without a terminal, a line now and then."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from argosy.commands import Flowing, Lost, Progress
from argosy.diagnosis import diagnose
from argosy.events import MemberEnded, MemberStarted, Packed, SectionEnded, SharingChosen
from argosy.fold import MemberState, RunState
from argosy.plans import Plan
from argosy.report import LegResult, Report
from argosy.running.launcher import Job
from argosy.study import Study
from argosy.tuning.report import SearchReport

__all__ = ["Terminal", "report_table"]

OVER = ("done", "failed", "diverged", "stopped")
LAST_LINES = 4
"""Of a failed member's traceback."""
LINE_SECONDS = 10.0
"""Time between two lines without a terminal."""


class Terminal:
    """A view for people."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.began = time.monotonic()
        self.last_line = self.began
        self.progress: dict[str, Progress] = {}
        self.gauges: dict[str, Mapping[str, Any]] = {}
        self.rates: dict[str, float] = {}
        self.losses: dict[str, float] = {}
        """Last known ones, wherever a member trained then: between two epochs there are none."""
        self.to_come: Callable[[], float] = self._to_come
        """Epochs that all members together have before them."""
        self._live: Live | None = None
        self._seen: dict[str, tuple[float, int]] = {}
        self._noted: set[str] = set()
        """Notes on members that were printed already: members start again after every regrouping."""

    def begin(self, job: Job, state: RunState) -> None:
        """See `View.begin`."""
        self.directory, self.asked, self.state = job.directory, job.study, state
        self.began = time.monotonic()
        self.done_before = self._done()
        if self.console.is_terminal:
            self._live = Live(console=self.console, get_renderable=self._screen, refresh_per_second=4, transient=True)
            self._live.start()

    def study(self, study: Study) -> None:
        """See `View.study`."""
        self.asked = study

    def expect(self, epochs: Callable[[], float]) -> None:
        """See `View.expect`."""
        self.to_come = epochs

    def plan(self, plan: Plan) -> None:
        """See `View.plan`."""
        if self._live is None:
            self.console.print(plan.explain(), highlight=False)
            self._noted.update(plan.notes)

    def hear(self, worker: str, message: Any) -> None:
        """See `View.hear`."""
        if isinstance(message, Progress):
            self.progress[worker] = message
            self.gauges[worker] = message.gauge
            self.losses |= message.losses
            self._take_rates(message)
        elif isinstance(message, Flowing):
            self.gauges[worker] = message.gauge
        elif isinstance(message, SharingChosen) and self._live is None:
            self.console.print(f"Nodes share the stream: {message.sharing} ({message.reason})", highlight=False)
        elif isinstance(message, MemberEnded) and message.status in ("failed", "diverged"):
            *lines, last = message.reason.strip().splitlines()
            log = self.directory / "members" / message.member / "log.txt"
            text = "\n".join([f"{message.member} {message.status}: {last}", *lines[-LAST_LINES:], f"log: {log}"])
            self.console.print(text, style="red", highlight=False, markup=False)
        elif isinstance(message, Lost):
            text = f"{worker} is lost: {message.detail}; its members go on from their checkpoints"
            self.console.print(text, style="yellow", highlight=False, markup=False)
        elif isinstance(message, MemberStarted):
            new = {f"{message.member}: {note}" for note in message.notes} - self._noted
            self._noted |= new
            for note in sorted(new):
                self.console.print(note, style="yellow", highlight=False, markup=False)
        elif isinstance(message, SectionEnded) and self._live is None:
            self._line()

    def tick(self) -> None:
        """See `View.tick`."""
        if self._live is None:
            self._line()

    def end(self) -> None:
        """See `View.end`."""
        if self._live is not None:
            self._live.stop()

    # ---- what it shows

    def _take_rates(self, message: Progress) -> None:
        at = time.monotonic()
        for member, samples in message.samples.items():
            since, before = self._seen.get(member, (at, samples))
            if at - since > 1.0:
                self.rates[member] = (samples - before) / (at - since)
            if at - since > 1.0 or member not in self._seen:
                self._seen[member] = (at, samples)

    def _line(self) -> None:
        if time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(self._summary(), highlight=False)

    def _summary(self) -> str:
        share, left = self._share(), self._seconds_left()
        eta = "" if left is None else f", {left:,.0f} s left"
        said = f"{share:.0%} of all epochs{eta}, {self._waiting():.0%} of the time waiting for data"
        found = diagnose(self.gauges.items())
        return f"{said}\nBottleneck: {found.verdict}." if found else said

    def _share(self) -> float:
        done = self._done()
        return done / max(done + self.to_come(), 1)

    def _done(self) -> float:
        return sum(member.epochs for member in self.state.members.values())

    def _to_come(self) -> float:
        """Of members that have not ended, as far as their rules know that."""
        bounds = {member.name: self.asked.stop_of(member).max_epochs for member in self.asked.members}
        longest = max((bound for bound in bounds.values() if bound is not None), default=1)
        left = 0.0
        for name, bound in bounds.items():
            state = self.state.members.get(name, MemberState(name))
            if state.status not in OVER:
                # A rule that knows no bound counts like the longest of the others, or as twice what the member has done.
                left += max((max(longest, 2 * state.epochs) if bound is None else bound) - state.epochs, 0)
        return left

    def _seconds_left(self) -> float | None:
        done = self._done() - self.done_before
        return None if done <= 0 else (time.monotonic() - self.began) / done * self.to_come()

    def _waiting(self) -> float:
        waiting = sum(progress.gauge["waiting_seconds"] for progress in self.progress.values())
        busy = sum(progress.gauge["busy_seconds"] for progress in self.progress.values())
        return waiting / (waiting + busy) if waiting + busy else 0.0

    def _screen(self) -> Group:
        table = Table("member", "device", "epoch", "loss", self.asked.objective, "samples/s", box=None, pad_edge=False)
        for member in self.asked.members:
            state = self.state.members.get(member.name, MemberState(member.name))
            table.add_row(*self._row(state, self.losses.get(member.name)))
        bar = ProgressBar(total=1.0, completed=self._share(), width=60)
        return Group(table, bar, Text(self._summary()))

    def _row(self, state: MemberState, loss: float | None) -> tuple[str, ...]:
        rate, history = self.rates.get(state.name), state.history
        metric = f"{history[-1][self.asked.objective]:.4f}" if history else ""
        shown = state.status if state.status != "training" else (f"{rate:,.0f}" if rate else "")
        return state.name, state.device, f"{state.epochs:g}", "" if loss is None else f"{loss:.4f}", metric, shown


def search_table(report: SearchReport) -> Group:
    """A search for people: trials, best first, and how soon the best was known."""
    metric = report.run.objective
    names = list(dict.fromkeys(name for row in report.run.rows for name in report.parameters.get(row.name, ())))
    table = Table("trial", "status", "epochs", metric, *names, "reason", box=None, pad_edge=False)
    for row in report.run.rows:
        parameters = report.parameters.get(row.name, {})
        values = [_short(parameters[name]) if name in parameters else "" for name in names]
        reached = f"{row.metrics[metric]:.4g}" if row.metrics else ""
        reason = row.reason.strip().splitlines()[-1] if row.reason else ""
        table.add_row(row.name, row.status, f"{row.epochs:g}", reached, *values, reason)
    text = (
        f"{report.run.status} after {report.seconds:.1f} s: {len(set(report.trials.values()))} trials, "
        f"{report.epochs:g} epochs, {report.trials_per_hour:,.0f} trials an hour."
    )
    if report.first_comparison_seconds is not None:
        text += f" All could be compared after {report.first_comparison_seconds:.1f} s."
    if report.saved_by_sharing:
        text += f" Preparing samples once for all saved {report.saved_by_sharing:.0%} of the CPU time."
    if report.best_seconds is not None:
        best = ", ".join(f"{name} = {_short(value)}" for name, value in report.best_parameters.items())
        text += f"\nBest, found after {report.best_seconds:.1f} s: {report.best().name} with {best}."
        text += f"\nIts weights: {report.best().folder / 'best.pt'}; its network: report.best().load()."
    return Group(table, Text(text))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _pack_words(pack: Packed) -> str:
    """What a device did with members that may be one program."""
    count, gain = sum(map(len, pack.programs)), pack.improvement
    programs = len(pack.programs)
    how = "one after another" if pack.size == 1 else f"in {programs} program{'s' * (programs > 1)}"
    measured = "" if gain is None else f"; together they take {1 - gain:.0%} of the time"
    reason = f"; {pack.reason}" if pack.reason else ""
    return f"{count} members alike were stepped {how} on {pack.device}{measured}{reason}."


def report_table(report: Report) -> Group:
    """A report for people: members, best first, and what the run cost."""
    metrics = list(dict.fromkeys(name for row in report.rows for name in row.metrics))
    table = Table("member", "status", "epochs", *metrics, "seconds", box=None, pad_edge=False)
    for row in report.rows:
        values = [f"{row.metrics[name]:.4g}" if name in row.metrics else "" for name in metrics]
        table.add_row(row.name, row.status, f"{row.epochs:g}", *values, f"{row.seconds:.1f}")
    took = "" if report.status == "running" else f" after {report.seconds:.1f} s"
    text = (
        f"{report.status}{took}. Each training sample was prepared {report.preparations:.1f} times "
        f"per epoch (one script per member: {report.preparations_alone:.1f})."
    )
    if report.gauges:
        text += f" Trainers waited for data {report.waiting_share:.0%} of their time."
    if report.sharing is not None and report.sharing.reason != "one node":
        text += f"\nNodes shared the stream: {report.sharing.sharing} ({report.sharing.reason})."
    for pack in {(pack.device, frozenset(itertools.chain(*pack.programs))): pack for pack in report.packs}.values():
        text += f"\n{_pack_words(pack)}"
    if report.diagnosis is not None:
        text += f"\nBottleneck: {report.diagnosis.verdict}."
    legs = [_legs_table(report.legs)] if report.legs else []
    return Group(table, *_repetitions(report), Text(text), *legs)


def _repetitions(report: Report) -> list[RenderableType]:
    """Networks that several members repeat, where there are any: their means, and how they differ from the best."""
    found = report.repetitions.configurations
    if not found:
        return []
    metrics = list(dict.fromkeys(metric for each in found for metric in each.metrics))
    less = {each.second: str(each) for each in report.repetitions.comparisons}
    table = Table("configuration", "done", *metrics, box=None, pad_edge=False)
    if less:
        table.add_column(f"{report.objective} less that of {found[0].name}")
    for each in found:
        means = [str(each.metrics.get(metric, "")) for metric in metrics]
        differences = [less.get(each.name, "")] if less else []
        table.add_row(each.name, f"{each.counted} of {each.repetitions}", *means, *differences)
    pairs = " Differences are taken pair by pair." if less else ""
    return [Text(""), table, Text(f"Means over repetitions, ± half of their 95 % intervals.{pairs}\n")]


def _legs_table(legs: Sequence[LegResult]) -> Table:
    """Predicted against actual."""
    table = Table(
        *("leg", "sections", "samples/s", "predicted", "seconds", "predicted", "waiting"),
        *("planning", "changing", "saving"),
        box=None,
        pad_edge=False,
    )
    for leg in legs:
        waiting = ", ".join(f"{device} {seconds:.1f}" for device, seconds in leg.waiting_seconds.items())
        table.add_row(
            *(leg.leg, str(leg.sections)),
            *(f"{pace:,.0f}" for pace in (leg.samples_per_second, leg.predicted_samples_per_second)),
            *(f"{leg.seconds:.1f}", f"{leg.predicted_seconds:.1f}", waiting),
            *(f"{seconds:.2f}" for seconds in (leg.planning_seconds, leg.changing_seconds, leg.saving_seconds)),
        )
    return table
