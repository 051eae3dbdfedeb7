"""Tests plans as values: invariants, orders of steps, files, and the check against profiles and devices."""

import json
from dataclasses import replace

import pytest

from argosy.cluster import Cluster
from argosy.errors import PlanError
from argosy.plans import Flotilla, Placement, Plan
from planning.cases import GB, devices, profile
from planning.checker import check_plan

A = profile("a", 10.0, 18.0, 25.0, splittable=True)
B = profile("b", 40.0)
TWO = devices(2)
FIRST, SECOND = TWO[0].name, TWO[1].name


def split_plan() -> Plan:
    uneven = Placement.uneven(A, {FIRST: 0.7, SECOND: 0.3})
    flotilla = Flotilla(placements=(uneven, Placement.whole(B, SECOND)))
    return Plan(policy="balanced", flotillas=(flotilla,), waiting=())


def test_a_plan_survives_its_file() -> None:
    plan = split_plan()
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_plan_of_whole_members_loads_without_the_fields_of_split_ones() -> None:
    old = {"member": "b", "devices": [FIRST], "seconds_per_sample": B.seconds_per_sample}
    plan = Plan.from_json({"policy": "solo", "flotillas": [{"placements": [old]}], "waiting": []})
    assert plan.flotillas[0].placements == (Placement.whole(B, FIRST),)


def test_load_and_pace_follow_the_shares() -> None:
    flotilla = split_plan().flotillas[0]
    assert flotilla.loads == pytest.approx({FIRST: A.shard_seconds(2, 0.7), SECOND: A.shard_seconds(2, 0.3) + 1 / 40})
    assert flotilla.samples_per_second == pytest.approx(1 / max(flotilla.loads.values()))
    check_plan(split_plan().to_json(), [A, B], TWO)


def test_explain_names_shares_and_waiting_members() -> None:
    text = replace(split_plan(), waiting=("c",)).explain()
    assert "a (70%)" in text and "a (30%), b" in text and "1 member(s) waiting" in text


@pytest.mark.parametrize(
    "make",
    [
        lambda: Placement(member="a", devices=(), seconds_per_sample=1.0),
        lambda: Placement(member="a", devices=(FIRST, FIRST), seconds_per_sample=1.0),
        lambda: Placement(member="a", devices=(FIRST, SECOND), seconds_per_sample=1.0, shares=(0.9, 0.2)),
        lambda: Placement(member="a", devices=(FIRST, SECOND), seconds_per_sample=1.0, shares=(1.0, 0.0)),
        lambda: Placement(member="a", devices=(FIRST,), seconds_per_sample=1.0, device_seconds=(1.0, 2.0)),
        lambda: Flotilla(placements=()),
        lambda: Flotilla(placements=(Placement.whole(B, FIRST), Placement.whole(B, SECOND))),
        lambda: replace(split_plan(), flotillas=split_plan().flotillas * 2),
        lambda: replace(split_plan(), waiting=("b",)),
    ],
)
def test_impossible_plans_are_refused_at_birth(make) -> None:
    with pytest.raises(PlanError):
        make()


def test_a_plan_checks_itself_against_profiles_and_devices() -> None:
    plan = split_plan()
    plan.check([A, B], TWO)
    with pytest.raises(PlanError, match="cannot be placed: it has no profile"):
        plan.check([A], TWO)
    with pytest.raises(PlanError, match="unknown devices"):
        plan.check([A, B], TWO[:1])
    with pytest.raises(PlanError, match=r"split over .* does not allow that"):
        plan.check([replace(A, splittable=False), B], TWO)
    with pytest.raises(PlanError, match="its profile says"):
        plan.check([replace(A, samples_per_second=(5.0, 9.0, 12.5)), B], TWO)
    with pytest.raises(PlanError, match="MiB of memory; its pack"):
        plan.check([A, B], [replace(device, memory_bytes=GB) for device in TWO])


def test_a_cluster_is_written_nodes_devices_memory() -> None:
    cluster = Cluster.parse("2x4x80GB")
    assert [device.name for device in cluster.devices][3:5] == ["node0/cuda:3", "node1/cuda:0"]
    assert {device.memory_bytes for device in cluster.devices} == {80 * GB}
    assert Cluster.parse("1x1x79.5GiB").devices[0].memory_bytes == int(79.5 * 2**30)


@pytest.mark.parametrize("text", ["", "4x80GB", "0x4x80GB", "2x4x80", "2 x 4 x 80GB", "2x4x80TB"])
def test_other_clusters_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(PlanError, match="2x4x80GB"):
        Cluster.parse(text)


def test_a_larger_cluster_has_new_names_for_its_copies() -> None:
    larger = Cluster.parse("2x2x16GB").times(3)
    assert len(larger.devices) == 12 and len(larger.nodes) == 6
    assert larger.nodes[2].name == "node0+1"
