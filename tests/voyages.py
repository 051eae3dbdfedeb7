"""Invented journals of large runs, with faults and moves, made without training."""

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import studies
from torch.optim import SGD

import argosy
from argosy.plans import Flotilla, Placement, Plan
from argosy.protocol.events import (
    Event,
    Fed,
    MemberEnded,
    MemberRested,
    MemberStarted,
    Passed,
    PlanMade,
    RunEnded,
    RunStarted,
    SectionEnded,
    Used,
    WorkerLost,
)
from argosy.protocol.packs import Packed
from argosy.running.directory.journal import to_line
from argosy.running.directory.study_json import summarize, write_json

__all__ = ["DEVICES", "FEEDER", "LENGTH", "TRAINER", "asked", "ended", "flotilla", "leave", "scheduler", "started"]

DEVICES = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
LENGTH = 170
QUEUE = {"mean": 0.5, "step_seconds": 0.5, "history": [0.1, 0.5, 0.9]}
FEEDER: dict[str, Any] = {
    **dict.fromkeys(("prepared", "delivered"), 2000),
    "exchanged_bytes": 0,
    **dict.fromkeys(("seconds", "busy_seconds", "filling_seconds"), 50.0),
    **dict.fromkeys(("cores", "loaders"), 2),
    **dict.fromkeys(("to_prepare", "to_exchange", "to_train"), QUEUE),
    "preparation_cpu_seconds": 4.0,
}
"""The gauge of a feeder."""
TRAINER = {"busy_seconds": 80.0, "waiting_seconds": 20.0, "rows": 2400}


def asked(count: int, *, epochs: int) -> argosy.Study:
    """Return a study of `count` members with long names like those of grids."""
    fleet = [
        studies.member(
            f"residual-network-depth={1 + number % 5}-hidden={8 + number}-lr={0.1 / (1 + number % 7):.4f}",
            hidden=8 + number,
            optimizer=partial(SGD, lr=0.1 / (1 + number % 7)),
        )
        for number in range(count)
    ]
    return studies.study(LENGTH, fleet=fleet, epochs=epochs)


def flotilla(names: list[str]) -> Flotilla:
    """Return a flotilla of these members, which are dealt to the devices in turn."""
    return Flotilla(
        placements=tuple(
            Placement(member=name, devices=(DEVICES[number % 4],), seconds_per_sample=1e-4)
            for number, name in enumerate(names)
        )
    )


def scheduler(study: argosy.Study, *, epochs: int, faults: int = 0, end: bool = True) -> Iterator[tuple[float, Event]]:
    """Yield the events of a run with their times in seconds.

    An epoch takes 10 s. After each of the first `faults` epochs a trainer is lost, and its members move to another device.
    """
    names = list(study.names)
    yield 0.0, RunStarted(host="here", pid=1, versions={}, settings={}, lengths={"train": LENGTH, "val": 41})
    yield 0.1, PlanMade(plan=Plan(policy="balanced", flotillas=(flotilla(names),), waiting=()).to_json())
    home = {name: DEVICES[number % 4] for number, name in enumerate(names)}
    for name in names:
        yield 0.2, started(name, home[name], 0)
    for epoch in range(epochs):
        at = 10.0 * (epoch + 1)
        yield at - 5, Fed(leg=1, split="train", epoch=epoch, section=0, samples=LENGTH)
        for number, name in enumerate(names):
            yield at - 1, ended(name, home[name], epoch, value=1 / (1 + epoch + number % 13))
        yield at - 0.5, _passed(epoch)
        if epoch < faults:
            yield from _fault(home, epoch, at)
    for number, name in enumerate(names if end else ()):
        status, reason = ("failed", "Traceback\nValueError: too wide") if number == 3 else ("done", "max_epochs")
        yield 10.0 * epochs + 1, MemberEnded(member=name, status=status, reason=reason)
    if end:
        yield from _farewell(10.0 * epochs + 2)


def ended(name: str, device: str, epoch: int, *, value: float) -> SectionEnded:
    """Return the event at the end of a member's epoch."""
    return SectionEnded(
        member=name,
        device=device,
        epoch=epoch,
        section=0,
        stream_epoch=epoch,
        position=LENGTH,
        metrics={"train_loss": value, "val_loss": value, "val_accuracy": math.nan if epoch == 0 else 1 - value},
        epochs=epoch + 1.0,
        seconds=0.3,
        samples=LENGTH,
        digest=(0, 0, 0),
        val_digest=None,
        best=True,
        steps=9 * (epoch + 1),
    )


def leave(directory: Path, study: argosy.Study, events: Iterator[tuple[float, Event]]) -> None:
    """Write a run directory with these events in its journal."""
    directory.mkdir(parents=True)
    lines = [json.dumps({**to_line(event), "at": 1e9 + seconds}) for seconds, event in events]
    (directory / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
    write_json(directory / "study.json", summarized(study))


def summarized(study: argosy.Study) -> dict[str, Any]:
    """Return the study as in ``study.json``, without digests of code."""
    summary = {**summarize(study), "process": {}, "code": {"version": "none", "parts": {}}}
    for described in summary["members"].values():
        described["code"] = {}
    return summary


def started(name: str, device: str, epoch: int) -> MemberStarted:
    place: dict[str, Any] = {"epoch": epoch, "section": 0, "position": 0, "stream_epoch": epoch}
    return MemberStarted(member=name, device=device, threads=1, mkldnn=True, **place)


def _passed(epoch: int) -> Passed:
    return Passed(
        leg=1,
        epoch=epoch,
        section=0,
        samples=LENGTH,
        seconds=10.0,
        predicted_seconds=8.0,
        stepping=dict.fromkeys(DEVICES, 7.5),
        planning_seconds=0.01,
        changing_seconds=0.1,
    )


def _fault(home: dict[str, str], epoch: int, at: float) -> Iterator[tuple[float, Event]]:
    device, other = DEVICES[epoch % 4], DEVICES[(epoch + 1) % 4]
    yield at, WorkerLost(worker=device, detail="killed by signal 9")
    moved = [name for name, its in home.items() if its == device]
    for name in moved:
        yield at + 0.1, MemberRested(member=name, reason="")
    for name in moved:
        home[name] = other
        yield at + 0.3, started(name, other, epoch + 1)


def _farewell(at: float) -> Iterator[tuple[float, Event]]:
    yield at, Used(worker="feeder-0", cpu_seconds=5.0, gauge=FEEDER)
    for device in DEVICES:
        yield at, Used(worker=device, cpu_seconds=90.0, gauge=TRAINER)
    programs = (("a", "b"), ("c",))
    yield (
        at,
        Packed(device="cpu:0", programs=programs, settled=True, seconds_per_sample=((1, 2e-4), (2, 1e-4))),
    )
    yield at, RunEnded(status="done", reason="", seconds=at, cpu_seconds=380.0, joules={"package-0": 5000.0})
