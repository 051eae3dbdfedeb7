"""``argosy doctor``: looks for problems that would keep a run from working on this machine, and names a fix for each.

What is found is judged by pure functions (`judge_disk` and the like).
"""

import contextlib
import fcntl
import mmap
import os
import resource
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from argosy.errors import WorkerError
from argosy.errors.system import NO_FOLDER
from argosy.errors.wording import format_bytes
from argosy.running.directory.versions import versions_of
from argosy.running.doctor.checks import Check, make_check
from argosy.running.launch.forkserver import ForkServer
from argosy.running.launch.limits import memory_limit, quota_cores, usable_cores
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.wire import Peer

__all__ = ["EXTRAS", "WANTED_VERSIONS", "examine"]

GIB = 2**30
# Before torch 2.10, a file opened with weights_only=True could execute code (CVE-2026-24747).
WANTED_VERSIONS = {"python": "3.11", "torch": "2.10", "numpy": "2.0"}
EXTRAS = {
    "scikit-learn": "demo",
    "pillow": "demo",
    "transformers": "examples",
    "plotly": "tune",
    "highspy": "exact",
    "optuna": "tune",
}
"""Optional packages, and the extra of Argosy that installs each."""
DISK_BYTES = GIB
"""Least free space for the files of runs."""
SERVICE_BYTES, DEVICE_BYTES = GIB, GIB // 2
"""Bytes of memory of driver, fork server, feeder and ring together, and of one trainer with small members."""
SERVICE_FILES, WORKER_FILES = 48, 4
"""File descriptors of a run's busiest process: a fixed number, and the number for each worker that it talks to."""
SERVICE_TASKS, WORKER_TASKS = 16, 2
"""Processes and threads of a run: a fixed number, and the number for each worker."""
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
        if NO_FOLDER in str(error):
            fix = "set TMPDIR to a folder that you may write in"
        return make_check(name, f"{type(error).__name__}: {error}", "no error", fix)


def judge_versions(versions: Mapping[str, str | None]) -> Check:
    """Check that Python, torch and NumPy are installed and recent enough; None means that a package is not installed."""
    old = [name for name, least in WANTED_VERSIONS.items() if _numbers(versions[name]) < _numbers(least)]
    packages = " ".join(f"'{name}>={WANTED_VERSIONS[name]}'" for name in old if name != "python")
    return make_check(
        "versions",
        ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items()),
        ", ".join(f"{name} >= {least}" for name, least in WANTED_VERSIONS.items()),
        "install Python 3.11 or newer" if "python" in old else f"pip install {packages}" if old else "",
    )


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version; empty for a missing package."""
    numbers = []
    for part in (version or "").split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def judge_extras(versions: Mapping[str, str | None]) -> Check:
    """List optional packages, none of which is needed for training."""
    missing = [name for name, version in versions.items() if version is None]
    extras = ",".join(dict.fromkeys(EXTRAS[name] for name in missing))
    return Check(
        name="extras",
        found=", ".join(f"{name} {version or '-'}" for name, version in versions.items()),
        wanted="optional",
        ok=True,
        fix=f"pip install 'argosy[{extras}]'" if missing else "",
    )


def judge_cores(there: int, allowed: int, quota: float | None) -> Check:
    """Check for at least one whole core; a limit below the machine's cores is reported, but is no failure."""
    limits = f"{allowed} of {there} by affinity" + ("" if quota is None else f", a quota of {quota:g}")
    fix = "" if quota is None or quota >= 1 else "give the container a whole core, e.g. docker run --cpus=2"
    return make_check("cores", limits, "1 or more", fix)


def judge_memory(available: int, limit: int | None, *, devices: int) -> Check:
    """Check for enough memory for a run of small members on every core."""
    room = available if limit is None else min(available, limit)
    wanted = SERVICE_BYTES + devices * DEVICE_BYTES
    bounded = "" if limit is None else f", limited to {format_bytes(limit)} by a control group"
    return make_check(
        "memory",
        f"{format_bytes(available)} available{bounded}",
        f"{format_bytes(wanted)} for {devices} CPU devices and small members",
        "" if room >= wanted else "--devices cpu:1 --loader-workers 1, or raise the container's memory limit",
    )


def _check_memfd() -> Check:
    """Create an anonymous memory file and map it, as the ring does."""
    wanted = "Linux 3.17 or newer, and a sandbox that allows it"
    try:
        with os.fdopen(os.memfd_create("argosy-doctor", os.MFD_CLOEXEC), "wb") as file:
            file.truncate(2**20)
            mmap.mmap(file.fileno(), 0).close()
    except OSError as error:
        fix = "allow memfd_create in the sandbox, e.g. docker run --security-opt seccomp=unconfined"
        return make_check("memfd", str(error), wanted, fix)
    return make_check("memfd", "works", wanted)


def judge_files(limits: tuple[int, int], *, workers: int) -> Check:
    """Check the soft and hard limits on open files per process."""
    (soft, hard), wanted = limits, SERVICE_FILES + WORKER_FILES * workers
    ample = max(wanted, 1024)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        fix = ""
    elif hard == resource.RLIM_INFINITY or hard >= wanted:
        fix = f"ulimit -n {ample if hard == resource.RLIM_INFINITY else min(ample, hard)}"
    else:
        fix = f"raise the hard limit first: '* hard nofile {ample}' in /etc/security/limits.conf"
    finding = f"{_number(soft)} per process (up to {_number(hard)} on request)"
    return make_check("open files", finding, f"{wanted}", fix)


def _number(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else str(limit)


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


def judge_processes(limit: int | None, there: int, *, workers: int) -> Check:
    """Check that this user may start enough processes and threads, given the limit (None if there is none) and their present number."""
    wanted = SERVICE_TASKS + WORKER_TASKS * workers
    ok = limit is None or limit - there >= wanted
    fix = "" if ok else f"ulimit -u {there + max(wanted, 256)}, or raise the container's pids limit"
    return make_check("processes", f"{there} of {'any number' if limit is None else limit}", f"{wanted} more", fix)


def _disk_of(directory: Path) -> tuple[Path, int, bool]:
    """Return the nearest existing folder, its free bytes, and whether files can be created in it."""
    folder = _nearest(directory)
    return folder, shutil.disk_usage(folder).free, os.access(folder, os.W_OK | os.X_OK)


def _nearest(directory: Path) -> Path:
    """Return the folder itself, or its nearest existing parent."""
    return next(path for path in (directory.resolve(), *directory.resolve().parents) if path.is_dir())


def judge_disk(folder: Path, free: int, writable: bool) -> Check:
    """Check free space and write access in the folder of the runs."""
    finding = f"{format_bytes(free)} free in {folder}" if writable else f"{folder} is not writable"
    fix = "" if writable and free >= DISK_BYTES else "--dir DIR on a disk with space that you may write to"
    return make_check("disk", finding, f"{format_bytes(DISK_BYTES)} free, writable", fix)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """What the driver and torch report about this machine's GPUs."""

    in_machine: int
    """GPUs that the driver knows."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES; None if it is not set."""
    names: tuple[str, ...] = ()
    """Name and memory of each GPU that torch can use."""
    torch_cuda: str | None = None
    """Version of CUDA that torch was built for; None for a build without CUDA."""
    complaint: str = ""
    """Warnings that torch gave when it was asked."""


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


def judge_gpus(gpus: Gpus) -> Check:
    """Check that every GPU of the machine can be used, unless some are hidden on purpose."""
    if gpus.in_machine == 0 and not gpus.names:
        finding = "no NVIDIA GPU: members train on CPU devices, or on AMD or Intel GPUs that torch finds"
        return make_check("gpus", finding, "optional")
    wanted = f"{gpus.in_machine}, or those that CUDA_VISIBLE_DEVICES names"
    if gpus.names:
        hidden = "" if gpus.visible is None else f" (CUDA_VISIBLE_DEVICES={gpus.visible})"
        return make_check("gpus", f"{', '.join(gpus.names)}{hidden}", wanted)
    if gpus.visible is not None and gpus.visible in ("", "-1"):
        finding, fix = f"all hidden by CUDA_VISIBLE_DEVICES={gpus.visible!r}", "unset CUDA_VISIBLE_DEVICES"
    elif gpus.torch_cuda is None:
        finding = "torch was built without CUDA"
        fix = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
    else:
        finding = f"torch, built for CUDA {gpus.torch_cuda}, sees none. {gpus.complaint}".strip()
        fix = (
            f"update the NVIDIA driver to one for CUDA {gpus.torch_cuda}, or install a torch for the present "
            "driver (nvidia-smi shows its CUDA version); check CUDA_VISIBLE_DEVICES"
        )
    return make_check("gpus", f"0 of {gpus.in_machine}: {finding}", wanted, fix)


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
