"""Decisions become events and commands here, in the one lawful order: what is journaled first, what leaves after it.

No other part of the driver writes to the journal or gives trainers their commands; the table of members changes with both. Others decide,
and hand over what is to change. A command leaves when the round is journaled (`Driver._round`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from argosy.cluster import Node
from argosy.plans import Plan
from argosy.protocol.events import (
    REFUSED,
    Answered,
    Cloned,
    Divided,
    Event,
    MemberEnded,
    MemberRested,
    NodeCame,
    PlanMade,
    Recovered,
    SharingChosen,
    Split,
    WorkerLost,
)
from argosy.protocol.feeder import Credit, Hold, Leg, UseLoaders
from argosy.protocol.trainer import Assign, GroupRank, Measure, Pause, Unassign
from argosy.running.control.clone import inherit
from argosy.running.control.decisions import Decisions
from argosy.running.control.legs import Change, Gate, LiveLeg, Starting
from argosy.running.control.losses import Way
from argosy.running.control.members import Leaving, State
from argosy.running.control.positions import FINAL
from argosy.running.control.predictions import Predictions
from argosy.running.control.run import DriverPart, Run
from argosy.running.control.verdicts import Fate, Newcomer, Verdict
from argosy.running.control.worker_pool import Feeder
from argosy.running.directory.study_json import write_json

__all__ = ["CarryOut"]


class CarryOut(DriverPart):
    """Changes of the legs and members of one run."""

    def __init__(self, run: Run, decisions: Decisions, predictions: Predictions) -> None:
        super().__init__(run)
        self.decisions = decisions
        self.predictions = predictions
        self._rendezvous: dict[str, str] = {}
        """By member that several devices step: where these find each other."""

    # ---- the journal, and what leaves after it

    def record(self, *events: Event) -> None:
        """Journal events, before anything else leaves, fold them into the state, and show them."""
        for event in events:
            self.run.journal.append(event)
            self.run.state.apply(event)
            self.run.view.handle("", event)

    def answer(self, file: str, answer: str) -> None:
        """A command is done with."""
        self.record(Answered(file=file, command=self.run.commands.pop(file), answer=answer))

    def send(self, commands: Mapping[str, Any]) -> None:
        """Give each of these workers its command."""
        self.pool.send(commands)

    # ---- credit

    def allow(self, leg: LiveLeg, until: int) -> None:
        """Give the feeders of a leg credit up to a section."""
        leg.until = until
        horizon = self.decisions.horizon(leg, until)
        credit = Credit(leg=leg.number, until=until, horizon=horizon, assignments=leg.numbers())
        leg.readers = tuple(credit.assignments)
        self.pool.allow(leg.feeders, credit)

    def hold(self, leg: LiveLeg, *, multiple: int) -> None:
        """Let a leg come to a barrier soon, behind a section whose number divides by `multiple`."""
        self.send(dict.fromkeys(leg.hold(), Hold(leg=leg.number, multiple=multiple)))

    def make_room(self) -> None:
        """Members wait: let every leg come to a barrier at an epoch's end, and ask the policy."""
        self.run.wants_plan = True
        for leg in [leg for leg in self.legs.live if self.decisions.goes_to(leg) is None]:
            self.hold(leg, multiple=self.run.per_epoch)

    # ---- nodes and plans

    def admit(self, node: Node) -> None:
        """A node came: let its workers start."""
        self.record(NodeCame(node=node.name, devices=tuple(map(asdict, node.devices))))
        self.run.cluster = self.run.cluster.beside(node)
        self.pool.admit(node)

    def publish(self, plan: Plan) -> None:
        """Flotillas of a plan have started."""
        told = plan.to_json()
        self.record(PlanMade(plan=told))
        write_json(self.run.directory / "plan.json", told)

    def release_idle(self) -> None:
        """Let trainers without members let go of the block that they measured on."""
        busy = set(self.legs.devices)
        idle = [device for device in self.pool.devices if device not in busy]
        self.send({device: Assign(assignment=self.legs.next_assignment()) for device in idle})

    def share(self, chosen: SharingChosen) -> None:
        """Nodes share the stream like this from here on."""
        self.record(chosen)
        if self.run.settings.loader_workers is None:
            self.send(dict.fromkeys(self.pool.feeders, UseLoaders(count=chosen.loader_workers)))

    def feed(self, team: Sequence[Feeder], stretch: Leg, pipeline: tuple[str, int]) -> tuple[Leg, int]:
        """Let a team prepare a new leg. Returns it, with its number, and the number of its first assignment."""
        self.legs.count += 1
        leg = replace(stretch, number=self.legs.count)
        self.pool.feed(team, leg, pipeline)
        return leg, self.legs.next_assignment()

    def measure(self, commands: Mapping[str, Measure]) -> None:
        """Let trainers measure members."""
        for device, command in commands.items():
            self.pool.define(device, map(self.run.study.member, command.members))
            self.send({device: command})

    # ---- assignments

    def begin(self, leg: LiveLeg, assignments: Mapping[str, Iterable[str]], number: int) -> None:
        """A new leg: its devices start on these members, with an assignment of this number."""
        self.legs.live.append(leg)
        members = leg.flotilla.members
        self.expect(leg, members)
        self._place(leg, members)
        for device, names in assignments.items():
            leg.change(device, number, Change(start=tuple(names)))
            self._start(leg, device, start=names)
        self.predictions.begin(leg)
        self.allow(leg, self.decisions.reach(leg))

    def change(self, leg: LiveLeg, changes: Mapping[str, Change], fates: Mapping[str, Verdict]) -> None:
        """Change assignments at a barrier: a member that moves starts when the device that it leaves has saved it."""
        started = {name for change in changes.values() for name in change.start}
        for name in dict.fromkeys(name for change in changes.values() for name in change.leave):
            leaving = Leaving(leg=leg.number, device=leg.savers[name], verdict=fates.get(name))
            self.members.leave(name, leaving, moves=name in started)
            if name not in started:
                leg.forget(name)
        self._place(leg, started)
        for device, change in changes.items():
            leg.change(device, self.legs.next_assignment(), change)
            missing = {name for name in change.start if self.members.leaves(name) is not None}
            self.expect(leg, [name for name in change.start if name not in missing])
            if missing:
                leg.starting[device] = Starting(start=change.start, missing=missing)
                self.positions.settled(change.start)  # their next epoch is this leg's
                self.send({device: Unassign(members=change.leave)})
            else:
                self._start(leg, device, leave=change.leave, start=change.start)

    def expect(self, leg: LiveLeg, names: Iterable[str]) -> None:
        """These are about to begin in a leg: note how far they go for certain, and at most."""
        for name in names:
            leg.free_until[name] = self.positions.place(name) + self.run.verdict(name).certain
            leg.last[name] = self.positions.last_section(name)

    def _place(self, leg: LiveLeg, names: Collection[str]) -> None:
        """Note which device saves each of these; those that several devices step need a rendezvous."""
        placements = [leg.flotilla.of(name) for name in names]
        leg.savers |= {placement.member: placement.devices[0] for placement in placements}
        self._rendezvous |= {split.member: self.pool.rendezvous() for split in placements if split.is_split}
        self.members.place(names)

    def _group_rank(self, leg: LiveLeg, name: str, device: str) -> GroupRank | None:
        """The rank of a device among those that step a member; journaled before any of them does."""
        placement, before = leg.flotilla.of(name), self.run.state.member(name).split
        split = Split(member=name, devices=placement.devices, shares=placement.all_shares)
        if split != before and (placement.is_split or before is not None):
            self.record(split)
        if not placement.is_split:
            return None
        rank, number = placement.devices.index(device), self.positions.number(name)
        return GroupRank(rank=rank, shares=split.shares, number=number, rendezvous=self._rendezvous[name])

    def _start(self, leg: LiveLeg, device: str, *, leave: tuple[str, ...] = (), start: Iterable[str]) -> None:
        """Tell a trainer its assignment; the stream epochs that its members train on are journaled before."""
        there, measured = set(leg.assignments[device].members), self.measuring.measured
        names = [name for name in start if name in there]
        assigned = self.positions.assigned(names)
        if assigned is not None:
            self.record(assigned)
        self.members.assign(names)
        # Without a feeder to read from, a trainer would take this for what was said before its feeder was lost.
        self.pool.attach(leg.feeders, device)
        self.pool.define(device, map(self.run.study.member, names))
        starts = tuple(
            replace(
                self.positions.start_member(name, measured[name].notes),
                group_rank=self._group_rank(leg, name, device),
                chosen=self.run.choices.programs(name),
            )
            for name in names
        )
        self.send({device: Assign(assignment=leg.assignments[device].number, leave=leave, start=starts)})
        stopped = tuple(filter(self.members.is_told_to_stop, names))
        if stopped:
            # They were told to stop when no trainer knew them.
            self.send({device: Unassign(members=stopped)})

    def _wait_no_longer(self, member: str) -> None:
        """A member's last file is journaled, or there will be none: assignments that waited for it start."""
        for leg in self.legs.live:
            for device, starting in list(leg.starting.items()):
                starting.missing.discard(member)
                if not starting.missing:
                    del leg.starting[device]
                    self._start(leg, device, start=starting.start)

    def stop(self, member: str) -> None:
        """Let the devices that step a member save it and let it go, as a person wants it to stop."""
        leg = self.legs.of(member)
        if leg is not None and leg.gate is not Gate.REGROUPING:
            self.send(dict.fromkeys(leg.devices_of(member), Unassign(members=(member,))))

    def end_leg(self, leg: LiveLeg) -> None:
        """A leg has no members any more."""
        self.legs.live.remove(leg)
        self.pool.rest(leg.feeders)
        self.all_have_met(leg)
        self.predictions.end(leg)
        self.run.wants_plan = True

    # ---- what becomes of members

    def end(self, member: str, status: str, reason: str) -> None:
        """A member leaves the run, or does not come to be in it."""
        run, known = self.run, self.run.state
        if member not in run.study.names:
            return  # it was not added, as another one of its file had failed before
        addition = self.members.addition(member)
        if addition:
            *more, last = reason.strip().removesuffix(".").splitlines()
            log = f"; its traceback is in members/{member}/log.txt" if more else ""
            self.refuse(addition, f"member {member!r} failed while it was measured: {last}{log}.")
            run.costs_settled = True
            return
        if known.member(member).status in FINAL:
            return  # another of the devices that stepped it has said so
        self.record(MemberEnded(member=member, status=status, reason=reason))
        self.measuring.forget(member)
        # Where no leg is left, the policy is asked when all that go on elsewhere are saved.
        run.wants_plan |= self.members.leaves(member) is not None
        # It may have failed while it was measured, or was told to stop while it waited.
        run.costs_settled |= self.members.waits(member)
        if member in self.members.new:
            # A member whose costs are not known was here all the same.
            self.announce([member])
        self.members.end(member)
        self._unassign(member)
        if status == "failed":
            repetition = run.study.member(member).repetition if run.bringers else None
            trial = repetition.of if repetition else member
            any_section = any(m.sections for m in known.members.values())
            run.tolerance.member_failed(member, reason, trial=trial, any_section=any_section)

    def _unassign(self, member: str) -> None:
        """A member has ended, wherever it was."""
        for leg in self.legs.live:
            devices = leg.devices_of(member)
            if len(devices) > 1:  # one of its ranks has said so
                self.send(dict.fromkeys(devices, Unassign(members=(member,))))
            if leg.remove(member):
                self.run.wants_plan = True
        self._wait_no_longer(member)

    def follow(self, member: str, verdict: Verdict) -> None:
        """Let a member that is saved rest or end."""
        if verdict.fate is Fate.END:
            self.end(member, "done", verdict.reason)
        else:
            self.record(MemberRested(member=member, reason=verdict.reason))
            self.members.rest(member)
            self.run.wants_plan = True

    def left(self, member: str) -> None:
        """A trainer has saved a member and let it go."""
        leaving = self.members.leaves(member)
        if self.members.is_told_to_stop(member):
            self.end(member, "stopped", "by command")
        elif leaving is None:
            return  # its leg regroups: what becomes of it is decided when all are saved
        elif leaving.verdict is not None:
            self.follow(member, leaving.verdict)
        else:
            self.record(MemberRested(member=member, reason=""))
            self.members.saved(member)
            self.run.wants_plan = True
            self._wait_no_longer(member)

    def settle(self, names: Iterable[str]) -> None:
        """Let members that were saved, or lost, where a fault found them, end or rest if that is their verdict, or go on."""
        for name in names:
            if self.members.is_told_to_stop(name):
                self.end(name, "stopped", "by command")
            elif self.members.state(name) is State.REGROUPING and not self.decided(name):
                self.members.take_back(name)

    def decided(self, name: str) -> bool:
        """Whether a member ends or rests by its verdict, as it does then."""
        if (verdict := self.decisions.leaves_run(name)) is not None:
            self.follow(name, verdict)
        return verdict is not None

    def settle_earlier(self) -> None:
        """Let members end or rest about which an earlier driver did not say so."""
        for name in self.decisions.undecided():
            self.decided(name)

    def call(self) -> None:
        """Let those resting members wait for a place that a judge calls, or end."""
        for name in self.decisions.called():
            verdict = self.run.verdict(name)
            if verdict.fate is Fate.END:
                self.end(name, "done", verdict.reason)
            else:
                self.members.call(name)
                self.make_room()

    # ---- members that join

    def announce(self, names: list[str]) -> None:
        """Let study.json have members that joined."""
        self.members.announced(names)
        self.run.identity.add(self.run.study, names, shapes=self.measuring.shapes)

    def refuse(self, addition: str, why: str) -> None:
        """The members that a command brought come to nothing."""
        names = self.members.of_additions()[addition]
        self.members.remove(names)
        self.positions.remove(names)
        self.measuring.remove(names)
        self.pool.forget_members(names)
        self.run.view.study(self.run.study)
        self.run.write_study()
        self.answer(addition, f"{REFUSED}{why}")

    def inherit(self, cloned: Cloned) -> None:
        """Journal a clone, behind the file that it begins with."""
        inherit(self.run.directory, cloned)
        self.record(cloned)

    def bring(self, brought: Iterable[Newcomer]) -> None:
        """Journal members that a search brings, each behind the file that it begins with."""
        for new in brought:
            if new.cloned is not None:
                inherit(self.run.directory, new.cloned)
                self.measuring.as_source(new.cloned.member, new.cloned.source)
            self.record(*new.events)
        # Before study.json names them, which the next driver compares with what it finds here.
        self.run.journal.commit()

    # ---- losses

    def divide(self, member: str, parts: int) -> None:
        """Cut a member's batches into so many micro-batches from here on."""
        self.record(Divided(member=member, accumulate=parts))

    def choose_way(self, trainer: str, lost: Sequence[str], way: Way, costs: Mapping[str, float]) -> None:
        """The members of a lost trainer go on like this."""
        self.record(Recovered(worker=trainer, members=tuple(lost), way=way, costs=costs))

    def lose(self, worker: str, detail: str, *, suspects: Iterable[str] = ()) -> None:
        """A worker is lost, or a group or an exchange that it had a part in."""
        self.record(WorkerLost(worker=worker, detail=detail, suspects=tuple(suspects)))
        self.run.tolerance.worker_lost(worker, detail)

    def give_up(self, node: str, why: str, *, answers: bool) -> list[str]:
        """Go on without a node. Returns its devices."""
        run = self.run
        run.cluster = run.cluster.without(node)
        left = ", ".join(other.name for other in run.cluster.nodes)
        self.record(WorkerLost(worker=node, detail=f"given up, {why}; the run goes on with {left}"))
        return self.pool.abandon(node, answers=answers)

    def take_off(self, device: str) -> list[str]:
        """Take the members of a lost trainer out of its assignment. Returns those that it was training or saving.

        Members that were about to start there wait again, or will when they are saved.
        """
        gone = self._unsaved(device)
        off = list(gone)
        for leg in self.legs.live:
            here = list(leg.assignments[device].members) if device in leg.assignments else []
            starting = leg.starting.pop(device, None)
            gone += [name for name in here if starting is None or name not in starting.start]
            off += here
        self._remove(device, gone, off)
        return gone

    def drop_unsaved(self, device: str) -> list[str]:
        """Members that a lost trainer was to save, as far as their legs do not regroup: no file of them is to come."""
        gone = self._unsaved(device)
        for leg in self.legs.live:
            leg.starting.pop(device, None)
        self._remove(device, gone, gone)
        return gone

    def _unsaved(self, device: str) -> list[str]:
        """Members that a trainer which is gone was to save, or one of a node that was given up."""
        leaving = self.members.leaving
        return [name for name, its in leaving.items() if its.device == device or not self.pool.knows(its.device)]

    def _remove(self, device: str, gone: Collection[str], off: Collection[str]) -> None:
        """Without the trainer of a device, no file of the members that are `gone` is to come, and those `off` are in no leg."""
        self.members.regroup(gone)
        for leg in self.legs.live:
            removed = [name for name in off if leg.remove(name)]
            # Members of the device may have ended since the leg's last credit named it.
            if (removed or device in leg.readers) and leg.devices and not leg.asked:
                # Its feeders wait for a reader that is no more; those that are asked get their credit when they have answered.
                self.allow(leg, leg.until)
                self.predictions.change(leg, ())
        for name in off:
            if name not in gone:
                self.members.take_off(name)
        for name in gone:
            self._wait_no_longer(name)

    def fall_behind(self, names: Collection[str], leg: LiveLeg | None) -> None:
        """Lost members wait for a device, and are to meet their leg again, which is held for them, or go on apart."""
        self.members.fall_behind(names, 0 if leg is None else leg.number)
        if leg is not None:
            self.hold(leg, multiple=1)

    # ---- regroupings

    def regroup(self, legs: Iterable[LiveLeg] | None) -> list[str]:
        """Let the trainers of these legs, or of all, save their members and let them go. Returns these trainers."""
        asked = self.legs.live if legs is None else self._paused_with(legs)
        new = [leg for leg in asked if leg.gate is not Gate.REGROUPING]
        numbers = None if legs is None else {leg.number for leg in new}
        leaving = {name: its for name, its in self.members.leaving.items() if numbers is None or its.leg in numbers}
        self.members.regroup(dict.fromkeys([*leaving, *(name for leg in new for name in leg.members)]))
        devices = [*(its.device for its in leaving.values())]
        for leg in new:
            devices += [*leg.devices, *leg.starting]
            leg.starting.clear()  # An assignment that waits to start has no part in it.
            leg.gate = Gate.REGROUPING
        busy = [device for device in dict.fromkeys(devices) if self.pool.knows(device)]
        self.send(dict.fromkeys(busy, Pause()))
        return busy

    def _paused_with(self, legs: Iterable[LiveLeg]) -> list[LiveLeg]:
        """Return legs that regroup, with those whose devices still save members of these: a trainer that pauses lets all its members go."""
        found = list(legs)
        for leg in found:
            savers = {its.device for its in self.members.leaving.values() if its.leg == leg.number}
            found += [
                other for other in self.legs.live if other not in found and savers & {*other.devices, *other.starting}
            ]
        return found

    def pause(self, names: Iterable[str], reason: str) -> None:
        """The run ends, and these are saved to go on with the next one."""
        self.record(*(MemberEnded(member=name, status="paused", reason=reason) for name in names))

    def all_have_met(self, leg: LiveLeg) -> None:
        """No member is to meet this leg any more."""
        meeting = self.members.meeting.items()
        self.members.catch_up([name for name, number in meeting if number == leg.number])
