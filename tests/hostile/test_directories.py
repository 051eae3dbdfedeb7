"""Tests that randomly changed run directories, plans, commands and notices are read as they are, or refused in one sentence."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import studies
import typer
from hypothesis import given
from hypothesis import strategies as st

import argosy
from argosy.cli import report as reporting_cli
from argosy.disk.files import check_directory
from argosy.errors import ArgosyError
from argosy.plans import Plan
from argosy.profiles import Profile, load_profiles
from argosy.results.fold import RunState
from argosy.running.control.resume import resume_points, settle_files
from argosy.running.directory.clone import Clone
from argosy.running.directory.identity import Identity
from argosy.running.directory.inbox import Inbox
from argosy.running.directory.journal import Journal, read_journal
from argosy.running.directory.lock import Lock
from argosy.running.directory.query import query
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.hosts.notices import FileBoard, Notice
from argosy.training.device.process_state import ProcessState
from argosy.views.output import as_text, print_table
from hostile.damage import damaged, damaged_lines
from hostile.watch import watched

FLEET = [studies.member("one"), studies.member("two", hidden=8), *argosy.replicate(studies.member("net"), seeds=[1, 2])]
STUDY = studies.study(90, fleet=FLEET, epochs=2, val=20)
NEWCOMERS = "newcomers.jsonl"
pytestmark = pytest.mark.tampers


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a small run with journal lines of every kind and a member that was added later."""
    directory = tmp_path_factory.mktemp("hostile") / "run"
    argosy.train(STUDY, directory=directory, launcher="inline", devices="cpu:1")
    found = json.loads((directory / "study.json").read_text())
    late = {"members": {"two": found["members"].pop("two")}, "parts": found["code"]["parts"]}
    (directory / NEWCOMERS).write_text(json.dumps(late) + "\n")
    (directory / "study.json").write_text(json.dumps(found))
    for read in READERS:  # import modules now, not while they are watched
        one_sentence(read, directory)
    print_table(as_text("\x1b 字"))  # also those that are needed for rare characters
    return directory


def one_sentence(read: Callable[[Path], object], directory: Path) -> str:
    """Return what a command prints, or the sentence with which it refuses; assert that it is printable and short."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            read(directory)
        except typer.Exit:
            pass
        except ArgosyError as error:
            said.write(str(error))
            assert all(len(line) < 2_000 for line in str(error).split("\n"))
            assert "\n" not in str(error) or "holds the run of a different study" in str(error)
    text = said.getvalue()
    assert text.replace("\n", "").replace("\t", "").isprintable()
    return text


def opening(directory: Path) -> None:
    """Read what ``argosy run`` reads before it trains."""
    check_directory(directory)
    with Lock(directory / "run.lock"), Journal(directory / "journal.jsonl"):
        state = RunState.of(read_journal(directory))
        Identity(directory, state.members, ProcessState.here()).check(STUDY)
        mine = [state.members[name] for name in STUDY.names if name in state.members]
        resume_points(mine, directory)
        for one in mine:
            settle_files(one, directory)


READERS: tuple[Callable[[Path], object], ...] = (
    reporting_cli.status,
    reporting_cli.report,
    lambda directory: reporting_cli.report(directory, html=True),
    reporting_cli.audit,
    opening,
)


@contextlib.contextmanager
def changed(path: Path, new: bytes) -> Iterator[None]:
    """Change a file while the code inside runs; restore the whole directory afterwards."""
    kept = path.parent.with_name("kept")
    if not kept.exists():
        shutil.copytree(path.parent, kept, symlinks=True)
    path.write_bytes(new)
    try:
        yield
    finally:
        shutil.rmtree(path.parent)
        shutil.copytree(kept, path.parent, symlinks=True)


@given(data=st.data())
def test_a_run_directory(run: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["journal.jsonl", "journal.jsonl", "study.json", NEWCOMERS, "run.lock"]))
    blow = damaged_lines if name.endswith(".jsonl") else damaged
    new = blow((run / name).read_bytes(), data.draw)
    members = sorted((run / "members").iterdir())
    with changed(run / name, new):
        for read in READERS:
            with watched(run):
                one_sentence(read, run)
    assert sorted((run / "members").iterdir()) == members


def test_a_study_whose_objective_no_member_has_reached(run: Path) -> None:
    found = json.loads((run / "study.json").read_text())
    for objective in ("", "val_gone"):
        with changed(run / "study.json", json.dumps({**found, "objective": objective}).encode()):
            said = [one_sentence(read, run) for read in READERS]
        assert "Best: none yet" in said[0]


def test_names_that_are_no_text_or_a_formula_of_matplotlib(run: Path, tmp_path: Path) -> None:
    """Names with invalid characters or formulas are shown escaped, and figures draw them; a path in another encoding gives such names."""
    name = "a\udce9\0$\\frac{$"
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    for line in lines:
        line.get("metrics", {})[name] = 0.5
    found = json.loads((run / "study.json").read_text())
    for number, described in enumerate(found["members"].values()):
        described["hyperparameters"][f"of {name}"] = f"{number}{name}"
    with (
        changed(run / "journal.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines).encode()),
        changed(run / "study.json", json.dumps(found).encode()),
    ):
        told = query(run, "SELECT * FROM members")
        one_sentence(lambda _: reporting_cli.report(run, csv_file=f"{tmp_path}/curves.csv"), run)
        report = argosy.load(run)
    assert {r"a\udce9\x00$\frac{$", r"of a\udce9\x00$\frac{$"} < set(told.columns)
    assert r"a\udce9" in (tmp_path / "curves.csv").read_text()
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib, the extra report")
    assert report.plot(name).figure.canvas.draw() is None
    assert all(axes.figure.canvas.draw() is None for axes in report.plot_hyperparameters(name))


@given(data=st.data())
def test_a_command(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("run") / "commands"
    folder.mkdir()
    commands: list[dict[str, Any]] = [
        {"command": "stop", "member": "one"},
        {"command": "add", "study": "/home/me/more.py", "copy": "1-more.py", "sha256": "0" * 64},
        {"command": "clone", "member": "one", "name": "two", "set": {"optimizer.lr": 0.1}, "warm": False},
    ]
    text = json.dumps(data.draw(st.sampled_from(commands))).encode()
    (folder / "1-x.json").write_bytes(damaged(text, data.draw))
    with watched(folder.parent):
        ((name, command),) = Inbox(folder, ()).new()
        told = json.dumps(command, allow_nan=False)
        with contextlib.suppress(ArgosyError):
            Clone.of(command)
        with contextlib.suppress(ArgosyError):
            copy = StudyCopy.of(command, folder)
            assert copy.path.parent == folder
            copy.check()
    assert name == "1-x.json"
    assert "command" in command or json.loads((folder / "1-x.json").read_bytes()) == command
    assert len(told) < 2**20
    shutil.rmtree(folder.parent)


@given(data=st.data())
def test_a_notice(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("run")
    board = FileBoard(directory)
    board.leave(Notice(job="test", hosts=("10.0.0.1", "127.0.0.1"), port=29400, key="ab" * 32, certificate=""))
    board.path.write_bytes(damaged(board.path.read_bytes(), data.draw))
    with watched(directory):
        try:
            notice = board.read()
        except ArgosyError as error:
            assert str(board.path) in str(error)
        else:
            assert notice is not None
            assert isinstance(notice.port, int)
            assert all(isinstance(host, str) for host in notice.hosts)
            bytes.fromhex(notice.key)
    shutil.rmtree(directory)


def plan() -> Plan:
    """Return a plan for two devices: one member on both, and another packed with it on the first."""
    from argosy.plans import Flotilla, Placement

    placements = (
        Placement(
            member="one",
            devices=("cpu:0", "cpu:1"),
            seconds_per_sample=0.1,
            shares=(0.5, 0.5),
            device_seconds=(0.06, 0.06),
        ),
        Placement(member="two", devices=("cpu:0",), seconds_per_sample=0.2),
    )
    return Plan(policy="balanced", flotillas=(Flotilla(placements=placements),), waiting=("three",), notes=("a note",))


@given(data=st.data())
def test_a_plan(run: Path, data: st.DataObject) -> None:
    new = damaged(json.dumps(plan().to_json()).encode(), data.draw)
    with watched(run), contextlib.suppress(ArgosyError, ValueError, RecursionError):
        value = json.loads(new.decode())
        with contextlib.suppress(ArgosyError):
            Plan.from_json(value).explain()


@given(data=st.data())
def test_a_file_of_profiles(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    profile = Profile(
        member="one",
        device_kind="cpu",
        samples_per_second=(100.0, 180.0),
        memory_bytes=10**6,
        activation_bytes=10**5,
        state_bytes=10**5,
        node_devices=4,
        splittable=True,
    )
    path = tmp_path_factory.mktemp("profiles") / "profiles.json"
    path.write_bytes(damaged(json.dumps({"profiles": [asdict(profile)]}).encode(), data.draw))
    with watched(path.parent), contextlib.suppress(ArgosyError):
        for one in load_profiles(path):
            one.rate(3)
    shutil.rmtree(path.parent)


def test_the_watch_sees(run: Path, tmp_path: Path) -> None:
    """`watched` fails for each forbidden deed; otherwise, the tests above would prove nothing."""
    for deed in (
        lambda: (tmp_path / "x").write_text(""),
        lambda: os.system("true"),
        lambda: eval("1"),
        lambda: (tmp_path / "x").read_text(),
    ):
        with pytest.raises(AssertionError), watched(run):
            deed()
