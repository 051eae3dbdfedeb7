"""The members of a run: which wait for devices, where each goes on, and who joins later."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from argosy.commands import Leg, StartMember
from argosy.report import RunState
from argosy.running.launcher import Job
from argosy.running.refusals import check_batches
from argosy.running.resume import Resume, leg_for, resume_points
from argosy.running.studyfile import load_study
from argosy.study import Member, Study

__all__ = ["Roster"]


class Roster:
    """Members by name; what has become of them is in the run's state."""

    def __init__(self, job: Job, state: RunState) -> None:
        self.job = job
        self.state = state
        self.waiting: list[str] = []
        """Members that train nowhere, in the order of the study."""
        self.accumulate: dict[str, int] = {}
        """Micro-batches of members whose device has too little memory for their own number."""
        self._points: dict[str, Resume] = {}

    @property
    def study(self) -> Study:
        """With the members that were added."""
        return self.job.study

    def begin(self) -> None:
        """Find who is to train, and from where on; members that an earlier driver added are here again."""
        for answered in self.state.answered:
            if answered.command["command"] == "add" and answered.answer.startswith("added"):
                self.extend(Path(answered.command["study"]))
        self.waiting = self.unfinished()
        self._find_points()

    def unfinished(self) -> list[str]:
        """Members that have epochs before them."""
        return [member.name for member in self.study.members if self._unfinished(member)]

    def extend(self, path: Path) -> list[str]:
        """Take up the members of another study file that are not here yet; returns their names."""
        here, other = {member.name for member in self.study.members}, load_study(path)
        new = [replace(m, stop=other.stop_of(m)) for m in other.members if m.name not in here]
        self.job = replace(self.job, study=replace(self.study, members=(*self.study.members, *new)))
        return [member.name for member in new]

    def take_back(self, live: Collection[str]) -> None:
        """These members train no more for the moment, and wait with the others."""
        self.waiting = [m.name for m in self.study.members if m.name in live or m.name in self.waiting]
        self._find_points()

    def let_join(self, lengths: Mapping[str, int]) -> list[str]:
        """Members that were added wait from now on; they begin with the first stream epoch that nobody has begun."""
        new = [m.name for m in self.study.members if m.name not in self._points and self._unfinished(m)]
        if new:
            check_batches(map(self.study.member, new), lengths)
            begun = [
                p.stream_epoch + (p.checkpoint is not None and p.checkpoint.position > 0) for p in self._points.values()
            ]
            self._points.update({name: Resume(member=name, stream_epoch=max(begun)) for name in new})
            self.waiting += new
        return new

    def start_member(self, name: str, notes: Iterable[str]) -> StartMember:
        """What its trainer has to know of it."""
        point = self._points[name]
        best = self.state.member(name).best(self.study.objective, self.study.mode or "min")
        return StartMember(
            member=name,
            stream_epoch=point.stream_epoch,
            checkpoint=point.checkpoint,
            best=best.checkpoint.file if best else None,
            accumulate=self.accumulate.get(name, self.study.member(name).accumulate),
            notes=(*notes, *point.notes),
        )

    def leg_for(self, members: Iterable[str], lengths: Mapping[str, int], *, number: int) -> Leg:
        """The stretch of the stream that these members need together."""
        return leg_for(self.study, [self._points[name] for name in members], lengths, number=number)

    def _find_points(self) -> None:
        states = [self.state.member(name) for name in self.waiting]
        self._points.update(resume_points(states, self.job.directory))

    def _unfinished(self, member: Member) -> bool:
        state = self.state.member(member.name)
        if state.status in ("failed", "diverged", "stopped"):
            return False
        return self.study.stop_of(member).reason(state.history) is None
