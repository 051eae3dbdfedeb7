"""Where in the stream members continue: from which checkpoint, in which stream epoch, and how far at most."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from argosy.errors import RunError, StudyError
from argosy.protocol.events import Assigned, Retried
from argosy.protocol.feeder import Leg, ShardMark
from argosy.protocol.trainer import StartMember
from argosy.results.fold import CUT_SHORT_STATUSES, RunState
from argosy.running.control.resume import ResumePoint, resume_point, resume_points
from argosy.running.control.verdicts import Fate, Judge, StoppingRules, Verdict, combine_verdicts
from argosy.running.directory.clone import Clone
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.directory.studyfile import load_copy
from argosy.running.launch.launcher import Job
from argosy.stopping import sections_in
from argosy.stream.order import Selection, split_order
from argosy.stream.schedule import samples_before, section_start
from argosy.study import Member, Study

__all__ = ["Positions"]

OF_TRIAL = re.compile(r"(.*)-(\d+)(-s\d+)?(-\w+=.*)?")
"""Name of a member of a trial: what `build` named it, the number, a rung from which it starts from scratch, and a fold or seed."""


class Positions:
    """The study, including added members, and where each of its members continues."""

    def __init__(self, job: Job, state: RunState, judges: Sequence[Judge] = (StoppingRules(),)) -> None:
        self.job: Job = job
        self.state = state
        self.judges = judges
        self.retried: tuple[str, ...] = ()
        """Members that had failed and are tried again."""
        self.unsettled: set[str] = set()
        """Members whose next stream epoch is not determined yet: it will be the next one of the leg that they join."""
        self._points: dict[str, ResumePoint] = {}
        self._order: dict[str, int] = {}

    # ---- the study

    @property
    def study(self) -> Study:
        """The study, including added members."""
        return self.job.study

    def begin(self) -> set[str]:
        """Determine where an earlier driver left all members, including added ones; return the members that rest."""
        added: list[str] = []
        for answered in self.state.answered:
            members = [] if answered.refused else self._added(answered.command)
            self.extend(members)
            added += [member.name for member in members]
        self._check_folders(self.study.names)
        self._number()
        if self.job.settings.retry_failed:
            self.retried = tuple(name for name in self.study.names if self.state.member(name).status == "failed")
            self.state.apply(Retried(members=self.retried))  # journaled by `Driver._begin`, once the data are open
        unfinished = self.unfinished()
        states, is_search = [self.state.member(name) for name in unfinished], bool(self.state.searches)
        self._points.update(resume_points(states, self.job.directory, search=is_search))
        late = (*added, *self.state.brought)
        self.unsettled = {name for name in late if name in self._points and not self.state.member(name).begun}
        first = self._first_unbegun()
        for name in self.unsettled:
            self._points[name] = replace(self._points[name], stream_epoch=first)
        rest = {name for name, its in self.state.members.items() if its.status == "resting" and its.reason}
        return rest.intersection(self.study.names)

    def _added(self, command: Mapping[str, Any]) -> list[Member]:
        """Return the members that a command added; raises RunError for a clone whose source is no longer in the study."""
        match command:
            case {"command": "add"}:
                return self.newcomers(load_copy(StudyCopy.of(command, self.job.directory / "commands")))
            case {"command": "clone"}:
                clone = Clone.of(command)
                if clone.source not in self.study.names:
                    raise RunError(
                        f"clone {clone.name!r} was made from member {clone.source!r}, which is no longer in the "
                        "study. Restore that member."
                    )
                return [clone.member(self.study.member(clone.source))]
        return []

    def newcomers(self, other: Study) -> list[Member]:
        """Return the members of another study that are not in this run yet."""
        return [replace(m, stop=other.stop_of(m)) for m in other.members if m.name not in self.study.names]

    def check_new(self, name: str) -> None:
        """Raise StudyError if a member that the study now leaves out has trained under the name of a new member, or a trial may get it."""
        known = self.state.members.get(name)
        if known is not None and known.begun and name not in self.study.names:
            raise StudyError(
                f"a member {name!r} has already trained in this run, but the run's study no longer contains it. "
                "Restore it in the study, or give the new member another name."
            )
        if self.state.proposed and (parts := OF_TRIAL.fullmatch(name)):
            built = {trial[1] for trial in map(OF_TRIAL.fullmatch, self.state.proposed) if trial}
            # A `build` may name trials by their kind of network, of which there may be none yet.
            if parts[1] in built or int(parts[2]) < self.state.searches[-1].terms["n_trials"]:
                raise StudyError(
                    f"{name!r} is a name for trials of this search. Give the new member another name, without '-{parts[2]}'."
                )
        self._check_folders([*self.study.names, name])

    def _check_folders(self, names: Iterable[str]) -> None:
        """Raise StudyError if two members would share a folder because the disk does not distinguish upper and lower case."""
        if not (self.job.directory / "RUN.LOCK").exists():  # run.lock does
            return
        folders: dict[str, str] = {}
        for name in names:
            other = folders.setdefault(name.casefold(), name)
            if other != name:
                raise StudyError(
                    f"members {other!r} and {name!r} would share one folder: the disk of {self.job.directory} does not distinguish "
                    "upper and lower case. Rename one of them, or choose a directory on another disk."
                )

    def extend(self, members: Sequence[Member]) -> None:
        """Add members to the study; raises StudyError if they contradict it."""
        self.job = replace(self.job, study=replace(self.study, members=(*self.study.members, *members)))
        self._number()

    def remove(self, names: Iterable[str]) -> None:
        """Remove members from the study."""
        names = set(names)
        remaining = tuple(member for member in self.study.members if member.name not in names)
        self.job = replace(self.job, study=replace(self.study, members=remaining))
        self.unsettled -= names

    @property
    def number(self) -> Callable[[str], int]:
        """Returns the index of a member in the study; a built-in function, as it sorts members in every round."""
        return self._order.__getitem__

    def unfinished(self) -> list[str]:
        """Return the members that have to train further."""
        return [member.name for member in self.study.members if self._is_unfinished(member)]

    def _is_unfinished(self, member: Member) -> bool:
        state = self.state.member(member.name)
        if state.status in CUT_SHORT_STATUSES:
            return False
        if self.verdict(member.name).fate is not Fate.END:
            return True
        # A member that has trained enough but was not saved at its end is unfinished: the user gets its file.
        return bool(state.sections) and not state.saved_at_its_end

    def _number(self) -> None:
        self._order = {member.name: number for number, member in enumerate(self.study.members)}

    # ---- changes of where a member continues

    def use_latest_checkpoint(self, name: str) -> None:
        """Let a member continue from its latest checkpoint, which is not verified again because its trainer flushed it before reporting."""
        self._points[name] = resume_point(self.state.member(name), self.job.directory, proved=True)

    def enter(self, names: Iterable[str]) -> None:
        """Let new members begin, or continue from inherited checkpoints, beside the members that train."""
        names, first = tuple(names), self._first_unbegun()
        for name in names:
            in_step = name in self.state.in_step
            self._points[name] = ResumePoint(member=name, stream_epoch=0 if in_step else first)
            if not in_step:
                self.unsettled.add(name)
            if self.state.member(name).inherited is not None:
                self.use_latest_checkpoint(name)

    def call(self, name: str) -> None:
        """Let a resting member continue beside the members that train, at its position if it is in the middle of an epoch."""
        if self._points[name].is_at_epoch_end and name not in self.state.in_step:
            self.unsettled.add(name)

    def mark_settled(self, names: Iterable[str]) -> None:
        """Note that the next stream epochs of these members are determined."""
        self.unsettled.difference_update(names)

    def _first_unbegun(self) -> int:
        """Return the first stream epoch that no member has begun."""
        return max((p.stream_epoch + (not p.is_at_epoch_end) for p in self._points.values()), default=0)

    def join(self, names: Iterable[str], stream_epoch: int) -> None:
        """Let the unsettled ones of these members begin their next epoch with this stream epoch, unless they are already past it."""
        for name in self.unsettled & set(names):
            point = self._points[name]
            if point.stream_epoch <= stream_epoch:
                self._points[name] = replace(point, stream_epoch=stream_epoch)

    def align_epochs(self, names: Collection[str]) -> None:
        """Let members begin their next epochs together with the most advanced; a member in the middle of an epoch continues there."""
        foremost = max(self._points[name].stream_epoch for name in names)
        for name in names:
            if self._points[name].is_at_epoch_end:
                self._points[name] = replace(self._points[name], stream_epoch=foremost)

    # ---- queries

    def verdict(self, name: str) -> Verdict:
        """Return the judges' verdict on a member after its last section."""
        return combine_verdicts(self.judges, name, self.state, self.study)

    def stream_section(self, name: str) -> int:
        """Return the section of the stream in which a member continues."""
        point = self._points[name]
        return point.stream_epoch * self.study.validations_per_epoch + point.section

    def assigned_event(self, names: Iterable[str]) -> Assigned | None:
        """Return the event that journals the next stream epochs of members before they train; None if the journal has them."""
        new = {}
        for name in names:
            point = self._points[name]
            if not self.state.member(name).follows(point.epoch, point.stream_epoch):
                new[name] = (point.epoch, point.stream_epoch)
        return Assigned(members=new) if new else None

    def start_member(self, name: str, notes: Iterable[str]) -> StartMember:
        """Return the message that tells a trainer where a member starts."""
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
        """Return the micro-batches per step: the member's own number, or more after its device ran out of memory."""
        return self.state.member(name).accumulate or self.study.member(name).accumulate

    def leg_for(self, members: Iterable[str], lengths: Mapping[str, int]) -> Leg:
        """Return the part of the stream that these members need together, as a leg without a number."""
        names = tuple(members)
        section = min(map(self.stream_section, names))
        epoch, length = section // self.study.validations_per_epoch, lengths["train"]
        position = min(self.stream_position(name, length) for name in names if self._points[name].stream_epoch == epoch)
        before = [read for read in self.state.shards_read if read.epoch == epoch and read.start <= position]
        newest = {
            mark[0]: ShardMark(*mark) for read in sorted(before, key=lambda read: read.start) for mark in read.marks
        }
        return Leg(number=0, section=section, position=position, marks=tuple(newest.values()))

    def stream_position(self, name: str, length: int) -> int:
        """Return the position in its stream epoch from which a member needs samples."""
        point = self._points[name]
        if point.checkpoint is None or point.is_at_epoch_end:
            return section_start(point.section, length, self.study.validations_per_epoch)
        selection = Selection.of(self.study.member(name).subset, length)
        if selection.multiplicity is None:  # it sees all samples: their order, which takes long to make, is not needed
            return point.elements
        order = split_order(self.study.seed, "train", point.stream_epoch, length, self.state.shards.get("train", ()))
        positions = selection.positions(order)
        assert positions is not None
        # A member at the end of its sequence needs nothing more of the epoch.
        return int(positions[point.elements]) if point.elements < len(positions) else length

    def samples_until(self, section: int, members: Iterable[str], lengths: Mapping[str, int]) -> int:
        """Return the number of stream samples from the least advanced of these members to the beginning of a section."""
        length, per_epoch = lengths["train"], self.study.validations_per_epoch
        start = self.leg_for(members, lengths)
        passed = start.section // per_epoch * length + start.position
        return max(samples_before(section, length, per_epoch) - passed, 0)

    def end_section(self, name: str) -> int | None:
        """Return the first section of the stream that a member certainly does not need; None if no rule determines one."""
        point, per_epoch = self._points[name], self.study.validations_per_epoch
        ends = []
        if (bound := self.study.stop_of(self.study.member(name)).max_epochs) is not None:
            ends.append((point.stream_epoch - point.epoch) * per_epoch + sections_in(bound, per_epoch))
        if (longest := self.verdict(name).longest) is not None:
            ends.append(self.stream_section(name) + longest)
        return min(ends, default=None)

    def epochs_left(self, name: str) -> int | None:
        """Return the epochs until the member's limit, counting a partial epoch as a whole; None without a limit."""
        bound = self.study.stop_of(self.study.member(name)).max_epochs
        return None if bound is None else max(math.ceil(bound - self.state.member(name).epochs), 0)

    def is_sure_to_reach_limit(self, name: str) -> bool:
        """Return whether no judge can end or rest a member before its limit, whatever its results."""
        bound = self.study.stop_of(self.study.member(name)).max_epochs
        if bound is None:
            return False
        sections_left = sections_in(bound - self.state.member(name).epochs, self.study.validations_per_epoch)
        return self.verdict(name).certain >= sections_left
