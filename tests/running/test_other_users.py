"""Tests that nothing that other users of the machine leave in a run's way is executed, followed as a link or waited for."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jobs
import pytest
import studies
from strangers import STRANGER, as_stranger, public  # noqa: F401

import argosy
from argosy.cli import report as reporting_cli
from argosy.disk.cached import NOWHERE, cache_folder
from argosy.disk.files import check_directory, make_folder, open_append, replacing
from argosy.errors import DiskError, RunError
from argosy.running.directory.audit import audit
from argosy.running.directory.inbox import Inbox, send_commands, write_command
from argosy.running.directory.lock import Lock, has_driver
from argosy.running.hosts.agent import run_job_process
from argosy.running.hosts.agents import Agents
from argosy.running.hosts.notices import FileBoard, Notice
from argosy.settings import Settings
from argosy.stream.kept.cache import RowCache
from argosy.tuning import mirror

ONE = [studies.member("one")]
NOTICE = Notice(job="test", hosts=("127.0.0.1",), port=9, key="ab" * 32)


def train(directory: Path, epochs: int = 1, *, fresh: bool = False) -> argosy.Report:
    study = studies.study(60, fleet=ONE, epochs=epochs)
    return argosy.train(study, directory=directory, fresh=fresh, launcher="inline", devices="cpu:1")


# ---- directories


def test_an_agent_takes_no_directory_of_another_user(public: Path) -> None:  # noqa: F811
    """A notice there could name the other user's own driver, whose pickles this agent would load."""
    theirs, listener = public / "run", socket.create_server(("127.0.0.1", 0))
    notice = Notice(job="test", hosts=("127.0.0.1",), port=listener.getsockname()[1], key="ab" * 32)

    def invite() -> None:
        theirs.mkdir()
        FileBoard(theirs).leave(notice)

    as_stranger(invite)
    listener.settimeout(0)
    with pytest.raises(RunError, match=f"run belongs to user {STRANGER}, who could make the run execute any code"):
        run_job_process(jobs.place(1), Settings(), theirs)
    with pytest.raises(BlockingIOError):
        listener.accept()
    with pytest.raises(RunError, match=f"belongs to user {STRANGER}"):
        Agents(jobs.place(0), theirs)._open_listener()  # a driver does not leave its key there either
    listener.close()


def test_an_agent_takes_no_notice_of_another_user(public: Path) -> None:  # noqa: F811
    mine, board = public / "run", FileBoard(public / "run")
    mine.mkdir(mode=0o777)
    mine.chmod(0o777)
    as_stranger(lambda: board.path.write_text(json.dumps({"job": "test", "hosts": ["127.0.0.1"], "port": 9})))
    with pytest.raises(RunError, match=r"other users may write .*run \(mode 777\)"):
        board.read()
    mine.chmod(0o755)
    with pytest.raises(RunError, match=rf"driver\.json belongs to user {STRANGER}"):
        board.read()
    board.leave(NOTICE)
    assert board.read() == NOTICE
    assert board.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o2775, 0o722])
def test_a_directory_that_others_may_write_is_refused_with_how_to_mend_it(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "it's"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(
        RunError, match=r"other users may write to .*Remove the permission with `chmod go-w '/"
    ) as refused:
        train(directory)
    assert list(directory.iterdir()) == []
    assert os.system(str(refused.value).split("`")[1]) == 0
    assert train(directory).status == "done"


def test_so_is_one_of_its_folders_where_others_reach_it(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o755)
    for name in ("commands", "members", "workers"):
        (directory / name).mkdir()
        (directory / name).chmod(0o775)
        with pytest.raises(RunError, match=rf"other users may write .*{name} \(mode 775\)"):
            check_directory(directory)
        (directory / name).chmod(0o755)
    check_directory(directory)
    (directory / "commands").chmod(0o777)
    directory.chmod(0o700)
    check_directory(directory)  # other users cannot reach the folder


def test_whatever_the_umask_no_other_user_may_write_what_a_run_makes(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        train(tmp_path / "runs" / "a")
        make_folder(tmp_path / "b" / "c" / "d")
        (tmp_path / "mine").mkdir()
        with pytest.raises(RunError, match="chmod go-w"):
            train(tmp_path / "mine")
    finally:
        os.umask(before)
    assert (tmp_path / "runs" / "a").stat().st_mode & 0o777 == 0o700
    for path in [*(tmp_path / "runs" / "a").rglob("*"), tmp_path / "b", tmp_path / "b" / "c" / "d"]:
        assert path.is_symlink() or not path.stat().st_mode & 0o022, path


def test_nor_what_optuna_writes_there_through_no_link(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        mirror._open_journal(tmp_path / "optuna.log")
    finally:
        os.umask(before)
    assert not (tmp_path / "optuna.log").stat().st_mode & 0o022
    (tmp_path / "optuna.log").unlink()
    (tmp_path / "optuna.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"optuna\.log is a symbolic link"):
        mirror._open_journal(tmp_path / "optuna.log")
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_that_another_user_has_left_is_no_directory(public: Path) -> None:  # noqa: F811
    mine = public / "mine"
    mine.mkdir(mode=0o700)
    (public / "link").symlink_to(mine)
    check_directory(public / "link")
    as_stranger(lambda: (public / "theirs").symlink_to(mine))
    with pytest.raises(RunError, match=f"theirs belongs to user {STRANGER}"):
        check_directory(public / "theirs")


def test_a_directory_that_is_put_in_the_place_of_the_runs_gives_no_commands(public: Path) -> None:  # noqa: F811
    """If another user owns the parent directory, they can rename the run's directory while it is in use."""
    mine = public / "run"
    mine.mkdir(mode=0o700)
    write_command(mine, {"command": "stop", "member": "one"})
    inbox = Inbox(mine / "commands", ())
    assert len(inbox.new()) == 1
    shutil.rmtree(mine)
    as_stranger(lambda: (mine.mkdir(), write_command(mine, {"command": "stop", "member": "two"})))
    inbox._looked = 0.0
    assert inbox.new() == []


def test_what_later_runs_take_over_is_in_no_folder_of_another_user(
    public: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a writable home, for example of a service, the cache is a temporary folder whose name other users can predict."""
    hidden, theirs = tmp_path / ".ssh", public / f"argosy-{os.geteuid()}"
    hidden.mkdir()
    os.utime(hidden, (1, 1))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(public))
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.delenv("ARGOSY_CACHE")

    def plant() -> None:
        theirs.mkdir()
        (theirs / "rows").symlink_to(tmp_path)

    as_stranger(plant)
    with pytest.raises(FileNotFoundError):
        RowCache().room(1)
    assert RowCache().entries() == []
    monkeypatch.setenv("ARGOSY_CACHE", str(theirs))
    for use in (lambda cache: cache.room(1), lambda cache: cache.entries()):
        with pytest.raises(RunError, match=rf"rows belongs to user {STRANGER}"):
            use(RowCache())
    assert hidden.exists()
    assert cache_folder() == NOWHERE
    shutil.rmtree(theirs)
    assert cache_folder() == theirs
    assert theirs.stat().st_mode & 0o777 == 0o700


# ---- files


def test_what_is_no_plain_file_of_this_user_is_no_command(tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    (tmp_path / "outside.json").write_text('{"command": "stop", "member": "one"}')
    os.mkfifo(commands / "1.json")
    (commands / "2.json").symlink_to(tmp_path / "outside.json")
    (commands / "3.json").mkdir()
    (commands / "4.json").write_text("[" * 100_000)
    (commands / "5.json").write_text('{"command": "clone", "warm": Infinity}')
    (commands / "6.json").write_text('{"command": "stop", "command": "add"}')
    (commands / "7.json").write_bytes(b'{"command": "\xff"}')
    (commands / "8.json").write_text('{"command": "' + "x" * 2**20 + '"}')
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(commands / "9.json"))
        found = dict(Inbox(commands, ()).new())
    told = [
        "a pipe",
        "a symbolic link",
        "Is a directory",
        "more than 64 levels deep",
        "not a finite number",
        "twice",
        "utf-8",
        "more than",
        "a pipe, a socket",
    ]
    for number, sentence in enumerate(told, start=1):
        assert sentence in found[f"{number}.json"]["command"], found


def test_a_user_who_may_read_a_run_but_for_its_lock_sees_whether_it_goes_on(public: Path) -> None:  # noqa: F811
    ended, going = public / "ended", public / "going"
    for run in (ended, going):
        run.mkdir()
        with Lock(run / "run.lock"):
            pass

    def look() -> None:
        assert (has_driver(ended), has_driver(going)) == (False, True)

    with Lock(going / "run.lock"):
        as_stranger(look)


def test_a_user_who_may_not_enter_the_directory_of_a_run_or_its_members_is_told_so(public: Path) -> None:  # noqa: F811
    private, members = public / "private", public / "members"
    train(private)
    shutil.copytree(private, members, symlinks=True)
    members.chmod(0o755)
    for path in members.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    (members / "members").chmod(0o700)

    def look() -> None:
        with pytest.raises(
            RunError, match=r"cannot read .*/private/journal.jsonl: Permission denied. Pass the directory"
        ):
            argosy.load(private)
        with pytest.raises(RunError, match=r"/private belongs to user 0, who could make the run execute any code"):
            train(private, fresh=True)
        report = argosy.load(members, study=studies.study(60, fleet=ONE, epochs=1))
        with pytest.raises(DiskError, match=r"one/e0001-s0000000.pt cannot be read: .* Permission denied"):
            report.best().load()

    as_stranger(look)
    as_stranger(look, for_now=True)


def test_a_process_that_has_given_up_roots_rights_trains_and_loads(public: Path) -> None:  # noqa: F811
    """The kernel then refuses it its own files in ``/proc``."""

    def train_and_load() -> None:
        os.chdir(public)
        train(public / "run").best().load()

    as_stranger(train_and_load)


def test_a_command_that_another_user_left_before_the_directory_was_closed_is_refused(public: Path) -> None:  # noqa: F811
    mine = public / "run"
    make_folder(mine / "commands")
    (mine / "commands").chmod(0o777)
    as_stranger(lambda: (mine / "commands" / "1.json").write_text('{"command": "add", "study": "/tmp/evil.py"}'))
    assert Inbox(mine / "commands", ()).new() == []  # commands are not read as long as others may write there
    (mine / "commands").chmod(0o755)
    ((_, command),) = Inbox(mine / "commands", ()).new()
    assert f"belongs to user {STRANGER}" in command["command"]


PLANTED = (
    "report.html",
    ".report.html",
    "report.live.js",
    ".report.live.js",
    "study.json",
    ".study.json",
    "members/one/metrics.csv",
    "members/one/metrics.jsonl",
    "members/one/e0002-s0000000.pt",
    "curves.csv",
)
"""Files that a run or its report replaces, and the temporary names under which they were once written before renaming."""


def test_nothing_is_written_through_a_link_that_was_planted(tmp_path: Path) -> None:
    run, treasure = tmp_path / "run", tmp_path / "treasure"
    train(run)
    treasure.write_text("mine")
    make_folder(run / "workers")
    for name in PLANTED:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(treasure)
    (run / "study.json").unlink()
    with pytest.warns(UserWarning, match=r"has no study\.json"):
        train(run, epochs=2)
    reporting_cli.report(run, html=True, csv_file=f"{run}/curves.csv")
    assert treasure.read_text() == "mine"
    assert (run / "curves.csv").read_text().startswith("member,")
    assert (run / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert not (run / "report.html").is_symlink()
    assert not (run / "members" / "one" / "metrics.csv").is_symlink()


@pytest.mark.parametrize(
    "name", ["journal.jsonl", "run.lock", "newcomers.jsonl", "members/one/log.txt", "workers/listener.log"]
)
def test_what_is_appended_to_a_link_or_a_pipe_is_refused(tmp_path: Path, name: str) -> None:
    treasure, path = tmp_path / "treasure", tmp_path / "run" / name
    treasure.write_text("mine\n")
    make_folder(path.parent)
    for plant in (lambda: path.symlink_to(treasure), lambda: os.mkfifo(path)):
        plant()
        with pytest.raises(RunError, match=r"is a (symbolic link|pipe)"):
            open_append(path)
        path.unlink()
    assert treasure.read_text() == "mine\n"


def test_a_file_of_another_user_is_not_appended_to(public: Path) -> None:  # noqa: F811
    mine = public / "run"
    mine.mkdir(mode=0o777)
    mine.chmod(0o777)
    as_stranger(lambda: (mine / "journal.jsonl").write_text(""))
    mine.chmod(0o755)
    with pytest.raises(RunError, match=rf"journal\.jsonl belongs to user {STRANGER}"):
        train(mine)


@pytest.mark.tampers
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
@pytest.mark.parametrize("name", ["journal.jsonl", "study.json", "run.lock", "newcomers.jsonl"])
def test_readers_neither_wait_for_a_pipe_nor_follow_a_link(
    tmp_path: Path, name: str, plant: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    train(run)
    (run / name).unlink(missing_ok=True)
    plant(run / name)
    reads = [argosy.load, partial(send_commands, run), lambda _: train(run, epochs=2)]
    for read in reads if name == "run.lock" else [*reads[:1], audit, *reads[2:]]:
        with pytest.raises(RunError, match=rf"{name} is a (symbolic link|pipe), .*Move it away"):
            read(run)


def test_a_new_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half of the n")
        raise ZeroDivisionError
    assert [found.name for found in tmp_path.iterdir()] == ["page.html"]
    assert path.read_bytes() == b"old"


def test_a_lock_that_says_nonsense_holds_nothing_up(tmp_path: Path) -> None:
    for text in ("0 \x00 1", "x" * 10_000, "9" * 500, f"abc {socket.gethostname()} 1", f"1 {socket.gethostname()}"):
        (tmp_path / "run.lock").write_text(text)
        assert not has_driver(tmp_path)
        with Lock(tmp_path / "run.lock"):
            assert has_driver(tmp_path)
