"""Tests of what a run promises, each with every launcher: it does not depend on where the workers run."""

import importlib.util
import json
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import jobs
import living
import pytest
import raylets
import studies
import torch
from torch import nn
from torch.optim import SGD

import argosy
from argosy.api import LAUNCHERS, forecast_cluster, profile
from argosy.errors import MemberError, MemberFailed, PlanError, StudyError
from argosy.protocol.events import MemberEnded
from argosy.running.control.driver import Driver
from argosy.running.directory.audit import audit
from argosy.running.watch.view import Silent
from argosy.stream.order import Digest

WITH_RAY = ["ray"] if importlib.util.find_spec("ray") else []
pytestmark = pytest.mark.parametrize("launcher", ["inline", "processes", "agents", *WITH_RAY])


NODES: dict[str, dict[str, Any]] = {name: {"nodes": 2, "sharing": "all-shared"} for name in ("agents", "ray")}
"""Settings by launcher for a run of two nodes that together prepare every sample once."""


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Register the launcher "agents": two nodes whose only common file is the notice with the driver's address."""
    monkeypatch.setitem(LAUNCHERS, "agents", lambda: jobs.TwoNodes(tmp_path / "board"))


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """The address of a Ray cluster of two nodes with one CPU each."""
    cluster = raylets.Raylets(1, head_cpus=1)
    yield cluster.address
    cluster.close()


@pytest.fixture(autouse=True)
def _ray(request: pytest.FixtureRequest, launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the launcher "ray" use that cluster."""
    if launcher == "ray":
        address = request.getfixturevalue("ray_address")
        monkeypatch.setitem(LAUNCHERS, "ray", lambda: argosy.Ray(address=address))


class Counting(studies.Vectors):
    """A dataset that appends each index that it prepares to a file, in one write so that processes can share the file."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length)
        self.path = path

    def __getitem__(self, index: int) -> Any:
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


@pytest.mark.parametrize("count", [1, 4, 16])
def test_every_sample_is_prepared_once_per_epoch(tmp_path: Path, launcher: str, count: int) -> None:
    fleet = [studies.member(f"m{number}", batch_size=10 + number) for number in range(count)]
    data = argosy.Data(train=Counting(90, tmp_path / "count"))
    study = argosy.Study(data=data, members=fleet, stop=argosy.MaxEpochs(3), objective="train_loss")
    if launcher in NODES and count == 1:
        pytest.skip("one member needs one node; the others prepare what it is measured on")
    report = argosy.train(
        study, directory=tmp_path / "run", launcher=launcher, block_size=32, **NODES.get(launcher, {})
    )
    counted = Counter((tmp_path / "count").read_text().split())
    # Each node prepares the first sample to find the layout, and three samples twice to check the dataset.
    nodes = NODES.get(launcher, {}).get("nodes", 1)
    probes = Counter({"0": 3 * nodes, "45": 2 * nodes, "89": 2 * nodes})
    assert counted - probes == Counter({str(index): 3 for index in range(90)})
    assert report.preparations == 1.0
    assert audit(tmp_path / "run") == []


class IndexCheck(nn.Module):
    """A network that fails unless the samples of its batch are distinct and intact: element 0 is index / length."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = studies.Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = x[:, 0] * 100
        assert torch.allclose(numbers, numbers.round(), atol=1e-4)
        assert len(numbers.round().unique()) == len(numbers)
        return self.inner(x)


def test_the_index_column_tells_the_truth(tmp_path: Path, launcher: str) -> None:
    seen = partial(record_targets, tmp_path / "targets")
    fleet = [studies.member(model=IndexCheck, step=seen, batch_size=10, metrics={})]
    argosy.train(studies.study(100, fleet=fleet, epochs=1, val=0), directory=tmp_path / "run", launcher=launcher)
    content = [int(word) for word in (tmp_path / "targets").read_text().split()]
    digest = evidence.event_lines(tmp_path / "run", "SectionEnded")[0]["digest"]
    order = torch.tensor(content[-100:]).numpy()
    assert Digest.of(order, torch.arange(100).numpy()) == tuple(digest)


def record_targets(path: Path, model: nn.Module, batch: Any) -> torch.Tensor:
    """A step that records which samples it saw, judging by their content."""
    x, y = batch
    if model.training:
        with path.open("a") as file:
            file.write("".join(f"{round(float(v) * 100)} " for v in x[:, 0]))
    return nn.functional.cross_entropy(model(x), y)


@pytest.mark.tampers
def test_audit_finds_a_changed_digest(tmp_path: Path, launcher: str) -> None:
    argosy.train(studies.study(), directory=tmp_path, launcher=launcher)
    assert audit(tmp_path) == []
    path = tmp_path / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ended = next(line for line in lines if line["event"] == "SectionEnded" and line["member"] == "odd")
    ended["digest"][1] ^= 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [found.split(":")[0] for found in audit(tmp_path)] == ["odd"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of four uninterrupted epochs in this process."""
    directory = tmp_path_factory.mktemp("whole")
    argosy.train(studies.study(epochs=4), directory=directory, launcher="inline")
    return evidence.results(directory)


def test_time_limit_pauses_and_the_same_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any], launcher: str
) -> None:
    def days_pass(driver: Driver) -> None:
        """Exceed the time limit as soon as a member has ended an epoch."""
        if any(member.sections for member in driver.state.members.values()):
            driver.run.began -= 1e6

    def train(**settings: Any) -> argosy.Report:
        study = studies.study(stop=studies.Unsure(4))
        return argosy.train(study, directory=tmp_path, launcher=launcher, block_size=31, **settings)

    never = train(time_limit=0.0)
    with monkeypatch.context() as patched:
        living.at_every_round(patched, days_pass)
        later = train(time_limit=1e5)
    assert (never.reason, later.reason) == ("time limit of 0 s", "time limit of 100000 s")
    assert (never.status, later.status, train().status) == ("paused", "paused", "done")
    assert 0 < sum(row.epochs for row in later.rows) < 16
    assert evidence.results(tmp_path) == whole


def test_totals_may_be_raised(tmp_path: Path, whole: dict[str, Any], launcher: str) -> None:
    argosy.train(studies.study(epochs=1), directory=tmp_path, launcher=launcher)
    argosy.train(studies.study(epochs=4), directory=tmp_path, launcher=launcher)
    assert evidence.results(tmp_path) == whole


def test_a_finished_run_is_not_trained_again(tmp_path: Path, launcher: str) -> None:
    argosy.train(studies.study(), directory=tmp_path, launcher=launcher)
    before = evidence.results(tmp_path)
    assert argosy.train(studies.study(), directory=tmp_path, launcher=launcher).status == "done"
    assert evidence.results(tmp_path) == before
    assert len(evidence.event_lines(tmp_path, "SectionEnded")) == 8


class Raising(nn.Module):
    """A network that raises in its fifth forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.count = studies.Mlp(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.count > 4:
            raise ValueError("fifth forward")
        return self.inner(x)


def test_a_raising_member_ends_alone(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member("bad", model=Raising), studies.member()]
    with pytest.warns(MemberFailed, match="'bad' failed: ValueError: fifth forward"):
        report = argosy.train(studies.study(fleet=fleet), directory=tmp_path / "a", launcher=launcher, devices="cpu:1")
    assert report.member("bad").status == "failed"
    assert "ValueError: fifth forward" in report.member("bad").reason
    assert "ValueError: fifth forward" in (tmp_path / "a" / "members" / "bad" / "log.txt").read_text()
    argosy.train(studies.study(fleet=[studies.member()]), directory=tmp_path / "b", launcher="inline")
    good = evidence.results_of(tmp_path / "a", "mlp")
    assert good == evidence.results_of(tmp_path / "b", "mlp")


def no_model() -> nn.Module:
    raise RuntimeError("no such width")


def test_a_factory_that_raises_ends_its_member_alone(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member("bad", model=no_model), studies.member()]
    with pytest.warns(MemberFailed, match="'bad' failed: RuntimeError: no such width"):
        report = argosy.train(studies.study(fleet=fleet), directory=tmp_path, launcher=launcher)
    assert (report.member("bad").status, report.member("mlp").status) == ("failed", "done")
    assert "no such width" in report.member("bad").reason


def one_value(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.ones(1)


def test_a_metric_of_the_wrong_shape_is_named(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member("bad", metrics={"one": one_value}), studies.member()]
    with pytest.warns(MemberFailed, match="'bad' failed: "):
        report = argosy.train(studies.study(fleet=fleet), directory=tmp_path, launcher=launcher)
    assert (report.member("bad").status, report.member("mlp").status) == ("failed", "done")
    assert "'one' returned a tensor of shape (1,) for a batch of 20" in report.member("bad").reason


def test_three_equal_failures_stop_the_study(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member(f"bad-{number}", model=no_model) for number in range(3)] + [studies.member()]
    with pytest.raises(MemberError, match=r"first 3 members failed in the same way(.|\n)*no such width"):
        argosy.train(studies.study(fleet=fleet), directory=tmp_path, launcher=launcher)


def test_a_diverging_member_ends_as_diverged(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member("wild", model=Linear, optimizer=partial(SGD, lr=1e38)), studies.member()]
    with pytest.warns(MemberFailed, match="'wild' diverged: "):
        report = argosy.train(studies.study(fleet=fleet), directory=tmp_path, launcher=launcher)
    assert (report.member("wild").status, report.member("mlp").status) == ("diverged", "done")


class Linear(nn.Module):
    """A network without normalization, which diverges at a learning rate of 1e38."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Inplace(nn.Module):
    """A network that scales its input in place, and so would change the batch for its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = studies.Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.mul_(0.5))


def test_an_in_place_first_layer_gets_private_copies(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member("inplace", model=Inplace), studies.member()]
    argosy.train(studies.study(fleet=fleet), directory=tmp_path / "a", launcher=launcher, devices="cpu:1")
    argosy.train(studies.study(fleet=fleet[1:]), directory=tmp_path / "b", launcher="inline")
    assert evidence.results_of(tmp_path / "a", "mlp") == evidence.results_of(tmp_path / "b", "mlp")
    (started,) = [e for e in evidence.event_lines(tmp_path / "a", "MemberStarted") if e["member"] == "inplace"]
    assert "private copies" in started["notes"][0]
    plan = argosy.plan(studies.study(fleet=fleet), launcher=LAUNCHERS[launcher]())
    assert "inplace: writes into its input: gets private copies" in plan.explain()


class Broken(studies.Vectors):
    """A dataset whose sample 17 cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise OSError("truncated file")
        return super().__getitem__(index)


def test_a_broken_sample_ends_the_run_with_its_index(tmp_path: Path, launcher: str) -> None:
    with pytest.raises(StudyError, match="sample 17 raised OSError: truncated file"):
        argosy.train(
            studies.study(data=argosy.Data(train=Broken(60)), fleet=[studies.member()]),
            directory=tmp_path,
            launcher=launcher,
        )


def test_a_broken_sample_can_be_skipped_and_is_counted(tmp_path: Path, launcher: str) -> None:
    data = argosy.Data(train=Broken(60), on_error="skip")
    fleet = [studies.member("even"), studies.member("odd", batch_size=7)]
    report = argosy.train(
        studies.study(data=data, fleet=fleet), directory=tmp_path, launcher=launcher, **NODES.get(launcher, {})
    )
    assert report.skipped == {"train": (1, 60)}
    assert report.to_json()["skipped"] == {"train": [1, 60]}
    assert "1 of 60 samples raised and were left out (train)" in str(report)
    assert {line["samples"] for line in evidence.event_lines(tmp_path, "SectionEnded") if line["member"] == "odd"} == {
        59
    }
    skipped = [(line["epoch"], line["index"]) for line in evidence.event_lines(tmp_path, "Skipped")]
    # Two nodes may report their skipped samples in any order.
    assert (sorted(skipped) if launcher in NODES else skipped) == [(0, 17), (1, 17)]
    assert audit(tmp_path) == []


def test_batch_norm_with_a_last_batch_of_one_is_refused(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member(batch_size=13)]
    with pytest.raises(PlanError, match=r"BatchNorm.*drop_last"):
        argosy.train(studies.study(170, fleet=fleet), directory=tmp_path, launcher=launcher)


def test_a_batch_larger_than_the_data_is_refused(tmp_path: Path, launcher: str) -> None:
    with pytest.raises(StudyError, match="batch_size 200 is larger than its 170 training samples"):
        argosy.train(
            studies.study(fleet=[studies.member(batch_size=200, drop_last=True)]), directory=tmp_path, launcher=launcher
        )


def test_arrays_and_no_validation(tmp_path: Path, launcher: str) -> None:
    generator = torch.Generator().manual_seed(0)
    data = argosy.Data(arrays=(torch.randn(300, 12, generator=generator), torch.arange(300) % 10))
    report = argosy.train(
        studies.study(data=data, fleet=[studies.member(metrics={})]), directory=tmp_path, launcher=launcher
    )
    assert report.objective == "train_loss"
    assert report.rows[0].epochs == 2


def test_plan_explains_without_training(tmp_path: Path, launcher: str) -> None:
    plan = argosy.plan(studies.study(), launcher=LAUNCHERS[launcher]())
    assert set(plan.flotillas[0].members) == {"plain", "odd", "bootstrap", "adam"}
    assert "predicted pace" in plan.explain()


def test_best_weights_come_back(tmp_path: Path, launcher: str) -> None:
    report = argosy.train(studies.study(epochs=3), directory=tmp_path, launcher=launcher)
    best = report.best()
    model = best.load()
    saved = torch.load(tmp_path / "members" / best.name / "best.pt", weights_only=True)
    assert saved["epoch"] == best.best_epoch
    assert evidence.fingerprint(model.state_dict()) == evidence.fingerprint(saved["model"])


def test_stopping_rules_decide_each_member_alone(tmp_path: Path, launcher: str) -> None:
    fleet = [
        studies.member("short", stop=argosy.MaxEpochs(1)),
        studies.member("target", stop=argosy.Target("val_accuracy", 0.0) | argosy.MaxEpochs(9)),
        studies.member("long", stop=argosy.Plateau("val_loss", patience=1, min_delta=1e9) & argosy.MaxEpochs(3)),
    ]
    report = argosy.train(studies.study(fleet=fleet), directory=tmp_path, launcher=launcher, **NODES.get(launcher, {}))
    assert {row.name: row.epochs for row in report.rows} == {"short": 1, "target": 1, "long": 3}
    assert report.preparations == 1.0


def test_profiles_forecast_groups(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member("norm"), studies.member("plain", model=Linear)]
    costs = profile(studies.study(fleet=fleet), launcher=LAUNCHERS[launcher](), node_devices=2)
    norm, plain = costs.profiles
    assert len(norm.samples_per_second) >= 4
    assert (norm.splittable, plain.splittable) == (False, True)
    assert costs.preparation_seconds_per_sample > 0
    forecast = forecast_cluster(
        studies.study(fleet=fleet), "2x2x1GB", launcher=LAUNCHERS[launcher](), profiles=costs.profiles
    )
    assert "carried" in forecast.explain()


def test_a_pause_that_comes_with_the_last_epoch_is_no_pause(tmp_path: Path, launcher: str) -> None:
    class Late(Silent):
        """A view that sends SIGTERM when the last member has ended."""

        def handle(self, worker: str, message: Any) -> None:
            if isinstance(message, MemberEnded):
                signal.raise_signal(signal.SIGTERM)

    study, chained = studies.study(fleet=[studies.member()], epochs=1), []
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: chained.append(number))
    try:
        report = living.run(study, tmp_path, launcher=launcher, view=Late())
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert (report.status, report.reason, chained) == ("done", "", [signal.SIGTERM])
