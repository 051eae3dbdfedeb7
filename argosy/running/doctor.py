"""What would keep a run from working on this machine, and the command or setting that mends each of it.

Looking and judging are apart: every `judge_…` is a pure function of what was found; `examine` looks, and judges.
"""

import fcntl
import importlib.metadata
import mmap
import os
import pickle
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from argosy.errors import WorkerError
from argosy.running.forkserver import ForkServer
from argosy.running.limits import memory_limit, quota_cores, usable_cores
from argosy.stream.door import Door
from argosy.stream.pulse import Pulse

__all__ = ["Check", "Gpus", "examine", "versions_of"]

GIB = 2**30
# Before 2.10 of torch, a file could do more than bring data, though it was opened with weights_only=True (CVE-2026-24747).
WANTED_VERSIONS = {"python": "3.11", "torch": "2.10", "numpy": "1.26"}
EXTRAS = {
    "scikit-learn": "demo",
    "pillow": "demo",
    "transformers": "examples",
    "plotly": "tune",
    "highspy": "exact",
    "optuna": "tune",
}
"""Optional packages, and the extra of Argosy that brings each."""
FORK_SECONDS = 60.0
"""To import torch may take as long, from a disk of the network or on a busy machine."""
"""Longest wait for the first worker: a cold disk takes most of it to import torch."""
DISK_BYTES = GIB
SERVICE_BYTES, DEVICE_BYTES = GIB, GIB // 2
"""Memory of driver, fork server, feeder and ring; of one trainer with small members."""
SERVICE_FILES, WORKER_FILES = 48, 4
"""Descriptors of the busiest process of a run: what it holds anyway, and for each worker it speaks to."""
SERVICE_TASKS, WORKER_TASKS = 16, 2
"""Processes and threads of a run, likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    found: str
    wanted: str
    ok: bool
    mend: str = ""
    """The exact command or setting that mends it; where all is well, empty or advice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """What driver and torch say about this machine's GPUs."""

    in_machine: int
    """GPUs that the driver knows."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES, None where it is not set."""
    names: tuple[str, ...] = ()
    """Name and memory of each GPU that torch can use."""
    torch_cuda: str | None = None
    """Version of CUDA that torch was built for; None for a build without."""
    complaint: str = ""
    """What torch warned of while it looked."""


def examine(directory: Path) -> list[Check]:
    """Every check, for a run below this directory; a check that raises has failed."""
    # Its imports go on beside the other checks.
    server, problem = _start_server()
    cores = usable_cores()
    looks: dict[str, Callable[[], Check]] = {
        "versions": lambda: judge_versions(versions_of(WANTED_VERSIONS)),
        "extras": lambda: judge_extras(versions_of(EXTRAS)),
        "cores": lambda: judge_cores(os.cpu_count() or 1, len(os.sched_getaffinity(0)), quota_cores()),
        "memory": lambda: judge_memory(psutil.virtual_memory().available, memory_limit(), devices=cores),
        "memfd": _look_at_memfd,
        "/dev/shm": lambda: judge_dev_shm(_size_of(Path("/dev/shm"))),
        "open files": lambda: judge_files(resource.getrlimit(resource.RLIMIT_NOFILE), workers=2 * cores),
        "processes": lambda: judge_processes(_task_limit(), _tasks_of_user(), workers=2 * cores),
        "disk": lambda: judge_disk(*_disk_of(directory)),
        "locks": lambda: _look_at_locks(directory),
        "gpus": lambda: judge_gpus(_look_at_gpus()),
        "fork server": partial(_look_at_server, server, problem),
    }
    return [_guarded(name, look) for name, look in looks.items()]


# ---- judging


def judge_versions(found: Mapping[str, str | None]) -> Check:
    """Python, torch and NumPy are there and recent enough; None is a package that is not installed."""
    old = [name for name, least in WANTED_VERSIONS.items() if _numbers(found[name]) < _numbers(least)]
    packages = " ".join(f"'{name}>={WANTED_VERSIONS[name]}'" for name in old if name != "python")
    return Check(
        name="versions",
        found=", ".join(f"{name} {version or 'missing'}" for name, version in found.items()),
        wanted=", ".join(f"{name} >= {least}" for name, least in WANTED_VERSIONS.items()),
        ok=not old,
        mend="install Python 3.11 or newer" if "python" in old else f"pip install {packages}" if old else "",
    )


def judge_extras(found: Mapping[str, str | None]) -> Check:
    """Optional packages; none of them is needed to train."""
    missing = [name for name, version in found.items() if version is None]
    extras = ",".join(dict.fromkeys(EXTRAS[name] for name in missing))
    return Check(
        name="extras",
        found=", ".join(f"{name} {version or '-'}" for name, version in found.items()),
        wanted="optional",
        ok=True,
        mend=f"pip install 'argosy[{extras}]'" if missing else "",
    )


def judge_cores(there: int, allowed: int, quota: float | None) -> Check:
    """At least one whole core; fewer than there are is said, not refused."""
    limits = f"{allowed} of {there} by affinity" + ("" if quota is None else f", a quota of {quota:g}")
    return Check(
        name="cores",
        found=limits,
        wanted="1 or more",
        ok=quota is None or quota >= 1,
        mend="" if quota is None or quota >= 1 else "give the container a whole core, e.g. docker run --cpus=2",
    )


def judge_memory(available: int, limit: int | None, *, devices: int) -> Check:
    """Room for a run of small members on every core."""
    room = available if limit is None else min(available, limit)
    wanted = SERVICE_BYTES + devices * DEVICE_BYTES
    bounded = "" if limit is None else f", a control group's limit of {limit / GIB:.1f} GiB"
    return Check(
        name="memory",
        found=f"{available / GIB:.1f} GiB available{bounded}",
        wanted=f"{wanted / GIB:.1f} GiB for {devices} CPU devices and small members",
        ok=room >= wanted,
        mend="" if room >= wanted else "--devices cpu:1 --loader-workers 1, or raise the container's memory limit",
    )


def judge_dev_shm(size: int | None) -> Check:
    """Blocks travel in anonymous memory, so this file system is never needed."""
    found = "none" if size is None else f"{size / 2**20:,.0f} MiB"
    tiny = size is None or size < 256 * 2**20
    advice = "too small for a DataLoader with workers, e.g. in a container; Argosy does not use it" if tiny else ""
    return Check(name="/dev/shm", found=found, wanted="not needed", ok=True, mend=advice)


def judge_files(limits: tuple[int, int], *, workers: int) -> Check:
    """Open files of one process: soft and hard limit."""
    (soft, hard), wanted = limits, SERVICE_FILES + WORKER_FILES * workers
    enough = soft == resource.RLIM_INFINITY or soft >= wanted
    reachable = hard == resource.RLIM_INFINITY or hard >= wanted
    mend = f"ulimit -n {max(wanted, 1024) if hard == resource.RLIM_INFINITY else min(max(wanted, 1024), hard)}"
    if not reachable:
        mend = f"raise the hard limit first: '* hard nofile {max(wanted, 1024)}' in /etc/security/limits.conf"
    return Check(
        name="open files",
        found=f"{_number(soft)} a process (up to {_number(hard)} on request)",
        wanted=f"{wanted}",
        ok=enough,
        mend="" if enough else mend,
    )


def judge_processes(limit: int | None, there: int, *, workers: int) -> Check:
    """Processes and threads of this user: the limit (None for none), and how many there are already."""
    wanted = SERVICE_TASKS + WORKER_TASKS * workers
    ok = limit is None or limit - there >= wanted
    return Check(
        name="processes",
        found=f"{there} of {'any number' if limit is None else limit}",
        wanted=f"{wanted} more",
        ok=ok,
        mend="" if ok else f"ulimit -u {there + max(wanted, 256)}, or a larger pids limit of the container",
    )


def judge_disk(folder: Path, free: int, writable: bool) -> Check:
    """The disk of the runs folder."""
    ok = writable and free >= DISK_BYTES
    found = f"{free / GIB:.1f} GiB free in {folder}"
    return Check(
        name="disk",
        found=found if writable else f"{folder} cannot be written to",
        wanted=f"{DISK_BYTES / GIB:.0f} GiB free, writable",
        ok=ok,
        mend="" if ok else "--dir DIR on a disk with room that you may write to",
    )


def judge_gpus(gpus: Gpus) -> Check:
    """Every GPU of the machine can be used, unless somebody hid some of them on purpose."""
    if gpus.in_machine == 0 and not gpus.names:
        return Check(name="gpus", found="none: members train on CPU devices", wanted="optional", ok=True)
    wanted = f"{gpus.in_machine}, or those that CUDA_VISIBLE_DEVICES names"
    if gpus.names:
        hidden = "" if gpus.visible is None else f" (CUDA_VISIBLE_DEVICES={gpus.visible})"
        return Check(name="gpus", found=f"{', '.join(gpus.names)}{hidden}", wanted=wanted, ok=True)
    if gpus.visible is not None and gpus.visible in ("", "-1"):
        found, mend = f"all hidden by CUDA_VISIBLE_DEVICES={gpus.visible!r}", "unset CUDA_VISIBLE_DEVICES"
    elif gpus.torch_cuda is None:
        found = "torch is a build without CUDA"
        mend = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
    else:
        found = f"torch, built for CUDA {gpus.torch_cuda}, sees none. {gpus.complaint}".strip()
        mend = (
            f"update the NVIDIA driver to one for CUDA {gpus.torch_cuda}, or install a torch for the driver that is "
            "there (nvidia-smi names its CUDA version); check CUDA_VISIBLE_DEVICES"
        )
    return Check(name="gpus", found=f"0 of {gpus.in_machine}: {found}", wanted=wanted, ok=False, mend=mend)


# ---- looking


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except (OSError, WorkerError) as error:
        mend = "mend the checks above first, then run argosy doctor again"
        return Check(name=name, found=f"{type(error).__name__}: {error}", wanted="no error", ok=False, mend=mend)


def versions_of(packages: Iterable[str]) -> dict[str, str | None]:
    """By package, and of ``python``; None for one that is not installed."""
    return {name: _version(name) for name in packages}


def _version(package: str) -> str | None:
    if package == "python":
        return ".".join(map(str, sys.version_info[:3]))
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version; nothing for a missing package."""
    numbers = []
    for part in (version or "").split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _look_at_memfd() -> Check:
    """Make an anonymous memory file and map it, as the ring does."""
    wanted = "Linux 3.17 or newer, and a sandbox that allows it"
    try:
        descriptor = os.memfd_create("argosy-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, 2**20)
            mmap.mmap(descriptor, 0).close()
        finally:
            os.close(descriptor)
    except OSError as error:
        mend = "allow memfd_create in the sandbox, e.g. docker run --security-opt seccomp=unconfined"
        return Check(name="memfd", found=str(error), wanted=wanted, ok=False, mend=mend)
    return Check(name="memfd", found="works", wanted=wanted, ok=True)


def _size_of(folder: Path) -> int | None:
    return shutil.disk_usage(folder).total if folder.is_dir() else None


def _task_limit() -> int | None:
    """Most tasks of this user; the limit does not bind root."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft


def _tasks_of_user() -> int:
    user, tasks = os.geteuid(), 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        uids = process.info["uids"]
        tasks += process.info["num_threads"] or 0 if uids and uids.real == user else 0
    return tasks


def _nearest(directory: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    return next(path for path in (directory.resolve(), *directory.resolve().parents) if path.is_dir())


def _look_at_locks(directory: Path) -> Check:
    """Take a lock as a run does, which keeps others out of its directory."""
    folder, refusal = _nearest(directory), ""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        refusal = str(error)
    mend = "--dir DIR on a local disk, or mount this one with locks (NFS: without nolock)" if refusal else ""
    return Check(name="locks", found=refusal or "work", wanted=f"flock in {folder}", ok=not refusal, mend=mend)


def _disk_of(directory: Path) -> tuple[Path, int, bool]:
    """The nearest folder that exists, its free bytes, and whether a file can be made there."""
    folder = _nearest(directory)
    return folder, shutil.disk_usage(folder).free, os.access(folder, os.W_OK | os.X_OK)


def _look_at_gpus() -> Gpus:
    """Torch is asked only where the driver shows a GPU: its import takes longer than all else here."""
    in_machine = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if in_machine == 0:
        return Gpus(in_machine=0, visible=visible)
    import torch

    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        properties = [torch.cuda.get_device_properties(number) for number in range(count)]
    return Gpus(
        in_machine=in_machine,
        visible=visible,
        names=tuple(f"{found.name} ({found.total_memory / GIB:.0f} GiB)" for found in properties),
        torch_cuda=torch.version.cuda,
        complaint=" ".join(str(complaint.message) for complaint in complaints),
    )


def _start_server() -> tuple[ForkServer | None, str]:
    try:
        return ForkServer.start(), ""
    except (OSError, WorkerError) as error:
        return None, str(error)


def _look_at_server(server: ForkServer | None, problem: str) -> Check:
    """Have a worker forked that calls back, as every worker of a run does."""
    wanted = f"a worker that calls back within {FORK_SECONDS:.0f} s"
    mend = (
        "python -c 'import argosy.running.worker' says what is missing; a sandbox must allow fork and AF_UNIX sockets"
    )
    if server is None:
        return Check(name="fork server", found=problem, wanted=wanted, ok=False, mend=mend)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="argosy-doctor-") as folder:
        try:
            found = _fork_one(server, Path(folder) / "worker.log")
        finally:
            server.close()
    seconds = time.monotonic() - started
    if found:
        return Check(name="fork server", found=found, wanted=wanted, ok=False, mend=mend)
    return Check(name="fork server", found=f"works, {seconds:.1f} s", wanted=wanted, ok=True)


def _fork_one(server: ForkServer, log: Path) -> str:
    """Empty when a forked worker proved the key; else what went wrong."""
    key = os.urandom(32)
    door = Door(key)
    blob = os.memfd_create("argosy-doctor")
    os.write(blob, pickle.dumps((None, None, 0)))
    os.lseek(blob, 0, os.SEEK_SET)
    _, pulse = Pulse.create()
    try:
        arguments = {"name": "doctor", "ticket": "doctor", "role": "feeder", "address": door.address, "key": key.hex()}
        server.fork(arguments, [blob, pulse], log)
        deadline = time.monotonic() + FORK_SECONDS
        while time.monotonic() < deadline and server.process.poll() is None:
            # A feeder waits for its first word, and leaves when it is hung up on.
            for _, peer in door.enter():
                peer.close()
                return ""
            time.sleep(0.01)
        said = log.read_text().strip().splitlines()[-1:] if log.exists() else []
        return " ".join(["no worker called back.", *said])
    finally:
        door.close()
        os.close(blob)
        os.close(pulse)


def _number(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else str(limit)
