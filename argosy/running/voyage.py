"""The legs of a run: starts them, judges their members, and at their gates carries changes out.

A gate is where a leg stands when all its crews have reported everything that it has credit for. There members whose fate it is
leave, the policy is asked once, and crews change: who leaves is told to, who starts waits until its last file is journaled, and
everybody else goes on at once with the next credit. Nobody who does not move is saved, stopped or started again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from argosy.commands import Board, Credit, Held, Hold, Leave, Leg, Opened, Probed, UseLoaders
from argosy.events import MemberRested, PlanMade
from argosy.planning import Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile
from argosy.running.identity import write_json
from argosy.running.launching import Launching
from argosy.running.legs import Boarding, Change, Sailing, difference
from argosy.running.sharing_choice import SharingChoice
from argosy.running.verdicts import Fate, Verdict, judge
from argosy.running.workforce import Feeder
from argosy.stream.schedule import section_start

if TYPE_CHECKING:
    from argosy.running.driver import Driver

__all__ = ["Voyage"]


class Voyage:
    """All legs of one run."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self.roster, self.force, self.state = driver.roster, driver.force, driver.state
        self.launching = Launching(cluster=driver.cluster, policy_name=driver.settings.policy)
        self.sharing = SharingChoice(driver.settings)
        self.legs: list[Sailing] = []
        self.flotillas: dict[int, Flotilla] = {}
        """What was planned, by number of its leg."""
        self.leg_count = 0
        self.crew_count = 0
        self.changed = False
        """Whether members wait or devices are free that the policy has not been asked about."""
        self.fates: dict[str, Verdict] = {}
        """Of members aboard that leave at the next gate."""
        self.leaving: dict[str, Verdict | None] = {}
        """Members that were told to leave, until they are saved; None: to go on elsewhere."""
        self.measuring_leg: tuple[list[Feeder], Leg, int] | None = None
        """Team, stretch and crew of the leg that members were measured on, while everybody is still there who feeds and
        reads it."""
        self.newcomers: set[str] = set()
        """Members that were added and are not measured yet."""

    # ---- what is aboard

    @property
    def devices(self) -> list[str]:
        """Those that carry somebody, or are about to."""
        return [device for leg in self.legs for device in (*leg.devices, *leg.boarding)]

    @property
    def under_way(self) -> bool:
        """Whether somebody trains, is being saved, or is to join."""
        return bool(self.legs or self.leaving or self.newcomers)

    def afloat(self) -> set[str]:
        """Members that train, or are about to."""
        return {name for leg in self.legs for name in leg.members} | set(self.leaving)

    def crew_of(self, device: str) -> list[str]:
        """The members aboard a device."""
        return [name for leg in self.legs if device in leg.crews for name in leg.crews[device].members]

    def leg_of(self, member: str) -> Sailing | None:
        """Where a member trains."""
        return next((leg for leg in self.legs if leg.device_of(member) is not None), None)

    def know(self, opened: Opened) -> None:
        """The data is open."""
        self.launching.preparation_seconds = opened.seconds_per_sample
        self.launching.samples_per_epoch = opened.lengths["train"]

    def clear(self) -> None:
        """Nobody carries a member any more."""
        for leg in self.legs:
            self.force.rest(leg.feeders)
        self.legs.clear()
        self.fates.clear()
        self.leaving.clear()
        self.measuring_leg = None
        self.driver.measuring.again()

    def board_nobody(self) -> None:
        """Everybody is about to be saved: whoever waits to board has no part in that."""
        for leg in self.legs:
            leg.boarding.clear()

    def lost(self, worker: str) -> None:
        """A worker is gone, or its exchange with others broke."""
        self.launching.cluster = self.driver.cluster
        self.measuring_leg = None
        self.sharing.ask(())

    def ended(self, member: str) -> None:
        """A member has left the run, wherever it was."""
        self.fates.pop(member, None)
        self.leaving.pop(member, None)
        self.newcomers.discard(member)
        for leg in self.legs:
            if leg.remove(member):
                self.changed = True
        self._arrive(member)

    # ---- measuring

    def measure_at_rest(self) -> None:
        """Feed a leg to all trainers, on whose first block they measure."""
        roster, force = self.roster, self.force
        team = force.free_team(force.devices, ())
        if team is None:
            return
        self.leg_count += 1
        self.crew_count += 1
        leg = roster.leg_for(roster.waiting, self.driver.lengths, number=self.leg_count)
        force.feed(team, leg, self.sharing.pipeline)
        ends = [roster.last_section(name) for name in roster.waiting]
        horizon = None if None in ends else max(end for end in ends if end is not None)
        crews = dict.fromkeys(force.devices, self.crew_count)
        names = [feeder.name for feeder in team]
        force.allow(names, Credit(leg=leg.number, until=leg.section + 1, horizon=horizon, crews=crews))
        self.measuring_leg = (team, leg, self.crew_count)
        self.driver.measuring.again()
        self.measure_rest()

    def measure_rest(self) -> None:
        """Hand out the members that are still unknown; where one failed, another one like it takes its place."""
        if self.measuring_leg is None:
            return
        self._measure(self.force.devices, self.measuring_leg[2])

    def _measure(self, devices: Iterable[str], crew: int | None) -> None:
        measuring, study = self.driver.measuring, self.driver.study
        accumulate = {member.name: self.roster.accumulate(member.name) for member in study.members}
        for device, command in measuring.commands(tuple(devices), crew, accumulate).items():
            self.force.define(device, map(study.member, command.members))
            self.force.send(device, command)

    # ---- newcomers

    def welcome(self) -> None:
        """Members were added: they are measured beside those that train, where nobody like them is known."""
        if not self.newcomers:
            return
        measuring = self.driver.measuring
        measuring.want(map(self.driver.study.member, self.newcomers))
        if measuring.missing & self.newcomers and self.legs:
            self._measure([min(self.devices, key=lambda device: len(self.crew_of(device)))], None)
        self.newcomers_known()

    def newcomers_known(self) -> None:
        """Those whose costs are known wait from here on."""
        known = [name for name in self.newcomers if name in self.driver.measuring.measured]
        self.newcomers -= set(known)
        if known:
            self.roster.enter(known, self.driver.lengths)
            self.driver.write_study()
            self.make_room()

    def make_room(self) -> None:
        """Somebody waits: let every leg come to a gate at an epoch's end."""
        self.changed = True
        for leg in self.legs:
            for feeder in leg.hold():
                multiple = self.driver.study.validations_per_epoch
                self.force.send(feeder, Hold(leg=leg.number, multiple=multiple))

    # ---- what crews say

    def judge(self, member: str) -> None:
        """After a section of a member: how far it goes on for certain, or what its fate is."""
        leg = self.leg_of(member)
        if leg is None:
            return
        verdict = judge(self.driver.judges, member, self.state, self.driver.study)
        next_section = self._next_section(member)
        if verdict.fate is Fate.GO_ON:
            leg.free_until[member] = next_section + verdict.certain
        else:
            leg.free_until[member] = next_section
            self.fates[member] = verdict

    def _next_section(self, member: str) -> int:
        last = self.state.member(member).sections[-1]
        return last.stream_epoch * self.driver.study.validations_per_epoch + last.section + 1

    def section_ended(self, device: str, section: int) -> None:
        """A crew is through a section."""
        for leg in self.legs:
            if device in leg.crews:
                leg.reported(device, section)

    def held(self, feeder: str, held: Held) -> None:
        """A feeder has said where it stops; when all have, those that are behind may come as far as the others."""
        for leg in self.legs:
            if leg.number == held.leg and leg.held(feeder, held.until):
                self._allow(leg, leg.until)

    def left(self, member: str) -> None:
        """A member was saved and let go."""
        told = self.driver.orders.was_told_to_stop(member)
        if member not in self.leaving or told:
            # A person said so, or all leave and `Driver` knows why.
            if told:
                self.driver.end(member, "stopped", "by command")
            return
        verdict = self.leaving.pop(member)
        if verdict is None:
            self.driver.tell(MemberRested(member=member, reason=""))
            self.roster.take_back([member])
            self.changed = True
            self._arrive(member)
        elif verdict.fate is Fate.REST:
            self.driver.tell(MemberRested(member=member, reason=verdict.reason))
            self.roster.rest(member)
            self.changed = True
        else:
            self.driver.end(member, "done", verdict.reason)

    def _arrive(self, member: str) -> None:
        """A member's last file is journaled, or there will be none: whoever waited for it to board waits no longer."""
        for leg in self.legs:
            for device, boarding in list(leg.boarding.items()):
                boarding.missing.discard(member)
                if not boarding.missing:
                    del leg.boarding[device]
                    self._board(leg, device, start=boarding.start)

    # ---- gates

    def go_on(self) -> None:
        """Whatever can go on goes on: gates, credit, and new legs for members that wait."""
        self.call()
        for leg in list(self.legs):
            if leg.at_gate and not leg.boarding:
                self._gate(leg)
            elif not leg.holding and leg.members:
                self._extend(leg)
        if self.changed:
            self.changed = False
            self._launch()
        if not self.legs and self.newcomers and self.driver.measuring.missing & self.newcomers:
            self._measure_newcomers_at_rest()

    def call(self) -> None:
        """Let those resting members wait for a place whom a judge calls."""
        called = {n for j in self.driver.judges for n in j.called(self.roster.resting, self.state, self.driver.study)}
        for name in called & self.roster.resting:
            self.roster.call(name)
            self.make_room()

    def _measure_newcomers_at_rest(self) -> None:
        names, self.newcomers = self.newcomers, set()
        self.roster.enter(names, self.driver.lengths)
        self.driver.measure()

    def _extend(self, leg: Sailing) -> None:
        until = leg.reach(turns=self._turns(leg))
        if until > leg.until:
            self._allow(leg, until)

    def _turns(self, leg: Sailing) -> int | None:
        """Where others wait for their turn, it may come at the next epoch's end."""
        per_epoch = self.driver.study.validations_per_epoch
        return (leg.until // per_epoch + 1) * per_epoch if self.roster.waiting else None

    def _allow(self, leg: Sailing, until: int) -> None:
        leg.until = until
        turns = self._turns(leg)
        horizon = leg.horizon if turns is None else min(turns, leg.horizon or turns)
        credit = Credit(leg=leg.number, until=until, horizon=_most(horizon, until), crews=leg.numbers())
        self.force.allow(leg.feeders, credit)

    def _gate(self, leg: Sailing) -> None:
        """Nobody steps: let those leave whose fate it is, ask the policy if anything has changed, and go on."""
        fates = {name: self.fates.pop(name) for name in leg.members if name in self.fates}
        live = [name for name in leg.members if name not in fates]
        wanted: Mapping[str, Iterable[str]] = {
            device: [name for name in crew.members if name not in fates] for device, crew in leg.crews.items()
        }
        joins = leg.holding
        leg.holding = False
        if fates or joins or self.roster.waiting:
            flotilla = self._ask(leg, live)
            wanted = {} if flotilla is None else _crews(flotilla)
            if flotilla is not None:
                self.flotillas[leg.number] = flotilla
        changes = difference({device: crew.members for device, crew in leg.crews.items()}, wanted)
        if changes:
            self._change(leg, changes, fates)
        if not leg.members:
            self.legs.remove(leg)
            self.force.rest(leg.feeders)
            self.changed = True
            return
        self._allow(leg, leg.reach(turns=self._turns(leg)))

    def _ask(self, leg: Sailing, live: list[str]) -> Flotilla | None:
        """The flotilla that goes on with a leg at its gate, if any."""
        per_epoch, place = self.driver.study.validations_per_epoch, leg.until
        if place % per_epoch == 0:
            self.roster.join(self.roster.waiting, place // per_epoch)
        peers = [name for name in self.roster.waiting if self._can_join(name, leg)]
        profiles = self.driver.measuring.profiles([*live, *self.roster.waiting], self.driver.study)
        aboard = [profile for profile in profiles if profile.member in set(live)]
        waiting = [profile for profile in profiles if profile.member not in set(live)]
        places = dict.fromkeys(live, place // per_epoch)
        now = self._situation(waiting, places)
        anew = self._situation(profiles, places, without=leg)
        goes_on = self.launching.goes_on(leg, self.flotillas[leg.number], aboard, peers, now, anew)
        if goes_on is None:
            return None
        nodes = {self.force.feeders[name].node for name in leg.feeders if name in self.force.feeders}
        return goes_on if all(self.force.node_of[device] in nodes for device in goes_on.devices) else None

    def _can_join(self, name: str, leg: Sailing) -> bool:
        """Whether all that a waiting member wants of the stream is still to come at a gate."""
        if self.roster.place(name) != leg.until or name in self.leaving:
            return False
        length, per_epoch = self.driver.lengths["train"], self.driver.study.validations_per_epoch
        begun = leg.until > leg.begins.section
        position = section_start(leg.until, length, per_epoch) if begun else leg.begins.position
        return self.roster.leg_for([name], self.driver.lengths, number=0).position >= position

    def _situation(
        self, waiting: list[Profile], places: Mapping[str, int], without: Sailing | None = None
    ) -> Situation:
        per_epoch = self.driver.study.validations_per_epoch
        names = [profile.member for profile in waiting]
        done = {name: places.get(name, self.roster.place(name) // per_epoch) for name in names}
        left = {name: left for name in names if (left := self.roster.epochs_left(name)) is not None}
        return self.launching.situation(waiting, self.legs, epochs_done=done, epochs_left=left, without=without)

    def _change(self, leg: Sailing, changes: Mapping[str, Change], fates: Mapping[str, Verdict]) -> None:
        """Let crews change on these devices; whoever moves starts when the device that it leaves has saved it."""
        started = {name for change in changes.values() for name in change.start}
        for name in [name for change in changes.values() for name in change.leave]:
            self.leaving[name] = fates.get(name)
            if name not in started:
                leg.free_until.pop(name)
                leg.last.pop(name)
        for device, change in changes.items():
            self.crew_count += 1
            leg.change(device, self.crew_count, change)
            missing = {name for name in change.start if name in self.leaving}
            self._expect(leg, [name for name in change.start if name not in missing])
            if missing:
                leg.boarding[device] = Boarding(start=change.start, missing=missing)
                self.force.send(device, Leave(members=change.leave))
            else:
                self._board(leg, device, leave=change.leave, start=change.start)

    def _expect(self, leg: Sailing, names: Iterable[str]) -> None:
        """These are about to begin in a leg: how far they go for certain, and at most."""
        for name in names:
            verdict = judge(self.driver.judges, name, self.state, self.driver.study)
            leg.free_until[name] = self.roster.place(name) + verdict.certain
            leg.last[name] = self.roster.last_section(name)

    def _board(self, leg: Sailing, device: str, *, leave: tuple[str, ...] = (), start: Iterable[str]) -> None:
        """Send a crew what it has to know; which stream epochs its members train on is journaled before."""
        roster, measured = self.roster, self.driver.measuring.measured
        aboard = set(leg.crews[device].members)
        names = [name for name in start if name in aboard]
        assigned = roster.assign(names)
        if assigned is not None:
            self.driver.record(assigned)
        roster.leave(names)
        self.force.define(device, map(self.driver.study.member, names))
        starts = tuple(roster.start_member(name, measured[name].notes) for name in names)
        self.force.send(device, Board(crew=leg.crews[device].number, leave=leave, start=starts))

    # ---- new legs

    def _launch(self) -> None:
        """Ask the policy what to start on the devices that are free."""
        if self.driver.orders.pausing is not None or not self.roster.waiting:
            return
        measuring = self.driver.measuring
        situation = self._situation(measuring.profiles(self.roster.waiting, self.driver.study), {})
        plan = replace(self.launching.launch(situation), notes=measuring.notes)
        if plan.flotillas and not self.sharing.told and not self._choose_sharing(plan.flotillas[0]):
            return
        started = [flotilla for flotilla in plan.flotillas if self._start_leg(flotilla)]
        self._release_idle()
        if started:
            self.driver.record(PlanMade(plan=plan.to_json()))
            write_json(self.driver.directory / "plan.json", plan.to_json())
            self.driver.view.plan(plan)

    def _free_team(self, devices: Iterable[str]) -> list[Feeder] | None:
        return self.force.free_team(devices, (feeder for leg in self.legs for feeder in leg.feeders))

    def _start_leg(self, flotilla: Flotilla) -> bool:
        """Whether it is under way; where a node has no feeder for it yet, the policy is asked again when there is one."""
        team = self._free_team(flotilla.devices)
        if team is None:
            return False
        # The stream that members were measured on goes on as the first leg where everybody stays on it.
        measured, self.measuring_leg = self.measuring_leg, None
        everybody = set(flotilla.members) == set(self.roster.waiting) and len(team) == len(self.driver.cluster.nodes)
        if measured is not None and everybody and not self.sharing.changed:
            team, stretch, crew = measured
        else:
            if measured is not None:
                self.force.rest(feeder.name for feeder in measured[0])
            self.leg_count += 1
            self.crew_count += 1
            stretch = self.roster.leg_for(flotilla.members, self.driver.lengths, number=self.leg_count)
            self.force.feed(team, stretch, self.sharing.pipeline)
            crew = self.crew_count
        names = tuple(feeder.name for feeder in team)
        leg = Sailing(number=self.leg_count, feeders=names, until=stretch.section, begins=stretch)
        self.legs.append(leg)
        self.flotillas[leg.number] = flotilla
        self._expect(leg, flotilla.members)
        for device, members in _crews(flotilla).items():
            leg.change(device, crew, Change(start=tuple(members)))
            self._board(leg, device, start=members)
        self._allow(leg, leg.reach(turns=self._turns(leg)))
        return True

    def _release_idle(self) -> None:
        """Let trainers that carry nobody let go of the block that they measured on."""
        busy = set(self.devices)
        for device in self.force.devices:
            if device not in busy:
                self.crew_count += 1
                self.force.send(device, Board(crew=self.crew_count))

    def _choose_sharing(self, flotilla: Flotilla) -> bool:
        """Settle how nodes share the stream; False while that is measured, after which the policy is asked again."""
        sharing, cluster = self.sharing, self.driver.cluster
        if sharing.chosen is None and len(cluster.nodes) > 1 and not sharing.measured:
            team = self._free_team(self.force.devices)
            if team is not None and not sharing.waiting_for:
                sharing.ask([feeder.name for feeder in team])
                self.force.probe(team)
            return False
        self.driver.tell(
            chosen := sharing.choose(cluster, flotilla, preparation_seconds=self.launching.preparation_seconds)
        )
        if self.driver.settings.loader_workers is None:
            for feeder in self.force.feeders:
                self.force.send(feeder, UseLoaders(count=chosen.loader_workers))
        return True

    def probed(self, worker: str, probed: Probed) -> None:
        """A feeder has measured what sharing costs."""
        self.sharing.hear(worker, probed)
        if self.sharing.measured:
            self.changed = True


def _crews(flotilla: Flotilla) -> dict[str, list[str]]:
    """The members of each device, in the order of their steps."""
    return {device: [placement.member for placement in flotilla.pack(device)] for device in flotilla.devices}


def _most(horizon: int | None, until: int) -> int | None:
    return None if horizon is None else max(horizon, until)
