"""Looks for problems that would keep a run from working on this machine; `machine_checks` judges the findings."""

import contextlib
import fcntl
import mmap
import os
import resource
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from argosy.errors import WorkerError
from argosy.running.directory.versions import versions_of
from argosy.running.doctor.machine_checks import (
    EXTRAS,
    GIB,
    WANTED_VERSIONS,
    Check,
    Gpus,
    judge_cores,
    judge_dev_shm,
    judge_disk,
    judge_extras,
    judge_files,
    judge_gpus,
    judge_memory,
    judge_processes,
    judge_versions,
    make_check,
)
from argosy.running.launch.forkserver import ForkServer
from argosy.running.launch.limits import memory_limit, quota_cores, usable_cores
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.wire import Peer

__all__ = ["examine"]

FORK_SECONDS = 60.0
"""Timeout for the first worker; importing torch from a cold disk takes most of the time."""


def examine(directory: Path) -> list[Check]:
    """Return all checks, for a run in this directory; a check that raises has failed."""
    # The fork server imports modules while the other checks run.
    server, problem = _start_server()
    cores = usable_cores()
    checks: dict[str, Callable[[], Check]] = {
        "versions": lambda: judge_versions(versions_of(WANTED_VERSIONS)),
        "extras": lambda: judge_extras(versions_of(EXTRAS)),
        "cores": lambda: judge_cores(os.cpu_count() or 1, len(os.sched_getaffinity(0)), quota_cores()),
        "memory": lambda: judge_memory(psutil.virtual_memory().available, memory_limit(), devices=cores),
        "memfd": _check_memfd,
        "/dev/shm": lambda: judge_dev_shm(_size_of(Path("/dev/shm"))),
        "open files": lambda: judge_files(resource.getrlimit(resource.RLIMIT_NOFILE), workers=2 * cores),
        "processes": lambda: judge_processes(_task_limit(), _tasks_of_user(), workers=2 * cores),
        "disk": lambda: judge_disk(*_disk_of(directory)),
        "locks": lambda: _check_locks(directory),
        "gpus": lambda: judge_gpus(_find_gpus()),
        "fork server": partial(_check_server, server, problem),
    }
    return [_run_check(name, check) for name, check in checks.items()]


def _run_check(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (OSError, WorkerError) as error:
        fix = "fix the checks above first, then run argosy doctor again"
        return make_check(name, f"{type(error).__name__}: {error}", "no error", fix)


def _check_memfd() -> Check:
    """Create an anonymous memory file and map it, as the ring does."""
    wanted = "Linux 3.17 or newer, and a sandbox that allows it"
    try:
        descriptor = os.memfd_create("argosy-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, 2**20)
            mmap.mmap(descriptor, 0).close()
        finally:
            os.close(descriptor)
    except OSError as error:
        fix = "allow memfd_create in the sandbox, e.g. docker run --security-opt seccomp=unconfined"
        return make_check("memfd", str(error), wanted, fix)
    return make_check("memfd", "works", wanted)


def _size_of(folder: Path) -> int | None:
    return shutil.disk_usage(folder).total if folder.is_dir() else None


def _task_limit() -> int | None:
    """Return the largest number of tasks that this user may have; None without a limit, and for root, who has none."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft


def _tasks_of_user() -> int:
    user, tasks = os.geteuid(), 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        uids = process.info["uids"]
        tasks += process.info["num_threads"] or 0 if uids and uids.real == user else 0
    return tasks


def _nearest(directory: Path) -> Path:
    """Return the folder itself, or its nearest existing parent."""
    return next(path for path in (directory.resolve(), *directory.resolve().parents) if path.is_dir())


def _check_locks(directory: Path) -> Check:
    """Check that a lock can be taken, as a run does to keep others out of its directory."""
    folder, refusal = _nearest(directory), ""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        refusal = str(error)
    fix = "--dir DIR on a local disk, or mount this one with locks (NFS: without nolock)" if refusal else ""
    return make_check("locks", refusal or "work", f"flock in {folder}", fix)


def _disk_of(directory: Path) -> tuple[Path, int, bool]:
    """Return the nearest existing folder, its free bytes, and whether files can be created in it."""
    folder = _nearest(directory)
    return folder, shutil.disk_usage(folder).free, os.access(folder, os.W_OK | os.X_OK)


def _find_gpus() -> Gpus:
    """Return the GPUs; torch is asked only if the driver shows any, because importing it takes longer than all other checks."""
    in_machine = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if in_machine == 0:
        return Gpus(in_machine=0, visible=visible)
    import torch

    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.init()  # type: ignore[no-untyped-call]  # as `Accelerator.hardware` does
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        properties = [torch.cuda.get_device_properties(number) for number in range(count)]
    return Gpus(
        in_machine=in_machine,
        visible=visible,
        names=tuple(f"{gpu.name} ({gpu.total_memory / GIB:.0f} GiB)" for gpu in properties),
        torch_cuda=torch.version.cuda,
        complaint=" ".join(str(complaint.message) for complaint in complaints),
    )


def _start_server() -> tuple[ForkServer | None, str]:
    try:
        return ForkServer.start(), ""
    except (OSError, WorkerError) as error:
        return None, str(error)


def _check_server(server: ForkServer | None, problem: str) -> Check:
    """Check that the server can fork a worker that answers, as every worker of a run does."""
    wanted = f"a worker that answers within {FORK_SECONDS:.0f} s"
    fix = "run python -c 'import argosy.running.launch.worker' to see what is missing; a sandbox must allow fork and AF_UNIX sockets"
    started = time.monotonic()
    if server is not None:
        with tempfile.TemporaryDirectory(prefix="argosy-doctor-") as folder, contextlib.ExitStack() as last:
            last.callback(server.close)
            problem = _fork_one(server, Path(folder) / "worker.log")
    seconds = time.monotonic() - started
    return make_check("fork server", problem or f"works, {seconds:.1f} s", wanted, fix if problem else "")


def _fork_one(server: ForkServer, log: Path) -> str:
    """Fork a worker, and return an empty string if it answers, otherwise what went wrong."""
    ours, theirs = Peer.pair()
    blob = os.memfd_create("argosy-doctor")  # contains no study, so the worker reports an error and ends
    os.write(blob, bytes(8))
    _, heartbeat = Heartbeat.create()
    try:
        arguments = {"name": "doctor", "worker_id": "doctor", "role": "feeder"}
        server.fork(arguments, [theirs.fileno(), blob, heartbeat, blob, blob], log)
        theirs.close()
        with contextlib.suppress(EOFError):
            if ours.wait(FORK_SECONDS):
                return ""
        last_line = log.read_text().strip().splitlines()[-1:] if log.exists() else []
        return " ".join(["no worker answered.", *last_line])
    finally:
        ours.close()
        os.close(blob)
        os.close(heartbeat)
