"""Runs one study of `crews.py` in a process of its own: reads instructions from a JSON file and writes its figures to another.

A script says which members each device has in each epoch of the stream. The policy of this file places members
accordingly, and its judge rests and calls them. Members that leave the script end by their rule; those that enter it
are added by a command.
"""

import json
import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from small_study import Gauge, member, run, study

from argosy.planning import POLICIES, Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile
from argosy.protocol.events import Event, MemberRested, MemberStarted
from argosy.results.fold import RunState
from argosy.running.control import additions
from argosy.running.control.rehearsal import RehearsalResult
from argosy.running.control.verdicts import GO_ON, Fate, Verdict
from argosy.running.directory.studyfile import StudyCopy
from argosy.running.launch.launcher import Workers
from argosy.settings import Settings
from argosy.stopping import MaxEpochs
from argosy.study import Study

__all__ = ["Scripted"]

Script = Sequence[Mapping[str, Sequence[str]]]
"""The members of each device for each epoch of the stream."""


class Scripted:
    """A policy that places members as a script says."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Place the members of the epoch that assigned members are at; when a run begins, of the earliest epoch."""
        assigned = [name for name in situation.homes if name in situation.epochs_done]
        epoch = min(situation.epochs_done[name] for name in assigned or situation.epochs_done)
        profiles = {p.member: p for p in situation.waiting if situation.epochs_done[p.member] == epoch}
        free = {device.name for device in situation.free}  # after a loss, others may still train on the other devices
        placements = [
            Placement.whole(profiles[name], device)
            for device, crew in self.script[min(epoch, len(self.script) - 1)].items()
            for name in crew
            if name in profiles and device in free
        ]
        return (Flotilla(placements=tuple(placements)),) if placements else ()

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return False, so that the policy is asked at every barrier."""
        return False


class Cues:
    """A judge who rests and calls members as a script says: a member that is not in the next epoch's script rests."""

    def __init__(self, script: Script) -> None:
        self.assigned = [{name for crew in crews.values() for name in crew} for crews in script]
        self._coming = 0
        """The epoch of the stream after the last one that a member has ended."""

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """See `Judge.verdict`."""
        sections = state.member(member).sections
        if sections:
            self._coming = max(self._coming, sections[-1].stream_epoch + 1)
        return GO_ON if self._is_due(member, state) else Verdict(Fate.REST, "as the script says")

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """See `Judge.called`."""
        return [name for name in resting if self._is_due(name, state)]

    def _is_due(self, member: str, state: RunState) -> bool:
        """Return whether one of the member's epochs comes next; after a fault, whether one is to be trained again."""
        sections = state.member(member).sections
        own = range(sections[-1].stream_epoch + 1 if sections else 0, min(self._coming + 1, len(self.assigned)))
        return any(member in self.assigned[epoch] for epoch in own)


class Killer:
    """Kills, once, the trainer that a given member has just started on, before the member can be saved."""

    def __init__(self, victim: str | None) -> None:
        self.victim = victim
        self.workers: Any = None

    def opened(self, workers: Workers) -> None:
        """Keep the pool, to find processes."""
        self.workers = workers

    def handle(self, event: Event) -> None:
        """Kill the trainer when the member starts."""
        if isinstance(event, MemberStarted) and event.member == self.victim:
            self.victim = None
            os.kill(self.workers.workers[event.device].pid, signal.SIGKILL)


class Trusted:
    """Replaces the process that tries added files, so that members join in the epoch that the script says."""

    def __init__(self, files: Collection[str]) -> None:
        self.files = files

    @classmethod
    def start(cls, copies: Mapping[str, StudyCopy]) -> "Trusted":
        """See `Rehearsal.start`."""
        return cls(copies.keys())

    def results(self) -> dict[str, RehearsalResult]:
        """See `Rehearsal.results`."""
        return {file: RehearsalResult() for file in self.files}

    def close(self) -> None:
        """See `Rehearsal.close`."""


def main() -> None:
    additions.Rehearsal = Trusted
    told = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    script, killer = told["script"], Killer(told["victim"])
    members = [member(name, stop=MaxEpochs(epochs)) for name, epochs in told["members"].items()]
    asked = study(members, samples=told["samples"], val=told["val"], epochs=told["epochs"], sections=told["sections"])
    policy = "balanced"
    if script:
        policy, POLICIES["scripted"] = "scripted", Scripted(script)
    gauge = Gauge(count=len(members) + told["added"], act=killer.handle)
    first = {name for crew in script[0].values() for name in crew} if told["cues"] else set(told["members"])
    run(
        asked,
        Settings(
            devices=told["devices"],
            policy=policy,
            checkpoint_seconds=told["checkpoint_seconds"],
            numerics="exact",
        ),
        Path(told["directory"]),
        view=gauge,
        judges=[Cues(script)] if told["cues"] else [],
        at_rest=[
            MemberRested(member=name, reason="its turn comes later") for name in told["members"] if name not in first
        ],
        opened=killer.opened,
    )
    Path(sys.argv[2]).write_text(json.dumps(gauge.figures()))


if __name__ == "__main__":
    main()
