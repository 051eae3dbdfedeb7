"""Errors of clones, and of members that would be identical to others."""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import studies
from torch.optim import SGD

import argosy
from argosy.cli.steer import _setting
from argosy.protocol.events import Answered
from argosy.results.fold import RunState
from argosy.running.control.additions import Additions
from argosy.running.control.carry_out import CarryOut
from argosy.running.control.clones import Clones
from argosy.running.control.measurements import Measurements
from argosy.running.control.positions import Positions
from argosy.running.control.run import Run
from argosy.running.directory.attached import AttachedRun
from argosy.running.directory.clone import Clone
from argosy.running.directory.identity import Identity
from argosy.running.launch.launcher import Job
from argosy.settings import Settings
from argosy.training.device.devices import open_backend
from argosy.training.device.process_state import ProcessState
from argosy.training.member.building import build_member
from argosy.training.member.changes import apply_changes
from messages.of_studies import study

__all__ = ["CASES"]

MLP = studies.member("mlp", optimizer=partial(SGD, lr=0.1))


def cloned(*, warm: bool = False, source: argosy.Member = MLP, **changes: Any) -> None:
    """Clone a member with these values changed."""
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    Clone(source=source.name, name="late", changes=changes, warm=warm).member(source)


def asked(source: str = "mlp", name: str = "late", *, warm: bool = True, adding: Collection[str] = ()) -> None:
    """Clone a member of a run whose only member has not finished an epoch, as the driver does."""
    one = study(members=[MLP])
    members = SimpleNamespace(addition=lambda member: "1-add.json" if member in adding else "")
    run = SimpleNamespace(
        study=one,
        state=RunState(),
        begun=True,
        members=members,
        positions=SimpleNamespace(check_new=lambda name: None),
        legs=SimpleNamespace(of=lambda member: None),
    )
    clones = Clones(cast(Run, run), cast(CarryOut, SimpleNamespace(answer=lambda *_: None)), cast(Additions, None))
    clones.accept("1-clone.json", {"member": source, "name": name, "set": {"optimizer.lr": 0.2}, "warm": warm})
    clones.poll()


def of_somebody_gone() -> None:
    """Resume with a study file without the source of a clone."""
    command = {"command": "clone", "member": "mlp", "name": "late", "set": {"optimizer.lr": 0.2}, "warm": False}
    state = RunState.of([Answered(file="1-clone.json", command=command, answer="added late")])
    other = study(members=[studies.member("other")])
    Positions(Job(study=other, settings=Settings(), directory=Path(), lock=-1), state).begin()


def once_more() -> None:
    """Add a member that is identical to one of the run, including the seed."""
    twin = studies.member("twin", seed=3)
    run = SimpleNamespace(
        study=study(members=[studies.member("mlp", seed=3)]), identity=Identity(Path(), {}, ProcessState.here())
    )
    Additions(cast(Run, run), cast(CarryOut, None), cast(Measurements, None))._check_alike([twin])


def in_no_group() -> None:
    """Change a value that the optimizer keeps outside parameter groups."""
    live = build_member(MLP, open_backend("cpu:0"), study_seed=0, objective="train_loss", mode="min")
    apply_changes(live, {"optimizer.fused_steps": (1, 2)}, list(map(dict, live.optimizer.param_groups)))


def refused(patch: pytest.MonkeyPatch) -> None:
    """Raise a driver's answer."""
    answer = "refused: the run has no member 'mpl'; clone one of mlp."
    patch.setattr("argosy.running.directory.attached.send_commands", lambda *_: [answer])
    attached({"optimizer.lr": 0.3})


def attached(changes: dict[str, Any]) -> None:
    """Request a clone from Python."""
    AttachedRun(directory=Path("runs/x")).clone("mpl", "late", changes)


CASES = {
    "a clone without changes": lambda: cloned(),
    "a clone with an unknown hyper-parameter": lambda: cloned(optimizer__rate=0.1),
    "a clone with a string instead of a number": lambda: cloned(optimizer__lr="fast"),
    "a warm clone with a different batch size": lambda: cloned(warm=True, batch_size=10),
    "a request from Python that a run refuses": refused,
    "a clone with a list as a hyper-parameter": lambda: attached({"optimizer.lr": [0.1]}),
    "a clone with NaN as a hyper-parameter": lambda: attached({"optimizer.lr": float("nan")}),
    "--set without a value": lambda: _setting("optimizer.lr"),
    "an incomplete clone command": lambda: Clone.of({"member": "mlp"}),
    "a clone of an unknown member": lambda: asked("vit"),
    "a clone of a member that is being added": lambda: asked(adding=["mlp"]),
    "a clone with a name that is taken": lambda: asked(name="mlp"),
    "a study without the source of a clone": of_somebody_gone,
    "a warm clone of a member without a checkpoint": lambda: asked(),
    "an added member that is identical to another": once_more,
    "a warm clone of an optimizer with settings outside its parameter groups": in_no_group,
}
