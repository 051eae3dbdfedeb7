"""Runs in which tests add, stop, rest and move members, and the check that each member equals itself alone."""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import differing
import evidence
import pytest
from reference import reference

import argosy
from argosy.api import LAUNCHERS
from argosy.planning import POLICIES, Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile
from argosy.protocol.events import Used
from argosy.protocol.trainer import Lost
from argosy.results.fold import MemberState, RunState
from argosy.running.control import additions, driver
from argosy.running.control.driver import Driver, drive
from argosy.running.control.losses import Loss, RecoveryWay
from argosy.running.control.rehearsal import RehearsalResult
from argosy.running.control.verdicts import GO_ON, Fate, Judge, Verdict
from argosy.running.directory import inbox
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import Journal, read_journal
from argosy.running.directory.lock import Lock
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.launch.inline import InlineWorkers
from argosy.running.launch.launcher import Job, Launcher
from argosy.running.watch.view import Silent, View
from argosy.settings import Settings
from argosy.stream.gauges import TrainerGauge
from argosy.study import Study
from argosy.training.member import checkpoint
from argosy.training.member.files import settle_links

__all__ = ["Dealt", "Rests", "at_every_round", "equal_alone", "lose", "policy", "run", "state_of", "trusting", "way_on"]


def run(
    study: Study,
    directory: Path,
    *,
    launcher: Launcher | str = "inline",
    judges: Sequence[Judge] = (),
    view: View | None = None,
    **settings: Any,
) -> argosy.Report:
    """Run a study as `argosy.train` does, with exact numerics, additional judges, and a view in the driver's thread."""
    chosen = Settings(**{"numerics": "exact", **settings})
    place = LAUNCHERS[launcher]() if isinstance(launcher, str) else launcher
    directory.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.closing(place),
        Lock(directory / "run.lock") as lock,
        Journal(directory / "journal.jsonl") as journal,
    ):
        state, cluster = RunState.of(read_journal(directory)), place.discover(chosen)
        job = Job(study=study, settings=chosen, directory=directory, lock=lock.descriptor)
        drive(job, cluster, place.open(job), journal, state, view or Silent(), judges=judges)
    return argosy.load(directory, study=study)


def state_of(directory: Path) -> RunState:
    """Return the run's state from its journal."""
    return RunState.of(read_journal(directory))


def equal_alone(study: Study, directory: Path, *names: str) -> None:
    """Assert that each member's weights and validation losses equal those of a plain loop over its journaled stream epochs."""
    assert audit(directory) == []
    members = state_of(directory).members
    for member in study.members:
        if names and member.name not in names:
            continue
        state = members[member.name]
        epochs = list(dict.fromkeys(row.stream_epoch for row in state.sections))
        sections = study.validations_per_epoch
        weights, losses = reference(member, study.data, epochs, sections=sections, ends=len(state.sections))
        found = evidence.results_of(directory, member.name)
        differing.assert_equals_loop(member.name, found, weights, losses)


@dataclass(slots=True)
class Rests:
    """A judge that rests each member once, after its number of sections, and calls it back when `back` allows it."""

    after: Mapping[str, int]
    back: Callable[[RunState], bool] = lambda state: True

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """See `Judge.verdict`."""
        del study
        left = self.after.get(member, 0) - len(state.member(member).sections)
        if left == 0 and member in self.after:
            return Verdict(Fate.REST, f"after {self.after[member]}")
        return Verdict(Fate.GO_ON, certain=left) if left > 0 else GO_ON

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """See `Judge.called`."""
        del study
        return sorted(resting) if self.back(state) else ()


@dataclass(slots=True)
class Dealt:
    """A policy that launches one flotilla at a time, of the members with the fewest epochs, on devices that the test chooses."""

    places: Callable[[str, int], int]
    """(member, how often the policy was asked to launch) -> number of its device."""
    keep: bool = False
    everywhere: bool = True
    """Whether to wait until all devices are free."""
    asked: int = field(default=0)

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        if self.everywhere and len(situation.free) < len(situation.devices):
            return ()
        self.asked += 1
        least = min(situation.epochs_done.get(profile.member, 0) for profile in situation.waiting)
        peers = [p for p in situation.waiting if situation.epochs_done.get(p.member, 0) == least]
        placed = [self._whole(profile, situation) for profile in peers]
        return (Flotilla(placements=tuple(placed)),)

    def _whole(self, profile: Profile, situation: Situation) -> Placement:
        number = self.places(profile.member, self.asked) % len(situation.free)
        return Placement.whole(profile, situation.free[number].name)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        del situation, started, live
        return self.keep


def policy(monkeypatch: pytest.MonkeyPatch, chosen: Any, *, name: str = "of-the-test") -> str:
    """Register a policy and return its name. Under the name of a FLEET policy, members that are behind skip epochs of the stream."""
    monkeypatch.setitem(POLICIES, name, chosen)
    return name


@dataclass(frozen=True, slots=True)
class _Trusted:
    """A rehearsal that accepts all added files without the process that reads them, which takes seconds to start."""

    files: Collection[str]

    @classmethod
    def start(cls, copies: Mapping[str, StudyCopy]) -> "_Trusted":
        """See `Rehearsal.start`."""
        return cls(copies.keys())

    def results(self) -> dict[str, RehearsalResult]:
        """See `Rehearsal.results`."""
        return {file: RehearsalResult() for file in self.files}

    def close(self) -> None:
        """See `Rehearsal.close`."""


def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drivers look for requests in every round, and read added files without a rehearsal."""
    monkeypatch.setattr(inbox, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(additions, "Rehearsal", _Trusted)


def keep_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all checkpoints, so that whatever the journal ever named can be read later."""

    def only_links(state: MemberState, directory: Path) -> None:
        settle_links(directory / "members" / state.name, state.saved[-1])

    monkeypatch.setattr(checkpoint, "keep_newest", lambda folder, keep: None)
    monkeypatch.setattr(driver, "settle_files", only_links)


def at_every_round(monkeypatch: pytest.MonkeyPatch, act: Callable[[Driver], None]) -> None:
    """Call `act` at the end of each of the driver's rounds in which members train."""
    before = Driver.advance

    def go_on(driver: Driver) -> None:
        before(driver)
        act(driver)

    monkeypatch.setattr(Driver, "advance", go_on)


class Dead:
    """Stands for a lost trainer in a run without processes: it ignores all messages and sends none."""

    ready = True
    behind = 0

    def ignore(self, *what: Any) -> None:
        """Do nothing."""

    obey = take = go_on = set_splits = enlist = ignore

    def used(self, cpu_seconds: float) -> Used:
        """Return its usage, the one report that the driver asks for."""
        return Used(worker="dead", cpu_seconds=cpu_seconds, gauge=asdict(TrainerGauge()))


def lose(driver: Driver, device: str) -> None:
    """Lose the trainer of a device in a run without processes, with its pending commands."""
    workers = driver.pool.workers
    assert isinstance(workers, InlineWorkers)
    workers.trainers[device] = Dead()  # type: ignore[assignment]
    workers.said.append((device, Lost(detail="in a test")))


def way_on(monkeypatch: pytest.MonkeyPatch, choose: Callable[[], RecoveryWay]) -> None:
    """Let `choose` decide how members of lost trainers go on, whatever it costs."""
    monkeypatch.setattr(Loss, "cheapest", property(lambda loss: choose()))


def finished(state: MemberState) -> bool:
    """Return whether a member has ended for good."""
    return state.status in ("done", "failed", "diverged", "stopped")
