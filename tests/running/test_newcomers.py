"""Tests added members whose costs are still unmeasured: whatever happens meanwhile, every addition is answered."""

from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import evidence
import fakes
import living
import pytest
import searches
import studies
import torch
from optuna.distributions import CategoricalDistribution
from torch import nn
from torch.optim import SGD

import argosy
from argosy.cluster import Cluster
from argosy.errors import MemberFailed
from argosy.protocol.trainer import DevicePoisoned, Measure
from argosy.running.control.driver import Driver
from argosy.running.directory import inbox
from argosy.running.launch import inline
from argosy.running.launch.discovery import discover
from argosy.running.launch.inline import Inline, InlineWorkers

EPOCHS = 6


def fleet(*names: str, epochs: int = EPOCHS) -> argosy.Study:
    return studies.study(90, val=11, fleet=[studies.member(name) for name in names or ("one",)], epochs=epochs)


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that, when first called, writes one study file per given member and asks the test's run to add it."""
    living.trusting(monkeypatch)
    left: list[str] = []

    def leave(**members: str) -> None:
        for name, text in members.items() if not left else ():
            file = tmp_path / f"{name}.py"
            file.write_text(
                f"import studies, test_newcomers as here\nstudy = studies.study(90, fleet=[{text}], epochs=2)\n"
            )
            left.append(inbox.write_command(tmp_path / "run", {"command": "add", "study": str(file)}))

    return leave


def answers(run: Path) -> dict[str, str]:
    """Return the run's answer to each added file, by the file's name."""
    return {Path(line["command"]["study"]).stem: line["answer"] for line in evidence.event_lines(run, "Answered")}


def at_measuring(monkeypatch: pytest.MonkeyPatch, act: Callable[[InlineWorkers, str, tuple[str, ...]], None]) -> None:
    """Call `act` for each trainer that is about to receive an order to measure members."""
    receive = InlineWorkers.receive

    def look_first(workers: InlineWorkers, timeout: float) -> list[tuple[str, Any]]:
        for device, command in list(workers.unsent):
            if isinstance(command, Measure) and command.members:
                act(workers, device, command.members)
        return receive(workers, timeout)

    monkeypatch.setattr(InlineWorkers, "receive", look_first)


def lose(workers: InlineWorkers, device: str) -> None:
    """Lose the device's trainer with all commands that it has not executed."""
    living.lose(SimpleNamespace(pool=SimpleNamespace(workers=workers)), device)  # type: ignore[arg-type]


def came_while_others_trained(run: Path, name: str) -> bool:
    """Return whether the member is done and had started before the last of the others ended."""
    began = min(line["at"] for line in evidence.event_lines(run, "MemberStarted") if line["member"] == name)
    ended = max(line["at"] for line in evidence.event_lines(run, "MemberEnded") if line["member"] != name)
    return began < ended and living.state_of(run).member(name).status == "done"


def test_another_trainer_measures_it_when_the_first_one_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Callable[..., None]
) -> None:
    lost: list[str] = []

    def act(workers: InlineWorkers, device: str, members: tuple[str, ...]) -> None:
        if members == ("late",) and not lost:
            lost.append(device)
            lose(workers, device)

    at_measuring(monkeypatch, act)
    living.at_every_round(monkeypatch, lambda driver: add(late="studies.member('late', hidden=9)"))
    living.run(fleet(), tmp_path / "run", devices="cpu:1", block_size=16)
    assert (lost, answers(tmp_path / "run")) == (["cpu:0"], {"late": "added late"})
    assert came_while_others_trained(tmp_path / "run", "late")


def test_it_is_measured_beside_others_when_the_members_of_its_device_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Callable[..., None]
) -> None:
    asked: list[str] = []

    def act(driver: Driver) -> None:
        feeder = next(iter(driver.pool.workers.feeders.values()))  # type: ignore[attr-defined]
        place = feeder.course.peek()
        if place is not None and place.split == "train" and place.last:
            add(late="studies.member('late', hidden=9)")

    at_measuring(monkeypatch, lambda _, device, members: asked.extend([device] * ("late" in members)))
    living.at_every_round(monkeypatch, act)
    short = studies.member("short", stop=argosy.MaxEpochs(1))
    study = replace(fleet(), members=[short, *fleet("one", "two").members])
    dealt = living.policy(
        monkeypatch, living.Dealt(lambda member, _: member in ("one", "two"), keep=True, everywhere=False)
    )
    living.run(study, tmp_path / "run", policy=dealt, devices="cpu:2", block_size=16)
    assert (asked, answers(tmp_path / "run")) == (["cpu:0", "cpu:1"], {"late": "added late"})
    assert came_while_others_trained(tmp_path / "run", "late")


def test_where_one_that_stood_for_others_is_refused_they_are_measured_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Callable[..., None]
) -> None:
    bad = "studies.member('bad', hidden=8, model=studies.partial(studies.Mlp, width=3))"
    both = {"half": f"studies.member('stands', hidden=9), {bad}", "late": "studies.member('late', hidden=9)"}
    living.at_every_round(monkeypatch, lambda driver: add(**both))
    living.run(fleet(), tmp_path / "run", devices="cpu:1", block_size=16)
    said = answers(tmp_path / "run")
    assert (said["half"].startswith("refused: member 'bad' failed"), said["late"]) == (True, "added late")
    assert came_while_others_trained(tmp_path / "run", "late")


ASSERTED = (
    "its kernel failed an assertion on {device} for the second time (in a test). Check for labels and indices out of range, and for NaN in "
    "probabilities (BCELoss, multinomial). With CUDA_LAUNCH_BLOCKING=1, the traceback in its log shows the call."
)


@pytest.mark.parametrize(
    "why", ["its trainer was lost for the second time (in a test).", ASSERTED], ids=["lost", "asserts"]
)
def test_a_member_that_ends_its_trainer_twice_is_refused_and_no_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Callable[..., None], why: str
) -> None:
    lost: list[tuple[str, ...]] = []
    devices: list[str] = []

    def act(workers: InlineWorkers, device: str, members: tuple[str, ...]) -> None:
        if "bad" in members:
            lost.append(members)
            devices.append(device)
            if why is ASSERTED:
                workers.said.append((device, DevicePoisoned(detail="in a test", members=("bad",))))
            lose(workers, device)

    both = {"bad": "studies.member('bad', hidden=9)", "good": "studies.member('good', hidden=10)"}
    at_measuring(monkeypatch, act)
    living.at_every_round(monkeypatch, lambda driver: add(**both))
    run = tmp_path / "run"
    living.run(fleet("one", "two"), run, devices="cpu:2", block_size=16)
    assert lost == [("bad", "good"), ("bad",)]
    assert answers(run) == {
        "bad": f"refused: member 'bad' failed while it was measured: {why.format(device=devices[-1])}",
        "good": "added good",
    }
    good = studies.member("good", hidden=10, stop=argosy.MaxEpochs(2))
    living.equal_alone(replace(fleet("one", "two"), members=[*fleet("one", "two").members, good]), run)


OTHERS_TRAIN: ContextVar[bool] = ContextVar("OTHERS_TRAIN")


class Large(nn.Module):
    """A network that runs out of memory in training while other members train."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = studies.Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and OTHERS_TRAIN.get():
            raise torch.OutOfMemoryError("in a test")
        return self.inner(x)


@pytest.mark.parametrize("numerics", ["exact", "equivalent"])
def test_one_that_has_no_room_beside_others_is_measured_when_they_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Callable[..., None], numerics: str
) -> None:
    asked: list[str] = []

    def act(driver: Driver) -> None:
        add(large="studies.member('large', model=here.Large)")
        OTHERS_TRAIN.set(any(name != "large" for leg in driver.legs.live for name in leg.members))

    at_measuring(monkeypatch, lambda _, device, members: asked.extend([device] * ("large" in members)))
    living.at_every_round(monkeypatch, act)
    OTHERS_TRAIN.set(False)
    run = tmp_path / "run"
    report = living.run(fleet(epochs=3), run, numerics=numerics, packing="interleaved", devices="cpu:1", block_size=16)
    assert answers(run) == {"large": "added large"}
    assert asked == ["cpu:0", "cpu:0"]
    assert {row.name: row.status for row in report.rows} == {"one": "done", "large": "done"}
    assert [line["member"] for line in evidence.event_lines(run, "MemberStarted")] == ["one", "large"]
    assert not evidence.event_lines(run, "Divided")


def small(monkeypatch: pytest.MonkeyPatch, memory_bytes: int) -> None:
    """Limit all devices to this much memory."""

    def found(settings: Any) -> Cluster:
        (node,) = discover(settings).nodes
        devices = (replace(device, memory_bytes=memory_bytes) for device in node.devices)
        return Cluster(nodes=(replace(node, devices=tuple(devices)),))

    monkeypatch.setattr(inline, "discover", found)


@pytest.mark.parametrize("epochs", [1, EPOCHS])
def test_one_that_is_larger_than_every_device_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Callable[..., None], epochs: int
) -> None:
    """It is refused whether the other members still train or have ended."""
    (profile,) = argosy.api.profile(fleet(), launcher=Inline()).profiles
    small(monkeypatch, 4 * profile.memory_bytes)
    living.at_every_round(monkeypatch, lambda driver: add(big="studies.member('big', hidden=20_000)"))
    report = living.run(fleet(epochs=epochs), tmp_path / "run", devices="cpu:1")
    said = answers(tmp_path / "run")["big"]
    assert said.startswith("refused: member 'big' needs ")
    assert said.endswith("Reduce its batch_size, or use a larger device.")
    assert {row.name: row.status for row in report.rows} == {"one": "done"}


def of_width(parameters: dict[str, Any]) -> argosy.Member:
    """Return a trial whose network has the given width."""
    model = partial(nn.Linear, 6, parameters["width"])
    return argosy.Member("net", model=model, optimizer=partial(SGD, lr=0.1), batch_size=20)


@pytest.mark.parametrize("at_once", [None, 1])
def test_a_trial_that_is_larger_than_every_device_has_failed_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int | None
) -> None:
    """It fails alone whether it starts among the first trials or after others have ended."""
    small(monkeypatch, 2**20)
    space = {"width": CategoricalDistribution([10, 100_000, 11])}
    with pytest.warns(MemberFailed, match="1 of 3 members of the search failed or diverged"):
        report = searches.tune(
            tmp_path, space=space, build=of_width, scheduler="grid", max_epochs=2, at_once=at_once, devices="cpu:1"
        )
    widths = {report.parameters[row.name]["width"]: row for row in report.run.rows}
    assert {width: row.status for width, row in widths.items()} == {10: "done", 11: "done", 100_000: "failed"}
    assert "the largest device has" in widths[100_000].reason


@pytest.mark.tampers  # no member really trains, so no digest is right
def test_a_trial_that_is_measured_beside_others_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    living.trusting(monkeypatch)
    study, left = fakes.fleet(3, 2), list[str]()
    first, late = fakes.names_of(2)

    def act(driver: Driver) -> None:
        if late in driver.members.new and not left:
            left.append(inbox.write_command(tmp_path, {"command": "stop", "member": late}))

    living.at_every_round(monkeypatch, act)
    asked, brings = replace(study, members=study.members[:1]), fakes.Brings(study.members[1:], after=first)
    _, state = fakes.drive_fakes(asked, tmp_path, monkeypatch, bringers=[brings])
    assert [answered.answer for answered in state.answered] == [f"{late} has been saved and stopped"]
    assert (state.member(late).status, state.member(first).status) == ("stopped", "done")
    assert {row.name for row in argosy.load(tmp_path).rows} == {first, late}


@pytest.mark.tampers
def test_newcomers_wait_while_nodes_find_out_what_sharing_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, cluster = fakes.fleet(2, 2), fakes.cluster_of(1, 1)
    asked, brings = replace(study, members=study.members[:1]), fakes.Brings(study.members[1:])
    _, state = fakes.drive_fakes(asked, tmp_path, monkeypatch, cluster=cluster, bringers=[brings])
    assert state.sharing is not None
    assert {(one.status, len(one.sections)) for one in state.members.values()} == {("done", 2)}


@pytest.mark.tampers
def test_a_member_that_is_to_start_when_others_have_left_its_place_is_given_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer that could join either of two legs at their barriers is assigned to one only, and waits there for a member that moves to it."""
    study, (first, second, late) = fakes.fleet(4, 4, 2), fakes.names_of(3)

    def place(waiting: Collection[str]) -> dict[str, list[str]]:
        if late in waiting:
            joins = {first: ["d2"], second: ["d1"]}
            return next(({name: at, late: at} for name, at in joins.items() if name in waiting), {})
        return next(({name: at} for name, at in {first: ["d0"], second: ["d1"]}.items() if name in waiting), {})

    asked, brings = replace(study, members=study.members[:2]), fakes.Brings(study.members[2:], after=first)
    cluster = fakes.cluster_of(3)
    _, state = fakes.drive_fakes(
        asked, tmp_path, monkeypatch, policy=fakes.Deals(place), cluster=cluster, bringers=[brings]
    )
    started = [(line["member"], line["device"]) for line in evidence.event_lines(tmp_path, "MemberStarted")]
    assert started == [(first, "d0"), (second, "d1"), (first, "d2"), (late, "d2")]
    assert [len(state.member(name).sections) for name in (first, second, late)] == [4, 4, 2]
