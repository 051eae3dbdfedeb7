"""What holds of a run after every round of its driver, and at its end."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from argosy.results.fold import MemberState, RunState
from argosy.running.control.driver import Driver
from argosy.running.directory.journal import read_journal
from simulation.counting import weight_after
from simulation.scenario import Scenario

__all__ = ["ends_well", "holds", "place_of"]

ENDED = ("done", "stopped", "failed", "diverged")


def place_of(driver: Driver, name: str, unfinished: Collection[str]) -> str:
    """Where a member is, as the driver has it spread over its parts; raises AssertionError where it is nowhere or in two places."""
    scheduler, table = driver.scheduler, driver.member_table
    legs = [leg for leg in scheduler.legs if leg.devices_of(name)]
    assert len(legs) < 2, f"{name} is in two legs"
    ended = driver.state.member(name).status in ENDED and name not in unfinished
    leaving = scheduler.leaving.get(name)
    places = {
        "ended": ended and name not in driver.faults.afloat,
        "resting": name in table.resting,
        "regrouping": name in driver.faults.afloat,
        "moving": bool(legs) and leaving is not None and leaving.verdict is None,
        "leaving": leaving is not None and not (legs and leaving.verdict is None),
        "assigned": bool(legs) and leaving is None,
        "joining": name in scheduler.leg_starts.newcomers,
        "waiting": name in table.waiting,
    }
    found = [place for place, there in places.items() if there]
    if "assigned" in found and any(name in one.start for one in legs[0].boarding.values()):
        found = ["starting" if place == "assigned" else place for place in found]
    if "regrouping" in found:
        return "regrouping"  # where it goes from there is settled when all are saved
    if found == ["starting", "waiting"]:
        return "starting"
    if found == ["joining", "waiting"] and driver.phase.name == "MEASURING":
        return "joining"
    if found == ["waiting"] and name in (scheduler.recovering.apart | scheduler.recovering.meets.keys()):
        return "recovering"
    assert len(found) == 1, f"{name} is {' and '.join(found) or 'nowhere'}, in phase {driver.phase.name}"
    return found[0]


def holds(driver: Driver) -> dict[str, str]:
    """Raise AssertionError for what does not, after a round; returns where each member is."""
    devices = [device for leg in driver.scheduler.legs for device in leg.devices]
    assert len(devices) == len(set(devices)), f"a device is in two legs: {devices}"
    workers: Any = driver.pool.workers
    stepped = Counter(
        name for one in workers.there.values() if hasattr(one, "trainer") for name in one.trainer.assigned
    )
    twice = [name for name, count in stepped.items() if count > 1]
    assert not twice, f"two trainers have {twice}"
    if driver.phase.name in ("OPENING", "OVER"):
        return {}
    unfinished = driver.member_table.unfinished()
    return {name: place_of(driver, name, unfinished) for name in driver.study.names}


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
