"""Where in the stream members go on: at their newest files, on which stream epochs, and how far they go at most."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from argosy.errors import RunError, StudyError
from argosy.protocol.events import Assigned, Retried
from argosy.protocol.feeder import Leg, ShardMark
from argosy.protocol.trainer import StartMember
from argosy.results.fold import WRONG, RunState
from argosy.running.control.clone import Clone
from argosy.running.control.resume import Resume, last_section, leg_for, resume_point, resume_points
from argosy.running.control.verdicts import Fate, Judge, Rules, judge
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.directory.studyfile import load_copy
from argosy.running.launch.launcher import Job
from argosy.stopping import sections_in
from argosy.stream.schedule import section_start
from argosy.study import Member, Study

__all__ = ["FINAL", "Positions"]

FINAL = ("stopped", *WRONG)
"""Statuses of members that no further epochs bring back."""


class Positions:
    """The study, with the members that were added, and where each of its members goes on."""

    def __init__(self, job: Job, state: RunState, judges: Sequence[Judge] = (Rules(),)) -> None:
        self.job: Job = job
        self.state = state
        self.judges = judges
        self.retried: tuple[str, ...] = ()
        """Members that had failed, and are tried again."""
        self.unsettled: set[str] = set()
        """Members whose next stream epoch is not settled: it is the next one of the leg that they join."""
        self._points: dict[str, Resume] = {}
        self._order: dict[str, int] = {}

    # ---- the study

    @property
    def study(self) -> Study:
        """With the members that were added."""
        return self.job.study

    def begin(self) -> set[str]:
        """Find where an earlier driver has left the members, those included that it added; return those that rest."""
        added: list[str] = []
        for answered in self.state.answered:
            members = [] if answered.refused else self._added(answered.command)
            self.extend(members)
            added += [member.name for member in members]
        self._number()
        if self.job.settings.retry_failed:
            self.retried = tuple(name for name in self.study.names if self.state.member(name).status == "failed")
            self.state.apply(Retried(members=self.retried))
        unfinished = self.unfinished()
        self._points.update(resume_points([self.state.member(name) for name in unfinished], self.job.directory))
        late = (*added, *self.state.brought)
        self.unsettled = {name for name in late if name in self._points and not self.state.member(name).begun}
        first = self._first_unbegun()
        for name in self.unsettled:
            self._points[name] = replace(self._points[name], stream_epoch=first)
        rest = {name for name, its in self.state.members.items() if its.status == "resting" and its.reason}
        return rest.intersection(self.study.names)

    def _added(self, command: Mapping[str, Any]) -> list[Member]:
        """Members that a command has brought; raises RunError for a clone whose source is gone."""
        match command:
            case {"command": "add"}:
                return self.newcomers(load_copy(StudyCopy.of(command, self.job.directory / "commands")))
            case {"command": "clone"}:
                clone = Clone.of(command)
                if clone.source not in self.study.names:
                    raise RunError(
                        f"clone {clone.name!r} was made of {clone.source!r}, which is not in the study: put it back."
                    )
                return [clone.member(self.study.member(clone.source))]
        return []

    def newcomers(self, other: Study) -> list[Member]:
        """The members of another study that are not here yet."""
        return [replace(m, stop=other.stop_of(m)) for m in other.members if m.name not in self.study.names]

    def check_new(self, name: str) -> None:
        """Raise StudyError for the name of a new member under which a member has trained that the study leaves out."""
        known = self.state.members.get(name)
        if known is not None and known.begun and name not in self.study.names:
            raise StudyError(
                f"a member {name!r} has trained in this run, and its study leaves it out; put that one back into the study, or "
                "give the new one another name."
            )

    def extend(self, members: Sequence[Member]) -> None:
        """Take these into the study; raises StudyError where they do not go with its terms."""
        self.job = replace(self.job, study=replace(self.study, members=(*self.study.members, *members)))
        self._number()

    def remove(self, names: Iterable[str]) -> None:
        """The study is without these again."""
        names = set(names)
        left = tuple(member for member in self.study.members if member.name not in names)
        self.job = replace(self.job, study=replace(self.study, members=left))
        self.unsettled -= names

    def number(self, name: str) -> int:
        """The place of a member in the study's order."""
        return self._order[name]

    def unfinished(self) -> list[str]:
        """Members that have epochs before them."""
        return [member.name for member in self.study.members if self._unfinished(member)]

    def _unfinished(self, member: Member) -> bool:
        state = self.state.member(member.name)
        if state.status in FINAL:
            return False
        if judge(self.judges, member.name, self.state, self.study).fate is not Fate.END:
            return True
        # A member that has trained enough and was not saved then is not over: the file is what a person gets.
        return bool(state.sections) and not state.saved_at_its_end

    def _number(self) -> None:
        self._order = {member.name: number for number, member in enumerate(self.study.members)}

    # ---- what settles where a member goes on

    def find(self, name: str) -> None:
        """A member goes on from its newest file, which needs no second look: its trainer has flushed it before it said so."""
        self._points[name] = resume_point(self.state.member(name), self.job.directory, proved=True)

    def enter(self, names: Iterable[str]) -> None:
        """New members begin, or go on from files that they inherit, beside whatever trains."""
        names, first = tuple(names), self._first_unbegun()
        for name in names:
            in_step = name in self.state.in_step
            self._points[name] = Resume(member=name, stream_epoch=0 if in_step else first)
            if not in_step:
                self.unsettled.add(name)
            if self.state.member(name).inherited is not None:
                self.find(name)

    def call(self, name: str) -> None:
        """A member that rested goes on beside whatever trains; in the middle of an epoch where it was."""
        if self._points[name].at_an_epochs_end and name not in self.state.in_step:
            self.unsettled.add(name)

    def settled(self, names: Iterable[str]) -> None:
        """The next stream epochs of these are what they are."""
        self.unsettled.difference_update(names)

    def _first_unbegun(self) -> int:
        """The first stream epoch that no member has begun."""
        return max((p.stream_epoch + (not p.at_an_epochs_end) for p in self._points.values()), default=0)

    def join(self, names: Iterable[str], stream_epoch: int) -> None:
        """Let the unsettled of these begin their next epoch with this one of the stream, but never with one behind them."""
        for name in self.unsettled & set(names):
            point = self._points[name]
            if point.stream_epoch <= stream_epoch:
                self._points[name] = replace(point, stream_epoch=stream_epoch)

    def level(self, names: Collection[str]) -> None:
        """Let these begin their next epochs together with the foremost; a member in the middle of an epoch goes on where it is."""
        foremost = max(self._points[name].stream_epoch for name in names)
        for name in names:
            if self._points[name].at_an_epochs_end:
                self._points[name] = replace(self._points[name], stream_epoch=foremost)

    # ---- questions

    def place(self, name: str) -> int:
        """The section of the stream that a member goes on in."""
        point = self._points[name]
        return point.stream_epoch * self.study.validations_per_epoch + point.section

    def assigned(self, names: Iterable[str]) -> Assigned | None:
        """What is to be journaled before these train: their stream epochs from here on; None where the journal has it."""
        new = {}
        for name in names:
            point = self._points[name]
            if not self.state.member(name).follows(point.epoch, point.stream_epoch):
                new[name] = (point.epoch, point.stream_epoch)
        return Assigned(members=new) if new else None

    def start_member(self, name: str, notes: Iterable[str]) -> StartMember:
        """What its trainer has to know of a member."""
        point, state = self._points[name], self.state.member(name)
        return StartMember(
            member=name,
            epoch=point.epoch,
            stream_epoch=point.stream_epoch,
            checkpoint=point.checkpoint,
            accumulate=self.accumulate(name),
            changes=state.changes if point.checkpoint and point.checkpoint == state.inherited else None,
            notes=(*notes, *point.notes),
            packed=self.state.member(name).packed,
            careful=self.state.suspects.get(name),
        )

    def accumulate(self, name: str) -> int:
        """Micro-batches per step: the member's own number, or more where its device had too little memory."""
        return self.state.member(name).accumulate or self.study.member(name).accumulate

    def leg_for(self, members: Iterable[str], lengths: Mapping[str, int], *, number: int) -> Leg:
        """The stretch of the stream that these members need together."""
        shards = self.state.shards.get("train", ())
        leg = leg_for(self.study, [self._points[name] for name in members], lengths, shards, number=number)
        epoch = leg.section // self.study.validations_per_epoch
        before = [read for read in self.state.shards_read if read.epoch == epoch and read.start <= leg.position]
        newest = {
            mark[0]: ShardMark(*mark) for read in sorted(before, key=lambda read: read.start) for mark in read.marks
        }
        return replace(leg, marks=tuple(newest.values()))

    def samples_until(self, section: int, members: Iterable[str], lengths: Mapping[str, int]) -> int:
        """Samples of the stream from where the least advanced of these goes on to where a section begins."""
        length, per_epoch = lengths["train"], self.study.validations_per_epoch
        here = self.leg_for(members, lengths, number=0)
        passed = here.section // per_epoch * length + here.position
        return max(section // per_epoch * length + section_start(section, length, per_epoch) - passed, 0)

    def last_section(self, name: str) -> int | None:
        """The first section of the stream that a member surely does not want; None where no rule knows one."""
        longest = judge(self.judges, name, self.state, self.study).longest
        last = last_section(self.study, self._points[name])
        if longest is None:
            return last
        here = self.place(name) + longest
        return here if last is None else min(here, last)

    def epochs_left(self, name: str) -> int | None:
        """Epochs until the member's limit, begun ones whole; None where its rule knows none."""
        bound = self.study.stop_of(self.study.member(name)).max_epochs
        return None if bound is None else max(math.ceil(bound - self.state.member(name).epochs), 0)

    def surely_reaches_its_limit(self, name: str) -> bool:
        """Whether no judge can end or rest a member before its limit, whatever comes of it."""
        bound = self.study.stop_of(self.study.member(name)).max_epochs
        if bound is None:
            return False
        left = sections_in(bound - self.state.member(name).epochs, self.study.validations_per_epoch)
        return judge(self.judges, name, self.state, self.study).certain >= left
