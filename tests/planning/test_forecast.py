"""What ``argosy plan`` says about a cluster that does not exist, and the command line of the planner."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from argosy.errors import PlanError
from argosy.planning.forecast import forecast
from argosy.planning.replay import Network, ReplayCharges, replay, workload_of
from argosy.planning_cli import cluster_of, explain_cluster, plan_cluster, simulate
from argosy.profiles import Preparation, save_profiles
from planning.cases import GB, devices, profile

NETWORKS = "name,samples_per_second,epochs,model_mb\n" + "".join(
    f"n{i},{20 + 10 * i},{3 + i},{300 - 20 * i}\n" for i in range(6)
)
CURVES = "r1,r2,r3,r4\n20,37,53,68\n60,110,160,205\n"
LIMITS = {"epochs": {"a": 3, "b": 2}, "samples_per_epoch": 1000}


def app() -> typer.Typer:
    planner = typer.Typer()
    planner.command("simulate")(simulate)
    planner.command("plan")(plan_cluster)
    return planner


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "networks.csv").write_text(NETWORKS)
    (tmp_path / "curves.csv").write_text(CURVES)
    return tmp_path


def test_simulate_prints_one_object_a_policy_and_size(tables: Path) -> None:
    options = "--devices 4,8 --policy all --samples 500 --slowdown 1.115 --rebalance-seconds 2 --memory-gb 16 --json"
    files = [str(tables / "networks.csv"), "--scaling", str(tables / "curves.csv")]
    found = CliRunner().invoke(app(), ["simulate", *files, *options.split()])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.output)
    assert [(row["policy"], row["devices"]) for row in rows] == [
        (policy, size)
        for size in (4, 8)
        for policy in ("balanced", "fleet", "fleet-local", "fleet-relative", "rounds", "solo")
    ]
    for row in rows:
        assert set(row) == {
            "policy", "devices", "makespan_seconds", "bound_seconds", "flotillas", "moves", "idle_share", "planner_seconds",
        }  # fmt: skip
        assert row["makespan_seconds"] >= row["bound_seconds"] * (1 - 1e-9)
        assert 0 <= row["idle_share"] < 1
        assert row["planner_seconds"] > 0


def test_simulate_takes_known_epochs_and_a_price_of_preparation(tables: Path) -> None:
    def makespans(*options: str) -> dict[str, float]:
        command = [str(tables / "networks.csv"), "--devices", "4", "--policy", "balanced,solo", "--json", *options]
        found = CliRunner().invoke(app(), ["simulate", *command])
        assert found.exit_code == 0, found.output
        return {row["policy"]: row["makespan_seconds"] for row in json.loads(found.output)}

    blind, seeing, fed = makespans(), makespans("--epochs-known"), makespans("--preparation", "100")
    assert seeing["solo"] == blind["solo"] and seeing["balanced"] <= min(seeing["solo"], blind["balanced"])
    assert fed["solo"] > 1.2 * blind["solo"], "four streams ask for more than can be prepared"
    assert fed["balanced"] < fed["solo"], "which one stream does not"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--devices", "6"], "do not fill nodes"),
        (["--devices", "four"], "give numbers"),
        (["--policy", "best"], "unknown policy"),
        (["--memory-gb", "0.5"], "without activations"),
    ],
)
def test_simulate_refuses_with_what_to_do(tables: Path, changes: list[str], says: str) -> None:
    found = CliRunner().invoke(app(), ["simulate", str(tables / "networks.csv"), "--devices", "4", *changes])
    assert found.exit_code == 2
    assert says in found.output and "PlanError" in found.output


def test_simulate_names_the_columns_that_a_table_needs(tables: Path) -> None:
    found = CliRunner().invoke(app(), ["simulate", str(tables / "curves.csv")])
    assert found.exit_code == 2 and "give it the columns" in found.output


def test_the_module_runs_alone(tables: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "argosy.planning_cli",
        "simulate",
        str(tables / "networks.csv"),
        "--policy",
        "solo",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "solo" in done.stdout


def test_a_plan_for_a_cluster_says_who_shares_and_who_is_split(tmp_path: Path) -> None:
    members = [profile("a", 5.0, 9.0, 13.0, splittable=True), profile("b", 40.0)]
    save_profiles(tmp_path / "p.json", members)
    arguments = ["plan", str(tmp_path / "p.json"), "--cluster", "1x2x80GB", "--samples", "1000", "--epochs", "3"]
    text = CliRunner().invoke(app(), arguments).output
    for part in ("carried from", "on one gpu", "split over several devices: a", "predicted makespan", "bottleneck:"):
        assert part in text
    assert "with 4 devices" in text
    value = json.loads(CliRunner().invoke(app(), [*arguments, "--json"]).output)
    assert value["plan"]["flotillas"][0]["placements"][0]["member"] == "a"


def test_the_timeline_is_a_page(tmp_path: Path) -> None:
    save_profiles(tmp_path / "p.json", [profile("a", 5.0), profile("b", 40.0)])
    page = tmp_path / "t.html"
    arguments = ["plan", str(tmp_path / "p.json"), "--cluster", "1x2x80GB", "--samples", "10", "--html", str(page)]
    found = CliRunner().invoke(app(), arguments)
    assert found.exit_code == 0, found.output
    assert "flotilla 0" in page.read_text()


@pytest.mark.parametrize(
    ("members", "prepared", "says"),
    [
        ((profile("a", 10.0), profile("b", 10.0)), 4.0, "preparation"),
        ((profile("a", 10.0), profile("b", 10.0, memory_bytes=12 * GB)), 1e9, "may not be split"),
        ((profile("a", 10.0, 19.0, splittable=True), profile("b", 99.0)), 1e9, "more devices would help"),
    ],
)
def test_the_bottleneck_is_named(members, prepared: float, says: str) -> None:
    cluster = cluster_of(2, 2, 16.0)
    preparation = Preparation(samples_per_second=((1, prepared),))
    found = forecast(members, cluster, preparation=preparation, **LIMITS)
    assert says in found.bottleneck


def test_members_that_wait_are_the_bottleneck() -> None:
    large = [profile(name, 10.0, memory_bytes=10 * GB) for name in "ab"]
    found = forecast(large, cluster_of(1, 1, 16.0), **LIMITS)
    assert "memory or devices" in found.bottleneck and found.plan.waiting


def test_more_devices_buy_time() -> None:
    members = [profile("a", 5.0, 9.0, 13.0, splittable=True), profile("b", 40.0)]
    found = explain_cluster(members, "1x1x80GB", **LIMITS)
    assert [growth.devices for growth in found.growth] == [2, 4]
    assert found.growth[0].makespan_seconds < found.simulation.makespan_seconds


def test_more_nodes_prepare_more() -> None:
    members = [profile("a", 10.0), profile("b", 10.0)]
    slow = Preparation(samples_per_second=((16, 4.0),))
    found = explain_cluster(members, "1x2x80GB", preparation=slow, **LIMITS)
    # Two members of 3 and 2 epochs of 1000 samples; the stream is what all wait for.
    assert found.simulation.makespan_seconds == pytest.approx(3000 / 4.0)
    assert found.growth[0].makespan_seconds == pytest.approx(3000 / 8.0)


def test_profiles_of_two_kinds_of_device_are_refused() -> None:
    mixed = [profile("a", 1.0), profile("b", 1.0).from_json({**profile("b", 1.0).to_json(), "device_kind": "cpu"})]
    with pytest.raises(PlanError, match="one kind of device"):
        explain_cluster(mixed, "1x1x80GB", **LIMITS)


def test_a_network_scales_like_the_curve_of_its_rate_and_keeps_its_memory() -> None:
    networks = [Network(name="n", samples_per_second=30.0, epochs=1, model_bytes=GB)]
    (found,) = workload_of(
        networks,
        scaling=[(20.0, 30.0), (60.0, 110.0)],
        samples_per_epoch=10,
        device_memory_bytes=6 * GB,
        activation_bytes=4 * GB,
    ).profiles
    assert found.samples_per_second == pytest.approx((30.0, 45.0))
    assert (found.memory_bytes, found.activation_bytes, found.state_bytes) == (6 * GB, 3 * GB, 2 * GB)
    assert found.splittable


def test_without_curves_nothing_is_split() -> None:
    networks = [Network(name="n", samples_per_second=30.0, epochs=1, model_bytes=GB)]
    sizes = {"samples_per_epoch": 10, "device_memory_bytes": 16 * GB, "activation_bytes": GB}
    assert not workload_of(networks, **sizes).profiles[0].splittable


def test_a_random_order_is_replayed_as_the_median_of_its_draws() -> None:
    networks = [Network(name=f"n{i}", samples_per_second=10.0 + i, epochs=1 + i % 4, model_bytes=GB) for i in range(9)]
    sizes = {"samples_per_epoch": 100, "device_memory_bytes": 16 * GB, "activation_bytes": GB}
    runs = [replay("solo", workload_of(networks, **sizes), devices(2), charges=ReplayCharges(), draws=9) for _ in "ab"]
    assert runs[0] == runs[1]
