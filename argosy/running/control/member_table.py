"""The members of a run: which wait for devices, which rest, where each goes on, and who joins later."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from argosy.errors import RunError, StudyError
from argosy.protocol.events import Assigned, Retried
from argosy.protocol.feeder import Leg
from argosy.protocol.trainer import StartMember
from argosy.results.fold import WRONG, RunState
from argosy.running.control.clones import Clone
from argosy.running.control.resume import Resume, last_section, leg_for, resume_point, resume_points
from argosy.running.control.verdicts import Fate, Judge, Rules, judge
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.directory.studyfile import load_copy
from argosy.running.launch.launcher import Job
from argosy.stopping import sections_in
from argosy.stream.schedule import section_start
from argosy.study import Member, Study

__all__ = ["FINAL", "MemberTable"]

FINAL = ("stopped", *WRONG)
"""Statuses of members that no further epochs bring back."""


class MemberTable:
    """Members by name; what has become of them is in the run's state."""

    def __init__(self, job: Job, state: RunState, judges: Sequence[Judge] = (Rules(),)) -> None:
        self.job = job
        self.state = state
        self.judges = judges
        self.waiting: list[str] = []
        """Members that train nowhere and want to, in the order of the study."""
        self.resting: set[str] = set()
        """Members that train nowhere until somebody calls them."""
        self.joining: set[str] = set()
        """Those of the waiting whose next stream epoch is not settled: they begin with the next of whoever trains."""
        self.retried: tuple[str, ...] = ()
        """Members that had failed, and are tried again."""
        self._points: dict[str, Resume] = {}
        self._order: dict[str, int] = {}

    @property
    def study(self) -> Study:
        """With the members that were added."""
        return self.job.study

    # ---- who there is

    def begin(self) -> None:
        """Find who is to train, and from where on; members that an earlier driver added are here again."""
        added: list[str] = []
        for answered in self.state.answered:
            members = [] if answered.refused else self._added(answered.command)
            self.extend(members)
            added += [member.name for member in members]
        self._number()
        if self.job.settings.retry_failed:
            self.retried = tuple(name for name in self.study.names if self.state.member(name).status == "failed")
            self.state.apply(Retried(members=self.retried))
        self.resting = {
            name
            for name, state in self.state.members.items()
            if name in self.study.names and state.status == "resting" and state.reason
        }
        self.waiting = [name for name in self.unfinished() if name not in self.resting]
        states = [self.state.member(name) for name in self.unfinished()]
        self._points.update(resume_points(states, self.job.directory))
        late = (*added, *self.state.brought)
        self.joining = {name for name in late if name in self._points and not self.state.member(name).begun}
        begun = self._begun()
        for name in self.joining:
            self._points[name] = replace(self._points[name], stream_epoch=begun)

    def _added(self, command: Mapping[str, Any]) -> list[Member]:
        """Members that a command has brought; raises RunError for a clone of nobody."""
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

    def unfinished(self) -> list[str]:
        """Members that have epochs before them."""
        return [member.name for member in self.study.members if self._unfinished(member)]

    def newcomers(self, other: Study) -> list[Member]:
        """The members of another study that are not here yet."""
        return [replace(m, stop=other.stop_of(m)) for m in other.members if m.name not in self.study.names]

    def check_new(self, name: str) -> None:
        """Raise StudyError for a newcomer's name under which a member has trained that the study leaves out."""
        known = self.state.members.get(name)
        if known is not None and known.begun and name not in self.study.names:
            raise StudyError(
                f"a member {name!r} has trained in this run, and its study leaves it out; put that one back into the study, or "
                "give the new one another name."
            )

    def extend(self, members: Sequence[Member]) -> None:
        """Take these up; raises StudyError where they do not go with the study's terms."""
        self.job = replace(self.job, study=replace(self.study, members=(*self.study.members, *members)))
        self._number()

    def dismiss(self, names: Iterable[str]) -> None:
        """Members that were taken up, and have come to nothing, are here no more."""
        names = set(names)
        left = tuple(member for member in self.study.members if member.name not in names)
        self.job = replace(self.job, study=replace(self.study, members=left))
        self.leave(names)

    def enter(self, names: Iterable[str]) -> None:
        """Members that were added wait from now on."""
        names, begun = tuple(names), self._begun()
        for name in names:
            in_step = name in self.state.in_step
            self._points[name] = Resume(member=name, stream_epoch=0 if in_step else begun)
            if not in_step:
                self.joining.add(name)
            if self.state.member(name).inherited is not None:
                self._find_points([name])
        self._wait(names)

    def _begun(self) -> int:
        """The first stream epoch that nobody has begun."""
        return max((p.stream_epoch + (not p.at_an_epochs_end) for p in self._points.values()), default=0)

    # ---- who goes where

    def take_back(self, names: Collection[str]) -> None:
        """These members train no more for the moment, and wait with the others."""
        self._find_points(names)
        self._wait(names)

    def rest(self, name: str) -> None:
        """This one trains no more until it is called."""
        self._find_points([name])
        self.resting.add(name)

    def call(self, name: str) -> None:
        """A resting member wants to train again, beside whoever does; in the middle of an epoch where it was."""
        self.resting.discard(name)
        if self._points[name].at_an_epochs_end and name not in self.state.in_step:
            self.joining.add(name)
        self._wait([name])

    def leave(self, names: Iterable[str]) -> None:
        """These wait no longer."""
        names = set(names)
        self.waiting = [name for name in self.waiting if name not in names]
        self.resting -= names
        self.joining -= names

    def place(self, name: str) -> int:
        """The section of the stream that a member goes on in."""
        point = self._points[name]
        return point.stream_epoch * self.study.validations_per_epoch + point.section

    def join(self, names: Iterable[str], stream_epoch: int) -> None:
        """These begin their next epoch with this one of the stream; never again one that is behind them."""
        for name in self.joining & set(names):
            point = self._points[name]
            if point.stream_epoch <= stream_epoch:
                self._points[name] = replace(point, stream_epoch=stream_epoch)

    def level(self, names: Collection[str]) -> None:
        """These begin their next epochs together, with that of the foremost; who is in the middle of an epoch goes on where it is."""
        foremost = max(self._points[name].stream_epoch for name in names)
        for name in names:
            if self._points[name].at_an_epochs_end:
                self._points[name] = replace(self._points[name], stream_epoch=foremost)

    def assign(self, names: Iterable[str]) -> Assigned | None:
        """What is to be journaled before these members train: their stream epochs from here on; None where it is known."""
        new = {}
        for name in names:
            point = self._points[name]
            if not self.state.member(name).follows(point.epoch, point.stream_epoch):
                new[name] = (point.epoch, point.stream_epoch)
        return Assigned(members=new) if new else None

    def start_member(self, name: str, notes: Iterable[str]) -> StartMember:
        """What its trainer has to know of it."""
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
        )

    def number(self, name: str) -> int:
        """Of a member in the study."""
        return self._order[name]

    def accumulate(self, name: str) -> int:
        """Micro-batches per step: the member's own number, or more where its device had too little memory."""
        return self.state.member(name).accumulate or self.study.member(name).accumulate

    def leg_for(self, members: Iterable[str], lengths: Mapping[str, int], *, number: int) -> Leg:
        """The stretch of the stream that these members need together."""
        return leg_for(self.study, [self._points[name] for name in members], lengths, number=number)

    def samples_until(self, section: int, members: Iterable[str], lengths: Mapping[str, int]) -> int:
        """Of the stream, from where the least advanced of these goes on to where a section begins."""
        length, per_epoch = lengths["train"], self.study.validations_per_epoch
        here = self.leg_for(members, lengths, number=0)
        passed = here.section // per_epoch * length + here.position
        return max(section // per_epoch * length + section_start(section, length, per_epoch) - passed, 0)

    def last_section(self, name: str) -> int | None:
        """The first section of the stream that a member surely does not want, as it is assigned."""
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
        """Whether nobody can end or rest a member before its limit, whatever comes of it."""
        bound = self.study.stop_of(self.study.member(name)).max_epochs
        if bound is None:
            return False
        left = sections_in(bound - self.state.member(name).epochs, self.study.validations_per_epoch)
        return judge(self.judges, name, self.state, self.study).certain >= left

    def _wait(self, names: Iterable[str]) -> None:
        here = {*self.waiting, *names}
        self.waiting = sorted(here, key=self._order.__getitem__)

    def _number(self) -> None:
        self._order = {member.name: number for number, member in enumerate(self.study.members)}

    def _find_points(self, names: Iterable[str]) -> None:
        """Files of this run need no second look; their trainers have flushed them before they said so."""
        for name in names:
            self._points[name] = resume_point(self.state.member(name), self.job.directory, proved=True)

    def _unfinished(self, member: Member) -> bool:
        state = self.state.member(member.name)
        if state.status in FINAL:
            return False
        if judge(self.judges, member.name, self.state, self.study).fate is not Fate.END:
            return True
        # Who has trained enough and was not saved then is not over: the file is what a person gets.
        return bool(state.sections) and not state.saved_at_its_end
