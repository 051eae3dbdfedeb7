"""Tests that members can be cloned in a live run with other hyper-parameters, from scratch or from the weights of their source."""

import dataclasses
import errno
import json
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import living
import pytest
import studies
import torch
from reference import reference
from torch.optim import SGD
from voyages import summarized

import argosy
from argosy.errors import RunError, StudyError
from argosy.protocol.events import Checkpoint, Cloned, SectionEnded
from argosy.results.fold import MemberState, RunState
from argosy.running.control.driver import Driver
from argosy.running.directory import inbox
from argosy.running.directory.audit import audit
from argosy.running.directory.clone import Clone, newest_checkpoint
from argosy.running.directory.study_json import NEWCOMERS, read_study, write_json

EPOCHS = 6
RATE = partial(SGD, lr=0.05, momentum=0.9)


def study(sections: int = 1) -> argosy.Study:
    """Return a study of two members; the tests clone `one`."""
    fleet = [studies.member("one", optimizer=RATE), studies.member("two", hidden=8, batch_size=33)]
    return studies.study(90, fleet=fleet, epochs=EPOCHS, val=11, validations_per_epoch=sections)


def asking(
    monkeypatch: pytest.MonkeyPatch, run: Path, *commands: dict[str, Any], after: int = 2, also: Any = None
) -> None:
    """Request these clones, and then the command `also`, once member `one` has ended `after` sections."""
    living.trusting(monkeypatch)
    left: list[str] = []

    def act(driver: Driver) -> None:
        if not left and len(driver.state.member("one").sections) >= after:
            left.extend(inbox.write_command(run, {"command": "clone", **command}) for command in commands)
            left.extend(inbox.write_command(run, command) for command in (also,) if command)

    living.at_every_round(monkeypatch, act)


def command(name: str, source: str = "one", *, warm: bool = False, **changes: Any) -> dict[str, Any]:
    return {
        "member": source,
        "name": name,
        "set": {key.replace("__", "."): v for key, v in changes.items()},
        "warm": warm,
    }


def answers(run: Path) -> dict[str, str]:
    return {line["command"]["name"]: line["answer"] for line in evidence.event_lines(run, "Answered")}


def equal_to_its_source_until_then(
    asked: argosy.Study, run: Path, name: str, *, rate: float, momentum: float = 0.9
) -> None:
    """Check that a clone equals its source trained by a plain loop that changes these numbers where the clone began."""
    state = living.state_of(run).members[name]
    epochs = list(dict.fromkeys(row.stream_epoch for row in state.sections))
    assert state.inherited is not None

    def before(number: int, optimizer: Any) -> None:
        if number >= state.inherited.epoch:
            optimizer.param_groups[0].update(lr=rate, momentum=momentum)

    sections = asked.validations_per_epoch
    weights, losses = reference(asked.member("one"), asked.data, epochs, sections=sections, before=before)
    assert [row.metrics["val_loss"] for row in state.sections] == losses
    assert evidence.results_of(run, name)["weights"] == weights
    assert [row["lr"] for row in state.history] == [
        0.05 if row.epoch < state.inherited.epoch else rate for row in state.sections
    ]


@pytest.mark.parametrize("sections", [1, 2])
def test_a_clone_goes_on_from_its_sources_weights_with_numbers_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: int
) -> None:
    run, asked = tmp_path / "run", study(sections)
    asking(
        monkeypatch,
        run,
        command("warm", warm=True, optimizer__lr=0.2),
        command("cold", optimizer__momentum=0.5, batch_size=30),
    )
    living.keep_all_files(monkeypatch)
    report = argosy.train(asked, directory=run, launcher="inline", devices="cpu:2", numerics="exact")
    assert answers(run) == {"warm": "added warm", "cold": "added cold"}
    assert {row.name: (row.status, row.epochs) for row in report.rows} == dict.fromkeys(
        ("one", "two", "warm", "cold"), ("done", EPOCHS)
    )
    assert audit(run) == []
    (journaled,) = (line for line in evidence.event_lines(run, "Cloned") if line["member"] == "warm")
    assert (journaled["source"], journaled["changes"]) == ("one", {"optimizer.lr": [0.05, 0.2]})
    assert journaled["checkpoint"]["epoch"] >= 1
    equal_to_its_source_until_then(asked, run, "warm", rate=0.2)
    cold = studies.member("cold", optimizer=partial(SGD, lr=0.05, momentum=0.5), batch_size=30)
    fleet = studies.study(90, fleet=[*asked.members, cold], epochs=EPOCHS, val=11, validations_per_epoch=sections)
    living.equal_alone(fleet, run, "one", "two", "cold")
    assert report.member("warm").hyperparameters["optimizer.lr"] == 0.2
    # If the run is killed at any moment after the answer, the same command still ends with such clones.
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    answered = max(number for number, line in enumerate(whole) if b'"Answered"' in line)
    monkeypatch.undo()
    for cut in (answered + 1, (answered + len(whole)) // 2, len(whole) - 1):
        again = shutil.copytree(run, tmp_path / f"killed-{cut}", symlinks=True)
        (again / "journal.jsonl").write_bytes(b"".join(whole[:cut]))
        argosy.train(asked, directory=again, launcher="inline", devices="cpu:2", numerics="exact")
        assert audit(again) == []
        if (again / "members" / "warm" / journaled["checkpoint"]["file"]).exists():
            equal_to_its_source_until_then(asked, again, "warm", rate=0.2)
            living.equal_alone(fleet, again, "one", "two", "cold")


def test_a_warm_clone_is_worth_what_it_reached_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone whose learning rate spoils its weights ranks behind its source and reports its own rate and best weights, even after a kill."""
    run, asked = tmp_path / "run", study()
    asking(monkeypatch, run, command("spoilt", warm=True, optimizer__lr=8.0), after=3)
    living.keep_all_files(monkeypatch)
    argosy.train(asked, directory=run, launcher="inline", devices="cpu:1", numerics="exact")
    monkeypatch.undo()
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (cloned,) = (number for number, line in enumerate(whole) if b'"Cloned"' in line)
    for cut in (len(whole), *range(cloned + 3, len(whole), 9)):
        again = shutil.copytree(run, tmp_path / f"killed-{cut}", symlinks=True)
        (again / "journal.jsonl").write_bytes(b"".join(whole[:cut]))
        argosy.train(asked, directory=again, launcher="inline", devices="cpu:1", numerics="exact")
        state = living.state_of(again).members["spoilt"]
        fleet = [
            *asked.members,
            dataclasses.replace(asked.member("one"), name="spoilt", optimizer=partial(SGD, lr=8.0)),
        ]
        report = argosy.load(again, study=dataclasses.replace(asked, members=fleet))
        spoilt, names = report.member("spoilt"), [row.name for row in report.rows]
        best = min(state.own_sections, key=lambda row: row.metrics["val_loss"])
        assert state.inherited is not None and best.epoch >= state.inherited.epoch >= 3
        assert spoilt.metrics == best.metrics and spoilt.metrics["lr"] == 8.0
        assert spoilt.best_epoch == best.epoch + 1
        assert spoilt.seconds == sum(row.seconds for row in state.own_sections)
        assert names.index("one") < names.index("spoilt")
        assert report.best().name != "spoilt"
        saved = torch.load(again / "members" / "spoilt" / "best.pt", weights_only=True)
        assert saved["epoch"] >= state.inherited.epoch
        assert all(map(torch.equal, saved["model"].values(), spoilt.load().state_dict().values()))
        assert report.preparations_alone == pytest.approx((18 - state.inherited.epoch) / 6)


def test_a_clone_is_never_before_its_source_on_a_tie() -> None:
    """A clone inherits the sections of its source but none of them as its best, so the source ranks first on a tie."""
    state = RunState()
    for name in ("one", "late"):
        ended = [row(name, epoch, 0.5, best=not epoch) for epoch in range(2)]
        state.members[name] = MemberState(name, sections=ended, best=ended[0])
    file = Checkpoint(file="e0001.pt", sha256="", epoch=1, section=0, position=0, best="best-e0000.0.pt")
    state.members["one"].saved = [file]
    for name, source in (("clone", "one"), ("clones-clone", "clone")):
        state.apply(Cloned(member=name, source=source, changes={}, checkpoint=newest_checkpoint(state.member(source))))
        assert state.member(name).best is None
        assert state.member(name).saved == [dataclasses.replace(file, best=None)]
    for name in ("clone", "clones-clone"):
        state.apply(row(name, 1, 0.5, best=True))
        assert state.member(name).best == row(name, 1, 0.5, best=True)
    state.member("clone").forget_from(1, 0)
    assert (state.member("clone").best, state.member("clone").behind) == (None, 1)
    state.member("clone").forget_from(0, 0)
    assert state.member("clone").behind == 0


def row(member: str, epoch: int, loss: float, *, best: bool) -> SectionEnded:
    """Return the event of an ended section with this validation loss."""
    return SectionEnded(
        member=member,
        device="cpu:0",
        epoch=epoch,
        section=0,
        stream_epoch=epoch,
        position=90,
        metrics={"val_loss": loss},
        epochs=epoch + 1.0,
        seconds=0.1,
        samples=90,
        digest=(0, 0, 0),
        val_digest=None,
        best=best,
        steps=epoch,
    )


def test_newcomers_stand_behind_those_that_came_before(tmp_path: Path) -> None:
    """The study that is read from a run lists added members last, because its order breaks ties."""
    asked = study()
    summary = summarized(asked)
    write_json(tmp_path / "study.json", summary)
    lines = [{"members": {name: summary["members"]["one"]}, "parts": {}} for name in ("later", "last")]
    (tmp_path / NEWCOMERS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = read_study(tmp_path)
    assert found is not None and [*found["members"]] == ["one", "two", "later", "last"]


@pytest.mark.parametrize("refusal", [0, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES, errno.EXDEV])
def test_a_clone_gets_its_file_however_often_its_source_is_saved_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """It gets a copy on a file system without hard links, which refuses them with one of these errors."""

    def refuse(*_: object) -> None:
        raise OSError(refusal, os.strerror(refusal))

    if refusal:
        monkeypatch.setattr(os, "link", refuse)
    run, asked = tmp_path / "run", study()
    asking(monkeypatch, run, command("warm", warm=True, optimizer__lr=0.2))
    argosy.train(asked, directory=run, launcher="inline", checkpoint_seconds=1e-9, numerics="exact")
    assert answers(run) == {"warm": "added warm"}
    assert audit(run) == []
    equal_to_its_source_until_then(asked, run, "warm", rate=0.2)


def test_a_clone_that_waits_for_a_device_is_cloned_with_its_own_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its only file is that of its source, with the source's learning rate and momentum."""
    run, asked, asks = (
        tmp_path / "run",
        study(),
        [("one", "warm", {"momentum": 0.5, "lr": 0.2}), ("warm", "again", {"lr": 0.4})],
    )
    living.trusting(monkeypatch)
    left: list[str] = []

    def act(driver: Driver) -> None:
        if len(driver.state.member("one").sections) > 1 and len(driver.state.answered) == len(left) < len(asks):
            source, name, numbers = asks[len(left)]
            changes = {f"optimizer__{key}": value for key, value in numbers.items()}
            left.append(inbox.write_command(run, {"command": "clone", **command(name, source, warm=True, **changes)}))

    living.at_every_round(monkeypatch, act)
    argosy.train(asked, directory=run, launcher="inline", policy="solo", devices="cpu:1", numerics="exact")
    assert answers(run) == {"warm": "added warm", "again": "added again"}
    members = living.state_of(run).members
    assert members["again"].inherited == members["warm"].inherited
    for name, rate in (("warm", 0.2), ("again", 0.4)):
        equal_to_its_source_until_then(asked, run, name, rate=rate, momentum=0.5)


def test_a_clone_of_a_member_that_was_interrupted_within_an_epoch_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the run is resumed, the member has no file of an epoch's end any more, and no device yet."""
    run, asked = tmp_path / "run", study(sections=2)
    living.trusting(monkeypatch)
    living.at_every_round(
        monkeypatch,
        lambda driver: len(driver.state.member("one").sections) == 3 and driver.requests.request_pause("now"),
    )
    argosy.train(asked, directory=run, launcher="inline", checkpoint_seconds=1e-9, numerics="exact")
    monkeypatch.undo()
    living.trusting(monkeypatch)
    assert newest_checkpoint(living.state_of(run).members["one"]) is None
    inbox.write_command(run, {"command": "clone", **command("warm", warm=True, optimizer__lr=0.2)})
    argosy.train(asked, directory=run, launcher="inline", numerics="exact")
    assert answers(run) == {"warm": "added warm"}
    equal_to_its_source_until_then(asked, run, "warm", rate=0.2)


def test_a_clone_asked_for_before_the_first_step_waits_for_the_end_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = tmp_path / "run", study()
    asking(monkeypatch, run, command("warm", warm=True, optimizer__lr=0.2), after=0)
    # A block is less than a batch, so the first files are written before the first step.
    argosy.train(asked, directory=run, launcher="inline", block_size=10, checkpoint_seconds=1e-9, numerics="exact")
    assert answers(run) == {"warm": "added warm"}
    assert evidence.event_lines(run, "Cloned")[0]["checkpoint"]["epoch"] >= 1
    equal_to_its_source_until_then(asked, run, "warm", rate=0.2)


def refused(name: str) -> str:
    return f"refused: a member {name!r} already exists or has been requested. Give the clone another name."


def test_of_two_clones_of_one_name_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = tmp_path / "run", study()
    both = (command("warm", warm=True, optimizer__lr=rate) for rate in (0.2, 0.4))
    asking(monkeypatch, run, *both)
    argosy.train(asked, directory=run, launcher="inline", numerics="exact")
    said = {line["command"]["set"]["optimizer.lr"]: line["answer"] for line in evidence.event_lines(run, "Answered")}
    assert said == {0.2: "added warm", 0.4: refused("warm")}
    equal_to_its_source_until_then(asked, run, "warm", rate=0.2)


def test_a_clone_whose_name_is_taken_while_it_waits_for_its_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked, file = tmp_path / "run", study(), tmp_path / "more.py"
    file.write_text("import studies\nstudy = studies.study(90, fleet=[studies.member('late', hidden=9)], epochs=2)\n")
    asking(monkeypatch, run, command("late", warm=True, optimizer__lr=0.2), also={"command": "add", "study": str(file)})
    argosy.train(asked, directory=run, launcher="inline", numerics="exact")
    assert {line["answer"] for line in evidence.event_lines(run, "Answered")} == {"added late", refused("late")}
    assert not evidence.event_lines(run, "Cloned")
    late = studies.member("late", hidden=9, stop=argosy.MaxEpochs(2))
    living.equal_alone(dataclasses.replace(asked, members=[*asked.members, late]), run)


def test_a_clone_of_a_member_at_its_end_is_done_although_no_member_trains_while_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, alone = tmp_path / "run", studies.member("one", optimizer=RATE)
    # A clone with another momentum might not do the same work as its source, so it has to be measured.
    asking(monkeypatch, run, command("warm", warm=True, optimizer__momentum=0.5))
    report = living.run(studies.study(90, fleet=[alone], epochs=3, val=11), run)
    assert answers(run) == {"warm": "added warm"}
    assert {row.name: (row.status, row.epochs) for row in report.rows} == dict.fromkeys(("one", "warm"), ("done", 3))
    assert [line["member"] for line in evidence.event_lines(run, "MemberStarted")] == ["one"]


def test_a_source_whose_file_of_an_epochs_end_is_gone_has_none() -> None:
    files = [Checkpoint(file=f"{n}", sha256="", epoch=2, section=0, position=n, carried=0) for n in (0, 30, 60)]
    assert newest_checkpoint(MemberState(name="m", saved=files[:2])) == files[0]
    assert newest_checkpoint(MemberState(name="m", saved=files)) is None


def test_what_cannot_be_cloned_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    asking(
        monkeypatch,
        run,
        command("a", "nobody", optimizer__lr=0.1),
        command("two", optimizer__lr=0.1),
        command("b"),
        command("d", optimizer__rate=0.1),
        command("e", optimizer__lr="fast"),
        command("f", warm=True, batch_size=10),
        command("h h", optimizer__lr=0.1),
        after=1,
    )
    argosy.train(study(), directory=run, launcher="inline", devices="cpu:1")
    said = answers(run)
    for name, words in {
        "a": "the run has no member 'nobody'; clone one of one, two.",
        "two": "a member 'two' already exists",
        "b": "'b' would be identical to 'one'. Change a hyper-parameter with --set",
        "d": "no hyper-parameter 'optimizer.rate' (did you mean 'optimizer.lr'?); set one of batch_size, model.hidden, optimizer.lr",
        "e": "optimizer.lr is 0.05 and cannot become 'fast'; it must be a float",
        "f": "batch_size is fixed when a member is built",
        "h h": "name",
    }.items():
        assert said[name].startswith("refused: "), name
        assert words in said[name]
    assert {*living.state_of(run).members} == {"one", "two"}


def build(hidden: int, *sizes: int, act: str = "relu", bias: bool = True, norm: Any = None) -> Any:
    """Return the arguments: a factory with positional, variadic and keyword parameters."""
    return hidden, sizes, act, bias, norm


class Built:
    """A class that is used as a factory, with a positional-only parameter."""

    def __init__(self, hidden: int, /, depth: int = 2, *, act: str = "relu") -> None:
        self.hidden, self.depth, self.act = hidden, depth, act


def cloned(source: argosy.Member, **changes: Any) -> argosy.Member:
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return Clone(source=source.name, name="clone", changes=changes, warm=False).member(source)


@pytest.mark.parametrize(
    "model",
    [
        partial(build, 128, 3, 4, act="gelu", bias=False, norm=None),
        partial(partial(build, 128), 3, 4, act="gelu", bias=False),
        partial(partial(partial(build, 128, act="tanh"), 3), 4, act="gelu", bias=False),
    ],
    ids=["positional", "nested", "twice nested"],
)
def test_what_the_table_shows_can_be_set(model: Any) -> None:
    source = studies.member("one", model=model, optimizer=partial(SGD, lr=0.1, momentum=0.9))
    shown = source.hyperparameters
    assert shown == {
        "batch_size": 20,
        "model.hidden": 128,
        "model.1": 3,
        "model.2": 4,
        "model.act": "gelu",
        "model.bias": False,
        "optimizer.lr": 0.1,
        "optimizer.momentum": 0.9,
    }
    changes = {
        "batch_size": 10,
        "model.hidden": 16,
        "model.1": 5,
        "model.2": 6,
        "model.act": "silu",
        "model.bias": True,
    }
    changes |= {"optimizer.lr": 0.3, "optimizer.momentum": 0.5}
    assert changes.keys() == shown.keys()
    for name, value in changes.items():
        assert cloned(source, **{name: value}).hyperparameters == {**shown, name: value}
    clone = cloned(source, **changes)
    assert clone.hyperparameters == changes
    assert clone.model() == (16, (5, 6), "silu", True, None)
    for name, value, says in [
        ("hidden", 16, "(did you mean 'model.hidden'?)"),
        ("lr", 0.1, "(did you mean 'optimizer.lr'?)"),
        ("model.norm", "batch", "no hyper-parameter 'model.norm'"),
        ("model.bias", 1, "model.bias is False and cannot become 1; it must be a bool"),
        ("model.act", 3, "model.act is 'gelu' and cannot become 3; it must be a str"),
        ("model.hidden", None, "model.hidden is 128 and cannot become None; it must be an int"),
        ("batch_size", 2.5, "batch_size is 2.5; it must be an int"),
    ]:
        with pytest.raises(StudyError, match=re.escape(says)):
            cloned(source, **{name: value})


def test_a_clone_of_a_class_and_of_positional_parameters_alone() -> None:
    source = studies.member("one", model=partial(Built, 128, 3, act="gelu"))
    clone = cloned(source, model__hidden=16, model__depth=1).model()
    assert (clone.hidden, clone.depth, clone.act) == (16, 1, "gelu")


def test_a_clone_is_no_repetition_of_what_its_source_repeats() -> None:
    (source,) = argosy.replicate(studies.member("one", optimizer=RATE), seeds=[3])
    assert source.repetition is not None
    assert cloned(source, optimizer__lr=0.3).repetition is None


def test_members_that_would_be_the_same_bit_for_bit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living.trusting(monkeypatch)
    run, left = tmp_path / "run", list[str]()
    head = "import argosy, studies\nstudy = studies.study(90, fleet=[{}], epochs=6)\n"
    for name, member in {
        "same": "studies.member('same', hidden=8, seed=7)",
        "other": "studies.member('other', hidden=8, seed=8)",
    }.items():
        (tmp_path / f"{name}.py").write_text(head.format(member))

    def act(driver: Driver) -> None:
        if not left:
            left.extend(
                inbox.write_command(run, {"command": "add", "study": str(tmp_path / f"{name}.py")})
                for name in ("same", "other")
            )

    living.at_every_round(monkeypatch, act)
    fleet = [studies.member("one", hidden=8, seed=7)]
    argosy.train(studies.study(90, fleet=fleet, epochs=6, val=11), directory=run, launcher="inline")
    said = [line["answer"] for line in evidence.event_lines(run, "Answered")]
    assert (
        said[0]
        == "refused: member 'same' is identical to 'one', including the seed. Give it another seed, or remove it."
    )
    assert said[1] == "added other"


@pytest.mark.tampers
def test_a_source_whose_file_is_damaged_or_gone_is_not_cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm clone is refused and the other members train on; a clone that starts from scratch needs no file."""
    living.trusting(monkeypatch)
    run, asked, left = tmp_path / "run", study(), list[str]()
    done = studies.member("done", optimizer=RATE, stop=argosy.MaxEpochs(1))
    asked = dataclasses.replace(asked, members=[done, *asked.members])

    def act(driver: Driver) -> None:
        state = driver.state
        if state.member("done").status != "done" or len(answers(run)) < len(left):
            return
        file = run / "members/done" / state.member("done").saved[-1].file
        if not left:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
        elif len(left) == 1:
            file.unlink()
        if len(left) < 3:
            wanted = command("abc"[len(left)], "done", warm=len(left) < 2, optimizer__lr=0.2)
            left.append(inbox.write_command(run, {"command": "clone", **wanted}))

    living.at_every_round(monkeypatch, act)
    report = argosy.train(asked, directory=run, launcher="inline", devices="cpu:1")
    said = answers(run)
    assert "is damaged: its SHA-256 does not match the journal" in said["a"]
    assert "does not exist: it was moved or deleted" in said["b"]
    assert said["c"] == "added c"
    assert {row.name: row.status for row in report.rows} == dict.fromkeys(("done", "one", "two", "c"), "done")


def test_a_clone_needs_a_file_and_a_whole_command() -> None:
    with pytest.raises(RunError, match="the command to clone 'one' is incomplete"):
        Clone.of({"command": "clone", "member": "one"})
    with pytest.raises(StudyError, match=r"no hyper-parameter 'optimizer\.lr'; set one of"):
        Clone(source="one", name="two", changes={"optimizer.lr": 0.1}, warm=False).member(
            studies.member("one", optimizer=lambda parameters: SGD(parameters, lr=0.1))
        )
