"""Tests that like members trained as one program in a run get the same results as alone, whatever happens."""

import os
import re
import signal
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import forked
import late
import packs
import pytest
import torch
from family import Run
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, StepLR

import argosy
from argosy.errors import MemberFailed
from argosy.training.choice import rehearsal
from argosy.training.choice.fusion_group import FusionGroup
from argosy.training.device.resident import ResidentRows
from argosy.training.programs.fused.fused import Fused
from argosy.training.trainer.program_choice import ProgramChoice
from argosy.training.trainer.program_instances import ProgramInstance

LENGTH = 320
devices = late.devices


def costs(monkeypatch: pytest.MonkeyPatch, of: Callable[[int], float]) -> None:
    """Replace the measured cost of a program by `of(size)`, in this process and in those forked from it."""

    def note(fusion_group: FusionGroup, seconds: float, samples: int, need: int | None = None) -> None:
        assert seconds > 0
        if samples:
            fusion_group.tries[fusion_group.now] = [of(fusion_group.now.size)]
            fusion_group.needs |= {} if need is None else {fusion_group.now: need}

    monkeypatch.setattr(FusionGroup, "note", note)
    monkeypatch.setattr(
        rehearsal, "MAX_COPIED_BYTES", 0
    )  # no rehearsal: programs change between steps, not before the first


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make programs cheaper the more members they have."""
    costs(monkeypatch, lambda size: 1.0 / size)


def network() -> nn.Module:
    """Return a network whose steps change more than weights: BatchNorm's buffers and random states."""
    return nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 4))


def alike(
    count: int = 4,
    *,
    dtype: torch.dtype = torch.float64,
    model: Any = None,
    batch_size: int = 16,
    **own: dict[str, Any],
) -> list[argosy.Member]:
    """Return members of one architecture; `own` maps names to fields of these members alone."""
    optimizers = [partial(SGD, lr=0.02 * (n + 1), momentum=0.9) for n in range(count)]
    return [
        packs.member(
            f"m{n}",
            model=model or network,
            batch_size=batch_size,
            dtype=dtype,
            **({"optimizer": optimizers[n]} | own.get(f"m{n}", {})),
        )
        for n in range(count)
    ]


def study(
    fleet: Collection[argosy.Member], epochs: int = 3, dtype: torch.dtype = torch.float64, **rest: Any
) -> argosy.Study:
    train, val = packs.samples(dtype, LENGTH)
    data = argosy.Data(arrays=train, val_arrays=val)
    return argosy.Study(data=data, members=fleet, stop=argosy.MaxEpochs(epochs), **rest)


def train(directory: Path, what: argosy.Study, **settings: Any) -> argosy.Report:
    settings = {"launcher": "inline", "devices": "cpu:1", "block_size": 100, **settings}
    return argosy.train(what, directory=directory, **settings)


def state(directory: Path, name: str) -> dict[str, Any]:
    saved = torch.load(directory / "members" / name / "last.pt", weights_only=True)
    return {key: value for key, value in saved.items() if key != "seconds"}


def equals_alone(tmp_path: Path, what: argosy.Study, *names: str, **settings: Any) -> argosy.Report:
    """Train with `settings` and with exact numerics; check that the named members, or all, have the same states, and return the first report."""
    report = train(tmp_path / "fused", what, **settings)
    train(tmp_path / "alone", what, numerics="exact")
    for name in names or what.names:
        assert packs.difference(state(tmp_path / "fused", name), state(tmp_path / "alone", name)) < 1e-10, name
        assert report.member(name).status == "done"
    return report


def packed(directory: Path) -> list[tuple[list[int], bool]]:
    """Return each choice of programs: their sizes, and whether it was settled."""
    return [(list(map(len, e["programs"])), e["settled"]) for e in evidence.event_lines(directory, "Packed")]


@pytest.mark.usefixtures("fused")
def test_members_alike_are_one_program_and_come_out_as_alone(tmp_path: Path) -> None:
    odd = packs.member("odd", model=packs.mlp)
    report = equals_alone(tmp_path, study([*alike(), odd], validations_per_epoch=2))
    assert packed(tmp_path / "fused") == [([4], False), ([4], True)]
    assert not evidence.event_lines(tmp_path / "alone", "Packed")
    assert report.packs[-1].improvement == 0.75
    assert "differs in" in report.alone["odd"]
    assert report.alone.keys() == {"odd"}


@pytest.mark.usefixtures("fused")
def test_members_of_a_program_and_their_averages_answer_for_an_ensemble_as_alone(tmp_path: Path) -> None:
    own = {"m1": {"average": argosy.EMA(0.9)}, "m2": {"average": argosy.EMA(0.9)}}
    report = equals_alone(tmp_path, study(alike(**own), ensemble=argosy.EnsemblePlateau(patience=4)))
    assert packed(tmp_path / "fused") and report.ensembles
    alone = argosy.load(tmp_path / "alone").ensembles
    assert [one.weights for one in report.ensembles] == [one.weights for one in alone]
    assert [one.loss for one in report.ensembles] == pytest.approx([one.loss for one in alone], rel=1e-6)


def test_where_one_program_is_slower_they_are_stepped_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs(monkeypatch, float)
    report = equals_alone(tmp_path, study(alike()))
    assert packed(tmp_path / "fused") == [([4], False), ([1] * 4, True)]
    assert report.packs[-1].improvement == -3.0


@pytest.mark.parametrize("settings", [{"packing": "interleaved"}, {"numerics": "exact"}])
@pytest.mark.usefixtures("fused")
def test_it_can_be_forbidden(tmp_path: Path, settings: dict[str, Any]) -> None:
    train(tmp_path, study(alike(), 1), **settings)
    assert not evidence.event_lines(tmp_path, "Packed")


@pytest.mark.usefixtures("fused")
def test_members_of_float16_are_one_program_and_keep_their_scales(tmp_path: Path) -> None:
    own = {f"m{n}": {"precision": "float16"} for n in range(4)}
    equals_alone(tmp_path, study(alike(**own)))
    assert packed(tmp_path / "fused")[-1] == ([4], True)
    scales = [state(tmp_path / "fused", name)["loss_scale"] for name in own]
    assert scales == [(2.0**16, 3 * LENGTH // 16)] * 4


@pytest.mark.usefixtures("fused")
def test_one_that_stops_early_leaves_the_others_a_smaller_program(tmp_path: Path) -> None:
    equals_alone(tmp_path, study(alike(6, m2={"stop": argosy.MaxEpochs(2)}), 4))
    saved = [event for event in evidence.event_lines(tmp_path / "fused", "Saved") if event["member"] == "m2"]
    assert saved[-1]["checkpoint"]["epoch"] == 2


@pytest.mark.usefixtures("fused")
def test_one_that_diverges_ends_alone(tmp_path: Path) -> None:
    fleet = alike(5, m1={"optimizer": partial(SGD, lr=1e300)})
    with pytest.warns(MemberFailed, match="'m1' diverged: "):
        report = equals_alone(tmp_path, study(fleet), "m0", "m2", "m3", "m4")
    assert report.member("m1").status == "diverged"


class Breaks:
    """An augmentation or schedule that raises after `calls` calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, value: Any) -> Any:
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("a member's own fault")
        return value if not isinstance(value, int) else 1.0


def noise(batch: Any) -> Any:
    """An augmentation that draws random numbers."""
    inputs, target = batch
    return inputs + 0.1 * torch.randn_like(inputs), target


@pytest.mark.falls_back
@pytest.mark.parametrize("where", ["augment", "schedule"])
@pytest.mark.usefixtures("fused")
def test_one_that_fails_in_its_step_ends_alone(tmp_path: Path, where: str) -> None:
    """A member that fails before its forward pass, or after the optimizers' step, ends alone; the others draw no random number twice."""
    own: dict[str, Any] = {"augment": Breaks(33)}
    if where == "schedule":
        own = {"schedule": lambda optimizer: LambdaLR(optimizer, Breaks(33)), "schedule_per": "step"}
    fleet = alike(
        5, m0={"augment": noise}, m3=own, m4={"schedule": partial(StepLR, step_size=7), "schedule_per": "step"}
    )
    with pytest.warns(MemberFailed, match="'m3' failed: "):
        report = equals_alone(tmp_path, study(fleet), "m0", "m1", "m2", "m4")
    assert report.member("m3").status == "failed"
    assert "a member's own fault" in report.member("m3").reason
    # If the failing member is not known at once, the members are stepped separately, and the others then rejoined.
    assert packed(tmp_path / "fused")[2:] == ([([1] * 5, True), ([4], True)] if where == "augment" else [])


@pytest.mark.usefixtures("fused")
def test_resumed_they_are_stepped_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run gives the same bits, even in float32, because the choice of programs is journaled and not measured again."""
    fleet = alike(dtype=torch.float32)
    for epochs in (2, 4):
        train(tmp_path / "resumed", study(fleet, epochs, torch.float32))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))  # its cache has no earlier choice
    train(tmp_path / "whole", study(fleet, 4, torch.float32))
    assert evidence.results(tmp_path / "resumed") == evidence.results(tmp_path / "whole")
    assert packed(tmp_path / "resumed") == packed(tmp_path / "whole") == [([4], False), ([4], True)]


SCRIPT = """
import sys, test_packs_of_runs as here
fleet = here.alike(5, dtype=here.torch.float32, m4={{"augment": here.dawdle}})
here.argosy.train(here.study(fleet, {epochs}, here.torch.float32), directory=sys.argv[1], devices="cpu:1", block_size=100)
"""


def dawdle(batch: Any) -> Any:
    """A slow augmentation, which leaves time to kill the run."""
    import time

    time.sleep(0.005)
    return batch


@pytest.mark.usefixtures("fused")
def test_killed_while_they_are_one_program_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.halted(tmp_path / "killed", "SectionEnded", 6, SCRIPT, epochs=3)
    run.wait_for("Packed", 2)
    run.process.kill()
    run.process.wait()
    assert Run(tmp_path / "killed", SCRIPT, epochs=3).end() == 0, run.errors
    assert run.left() == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))  # its cache has no earlier choice
    assert Run(tmp_path / "whole", SCRIPT, epochs=3).end() == 0
    assert evidence.results(tmp_path / "killed") == evidence.results(tmp_path / "whole")
    assert packed(tmp_path / "killed")[-1] == ([5], True)


def wide() -> nn.Module:
    """Return a network with few weights whose steps keep large activations."""
    return nn.Sequential(nn.Linear(16, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 4))


def crowded(epochs: int = 3) -> argosy.Study:
    """Return a study whose members exceed the memory `LITTLE` in programs of twelve or six."""
    return study(alike(12, model=wide, batch_size=64), epochs)


LITTLE = str(4_750_000)


@pytest.fixture
def unforeseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the estimate of a program's memory, so that programs run out of it."""
    monkeypatch.setattr(FusionGroup, "estimate_fit", lambda fusion_group, count, room: None)


def equal(tmp_path: Path, one: str, other: str, names: Collection[str]) -> None:
    for name in names:
        assert packs.difference(state(tmp_path / one, name), state(tmp_path / other, name)) < 1e-10, name


@pytest.mark.usefixtures("fused", "devices", "unforeseen")
def test_where_memory_ends_programs_are_smaller_and_the_step_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = crowded()
    train(tmp_path / "alone", what, numerics="exact", devices="late:0")
    late.forget()
    monkeypatch.setenv("LATE_BYTES", LITTLE)
    report = train(tmp_path / "fused", what, devices="late:0")
    assert {row.status for row in report.rows} == {"done"}
    # On a busy machine rounds have fewer steps, and the last programs are also settled before the run ends.
    tried = [sizes for sizes, settled in packed(tmp_path / "fused") if not settled]
    assert tried == [[12], [6, 6], [3, 3, 3, 3]]
    assert "6 in a program: OutOfMemoryError: late out of memory" in report.packs[-1].reason
    equal(tmp_path, "fused", "alone", what.names)


@pytest.mark.usefixtures("fused", "devices")
def test_where_samples_had_the_memory_the_same_program_makes_the_step_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, begin, given_back = study(alike(4), epochs=4), Fused.begin, list[str]()
    monkeypatch.setenv("LATE_BYTES", str(10**8))
    train(tmp_path / "whole", what, devices="late:0")
    late.forget()
    give_back = ResidentRows.give_back

    def noted(rows: ResidentRows, detail: str) -> bool:
        if found := give_back(rows, detail):
            given_back.append(detail)
        return found

    def ends(program: Fused, turn: Any) -> None:
        begin(program, turn)
        if program.members[0].epoch == 3 and not given_back:
            raise torch.OutOfMemoryError("late out of memory")

    monkeypatch.setattr(ResidentRows, "give_back", noted)
    monkeypatch.setattr(Fused, "begin", ends)
    train(tmp_path / "ended", what, devices="late:0")
    assert len(given_back) == 1
    assert {tuple(sizes) for sizes, _ in packed(tmp_path / "ended")} == {(4,)}
    equal(tmp_path, "ended", "whole", what.names)


MOMENTS: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "it has raised": (ProgramChoice, "handle_error", lambda *given: True),
    "members are saved": (ProgramChoice, "_regroup", lambda fusion, fusion_group, instances, parts: len(parts) == 2),
    "halves are journaled": (ProgramInstance, "step", lambda instance, *given: len(instance.assignment) == 6),
}
"""Calls before which a run is killed when its program of twelve has run out of memory: class, method and condition on the arguments."""


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.usefixtures("fused", "devices", "unforeseen")
def test_killed_while_a_program_is_halved_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    what = crowded()
    train(tmp_path / "alone", what, numerics="exact", devices="late:0")
    late.forget()
    monkeypatch.setenv("LATE_BYTES", LITTLE)
    owner, method, comes = MOMENTS[moment]
    called = getattr(owner, method)

    def killed(*given: Any, **named: Any) -> Any:
        if comes(*given):
            os.kill(os.getpid(), signal.SIGKILL)
        return called(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, method, killed)
        child = forked.fork(partial(train, tmp_path / "killed", what, devices="late:0"))
    assert child.wait() == -signal.SIGKILL
    report = train(tmp_path / "killed", what, devices="late:0")
    assert {row.status for row in report.rows} == {"done"}
    sizes = [sizes for sizes, _ in packed(tmp_path / "killed")]
    assert sizes[0] == [12] and [3, 3, 3, 3] in sizes, "programs were not divided by memory"
    equal(tmp_path, "killed", "alone", what.names)


@pytest.mark.usefixtures("fused", "devices")
def test_what_does_not_fit_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("LATE_BYTES", LITTLE)
    report = train(tmp_path, crowded(4), devices="late:0")
    assert {row.status for row in report.rows} == {"done"}
    assert "late out of memory" not in capfd.readouterr().out
    (sizes, _), *_ = packed(tmp_path)
    assert 1 < len(sizes) < 12
    last = report.packs[-1]
    assert re.fullmatch(r"12 members in a program would take [\d.]+ .iB for a step; [\d.]+ .iB are free", last.reason)
    needs = dict(last.step_bytes)
    assert needs.keys() == {1, max(sizes)}
    assert 0.5 < needs[max(sizes)] / needs[1] < 1.5
