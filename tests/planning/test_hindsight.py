"""Tests that the simulator gets what the journal of a finished run says."""

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from argosy.protocol.events import (
    Checkpoint,
    MemberEnded,
    MemberStarted,
    PlanMade,
    Profiled,
    RunStarted,
    Saved,
    SectionEnded,
)
from planning.cases import devices, profile

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from hindsight import Hindsight

LENGTH = 1000
DEVICES = tuple(map(asdict, devices(2)))


def section(member: str, epoch: int, seconds: float) -> SectionEnded:
    """Return the end of an epoch that took `seconds`."""
    return SectionEnded(
        member=member,
        device="node0/cuda:0",
        epoch=epoch,
        section=0,
        stream_epoch=epoch,
        position=0,
        metrics={},
        epochs=epoch + 1.0,
        seconds=seconds,
        samples=LENGTH // 2,
        digest=(0, 0, 0),
        val_digest=None,
        best=False,
    )


def moments(*, limits: dict[str, int], sure: tuple[str, ...]) -> list:
    """Return a journal of two devices: *a* trains 3 epochs of 10 s, *b* one of 4 s, and each of 3 sections waits 1 s for checkpoints."""
    file = Checkpoint(file="e.pt", sha256="", epoch=1, section=0, position=0)
    sections = [("a", 0, 10.0), ("b", 0, 4.0), ("a", 1, 10.0), ("a", 2, 10.0)]
    place = {"epoch": 0, "section": 0, "stream_epoch": 0, "position": 0, "threads": 1, "mkldnn": True}
    profiles = [profile(name, rate).to_json() for name, rate in (("a", 7.0), ("b", 9.0))]
    return [
        (0.0, RunStarted(host="", pid=1, versions={}, settings={}, lengths={"train": LENGTH}, devices=DEVICES)),
        (1.0, Profiled(profiles=tuple(profiles), epochs=limits, sure=sure)),
        (1.0, PlanMade(plan={"policy": "solo"})),
        *((5.0, MemberStarted(member=name, device="node0/cuda:0", **place)) for name in "ab"),
        *((9.0, section(*row)) for row in sections),
        *((9.0, Saved(member="a", checkpoint=file, seconds=1.0)) for _ in range(3)),
        (11.0, MemberEnded(member="b", status="done", reason="")),
        (40.0, MemberEnded(member="a", status="done", reason="")),
    ]


def test_a_run_is_simulated_at_the_rates_that_it_had() -> None:
    past = Hindsight.of(moments(limits={"a": 5, "b": 5}, sure=()))
    assert (past.policy, past.seconds, past.devices) == ("solo", 35.0, devices(2))
    # Rates count the stream's whole epoch, whatever part of it the member steps on.
    assert {p.member: p.rate(1) for p in past.workload.profiles} == pytest.approx({"a": 100.0, "b": 250.0})
    assert past.workload.epochs == {"a": 3, "b": 1} and past.workload.visible_epochs == {"a": 5, "b": 5}
    # The device has three sections, each followed by a second of checkpoints; after the last one, nothing waits for
    # them.
    assert past.charges.checkpoint_seconds == pytest.approx(1.0)
    assert past.simulate().finished_seconds == pytest.approx({"b": 4.0, "a": 32.0})


def test_epochs_that_were_sure_are_known_beforehand() -> None:
    assert Hindsight.of(moments(limits={"a": 3, "b": 1}, sure=("a", "b"))).workload.epochs_known
    assert not Hindsight.of(moments(limits={"a": 3, "b": 1}, sure=("a",))).workload.epochs_known
