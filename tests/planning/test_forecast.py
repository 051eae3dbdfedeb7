"""Tests what ``argosy plan`` says about a cluster that does not exist, and what ``argosy simulate`` does with a table."""

import json
import subprocess
from pathlib import Path

import forked
import pytest
import studies

import argosy
from argosy.api import forecast_cluster
from argosy.cli.simulated import read_networks
from argosy.errors import PlanError
from argosy.planning.forecast import forecast
from argosy.planning.outcomes import Charges
from argosy.planning.replay import Network, replay, workload_of
from argosy.profiles import PreparationRates
from argosy.views.timeline import write_timeline
from planning.cases import GB, devices, profile

NETWORKS = "name,samples_per_second,epochs,model_mb\n" + "".join(
    f"n{i},{20 + 10 * i},{3 + i},{300 - 20 * i}\n" for i in range(6)
)
CURVES = "r1,r2,r3,r4\n20,37,53,68\n60,110,160,205\n"
LIMITS = {"epochs": {"a": 3, "b": 2}, "samples_per_epoch": 1000}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "networks.csv").write_text(NETWORKS)
    (tmp_path / "curves.csv").write_text(CURVES)
    return tmp_path


def simulate(tables: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``argosy simulate`` in the folder of the tables."""
    return forked.command(tables, ["simulate", *words])


def test_simulate_prints_one_object_a_policy_and_size(tables: Path) -> None:
    options = "--devices 4,8 --policy all --samples 500 --slowdown 1.115 --rebalance-seconds 2 --memory-gb 16 --json"
    found = simulate(tables, "networks.csv", "--scaling", "curves.csv", *options.split())
    assert found.returncode == 0, found.stderr
    rows = json.loads(found.stdout)["runs"]
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
        words = ["--devices", "4", "--policy", "balanced,solo", "--draws", "3", "--json", *options]
        found = simulate(tables, "networks.csv", *words)
        assert found.returncode == 0, found.stderr
        return {row["policy"]: row["makespan_seconds"] for row in json.loads(found.stdout)["runs"]}

    blind, seeing, fed = makespans(), makespans("--epochs-known"), makespans("--preparation", "100")
    assert seeing["solo"] == blind["solo"] and seeing["balanced"] <= min(seeing["solo"], blind["balanced"])
    assert fed["solo"] > 1.2 * blind["solo"], "its four streams ask for more than can be prepared"
    assert fed["balanced"] < fed["solo"], "its one stream asks for less"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--devices", "6"], "do not fill nodes"),
        (["--devices", "four"], "it must be a list of numbers"),
        (["--policy", "best"], "unknown policy"),
        (["--memory-gb", "0.5"], "without activations"),
        (["--memory-gb", "0"], "must be greater than 0"),
        (["--node-devices", "0"], "do not fill nodes of 0"),
        (["--samples", "0"], "must have at least 1"),
        (["--draws", "0"], "draws is 0; it must be an int"),
        (["--slowdown", "0"], "slowdown is 0.0; it must be a finite number greater than 0"),
        (["--gb-per-second", "0"], "bytes_per_second is 0.0; it must be a finite number greater than 0"),
        (["--rebalance-seconds", "-1"], "rebalance_seconds is -1.0; it must be a finite number of at least 0"),
        (["--flotilla-seconds", "-1"], "flotilla_seconds is -1.0; it must be a finite number of at least 0"),
        (["--preparation", "0"], "preparation_samples_per_second is 0.0; it must be a finite number greater than 0"),
    ],
)
def test_simulate_refuses_with_what_to_do(tables: Path, changes: list[str], says: str) -> None:
    found = simulate(tables, "networks.csv", "--devices", "4", *changes)
    assert found.returncode == 2
    assert says in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize("row", ["n6,80", "   ", "n6,80,9,", "n6,fast,9,90", "n5,80,9,90", "n6,80,0,90"])
def test_simulate_names_the_columns_that_every_row_needs(tables: Path, row: str) -> None:
    (tables / "networks.csv").write_text(f"{NETWORKS}{row}\n")
    found = simulate(tables, "networks.csv")
    assert found.returncode == 2 and "give it the columns name, samples_per_second" in found.stderr


@pytest.mark.parametrize("text", ["", "notes\n", "name,samples_per_second,epochs,model_mb\n"])
def test_a_table_without_rows_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.txt").write_text(text)
    with pytest.raises(PlanError, match=r"notes.txt .*no rows.*give it the columns name"):
        read_networks(tmp_path / "notes.txt")


@pytest.mark.parametrize("curve", ["0,0", "20,-37", ""])
def test_curves_are_rates_above_zero(tables: Path, curve: str) -> None:
    (tables / "curves.csv").write_text(f"r1,r2\n{curve}\n")
    found = simulate(tables, "networks.csv", "--scaling", "curves.csv")
    assert found.returncode == 2 and "each must have rates greater than 0" in found.stderr


def test_tables_of_other_programs_are_read(tables: Path) -> None:
    before = simulate(tables, "networks.csv", "--policy", "solo, balanced", "--json").stdout
    (tables / "networks.csv").write_text(NETWORKS.replace(",", ", "), encoding="utf-8-sig")
    after = simulate(tables, "networks.csv", "--policy", "solo, balanced", "--json").stdout
    seconds = [[row["makespan_seconds"] for row in json.loads(text)["runs"]] for text in (before, after)]
    assert seconds[0] == seconds[1]


def test_blank_lines_of_tables_are_passed_over(tables: Path) -> None:
    words = ["--policy", "solo,fleet", "--draws", "1"]
    before = simulate(tables, "networks.csv", "--scaling", "curves.csv", *words).stdout.splitlines()
    (tables / "networks.csv").write_text(f"{NETWORKS}\n")
    (tables / "curves.csv").write_text(f"{CURVES}\n")
    after = simulate(tables, "networks.csv", "--scaling", "curves.csv", *words).stdout.splitlines()
    assert len(before) == 3 and [line.split()[:5] for line in after] == [line.split()[:5] for line in before]


def test_a_step_may_need_no_memory_besides_the_models(tables: Path) -> None:
    assert simulate(tables, "networks.csv", "--policy", "solo", "--activation-gb", "0").returncode == 0


def test_a_cluster_that_cannot_be_read_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(PlanError, match="cannot read the cluster '2x4'"):
        forecast_cluster(studies.study(data=argosy.Data(train=pytest.fail)), "2x4")


def test_a_plan_for_a_cluster_shows_shared_devices_and_split_members() -> None:
    members = [profile("a", 5.0, 9.0, 13.0, splittable=True), profile("b", 40.0)]
    found = forecast(members, "1x2x80GB", profiles_from="carried", **LIMITS)
    text = found.explain()
    for part in ("carried, on one gpu", "split over several devices: a", "predicted makespan", "bottleneck:"):
        assert part in text
    assert "with 4 devices" in text
    assert found.to_json()["plan"]["flotillas"][0]["placements"][0]["member"] == "a"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("epochs", [{"a": 4, "b": 4, "c": 4}, {"a": 2, "b": 10, "c": 2}])
def test_the_plan_is_that_with_which_the_simulation_begins(known: bool, epochs: dict[str, int]) -> None:
    members = [profile("a", 20.0), profile("b", 30.0), profile("c", 60.0)]
    found = forecast(members, "1x2x80GB", epochs=epochs, samples_per_epoch=1000, epochs_known=known)
    begins = {(one.device, one.members) for one in found.simulation.timeline if one.start_seconds == 0}
    planned = {(device, tuple(p.member for p in f.pack(device))) for f in found.plan.flotillas for device in f.devices}
    assert planned == begins and found.plan.policy == found.simulation.policy


def test_another_policy_is_foreseen_only_where_epochs_are_sure() -> None:
    members = [profile("a", 20.0), profile("b", 30.0), profile("c", 60.0), profile("d", 90.0)]
    limits = {"epochs": {"a": 2, "b": 10, "c": 2, "d": 2}, "samples_per_epoch": 1000}
    slow = PreparationRates(samples_per_second=((16, 50.0),))
    policies = [
        forecast(members, "1x2x16GB", preparation=slow, epochs_known=known, **limits).plan.policy
        for known in (True, False)
    ]
    assert policies == ["solo", "balanced"]


def test_members_without_a_limit_count_with_one_epoch_and_a_note() -> None:
    found = forecast([profile("a", 10.0), profile("b", 10.0)], "1x2x80GB", epochs={}, samples_per_epoch=1000)
    assert found.simulation.makespan_seconds == pytest.approx(100.0)
    assert "a, b: no rule limits their epochs, so one epoch of each is counted" in found.explain()


def test_the_timeline_is_a_page(tmp_path: Path) -> None:
    found = forecast([profile("a", 5.0), profile("b", 40.0)], "1x2x80GB", **LIMITS)
    write_timeline(found.simulation, tmp_path / "t.html")
    assert '"flotillas":[0' in (tmp_path / "t.html").read_text()


@pytest.mark.parametrize(
    ("members", "prepared", "says"),
    [
        ((profile("a", 10.0), profile("b", 10.0)), 4.0, "preparation"),
        ((profile("a", 10.0), profile("b", 10.0, memory_bytes=12 * GB)), 1e9, "cannot be split"),
        ((profile("a", 10.0, 19.0, splittable=True), profile("b", 99.0)), 1e9, "more devices would help"),
    ],
)
def test_the_bottleneck_is_named(members, prepared: float, says: str) -> None:
    preparation = PreparationRates(samples_per_second=((1, prepared),))
    found = forecast(members, "1x2x16GB", preparation=preparation, **LIMITS)
    assert says in found.bottleneck


def test_members_that_wait_are_the_bottleneck() -> None:
    large = [profile(name, 10.0, memory_bytes=10 * GB) for name in "ab"]
    found = forecast(large, "1x1x16GB", **LIMITS)
    assert "memory or devices" in found.bottleneck and found.plan.waiting


def test_more_devices_buy_time() -> None:
    members = [profile("a", 5.0, 9.0, 13.0, splittable=True), profile("b", 40.0)]
    found = forecast(members, "1x1x80GB", **LIMITS)
    assert [*found.growth] == [2, 4]
    assert found.growth[2] < found.simulation.makespan_seconds


def test_larger_clusters_that_a_policy_has_no_plan_for_are_left_out() -> None:
    pytest.importorskip("highspy")
    members = [profile("a", 5.0, 9.0, 13.0, splittable=True), profile("b", 40.0)]
    found = forecast(members, "1x4x80GB", policy="exact", **LIMITS)
    assert found.plan.policy == "exact" and not found.growth
    assert [*forecast(members, "1x2x80GB", policy="exact", **LIMITS).growth] == [4]


def test_more_nodes_prepare_more() -> None:
    members = [profile("a", 10.0), profile("b", 10.0)]
    slow = PreparationRates(samples_per_second=((16, 4.0),))
    found = forecast(members, "1x2x80GB", preparation=slow, **LIMITS)
    # The members have 3 and 2 epochs of 1000 samples; both wait for the stream.
    assert found.simulation.makespan_seconds == pytest.approx(3000 / 4.0)
    assert found.growth[4] == pytest.approx(3000 / 8.0)


def test_profiles_of_two_kinds_of_device_are_refused() -> None:
    mixed = [profile("a", 1.0), profile("b", 1.0).from_json({**profile("b", 1.0).to_json(), "device_kind": "cpu"})]
    with pytest.raises(PlanError, match="one kind of device"):
        forecast(mixed, "1x1x80GB", **LIMITS)


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
    runs = [
        replay("solo", workload_of(networks, **sizes), devices(2), charges=Charges(one_pace=False), draws=9)
        for _ in "ab"
    ]
    assert runs[0] == runs[1]
