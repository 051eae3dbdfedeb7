"""Errors of run directories, their files and processes."""

import errno
import fcntl
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import studies
import torch

import argosy
from argosy.cli import app as cli
from argosy.cli.query import query
from argosy.cli.schema import guide, schema
from argosy.disk import files
from argosy.errors.system import explain_refusals, system_refused
from argosy.protocol.events import Checkpoint, Proposed, RunEnded
from argosy.protocol.feeder import Opened
from argosy.results.fold import RunState
from argosy.running.control.additions import Additions
from argosy.running.control.carry_out import CarryOut
from argosy.running.control.driver import Driver
from argosy.running.control.measurements import Measurements
from argosy.running.control.positions import Positions
from argosy.running.control.rehearsal import RehearsalResult
from argosy.running.control.run import Run
from argosy.running.control.tolerance import LOSSES, Tolerance
from argosy.running.directory import query as querying
from argosy.running.directory.anew import make_began_anew
from argosy.running.directory.audit import audit
from argosy.running.directory.inbox import send_commands
from argosy.running.directory.journal import Journal, read_journal
from argosy.running.directory.lock import Lock, make_own_directory
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.launch import limits, worker
from argosy.running.launch.launcher import Job
from argosy.settings import Settings
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.imported import check_imports, digest_imports
from argosy.stream.memory import memory_file
from argosy.stream.wire import Peer
from messages.of_studies import misspelt, study

__all__ = ["CASES"]

RUN = Path("runs/x")
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
FAILING = studies.member("mlp", model=misspelt)


def run(epochs: int = 1, *, fresh: Any = False, **rest: Any) -> argosy.Report:
    """Train a small run in this process."""
    asked = study(stop=argosy.MaxEpochs(epochs), **rest)
    return argosy.train(asked, directory=RUN, launcher="inline", devices="cpu:1", fresh=fresh)


def asked(sql: str, *members: argosy.Member) -> querying.Answer:
    """Query a small run."""
    run(**({"members": members} if members else {}))
    return querying.query(RUN, sql)


def of_options(**options: int) -> studies.Mlp:
    """Build a small network."""
    return studies.Mlp()


def loaded(member: argosy.Member) -> None:
    """Load the best network of a run with a study of this member."""
    run()
    argosy.load(RUN, study=study(members=[member])).best().load()


def journaled(*lines: str) -> Path:
    """Create a run directory with this journal."""
    RUN.mkdir(parents=True)
    (RUN / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return RUN


def without_a_section() -> None:
    """Load a run from whose journal a line was removed."""
    run(epochs=2)
    lines = (RUN / "journal.jsonl").read_text().splitlines(keepends=True)
    first = next(line for line in lines if '"SectionEnded"' in line)
    (RUN / "journal.jsonl").write_text("".join(line for line in lines if line != first))
    argosy.load(RUN)


SECONDS = {"seconds_per_sample": 0.0, "opening_seconds": 0.0}


def opened_elsewhere() -> None:
    """Open different data on the second node."""
    there = Opened(lengths={"train": 21}, fingerprints={}, block_size=64, keeping={}, **SECONDS)
    here = Opened(lengths={"train": 20}, fingerprints={}, block_size=64, keeping={}, **SECONDS)
    Driver._check_same_data(SimpleNamespace(run=SimpleNamespace(data=there)), SimpleNamespace(node="node1"), here)


def ended() -> None:
    """Send a request to a run that has ended."""
    run()
    send_commands(RUN, {"command": "stop", "member": "mlp"})


def of_nobody() -> None:
    """Let the driver end while a command waits for its answer."""
    (journaled() / "run.lock").touch()
    with pytest.MonkeyPatch.context() as patch:
        answers = iter([True, False])
        patch.setattr("argosy.running.directory.inbox.has_driver", lambda _: next(answers))
        send_commands(RUN, {"command": "stop", "member": "mlp"})


def copied(text: str = "study = 3\n") -> StudyCopy:
    """Copy a study file as `argosy add` does."""
    Path("more.py").write_text(text)
    return StudyCopy.take(Path("more.py"), Path("1-more.py"))


def added(rehearsed: RehearsalResult, seed: int = 0) -> None:
    """Add a file whose members are already in the run, as the driver of a run with this seed does."""
    study = SimpleNamespace(seed=seed)
    commands = {"1-add.json": {"study": "more.py"}}
    run = SimpleNamespace(positions=SimpleNamespace(newcomers=lambda _: ()), study=study, data=None, commands=commands)
    additions = Additions(
        cast(Run, run), cast(CarryOut, SimpleNamespace(answer=lambda *_: None)), cast(Measurements, None)
    )
    text = "import argosy, studies\nstudy = studies.study(fleet=[studies.member('mlp')])\n"
    additions._copies["1-add.json"] = copied(text)
    additions._take_up("1-add.json", rehearsed)


def another_module(patch: pytest.MonkeyPatch) -> None:
    """Add a file beside a module whose name another module of the run has."""
    Path("beside.py").touch()
    patch.setitem(sys.modules, "beside", sys)  # another test may have left one
    patch.delitem(sys.modules, "beside")
    sys.path.insert(0, str(Path.cwd()))
    added(RehearsalResult(modules={"beside": "/home/me/beside.py"}))


def changed_copy() -> None:
    """Edit a copy."""
    copy = copied()
    copy.path.write_text("study = 4\n")
    copy.check()


def missing_copy() -> None:
    """Delete a copy."""
    copy = copied()
    copy.path.unlink()
    copy.check()


def in_use() -> None:
    """Let another process use the run."""
    RUN.mkdir(parents=True)
    with Lock(RUN / "run.lock"):
        (RUN / "run.lock").write_text("4711 elsewhere 0")
        with Lock(RUN / "run.lock"):
            pass


def refuses(number: int) -> Callable[..., NoReturn]:
    """Return a function whose call the system refuses."""

    def call(*_: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return call


def somebody_elses(patch: pytest.MonkeyPatch) -> None:
    """Use a directory of another user."""
    patch.setattr(os, "geteuid", lambda: 1000)
    RUN.mkdir(parents=True)
    patch.setattr(Path, "stat", lambda _: SimpleNamespace(st_uid=1001, st_mode=0o40700))
    make_own_directory(RUN)


def open_to_others() -> None:
    """Use a directory that other users may write to."""
    RUN.mkdir(parents=True)
    RUN.chmod(0o775)
    make_own_directory(RUN)


def of_somebody_else(patch: pytest.MonkeyPatch) -> None:
    """Use a journal of another user."""
    journaled()
    patch.setattr(os, "geteuid", lambda: 1000)
    there = SimpleNamespace(st_uid=1001, st_mode=0o100644)
    patch.setattr(os, "fstat", lambda _: there)
    Journal(RUN / "journal.jsonl").__enter__()


def lost_journal() -> None:
    """Train in a directory with checkpoints and an empty journal."""
    (journaled() / "members" / "mlp").mkdir(parents=True)
    (RUN / "members" / "mlp" / "e0002-s0000000.pt").touch()
    run()


def long_line(patch: pytest.MonkeyPatch) -> None:
    """Read a journal without line breaks."""
    patch.setattr(files, "LONGEST_LINE", 2**20)
    read_journal(journaled("x" * 2**20))


def other_lengths() -> None:
    """Change the sample count in study.json."""
    run()
    found = json.loads((RUN / "study.json").read_text())
    (RUN / "study.json").write_text(json.dumps({**found, "lengths": {"train": 10**9}}))
    audit(RUN)


def unreadable_study() -> None:
    """Read a study.json that is a folder."""
    (journaled() / "study.json").mkdir()
    argosy.load(RUN)


def in_the_place_of_a_file() -> None:
    """Train in a directory that is a file."""
    RUN.parent.mkdir()
    RUN.touch()
    run()


def without_locks(patch: pytest.MonkeyPatch) -> None:
    """Train on a file system without locks."""
    patch.setattr(fcntl, "flock", refuses(errno.ENOLCK))
    run()


def without_symbolic_links(patch: pytest.MonkeyPatch) -> None:
    """Train on a file system without symbolic links."""
    patch.setattr(Path, "symlink_to", refuses(errno.EPERM))
    run()


def without_memory_files(patch: pytest.MonkeyPatch, number: int) -> None:
    """Refuse shared memory."""
    patch.setattr(os, "memfd_create", refuses(number))
    memory_file("ring")


def small_memory_files(patch: pytest.MonkeyPatch) -> None:
    """Refuse that much shared memory."""
    patch.setattr(os, "ftruncate", refuses(errno.EFBIG))
    memory_file("ring", 10**9)


def journal_on_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """Write an event to a full disk."""
    RUN.mkdir(parents=True)
    patch.setattr(os, "fdatasync", refuses(errno.ENOSPC))
    with Journal(RUN / "journal.jsonl") as journal:
        journal.append(RunEnded(status="done", reason="", seconds=1.0))
        journal.commit()


def files_on_a_full_disk() -> None:
    """Write another file of the run to a full disk."""
    with explain_refusals(RUN):
        refuses(errno.ENOSPC)()


def without_a_working_directory() -> NoReturn:
    """Use the working directory after it was removed."""
    raise cast("Exception", system_refused(FileNotFoundError(errno.ENOENT, "No such file"), "argosy cannot continue"))


def warm_clone() -> None:
    """Start over with a warm clone, whose original weights may be gone."""
    state = RunState()
    state.member("late").source = "mlp"
    state.member("late").inherited = Checkpoint(file="e0001.pt", sha256="", epoch=1, section=0, position=0)
    make_began_anew(["late"], study(), state, RUN)


def unmovable(patch: pytest.MonkeyPatch) -> None:
    """Start over in a directory that is a mount."""
    run()
    patch.setattr(Path, "rename", refuses(errno.EBUSY))
    run(fresh=True)


def left_out() -> None:
    """Reuse the name of a member that has trained before."""
    state = RunState()
    state.member("vit").assign(0, 0)
    Positions(Job(study=study(), settings=Settings(), directory=RUN, lock=-1), state).check_new("vit")


def like_a_trial() -> None:
    """Give a member that is added to a search the name of a trial."""
    state = RunState()
    state.apply(Proposed(trial=0, member="vit-0", parameters={"lr": 0.1}))
    Positions(Job(study=study(), settings=Settings(), directory=RUN, lock=-1), state).check_new("vit-7")


def one_folder() -> None:
    """Add a member on a disk that does not distinguish upper and lower case."""
    RUN.mkdir(parents=True)
    (RUN / "RUN.LOCK").touch()
    Positions(Job(study=study(), settings=Settings(), directory=RUN, lock=-1), RunState()).check_new("MLP")


def elsewhere(patch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Train on a system other than Linux."""
    patch.setattr(sys, "platform", "darwin")
    argosy.train(study(), directory=RUN, **settings)


def without_processes(patch: pytest.MonkeyPatch) -> None:
    """Train where /proc is not mounted."""
    patch.setattr(limits, "PROC", Path("/proc/nothing"))
    argosy.train(study(), directory=RUN)


def equal_failures() -> None:
    """Let three members fail for the same reason."""
    fleet = [studies.member(name, model=misspelt) for name in "abc"]
    run(members=fleet)


def losses() -> None:
    """Lose a process repeatedly."""
    tolerance = Tolerance(RUN / "workers", of_search=False)
    for _ in range(LOSSES + 1):
        tolerance.count_worker_loss("cpu:0", "killed by signal 9")


def damaged(_: int) -> None:
    """Fail to unpickle."""
    raise ValueError("no pickle")


def unreadable(patch: pytest.MonkeyPatch) -> None:
    """Start a worker that cannot read its input."""
    _driver, there = Peer.pair()
    patch.setattr(worker, "name_process", lambda _: None)
    patch.setattr(worker, "load_blob", damaged)
    _heartbeat, heartbeat = Heartbeat.create()
    worker.run_worker({"name": "cpu:0", "role": "trainer"}, [os.dup(there.fileno()), -1, heartbeat, -1, -1])


def differing_draws(patch: pytest.MonkeyPatch) -> None:
    """Hold values in a class that another process has in another order."""
    patch.setattr(studies.Mlp, "frequencies", torch.arange(32.0), raising=False)
    wanted = digest_imports([studies.member("mlp")])
    patch.setattr(studies.Mlp, "frequencies", torch.arange(32.0).flip(0))
    check_imports([studies.member("mlp")], wanted)


def without(patch: pytest.MonkeyPatch, package: str, ask: Callable[[argosy.Report], Any]) -> None:
    """Request a result that needs an optional package."""
    report = run()
    patch.setitem(sys.modules, package, None)
    ask(report)


def without_digits(patch: pytest.MonkeyPatch) -> None:
    """Run the demo without its extra."""
    patch.setattr(cli, "find_spec", lambda name: None)
    cli.demo()


def without_matplotlib(patch: pytest.MonkeyPatch) -> None:
    """Plot without matplotlib; a module that another test imported with it must be removed from its package."""
    patch.delitem(sys.modules, "argosy.results.figures", raising=False)
    patch.delattr(argosy.results, "figures", raising=False)
    without(patch, "matplotlib", argosy.Report.plot)


def without_a_temporary_folder() -> NoReturn:
    """Start a command where no temporary folder can be written, as in a container whose root is read-only."""
    nowhere = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")
    raise cast("Exception", system_refused(nowhere, "argosy cannot continue"))


def in_place(patch: pytest.MonkeyPatch) -> None:
    """Start a run over in the working directory, where the study file is too."""
    outside, folder = Path.cwd(), Path("digits")
    folder.mkdir()
    (folder / "journal.jsonl").touch()
    patch.chdir(folder)
    try:
        argosy.train(study(), directory=Path(), launcher="inline", fresh=True)
    finally:
        patch.chdir(outside)  # messages are shown relative to it


def beside_code() -> None:
    """Start a run over in the folder of a study file."""
    folder = Path("experiment")
    folder.mkdir()
    (folder / "journal.jsonl").touch()
    (folder / "study.py").touch()
    argosy.train(study(), directory=folder, launcher="inline", fresh=True)


def followed() -> None:
    """Reuse the choices of a run with a different number of threads."""
    run()
    argosy.train(study(), directory=Path("runs/y"), launcher="inline", devices="cpu:1", like=str(RUN), threads=2)


CASES = {
    "a working directory that was removed": without_a_working_directory,
    "no temporary folder that can be written": without_a_temporary_folder,
    "a run that reuses choices of a run with a different number of threads": followed,
    "an unknown launcher": lambda: argosy.train(study(), directory=RUN, launcher="slurm"),
    "members instead of a study": lambda: argosy.train(list(study().members), directory=RUN),  # type: ignore[arg-type]
    "a table without pandas": lambda patch: without(patch, "pandas", argosy.Report.curves),
    "a figure without matplotlib": without_matplotlib,
    "a figure of a metric that no member reports": lambda: run().plot("val_los"),
    "a file at the path of the figures folder": lambda: run().write_figures(RUN / "journal.jsonl"),
    "the demo without its extra": without_digits,
    "a query of an unknown table": lambda: asked("SELECT * FROM trials"),
    "a query that writes": lambda: asked("DELETE FROM members"),
    "an empty query": lambda: asked("-- later"),
    "a query that does not end": lambda patch: (
        patch.setattr(querying, "SECONDS", 0.01),
        asked(f"{ENDLESS} max(i) FROM n"),
    ),
    "a query with too many rows": lambda patch: (
        patch.setattr(querying, "MOST_ROWS", 10),
        asked(f"{ENDLESS} i FROM n"),
    ),
    "a query of more columns than SQLite has": lambda: asked(
        "SELECT 1",
        studies.member("mlp", model=partial(of_options, **{f"p{number}": number for number in range(2_000)})),
    ),
    "a command without its query": lambda: query(RUN),
    "an unknown part of the guide": lambda: guide("compar"),
    "the schema of a command without JSON output": lambda: schema("statu"),
    "a figure by an unknown grouping": lambda: run().plot(by="configuratoin"),
    "a network from a report without its study": lambda: (run(), argosy.load(RUN).best().load()),
    "a network of a member that has saved nothing": lambda: run(members=[FAILING]).member("mlp").load(),
    "a report with something else as its study": lambda: argosy.load(RUN, study="study.py"),  # type: ignore[call-overload]
    "a network from a study without the member": lambda: loaded(studies.member("vit")),
    "a network from a study that builds a different network": lambda: loaded(studies.member("mlp", hidden=9)),
    "a damaged study.json": lambda: ((journaled() / "study.json").write_text("{}"), argosy.load(RUN)),
    "a journal from which a section was removed": without_a_section,
    "a journal that cannot be read": lambda: ((RUN / "journal.jsonl").mkdir(parents=True), argosy.load(RUN)),
    "a run that ended before its data was open": lambda: argosy.load(journaled()),
    "an audit of a run that ended before its data was open": lambda: audit(journaled()),
    "a member that the run does not have": lambda: run().member("vit"),
    "the best member of a run that trained nothing": lambda: run(members=[FAILING]).best(),
    "a different study in the same directory": lambda: (run(), run(epochs=2, seed=4)),
    "a changed member in the same directory": lambda: (run(), run(members=[studies.member("mlp", hidden=9)])),
    "fresh= that is no name": lambda: run(fresh=1),
    "fresh= with an unknown member": lambda: (run(), run(fresh=["mpl"])),
    "fresh= with a warm clone": warm_clone,
    "fresh=True in a directory that cannot be moved": unmovable,
    "fresh=True in the working directory": in_place,
    "fresh=True in the folder of a study file": beside_code,
    "a new member with the name of a removed member": left_out,
    "a new member with the name of a trial": like_a_trial,
    "a new member with the name of another in upper case, on a disk that does not distinguish the two": one_folder,
    "a run on macOS": elsewhere,
    "a run on macOS with a number of cores": lambda patch: elsewhere(patch, launcher="inline", cores=2),
    "a run without /proc": without_processes,
    "a request to a run that has ended": ended,
    "a run that ends before it carries out a request": of_nobody,
    "an add command without a copy of the study file": lambda: StudyCopy.of({"study": "more.py"}, RUN / "commands"),
    "an added file that does not exist": lambda: StudyCopy.take(Path("more.py"), Path("1-more.py")),
    "an added file that does not run to its end": lambda: added(
        RehearsalResult(
            problem="the study file did not run to its end. Let it run to its end and define a variable `study`."
        )
    ),
    "an added file with a module whose name is taken": another_module,
    "an added file with a different seed": lambda: added(RehearsalResult(), seed=3),
    "an added file without new members": lambda: added(RehearsalResult()),
    "a missing copy of an added file": missing_copy,
    "a changed copy of an added file": changed_copy,
    "a directory without a run": lambda: argosy.load(RUN),
    "a journal that was edited by hand": lambda: read_journal(journaled("done!")),
    "a directory that is in use": in_use,
    "a file at the path of the run directory": in_the_place_of_a_file,
    "a directory of another user": somebody_elses,
    "a directory that other users may write to": open_to_others,
    "a journal of another user": of_somebody_else,
    "a journal that is a symbolic link": lambda: (
        (RUN.mkdir(parents=True), (RUN / "journal.jsonl").symlink_to("/etc/passwd")),
        argosy.load(RUN),
    ),
    "checkpoints without a journal": lost_journal,
    "a journal without line breaks": long_line,
    "a journal whose sample counts differ from study.json": other_lengths,
    "a study.json that cannot be read": unreadable_study,
    "a file system without locks": without_locks,
    "a file system without symbolic links": without_symbolic_links,
    "a sandbox without shared memory": lambda patch: without_memory_files(patch, errno.EPERM),
    "too many open files": lambda patch: without_memory_files(patch, errno.EMFILE),
    "a file size limit": small_memory_files,
    "a full disk under the journal": journal_on_a_full_disk,
    "a full disk under the run": files_on_a_full_disk,
    "nodes with different data": opened_elsewhere,
    "three members that fail in the same way": equal_failures,
    "a process that is lost repeatedly": losses,
    "a worker that raises an error": unreadable,
    "a module that differs in a worker": lambda: check_imports(
        [studies.member("mlp")], {**digest_imports([studies.member("mlp")]), "studies.Mlp": ["another"]}
    ),
    "random values of a module that differ in a worker": differing_draws,
}
