"""Carries decisions out: turns them into events and commands, in the one valid order: events are journaled before commands are sent.

No other part of the driver writes to the journal or sends commands to trainers; the table of members changes together with both. Other
parts decide and pass on what has to change. A command is sent once its round is journaled (`Driver._round`).
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
from argosy.results.fold import CUT_SHORT_STATUSES
from argosy.running.control.decisions import Decisions
from argosy.running.control.legs import Change, Gate, LiveLeg, Starting
from argosy.running.control.losses import RecoveryWay
from argosy.running.control.members import Leaving, State
from argosy.running.control.predictions import Predictions
from argosy.running.control.run import DriverPart, Run
from argosy.running.control.verdicts import Fate, Newcomer, Verdict
from argosy.running.control.worker_pool import FedLeg, Feeder
from argosy.running.directory.clone import link_checkpoint
from argosy.running.directory.study_json import write_json

__all__ = ["ActingPart", "CarryOut"]


class CarryOut(DriverPart):
    """Changes the legs and members of one run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.decisions: Decisions = Decisions(run)
        self.predictions: Predictions = Predictions(run)
        self._rendezvous: dict[str, str] = {}
        """By split member: where its devices find each other."""

    # ---- journal and commands

    def record(self, *events: Event) -> None:
        """Journal events before any further command is sent, fold them into the state, and show them."""
        for event in events:
            self.run.journal.append(event)
            self.state.apply(event)
            self.run.view.handle("", event)

    def answer(self, file: str, answer: str) -> None:
        """Answer a command of the user."""
        self.record(Answered(file=file, command=self.run.commands.pop(file), answer=answer))

    def send(self, commands: Mapping[str, Any]) -> None:
        """Send commands to workers."""
        self.pool.send(commands)

    # ---- credit

    def give_credit(self, leg: LiveLeg, until: int) -> None:
        """Give the feeders of a leg credit up to a section."""
        leg.until = until
        horizon = self.decisions.horizon(leg)
        credit = Credit(leg=leg.number, until=until, horizon=horizon, assignments=leg.assignment_numbers())
        leg.readers = tuple(credit.assignments)
        self.pool.give_credit(leg.feeders, credit)

    def hold(self, leg: LiveLeg, *, multiple: int) -> None:
        """Bring a leg to a barrier soon, after a section whose number is divisible by `multiple`."""
        self.send(dict.fromkeys(leg.hold(), Hold(leg=leg.number, multiple=multiple)))

    def make_room(self) -> None:
        """Bring every leg to a barrier at the end of an epoch and ask the policy, because members wait."""
        self.run.wants_plan = True
        for leg in [leg for leg in self.legs.live if self.decisions.leg_to_rejoin(leg) is None]:
            self.hold(leg, multiple=self.run.per_epoch)

    # ---- nodes and plans

    def admit(self, node: Node) -> None:
        """Start the workers of a node that has come."""
        self.record(NodeCame(node=node.name, devices=tuple(map(asdict, node.devices))))
        self.run.cluster = self.run.cluster.beside(node)
        self.pool.admit(node)

    def publish(self, plan: Plan) -> None:
        """Journal a plan whose flotillas have started."""
        as_json = plan.to_json()
        self.record(PlanMade(plan=as_json))
        write_json(self.run.directory / "plan.json", as_json)

    def release_idle(self) -> None:
        """Let trainers without members release the block that they measured on."""
        busy = set(self.legs.devices)
        idle = [device for device in self.pool.devices if device not in busy]
        self.send({device: Assign(assignment=self.legs.next_assignment()) for device in idle})

    def set_sharing(self, chosen: SharingChosen) -> None:
        """Set how nodes share the stream from now on."""
        self.record(chosen)
        if self.run.settings.loader_workers is None:  # otherwise the user has set their number
            self.send(dict.fromkeys(self.pool.feeders, UseLoaders(count=chosen.loader_workers)))

    def feed(self, team: Sequence[Feeder], stretch: Leg, pipeline: tuple[str, int]) -> FedLeg:
        """Let a team of feeders prepare a new leg, and number it."""
        self.legs.count += 1
        leg = replace(stretch, number=self.legs.count)
        self.pool.feed(team, leg, pipeline)
        return FedLeg(team, leg, pipeline[0], self.legs.next_assignment())

    def measure(self, commands: Mapping[str, Measure]) -> None:
        """Let trainers measure members."""
        for device, command in commands.items():
            self.pool.define(device, map(self.run.study.member, command.members))
            self.send({device: command})

    # ---- assignments

    def begin_leg(self, leg: LiveLeg, assignments: Mapping[str, Iterable[str]], number: int) -> None:
        """Begin a new leg: its devices start on these members, with an assignment of this number."""
        self.legs.live.append(leg)
        members = leg.flotilla.members
        self.note_limits(leg, members)  # before the credit, which goes as far as all members are certain to
        self._place(leg, members)
        for device, names in assignments.items():
            leg.change(device, number, Change(start=tuple(names)))
            self._start(leg, device, start=names)
        self.predictions.begin(leg)
        self.give_credit(leg, self.decisions.credit_limit(leg))

    def change_assignments(self, leg: LiveLeg, changes: Mapping[str, Change], fates: Mapping[str, Verdict]) -> None:
        """Change assignments at a barrier; a moving member starts once its old device has saved it."""
        started = dict.fromkeys(name for change in changes.values() for name in change.start)
        # Before `_place`, which replaces the savers of members that move.
        for name in dict.fromkeys(name for change in changes.values() for name in change.leave):
            leaving = Leaving(leg=leg.number, device=leg.savers[name], verdict=fates.get(name))
            self.members.leave(name, leaving, moves=name in started)
            if name not in started:
                leg.forget(name)
        self._place(leg, started)
        for device, change in changes.items():
            leg.change(device, self.legs.next_assignment(), change)
            missing = {name for name in change.start if self.members.leaving_of(name) is not None}
            self.note_limits(leg, [name for name in change.start if name not in missing])
            if missing:
                leg.starting[device] = Starting(start=change.start, missing=missing)
                self.positions.mark_settled(change.start)  # their next epoch is that of this leg
                self.send({device: Unassign(members=change.leave)})
            else:
                self._start(leg, device, leave=change.leave, start=change.start)

    def note_limits(self, leg: LiveLeg, names: Iterable[str]) -> None:
        """Note of members that begin in a leg how far they certainly go, and how far at most."""
        for name in names:
            leg.free_until[name] = self.positions.stream_section(name) + self.positions.verdict(name).certain
            leg.last[name] = self.positions.end_section(name)

    def _place(self, leg: LiveLeg, names: Collection[str]) -> None:
        """Note which device saves each member, and give split members a rendezvous."""
        placements = [leg.flotilla.of(name) for name in names]
        leg.savers |= {placement.member: placement.devices[0] for placement in placements}
        self._rendezvous |= {split.member: self.pool.workers.rendezvous() for split in placements if split.is_split}
        self.members.place(names)

    def _group_rank(self, leg: LiveLeg, name: str, device: str) -> GroupRank | None:
        """Return the rank of a device in the group of a split member; it is journaled before any device steps the member."""
        placement, before = leg.flotilla.of(name), self.state.member(name).split
        split = Split(member=name, devices=placement.devices, shares=placement.all_shares)
        if split != before and (placement.is_split or before is not None):
            self.record(split)
        if not placement.is_split:
            return None
        rank, number = placement.devices.index(device), self.positions.number(name)
        return GroupRank(rank=rank, shares=split.shares, number=number, rendezvous=self._rendezvous[name])

    def _start(self, leg: LiveLeg, device: str, *, leave: tuple[str, ...] = (), start: Iterable[str]) -> None:
        """Send a trainer its assignment, after journaling the stream epochs of its members."""
        assigned, measured = set(leg.assignments[device].members), self.cost_table.measured
        names = [name for name in start if name in assigned]
        assigned_event = self.positions.assigned_event(names)
        if assigned_event is not None:
            self.record(assigned_event)
        self.members.assign(names)
        # Without feeders, a trainer would take this for a message from before its feeder was lost.
        self.pool.attach(leg.feeders, device)
        self.pool.define(device, map(self.run.study.member, names))
        starts = tuple(
            replace(
                self.positions.start_member(name, measured[name].notes),
                group_rank=self._group_rank(leg, name, device),
                chosen=self.run.choices.programs(name, device),
            )
            for name in names
        )
        self.send({device: Assign(assignment=leg.assignments[device].number, leave=leave, start=starts)})
        stopped = tuple(filter(self.members.is_asked_to_stop, names))
        if stopped:
            # They were asked to stop when no trainer had them.
            self.send({device: Unassign(members=stopped)})

    def _unblock_assignments(self, member: str) -> None:
        """Start assignments that waited for a member's last file, which is journaled now, or will never be."""
        for leg in self.legs.live:
            for device, starting in list(leg.starting.items()):
                starting.missing.discard(member)
                if not starting.missing:
                    del leg.starting[device]
                    self._start(leg, device, start=starting.start)

    def stop(self, member: str) -> None:
        """Let the devices of a member save and release it, because the user has asked it to stop."""
        leg = self.legs.of(member)
        if leg is not None and leg.gate is not Gate.REGROUPING:
            self.send(dict.fromkeys(leg.devices_of(member), Unassign(members=(member,))))

    def end_leg(self, leg: LiveLeg) -> None:
        """End a leg without members."""
        self.legs.live.remove(leg)
        self.pool.stop_feeding(leg.feeders)
        self.end_rejoining(leg)
        self.predictions.end(leg)
        self.run.wants_plan = True

    # ---- what becomes of members

    def end(self, member: str, status: str, reason: str) -> None:
        """End a member, or one that was about to join."""
        run = self.run
        if member not in run.study.names:
            return  # it was never added, because another member of its file had failed
        addition = self.members.addition(member)
        if addition:
            *more, last = reason.strip().removesuffix(".").splitlines()
            log = f"; its traceback is in members/{member}/log.txt" if more else ""
            self.refuse(addition, f"member {member!r} failed while it was measured: {last}{log}.")
            run.costs_settled = True
            return
        if self.state.member(member).status in CUT_SHORT_STATUSES:
            return  # another of its devices has already reported it
        self.record(MemberEnded(member=member, status=status, reason=reason))
        self.cost_table.forget(member)
        # If no leg is left, the policy is asked once all members that continue elsewhere are saved.
        run.wants_plan |= self.members.leaving_of(member) is not None
        # It may have failed while being measured, or was asked to stop while it waited.
        run.costs_settled |= self.members.is_waiting(member)
        if member in self.members.new:
            # It was a member even if its costs are not known.
            self.write_joined([member])
        self.members.end(member)
        self._unassign(member)
        if status == "failed":
            repetition = run.study.member(member).repetition if run.bringers else None
            trial = repetition.of if repetition else member
            any_section = any(m.sections for m in self.state.members.values())
            run.tolerance.count_member_failure(member, reason, trial=trial, any_section=any_section)

    def _unassign(self, member: str) -> None:
        """Take an ended member out of its leg, or out of those that wait."""
        for leg in self.legs.live:
            devices = leg.devices_of(member)
            if len(devices) > 1:  # only one of its ranks has reported it
                self.send(dict.fromkeys(devices, Unassign(members=(member,))))
            if leg.remove(member):
                self.run.wants_plan = True
        self._unblock_assignments(member)

    def apply_verdict(self, member: str, verdict: Verdict) -> None:
        """Let a saved member rest or end."""
        if verdict.fate is Fate.END:
            self.end(member, "done", verdict.reason)
        else:
            self.record(MemberRested(member=member, reason=verdict.reason))
            self.members.rest(member)
            self.run.wants_plan = True

    def handle_released(self, member: str) -> None:
        """Handle a member that its trainer has saved and released."""
        leaving = self.members.leaving_of(member)
        if self.members.is_asked_to_stop(member):
            self.end(member, "stopped", "by command")
        elif leaving is None:
            return  # its leg regroups; what follows is decided once all members are saved
        elif leaving.verdict is not None:
            self.apply_verdict(member, leaving.verdict)
        else:
            self.record(MemberRested(member=member, reason=""))
            self.members.mark_saved(member)
            self.run.wants_plan = True
            self._unblock_assignments(member)

    def resume_or_end(self, names: Iterable[str]) -> None:
        """Let members that a fault has lost, or caused to be saved, end or rest if that is their verdict, else continue."""
        for name in names:
            if self.members.is_asked_to_stop(name):
                self.end(name, "stopped", "by command")
            elif self.members.state(name) is State.REGROUPING and not self.apply_leaving_verdict(name):
                self.members.resume(name)

    def apply_leaving_verdict(self, name: str) -> bool:
        """End or rest a member if that is its verdict; return whether it did."""
        if (verdict := self.decisions.leaving_verdict(name)) is not None:
            self.apply_verdict(name, verdict)
        return verdict is not None

    def settle_undecided(self) -> None:
        """End or rest members for which an earlier driver did not journal it."""
        for name in self.decisions.undecided():
            self.apply_leaving_verdict(name)

    def call_resting(self) -> None:
        """Let resting members that a judge calls wait for a device, or end."""
        for name in self.decisions.called():
            verdict = self.positions.verdict(name)
            if verdict.fate is Fate.END:
                self.end(name, "done", verdict.reason)
            else:
                self.members.call(name)
                self.make_room()

    # ---- members that join

    def write_joined(self, names: list[str]) -> None:
        """Write members that joined to study.json."""
        self.members.mark_written(names)
        self.run.identity.add(self.run.study, names, shapes=self.cost_table.shapes)

    def refuse(self, addition: str, why: str) -> None:
        """Refuse a command that added members, and remove these."""
        names = self.members.by_addition()[addition]
        self.members.remove(names)
        self.positions.remove(names)
        self.cost_table.remove(names)
        self.pool.forget_members(names)
        self.run.view.study(self.run.study)
        self.run.write_study()
        self.answer(addition, f"{REFUSED}{why}")

    def inherit(self, cloned: Cloned) -> None:
        """Link the checkpoint that a clone begins with, then journal the clone."""
        link_checkpoint(self.run.directory, cloned)
        self.record(cloned)

    def journal_newcomers(self, brought: Iterable[Newcomer]) -> None:
        """Journal members of a search, each after linking the checkpoint that it begins with."""
        for new in brought:
            if new.cloned is not None:
                link_checkpoint(self.run.directory, new.cloned)
                self.cost_table.copy_costs(new.cloned)
            self.record(*new.events)
        # Before study.json names them, because the next driver compares it with the journal.
        self.run.journal.commit()

    # ---- losses

    def set_micro_batches(self, member: str, parts: int) -> None:
        """Split a member's batches into this many micro-batches from now on."""
        self.record(Divided(member=member, accumulate=parts))
        self.cost_table.note_divided(member)

    def record_recovery(self, trainer: str, lost: Sequence[str], way: RecoveryWay, costs: Mapping[str, float]) -> None:
        """Journal how the members of a lost trainer continue."""
        self.record(Recovered(worker=trainer, members=tuple(lost), way=way, costs=costs))

    def record_loss(self, worker: str, detail: str, *, suspects: Iterable[str] = ()) -> None:
        """Journal the loss of a worker, or of a group or exchange that it was part of."""
        self.record(WorkerLost(worker=worker, detail=detail, suspects=tuple(suspects)))
        self.run.tolerance.count_worker_loss(worker, detail)

    def give_up(self, node: str, why: str, *, answers: bool) -> list[str]:
        """Continue without a node; return its devices."""
        run = self.run
        run.cluster = run.cluster.without(node)
        remaining = ", ".join(other.name for other in run.cluster.nodes)
        self.record(WorkerLost(worker=node, detail=f"given up, {why}; the run continues with {remaining}"))
        return self.pool.abandon(node, answers=answers)

    def unassign_lost(self, device: str) -> list[str]:
        """Take the members of a lost trainer out of its assignment; return those that it was training or saving.

        Members that were about to start there wait again, immediately or once they are saved.
        """
        gone = self._unsaved(device)
        off = list(gone)
        for leg in self.legs.live:
            names = list(leg.assignments[device].members) if device in leg.assignments else []
            starting = leg.starting.pop(device, None)
            gone += [name for name in names if starting is None or name not in starting.start]
            off += names
        self._remove(device, gone, off)
        return gone

    def drop_unsaved(self, device: str) -> list[str]:
        """Return the members that a lost trainer had to save, if their legs do not regroup: they will have no new file."""
        gone = self._unsaved(device)
        for leg in self.legs.live:
            leg.starting.pop(device, None)
        self._remove(device, gone, gone)
        return gone

    def _unsaved(self, device: str) -> list[str]:
        """Return the members that a lost trainer, or one of an abandoned node, had to save."""
        leaving = self.members.leaving
        return [name for name, its in leaving.items() if its.device == device or not self.pool.has_worker(its.device)]

    def _remove(self, device: str, gone: Collection[str], off: Collection[str]) -> None:
        """Handle the loss of a device's trainer: members in `gone` will have no new file, and those in `off` leave their leg."""
        self.members.regroup(gone)
        for leg in self.legs.live:
            removed = [name for name in off if leg.remove(name)]
            # The leg's last credit may name the device although its members have ended since.
            if (removed or device in leg.readers) and leg.devices and not leg.holding_feeders:
                # Its feeders wait for a lost reader. Feeders that were asked to hold get their credit once they have answered.
                self.give_credit(leg, leg.until)
                self.predictions.change(leg, ())
        for name in off:
            if name not in gone:
                self.members.unassign(name)
        for name in gone:
            self._unblock_assignments(name)

    def begin_recovery(self, names: Collection[str], leg: LiveLeg | None) -> None:
        """Let lost members wait for a device, to rejoin their leg, which is held for them, or to continue apart."""
        self.members.begin_recovery(names, 0 if leg is None else leg.number)
        if leg is not None:
            self.hold(leg, multiple=1)

    # ---- regroupings

    def regroup(self, legs: Iterable[LiveLeg] | None) -> list[str]:
        """Let the trainers of some or all legs save and release their members; return these trainers."""
        chosen = self.legs.live if legs is None else self._paused_with(legs)
        new = [leg for leg in chosen if leg.gate is not Gate.REGROUPING]
        numbers = None if legs is None else {leg.number for leg in new}
        leaving = {name: its for name, its in self.members.leaving.items() if numbers is None or its.leg in numbers}
        # Each once: a member that moves within its leg is in both lists.
        self.members.regroup(dict.fromkeys([*leaving, *(name for leg in new for name in leg.members)]))
        devices = [*(its.device for its in leaving.values())]
        for leg in new:
            devices += [*leg.devices, *leg.starting]
            leg.starting.clear()  # Assignments that have not started take no part in it.
            leg.gate = Gate.REGROUPING
        busy = [device for device in dict.fromkeys(devices) if self.pool.has_worker(device)]
        self.send(dict.fromkeys(busy, Pause()))
        return busy

    def _paused_with(self, legs: Iterable[LiveLeg]) -> list[LiveLeg]:
        """Return these legs and those whose devices still save their members, because a trainer that pauses releases all its members."""
        paused = list(legs)
        for leg in paused:  # the list grows meanwhile, so legs that are paused with those found are found too
            savers = {its.device for its in self.members.leaving.values() if its.leg == leg.number}
            paused += [
                other for other in self.legs.live if other not in paused and savers & {*other.devices, *other.starting}
            ]
        return paused

    def record_paused(self, names: Iterable[str], reason: str) -> None:
        """Journal members that are saved when the run is paused."""
        self.record(*(MemberEnded(member=name, status="paused", reason=reason) for name in names))

    def end_rejoining(self, leg: LiveLeg) -> None:
        """Note that no member will rejoin this leg any more."""
        self.members.end_recovery(self.members.rejoining(leg.number))


class ActingPart(DriverPart):
    """Base class of the parts that decide what changes: with the queries that they ask, and what carries their decisions out."""

    def __init__(self, run: Run, carry_out: CarryOut) -> None:
        super().__init__(run)
        self.carry_out = carry_out
        self.decisions: Decisions = carry_out.decisions
        self.predictions: Predictions = carry_out.predictions
