"""The invariants of a run: what must hold after every round of its driver, and at its end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argosy.results.fold import MemberState, RunState
from argosy.running.control.driver import Driver
from argosy.running.control.legs import Gate, LiveLeg
from argosy.running.control.members import LEAVING_STATES, Leaving, State
from argosy.running.directory.journal import read_journal
from argosy.stream.schedule import section_stop
from argosy.study import Study
from simulation.counting import weight_after
from simulation.scenario import Scenario

__all__ = ["agrees", "ends_well", "holds"]

ENDED = ("done", "stopped", "failed", "diverged")
TO_START = frozenset({State.STARTING, State.MOVING})
"""The states in which an assignment waits for a member."""
IN_A_LEG = TO_START | {State.ASSIGNED}
PLACES = tuple(State)


def agrees(driver: Driver, name: str, leg: LiveLeg | None, leaving: Leaving | None) -> None:
    """Raise AssertionError if a member's state, its leg and the journal contradict each other."""
    state = driver.members.state(name)
    if state is not State.REGROUPING:
        assert (leg is not None) == (state in IN_A_LEG), f"{name} is {state}, but {'in' if leg else 'not in'} a leg"
    if state in TO_START:
        assert leg is not None
        starts = any(name in one.start for one in leg.starting.values())
        assert starts, f"{name} is {state}, but no assignment waits for it"
    assert (leaving is not None) == (state in LEAVING_STATES), f"{name} is {state}, but its way of leaving is {leaving}"
    status = driver.state.member(name).status
    if state is State.ENDED:
        assert status in ENDED, f"{name} has ended, but is {status} in the journal"
    elif status in ENDED:
        assert name in driver.run.positions.unfinished(), f"{name} is {state}, but {status} in the journal"


def holds(driver: Driver) -> None:
    """Raise AssertionError if an invariant does not hold after a round of the driver."""
    devices: set[str] = set()
    legs: dict[str, LiveLeg] = {}
    """The leg of each member that is in one."""
    for leg in driver.legs.live:
        for device in leg.devices:
            assert device not in devices, f"{device} is in two legs"
            devices.add(device)
        for name, carriers in leg.carriers.items():
            if carriers:
                assert name not in legs, f"{name} is in two legs"
                legs[name] = leg
        assert leg.gate is not Gate.REGROUPING or not leg.starting, (
            f"leg {leg.number} regroups, but members are waiting to start"
        )
    workers: Any = driver.pool.workers
    saved: set[str] = set()
    for worker in workers.there.values():
        for name, its in worker.assigned.items():
            if its.leads:
                assert name not in saved, f"two trainers save {name}"
                saved.add(name)
    if not driver.run.begun or driver.run.phase.name == "OVER":
        return
    names = driver.run.study.names
    assert driver.members.in_states(*PLACES) == list(names), "the member table and the study have different members"
    leaving = driver.members.leaving
    for name in names:
        agrees(driver, name, legs.get(name), leaving.get(name))


def ends_well(scenario: Scenario, directory: Path, study: Study, excused: set[str]) -> Iterator[str]:
    """Yield what is wrong with a run that has ended; each member must have been stepped on every batch of its stream epochs once."""
    state = RunState.of(read_journal(directory))
    if state.ended is None or state.ended.status != "done":
        yield f"the run ended as {state.ended}"
    answered = [answer.file for answer in state.answered]
    if len(answered) != len(set(answered)):
        yield f"a command is answered twice: {answered}"
    names = {
        name for answer in state.answered if answer.answer.startswith("added") for name in answer.answer[6:].split(", ")
    }
    if names - set(study.names):
        yield f"{names - set(study.names)} were added, and are not there"
    epochs, ends = (
        {f"m{number}": count for number, count in enumerate(counts)} for counts in (scenario.epochs, scenario.ends)
    )
    for one in study.members:
        member, name, source = state.members[one.name], one.name, one.name
        while state.members[source].source:
            source = state.members[source].source
        if member.status == "done":
            most = epochs.get(source, max(scenario.epochs))
            wanted = [(epoch, section) for epoch in range(most) for section in range(scenario.per_epoch)]
            # The scheduler of a search decides how far a trial trains.
            last = len(member.sections) if scenario.scheduler not in ("", "random") else ends.get(name)
            yield from _trained(scenario, directory, member, wanted[: last or None], one.batch_size)
        elif not excused & {name, source} or member.status not in ENDED:
            yield f"{name} ended as {member.status}: {member.reason}"


def _trained(
    scenario: Scenario, directory: Path, state: MemberState, wanted: list[tuple[int, int]], batch: int
) -> Iterator[str]:
    """Yield what is wrong with a member that is done; a clone that continues from a file has the sections of that file's member first."""
    sections = [(one.epoch, one.section) for one in state.sections]
    if sections != wanted:
        yield f"{state.name} has the sections {sections}"
        return
    streams = [one.stream_epoch for one in state.sections if one.section == 0]
    if streams != sorted(set(streams)):
        yield f"{state.name} trained on the stream epochs {streams}"
    last = state.sections[-1]
    left = section_stop(last.section, scenario.length, scenario.per_epoch) - last.position
    if not 0 <= left < (batch if last.section + 1 < scenario.per_epoch else 1):
        yield f"{state.name} has ended at {last.position} of its epoch"
    weight = weight_after(streams, scenario.length, batch, last.position)
    if last.digest[1] != (weight if last.position else 0):  # the digest is that of the current epoch
        yield f"{state.name} has the digest {last.digest}, and not {weight}"
    file = directory / "members" / state.name / "last.pt"
    found = json.loads(file.read_bytes())["weight"] if file.exists() else None
    if found != weight:
        yield f"{state.name} has the weight {found} in its file, and not {weight}"
