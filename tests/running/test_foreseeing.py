"""Tests that a run chooses its planning policy once, by the epochs that its members surely train, and that plans match runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import splits
import studies
from planning.cases import profile

import argosy
from argosy.cluster import Cluster
from argosy.planning import MOVING_BY_FILES, POLICIES, Situation
from argosy.plans import Plan
from argosy.running.control.planner import Planner
from argosy.running.launch.inline import Inline, InlineWorkers
from argosy.running.launch.limits import usable_cores


@pytest.mark.parametrize(("preparation_seconds", "policy"), [(0.0, "solo"), (0.02, "balanced")])
def test_streams_are_parted_where_preparation_leaves_a_gain(preparation_seconds: float, policy: str) -> None:
    # Together: 4 epochs of 20 s and 4 of 10 s. Apart: 80 s, or more if preparing each stream takes a core from training.
    planner = Planner(
        cluster=Cluster.parse("1x2x80GB", kind="cpu", cores=2),
        policy_name="balanced",
        policy=POLICIES["balanced"],
        preparation_seconds=preparation_seconds,
    )
    members = [profile("slow", 50.0), profile("fast", 100.0)]
    devices = planner.cluster.devices
    situation = Situation(
        waiting=tuple(members),
        free=devices,
        devices=devices,
        epochs_left={"slow": 4, "fast": 8},
        samples_per_epoch=1000,
        preparation_samples_per_second=planner.preparation_rate,
        moving=MOVING_BY_FILES,
    )
    planner.switch_policy(situation)
    assert planner.policy_name == policy and planner.policy is POLICIES[policy]
    assert planner.launch(replace(situation, epochs_left={})).policy == policy


@pytest.mark.parametrize(("patience", "foreseen"), [(None, [{"a": 2, "b": 2}]), (1, [])])
def test_only_epochs_that_are_sure_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int | None, foreseen: list[dict[str, int]]
) -> None:
    seen: list[dict[str, int]] = []
    monkeypatch.setattr(InlineWorkers, "side_by_side", True)
    monkeypatch.setattr(Planner, "switch_policy", lambda _, situation: seen.append(dict(situation.epochs_left)))
    stop = argosy.MaxEpochs(2) if patience is None else argosy.Plateau("val_loss", patience) | argosy.MaxEpochs(2)
    fleet = [studies.member("a", stop=argosy.MaxEpochs(2)), studies.member("b", hidden=24, stop=stop)]
    study = studies.study(fleet=fleet)
    argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:2", numerics="exact")
    assert seen == foreseen
    argosy.plan(study, devices="cpu:2", numerics="exact", launcher="inline")
    assert seen == 2 * foreseen, "argosy.plan expects other epochs than a run"


def test_a_plan_is_measured_on_the_cores_that_the_run_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, discover = [], Inline.discover
    monkeypatch.setattr(Inline, "discover", lambda *given: (seen.append(usable_cores()), discover(*given))[1])
    argosy.plan(studies.study(fleet=[studies.member("a")]), cores=1, launcher="inline")
    assert seen == [1]


@pytest.mark.parametrize(("numerics", "splittable"), [("equivalent", True), ("exact", False)])
def test_a_plan_knows_whether_a_run_would_split(
    monkeypatch: pytest.MonkeyPatch, numerics: str, splittable: bool
) -> None:
    seen: list[bool] = []

    def launch(planner: Planner, situation: Situation, *rest: object) -> Plan:
        seen.extend(profile.splittable for profile in situation.waiting)
        return launched(planner, situation, *rest)

    launched = Planner.launch
    monkeypatch.setattr(Planner, "launch", launch)
    argosy.plan(splits.study("whole"), devices="cpu:2", numerics=numerics)
    assert seen == [splittable]


def test_a_policy_that_starts_one_flotilla_at_a_time_is_asked_until_all_devices_train(tmp_path: Path) -> None:
    # The rates differ by more than FLEET's 20 samples/s, so each flotilla has one member, on one device.
    fleet = [studies.member(name, hidden=hidden) for name, hidden in (("a", 4), ("b", 300), ("c", 600))]
    argosy.train(
        studies.study(fleet=fleet), directory=tmp_path, launcher="inline", devices="cpu:2", policy="fleet-local"
    )
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    first_end = next(number for number, line in enumerate(lines) if line["event"] == "MemberEnded")
    begun = {line["device"] for line in lines[:first_end] if line["event"] == "MemberStarted"}
    assert begun == {"cpu:0", "cpu:1"}
