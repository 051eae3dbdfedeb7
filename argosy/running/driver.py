"""The driver: the only decision maker and the only writer of the journal.

It starts workers, has members measured, plans, starts legs (one feeder, some trainers, one flotilla) and answers each
member's end of epoch. It never waits for one worker: everything it does is an answer to a message.

There is one way out of trouble, and it is the way of every change while a run goes on (a lost worker, a device out of
memory, a command, an interrupt): *regroup*. Every trainer saves its members and lets them go; when the last one has,
what was lost is there again, and the policy is asked anew. A member goes on from its newest checkpoint, exactly.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from argosy.cluster import Cluster
from argosy.commands import (
    Continue,
    Failed,
    Journaled,
    Lost,
    Measure,
    Measured,
    Opened,
    OutOfMemory,
    Parted,
    Pause,
    Paused,
    Probed,
    Stop,
    Train,
    UseLoaders,
)
from argosy.errors import ArgosyError, PlanError, StudyError
from argosy.events import (
    Answered,
    EpochEnded,
    Event,
    Fed,
    MemberEnded,
    PlanMade,
    RunEnded,
    Saved,
    WorkerLost,
)
from argosy.planning import make_plan
from argosy.plans import Flotilla
from argosy.profiles import Profile, largest_measured_group
from argosy.report import RunState
from argosy.running.costs import Costs, Observed, even_out, profile_of
from argosy.running.fleet import Feeder, Fleet
from argosy.running.hangs import Hangs
from argosy.running.identity import found_study, summarize, write_json, write_study
from argosy.running.inbox import Inbox
from argosy.running.interrupts import interrupts
from argosy.running.journal import Journal
from argosy.running.launcher import Job, Workers
from argosy.running.records import run_started, write_metrics
from argosy.running.refusals import check_batch_norm, check_batches
from argosy.running.resume import settle_links
from argosy.running.roster import Roster
from argosy.running.sharing import Sharing
from argosy.running.tolerance import Tolerance
from argosy.running.view import Silent, View
from argosy.study import Study

__all__ = ["drive", "measure"]

TICK_SECONDS = 0.2
FAREWELL_SECONDS = 3.0


@dataclass(slots=True)
class _Sailing:
    """One flotilla on its team's stream."""

    number: int
    feeders: tuple[str, ...]
    flotilla: Flotilla
    live: set[str]


class Driver:
    """One run. `drive` is its life; handlers are named after what they answer."""

    def __init__(
        self, job: Job, cluster: Cluster, workers: Workers, journal: Journal, state: RunState, view: View
    ) -> None:
        self.directory = job.directory
        self.roster = Roster(job, state)
        self.settings = job.settings
        self.cluster = cluster
        self.fleet = Fleet(workers, cluster)
        self.sharing = Sharing(job.settings)
        self.journal = journal
        self.state = state
        self.view = view
        self.began = time.monotonic()
        self.inbox = Inbox(job.directory / "commands", (answered.file for answered in state.answered))
        self.hangs = Hangs(job.settings.hang_seconds)
        self.looked = 0.0
        self.hung: dict[str, str] = {}
        self.observed = Observed()
        self.tolerance = Tolerance(job.directory / "workers")
        self.found: Mapping[str, Any] | None = None
        """``study.json`` of an earlier driver."""
        self.begun = False
        """Whether the directory was found to be this study's, or empty."""
        self.only_measure = False
        self.all_measured = False
        self.node_devices: int | None = None
        """Devices of a node, where members are measured as FLEET does it."""
        self.groups = 1
        self.seconds_per_sample = 0.0
        self.lengths: Mapping[str, int] = {}
        self.data: Opened | None = None
        """What the first feeder said of its node's data; that of other nodes must be the same."""
        # Members
        self.measured: dict[str, Measured] = {}
        self.unmeasured: set[str] = set()
        self.told_to_stop: set[str] = set()
        # Legs
        self.legs: list[_Sailing] = []
        self.leg_count = 0
        self.flowing = False
        """Whether everybody is still there who feeds and reads the leg that members were measured on."""
        self.measuring_legs: set[int] = set()
        """Streams that members were measured on and that nobody trains on."""
        self.early: list[Fed] = []
        self.regrouping: set[str] | None = None
        """Trainers that still carry members; None while no regrouping is under way."""
        # The end
        self.pausing: str | None = None
        self.wanted_pause: str | None = None
        """Set by signal handlers, which may not talk to workers: they interrupt whoever is talking."""

    @property
    def study(self) -> Study:
        """With the members that were added."""
        return self.roster.study

    # ---- life

    def run(self, found: Mapping[str, Any] | None) -> str:
        """Train to the end; returns the run's status. `found` is the ``study.json`` of an earlier driver."""
        self.found = found
        given = self.roster.job
        self.roster.begin()
        if not self.roster.waiting:
            return "done"
        if self.roster.job is not given:
            self.fleet.renew(self.roster.job)
        self.fleet.start()
        self.unmeasured = set(self.roster.waiting)
        while self._goes_on():
            for worker, message in self.fleet.workers.receive(TICK_SECONDS):
                self._hear(worker, message)
            self._look_around()
            self.view.tick()
        # The last member may have ended just before the pause.
        return "paused" if self.pausing and self.roster.unfinished() else "done"

    def _goes_on(self) -> bool:
        waits = bool(self.roster.waiting) and self.pausing is None and not self.all_measured
        return waits or bool(self.legs) or self.regrouping is not None

    def measure(self, *, node_devices: int | None) -> "Costs":
        """Measure without training; with `node_devices` as FLEET does it, groups of devices as well."""
        self.only_measure, self.node_devices = True, node_devices
        self.run(None)
        if not self.roster.waiting:
            reasons = [
                f"{m.name}: {m.reason.strip().splitlines()[-1]}" for m in self.state.members.values() if m.reason
            ]
            raise PlanError("no member could be measured: " + "; ".join(reasons))
        return Costs(
            profiles=tuple(self._profiles()),
            notes=self._notes(),
            lengths=dict(self.lengths),
            preparation_seconds_per_sample=self.seconds_per_sample,
        )

    def stop_workers(self) -> None:
        """Ask every worker for its last word and wait a little for it."""
        for _, message in self.fleet.farewell(FAREWELL_SECONDS):
            if self.begun and isinstance(message, Event) and not isinstance(message, MemberEnded):
                self.record(message)

    def want_pause(self, reason: str) -> None:
        """Save every member where it is, and end; from any thread or signal handler."""
        self.wanted_pause = reason

    def record(self, event: Event) -> None:
        """Journal an event and fold it into the state."""
        self.journal.append(event)
        self.state.apply(event)

    # ---- messages

    def _hear(self, worker: str, message: Any) -> None:
        if not self.fleet.knows(worker):
            return
        if not (isinstance(message, Lost) and worker in self.fleet.replaced):
            self.view.hear(worker, message)
        match message:
            case Opened():
                self._opened(worker, message)
            case Measured():
                self.measured[message.member] = message
                self._one_measured(message.member)
            case EpochEnded():
                self._epoch_ended(worker, message)
            case Saved():
                self.record(message)
                self.fleet.send(worker, Journaled(member=message.member, file=message.checkpoint.file))
            case MemberEnded():
                self.record(message)
                self._member_ended(message)
            case Paused():
                self._let_go(worker)
            case OutOfMemory():
                self._out_of_memory(worker, message)
            case Probed():
                self._probed(worker, message)
            case Parted():
                self._parted(worker, message)
            case Lost():
                self._lost(worker, message)
            case Failed():
                raise message.error
            case Fed() if message.leg in self.measuring_legs:
                # Counts only if the stream that members are measured on becomes the first leg's.
                self.early.append(message)
            case Event():
                self.record(message)

    def _opened(self, worker: str, opened: Opened) -> None:
        feeder = self.fleet.feeders.get(worker)
        if feeder is None:
            return
        feeder.opened = opened
        self._check_same_data(feeder, opened)
        if not self.begun:
            self.lengths, self.seconds_per_sample = opened.lengths, opened.seconds_per_sample
            check_batches(map(self.study.member, self.roster.waiting), self.lengths)
            self._write_study()
            self.record(run_started(self.settings, self.lengths))
            self.begun = True
        if self.unmeasured:
            self._measure()
        elif self.regrouping is None:
            self._launch()

    def _check_same_data(self, feeder: Feeder, opened: Opened) -> None:
        known = self.data = self.data or opened
        for what in ("lengths", "fingerprint", "block_size"):
            here, there = getattr(opened, what), getattr(known, what)
            if here != there:
                raise StudyError(
                    f"the data of node {feeder.node!r} is not that of the others: {what} {here}, elsewhere {there}. Every "
                    "node opens the data itself and must see the same files."
                )

    def _epoch_ended(self, worker: str, ended: EpochEnded) -> None:
        self.record(ended)
        self.tolerance.epoch_ended()
        state = self.state.member(ended.member)
        folder = self.directory / "members" / ended.member
        write_metrics(folder, state, ended, anew=self.found is not None)
        best = state.best(self.study.objective, self.study.mode or "min")
        is_best = best is not None and best.epoch == ended.epoch
        reason = self.study.stop_of(self.study.member(ended.member)).reason(state.history)
        if reason is None:
            self.fleet.send(worker, Continue(member=ended.member, best=is_best))
            return
        self.fleet.send(worker, Stop(member=ended.member, best=is_best))
        self._end(ended.member, "done", reason)

    def _end(self, member: str, status: str, reason: str) -> None:
        over = MemberEnded(member=member, status=status, reason=reason)
        self.record(over)
        self.view.hear("", over)
        self._member_ended(over)

    def _member_ended(self, ended: MemberEnded) -> None:
        if ended.status == "failed":
            any_epoch = any(state.epochs for state in self.state.members.values())
            self.tolerance.member_failed(ended.reason, any_epoch=any_epoch)
        if ended.member in self.unmeasured:
            # It failed while it was measured.
            self.roster.waiting.remove(ended.member)
            self._one_measured(ended.member)
        for leg in [leg for leg in self.legs if ended.member in leg.live]:
            leg.live.discard(ended.member)
            if not leg.live and self.regrouping is None:
                self.legs.remove(leg)
                self.fleet.rest(leg.feeders)
                self._launch()

    def _lost(self, worker: str, lost: Lost) -> None:
        if self.fleet.expects(worker):
            self.fleet.lost(worker)
            if not self.fleet.replaced:
                self._measure()
            return
        self.flowing = False
        self.hangs.forget(worker)
        self._note_loss(worker, self.hung.pop(worker, lost.detail))
        feeder = self.fleet.feeders.get(worker)
        if feeder is not None and self.tolerance.gives_up(feeder.node) and len(self.cluster.nodes) > 1:
            self._give_up(feeder.node)
        self.fleet.lost(worker)
        self.sharing.ask(())
        if self.unmeasured:
            self._measure()
        elif self.regrouping is None:
            self._regroup(gone=worker)
        else:
            self._let_go(worker)

    def _parted(self, worker: str, parted: Parted) -> None:
        """Where a feeder is gone, the couriers of all the others break: only the first word counts."""
        if self.regrouping is None and self.fleet.in_team(worker, parted.team):
            self.flowing = False
            self._note_loss(f"{worker}/courier", f"its exchange with the other nodes broke: {parted.detail}")
            self.sharing.ask(())
            if self.unmeasured:
                self._measure()
            else:
                self._regroup()

    def _give_up(self, node: str) -> None:
        """Go on without a node whose feeders do not live."""
        self.cluster = self.cluster.without(node)
        left = ", ".join(other.name for other in self.cluster.nodes)
        gone = Lost(detail=f"given up, its feeders do not live; the run goes on with {left}")
        self.record(WorkerLost(worker=node, detail=gone.detail))
        self.view.hear(node, gone)
        for device in self.fleet.abandon(node):
            self._let_go(device)

    def _note_loss(self, worker: str, detail: str) -> None:
        self.record(WorkerLost(worker=worker, detail=detail))
        self.tolerance.worker_lost(worker, detail)

    def _out_of_memory(self, worker: str, message: OutOfMemory) -> None:
        """Next time the member gets a device for itself; where it had one, smaller micro-batches."""
        member, measured = self.study.member(message.member), self.measured.get(message.member)
        device = self.cluster.device(worker)
        now = self.roster.accumulate.get(member.name, member.accumulate)
        crowded = measured is not None and measured.memory_bytes < device.memory_bytes and len(self._aboard(worker)) > 1
        if crowded and measured is not None:
            self.measured[member.name] = replace(measured, memory_bytes=device.memory_bytes)
        elif self.settings.numerics == "equivalent" and now < member.batch_size:
            self.roster.accumulate[member.name] = min(2 * now, member.batch_size)
        else:
            advice = "Lower its batch_size" + (" or allow numerics='equivalent'." if now < member.batch_size else ".")
            self._end(member.name, "failed", f"out of memory alone on {worker}: {message.detail}. {advice}")
            return
        if member.name in self.unmeasured:
            self._measure()
        elif self.regrouping is None:
            self._regroup()

    def _aboard(self, device: str) -> list[str]:
        return [
            placement.member
            for leg in self.legs
            for placement in leg.flotilla.placements
            if device in placement.devices and placement.member in leg.live
        ]

    # ---- measuring

    def _measure(self) -> None:
        """Let every trainer measure its share of the members that need it, on the first block of their common leg."""
        team = self._free_team(self.fleet.devices)
        if team is None:
            return
        self.leg_count += 1
        self.flowing = True
        self.measuring_legs.add(self.leg_count)
        self.fleet.feed(
            team,
            self.roster.leg_for(self.roster.waiting, self.lengths, number=self.leg_count),
            self.fleet.devices,
            self.sharing.pipeline,
        )
        wanted = [name for name in self.roster.waiting if name in self.unmeasured]
        for number, device in enumerate(self.fleet.devices):
            share = tuple(wanted[number :: len(self.fleet.devices)])
            micro = {name: self.roster.accumulate[name] for name in share if name in self.roster.accumulate}
            thorough = self.node_devices is not None
            command = Measure(
                leg=self.leg_count, members=share, accumulate=micro, thorough=thorough, groups=self.groups
            )
            self.fleet.send(device, command)

    def _one_measured(self, member: str) -> None:
        if member not in self.unmeasured:
            return
        self.unmeasured.discard(member)
        if self.unmeasured or self.pausing is not None:
            return
        check_batch_norm(map(self.study.member, self.roster.waiting), self.lengths, self.measured)
        if self.only_measure:
            self._measured_all()
            return
        self._write_study()
        self._launch()

    def _measured_all(self) -> None:
        """FLEET measures groups of up to M_t devices once the rates on one device are known (§6.1, steps 2 and 3)."""
        if self.node_devices is None or self.groups > 1 or not self.roster.waiting:
            self.all_measured = True
            return
        rates = [self.measured[name].samples_per_second for name in self.roster.waiting]
        self.groups = largest_measured_group(rates, node_devices=self.node_devices)
        self.unmeasured = set(self.roster.waiting)
        self._measure()

    # ---- legs

    def _launch(self) -> None:
        """Ask the policy what to start on the devices that are free."""
        if self.pausing is not None:
            return
        busy = {device for leg in self.legs for device in leg.flotilla.devices}
        free = [device for device in self.cluster.devices if device.name not in busy]
        profiles = self._profiles()
        if not profiles or not free:
            return
        plan = make_plan(profiles, free, policy=self.settings.policy, cluster=self.cluster.devices)
        plan = replace(plan, notes=self._notes())
        if plan.flotillas and not self.sharing.told and not self._choose_sharing(plan.flotillas[0]):
            return
        for flotilla in plan.flotillas:
            # Where there is none yet, the policy is asked again when it is open.
            team = self._free_team(flotilla.devices)
            if team is not None:
                self._start_leg(team, flotilla)
        for device in set(self.fleet.devices) - {device for leg in self.legs for device in leg.flotilla.devices}:
            # Lets go of the block that it measured on.
            self.fleet.send(device, Train(leg=self.leg_count, members=()))
        self.record(PlanMade(plan=plan.to_json()))
        write_json(self.directory / "plan.json", plan.to_json())
        self.view.plan(plan)

    def _free_team(self, devices: Iterable[str]) -> list[Feeder] | None:
        return self.fleet.free_team(devices, (feeder for leg in self.legs for feeder in leg.feeders))

    def _choose_sharing(self, flotilla: Flotilla) -> bool:
        """Settle how nodes share the stream; False while that is measured, after which the policy is asked again."""
        if self.sharing.chosen is None and len(self.cluster.nodes) > 1 and not self.sharing.measured:
            team = self._free_team(self.fleet.devices)
            if team is not None and not self.sharing.waiting_for:
                self.sharing.ask([feeder.name for feeder in team])
                self.fleet.probe(team)
            return False
        chosen = self.sharing.choose(self.cluster, flotilla, preparation_seconds=self.seconds_per_sample)
        self.record(chosen)
        self.view.hear("", chosen)
        if self.settings.loader_workers is None:
            for feeder in self.fleet.feeders:
                self.fleet.send(feeder, UseLoaders(count=chosen.loader_workers))
        return True

    def _probed(self, worker: str, probed: Probed) -> None:
        self.sharing.hear(worker, probed)
        if self.sharing.measured and self.regrouping is None:
            self._launch()

    def _start_leg(self, team: list[Feeder], flotilla: Flotilla) -> None:
        # The stream that members were measured on goes on as the first leg where everybody stays on it.
        everybody = set(flotilla.members) == set(self.roster.waiting) and len(team) == len(self.cluster.nodes)
        goes_on = self.flowing and everybody and not self.sharing.changed
        self.flowing = False
        self.roster.waiting = [name for name in self.roster.waiting if name not in flotilla.members]
        if goes_on:
            self.measuring_legs.remove(self.leg_count)
            for fed in self.early:
                if fed.leg == self.leg_count:
                    self.record(fed)
        else:
            self.leg_count += 1
            self.fleet.feed(
                team,
                self.roster.leg_for(flotilla.members, self.lengths, number=self.leg_count),
                flotilla.devices,
                self.sharing.pipeline,
            )
        feeders = tuple(feeder.name for feeder in team)
        self.legs.append(_Sailing(self.leg_count, feeders, flotilla, set(flotilla.members)))
        for device in flotilla.devices:
            names = [placement.member for placement in flotilla.placements if device in placement.devices]
            aboard = [self.roster.start_member(name, self.measured[name].notes) for name in names]
            self.fleet.send(device, Train(leg=self.leg_count, members=tuple(aboard)))

    def _regroup(self, *, gone: str | None = None) -> None:
        """Let every trainer save its members and let them go; `_regrouped` goes on from there."""
        busy = {device for leg in self.legs for device in leg.flotilla.devices if self.fleet.knows(device)}
        self.regrouping = busy - {gone}
        for device in self.regrouping:
            self.fleet.send(device, Pause())
        self._let_go(gone)

    def _let_go(self, worker: str | None) -> None:
        if self.regrouping is None:
            return
        self.regrouping.discard(worker or "")
        if not self.regrouping:
            self._regrouped()

    def _regrouped(self) -> None:
        """Nobody carries a member: end the run, or start again with what is there."""
        self.regrouping = None
        live = {name for leg in self.legs for name in leg.live}
        for leg in self.legs:
            self.fleet.rest(leg.feeders)
        self.legs.clear()
        for name in self.told_to_stop & live:
            self._end(name, "stopped", "by command")
        if self.pausing is not None:
            for name in sorted(live - self.told_to_stop):
                self._end(name, "paused", self.pausing)
            return
        live -= self.told_to_stop
        self.roster.take_back(live)
        if new := self.roster.let_join(self.lengths):
            self.unmeasured |= set(new)
            self.fleet.replace_trainers()
        if self.fleet.replaced:
            return
        if self.unmeasured:
            self._measure()
        else:
            self._launch()

    # ---- what comes from outside

    def _look_around(self) -> None:
        if (reason := self.wanted_pause or self._out_of_time()) and self.pausing is None:
            self.pausing = reason
            self.unmeasured.clear()
            if self.regrouping is None:
                self._regroup()
        self._look_for_hangs()
        for file, command in self.inbox.new():
            try:
                answer = self._command(command)
            except ArgosyError as error:
                answer = f"refused: {error}"
            self.record(Answered(file=file, command=command, answer=answer))

    def _look_for_hangs(self) -> None:
        now, workers = time.monotonic(), self.fleet.workers
        if now - self.looked < min(1.0, self.settings.hang_seconds / 8):
            return
        self.looked = now
        for worker in (*self.fleet.feeders, *self.fleet.devices):
            pulse = workers.pulse(worker)
            if pulse is not None:
                self.hangs.look(now, worker, pulse.look(), partial(workers.cpu_seconds, worker))
        for worker, doing, seconds in self.hangs.hanging():
            self.hung[worker] = f"no progress for {seconds:.0f} s while {doing}"
            workers.kill(worker)

    def _out_of_time(self) -> str | None:
        limit = self.settings.time_limit
        return f"time limit of {limit:g} s" if limit is not None and time.monotonic() - self.began > limit else None

    def _command(self, command: Mapping[str, Any]) -> str:
        if command["command"] == "stop":
            name = command["member"]
            live = {name for leg in self.legs for name in leg.live} | set(self.roster.waiting)
            if name not in live:
                return f"refused: no member {name!r} is training; those are {', '.join(sorted(live)) or 'none'}."
            self.told_to_stop.add(name)
            answer = f"{name} is saved and stops"
        elif command["command"] == "add":
            added = self.roster.extend(Path(command["study"]))
            self.fleet.renew(self.roster.job)
            answer = (
                f"added {', '.join(added)}" if added else "refused: the study has no member that is not here already"
            )
        else:
            return f"refused: unknown command {command['command']!r}; commands are stop and add."
        if self.regrouping is None and not self.unmeasured:
            self._regroup()
        return answer

    # ---- files

    def _write_study(self) -> None:
        assert self.data is not None
        summary = summarize(self.study, lengths=self.lengths, fingerprint=self.data.fingerprint, measured=self.measured)
        write_study(self.directory, summary, self.found)

    def _notes(self) -> tuple[str, ...]:
        return tuple(f"{name}: {note}" for name, measured in self.measured.items() for note in measured.notes)

    def _profiles(self) -> list[Profile]:
        """Of the members that wait."""
        profiles = [self._profile(self.measured[name]) for name in self.roster.waiting]
        return even_out(profiles, self.study.members, self.measured)

    def _profile(self, measured: Measured) -> Profile:
        member = self.study.member(measured.member)
        profile = profile_of(
            measured,
            batch_size=member.batch_size,
            device_kind=self.cluster.devices[0].kind,
            node_devices=self.node_devices or 4,
        )
        return self.observed.refresh(profile, member, measured)

    def remember_costs(self) -> None:
        """Keep the rates that this run has seen for the plans of later ones."""
        for name, measured in self.measured.items():
            epochs = self.state.member(name).epochs
            if epochs:
                member, last = self.study.member(name), epochs[max(epochs)]
                self.observed.remember(self._profile(measured), member, measured, last)


def measure(
    job: Job, cluster: Cluster, workers: Workers, journal: Journal, *, node_devices: int | None = None
) -> Costs:
    """What the members of a job cost, on twins that are thrown away."""
    driver = Driver(job, cluster, workers, journal, RunState(), Silent())
    with workers:
        try:
            return driver.measure(node_devices=node_devices)
        finally:
            driver.stop_workers()


def drive(job: Job, cluster: Cluster, workers: Workers, journal: Journal, state: RunState, view: View) -> None:
    """Train a study to its end, and journal it; `state` is the fold of what the journal holds already."""
    driver = Driver(job, cluster, workers, journal, state, view)
    found, before = found_study(job.directory), _tree_cpu_seconds()
    with interrupts(driver.want_pause):
        status, reason = "failed", ""
        try:
            with workers:
                view.begin(job, state)
                try:
                    status = driver.run(found)
                finally:
                    driver.stop_workers()
            reason = driver.pausing if status == "paused" and driver.pausing else ""
        except BaseException as error:
            status, reason = "failed", str(error)
            raise
        finally:
            driver.remember_costs()
            settle_links(state.members.values(), job.directory, job.study.objective, job.study.mode or "min")
            if driver.begun or driver.pausing:
                seconds, cpu_seconds = time.monotonic() - driver.began, _tree_cpu_seconds() - before
                driver.record(RunEnded(status=status, reason=reason, seconds=seconds, cpu_seconds=cpu_seconds))
            view.end()


def _tree_cpu_seconds() -> float:
    """User and system time of this process and of all below it that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
