"""What holds of a run after every round of its driver, and at its end."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from argosy.results.fold import MemberState, RunState
from argosy.running.control.driver import Driver
from argosy.running.control.members import State
from argosy.running.directory.journal import read_journal
from simulation.counting import weight_after
from simulation.scenario import Scenario

__all__ = ["agrees", "ends_well", "holds"]

ENDED = ("done", "stopped", "failed", "diverged")


def agrees(driver: Driver, name: str) -> State:
    """The state of a member; raises AssertionError where its legs and the journal do not say the same."""
    state, leaving = driver.members.state(name), driver.members.leaves(name)
    legs = [leg for leg in driver.legs.live if leg.devices_of(name)]
    assert len(legs) < 2, f"{name} is in two legs"
    starts = bool(legs) and any(name in one.start for one in legs[0].starting.values())
    told = f"{name} is {state}, and {'in' if legs else 'not in'} a leg"
    if state in (State.STARTING, State.ASSIGNED, State.MOVING):
        assert legs, told
    elif state is not State.REGROUPING:
        assert not legs, told
    if state in (State.STARTING, State.MOVING):
        assert starts, f"{name} is {state}, and no assignment waits for it"
    assert (leaving is not None) == (state in (State.MOVING, State.LEAVING)), f"{name} is {state} and has {leaving}"
    status = driver.state.member(name).status
    if state is State.ENDED:
        assert status in ENDED, f"{name} has ended, and is {status} in the journal"
    elif status in ENDED:
        assert name in driver.run.positions.unfinished(), f"{name} is {state}, and {status} in the journal"
    return state


def holds(driver: Driver) -> dict[str, State]:
    """Raise AssertionError for what does not, after a round; returns where each member is."""
    devices = [device for leg in driver.legs.live for device in leg.devices]
    assert len(devices) == len(set(devices)), f"a device is in two legs: {devices}"
    workers: Any = driver.pool.workers
    stepped = Counter(
        name for one in workers.there.values() if hasattr(one, "trainer") for name in one.trainer.assigned
    )
    twice = [name for name, count in stepped.items() if count > 1]
    assert not twice, f"two trainers have {twice}"
    if driver.run.phase.name in ("OPENING", "OVER"):
        return {}
    assert sorted(driver.members.having(*State)) == sorted(driver.run.study.names), "the table has other members"
    return {name: agrees(driver, name) for name in driver.run.study.names}


def ends_well(scenario: Scenario, directory: Path, names: Collection[str], excused: set[str]) -> Iterator[str]:
    """What does not hold of a run that has ended: each member was stepped on its stream epochs, on each batch once."""
    state = RunState.of(read_journal(directory))
    if state.ended is None or state.ended.status != "done":
        yield f"the run ended as {state.ended}"
    batches = {f"m{number}": batch for number, batch in enumerate(scenario.batches)}
    epochs = {f"m{number}": count for number, count in enumerate(scenario.epochs)}
    for name in names:
        member = state.members[name]
        source = name
        while source not in batches:
            source = state.members[source].source
        if member.status == "done":
            yield from _trained(scenario, directory, member, epochs[source], batches[source])
        elif not excused & {name, source} or member.status not in ENDED:
            yield f"{name} ended as {member.status}: {member.reason}"


def _trained(scenario: Scenario, directory: Path, state: MemberState, epochs: int, batch: int) -> Iterator[str]:
    """Of a clone that goes on from another one's file, the sections of that one come first."""
    wanted = [(epoch, section) for epoch in range(epochs) for section in range(scenario.per_epoch)]
    sections = [(one.epoch, one.section) for one in state.sections]
    if sections != wanted:
        yield f"{state.name} has the sections {sections}"
        return
    streams = [one.stream_epoch for one in state.sections if one.section == 0]
    if streams != sorted(set(streams)):
        yield f"{state.name} trained on the stream epochs {streams}"
    weight = weight_after(streams, scenario.length, batch)
    if state.sections[-1].digest[1] != weight:
        yield f"{state.name} has the digest {state.sections[-1].digest}, and not {weight}"
    file = directory / "members" / state.name / "last.pt"
    found = json.loads(file.read_bytes())["weight"] if file.exists() else None
    if found != weight:
        yield f"{state.name} has the weight {found} in its file, and not {weight}"
