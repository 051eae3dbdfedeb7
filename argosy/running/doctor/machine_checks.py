"""Pure functions that judge what ``argosy doctor`` has found on a machine; each one names a fix for its problem."""

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from argosy.errors.wording import format_bytes

__all__ = [
    "EXTRAS",
    "GIB",
    "WANTED_VERSIONS",
    "Check",
    "Gpus",
    "judge_cores",
    "judge_dev_shm",
    "judge_disk",
    "judge_extras",
    "judge_files",
    "judge_gpus",
    "judge_memory",
    "judge_processes",
    "judge_versions",
    "make_check",
]

GIB = 2**30
# Before torch 2.10, a file opened with weights_only=True could execute code (CVE-2026-24747).
WANTED_VERSIONS = {"python": "3.11", "torch": "2.10", "numpy": "1.26"}
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    found: str
    wanted: str
    ok: bool
    fix: str = ""
    """The exact command or setting that fixes the problem; without a problem, empty or advice."""


def make_check(name: str, found: str, wanted: str, fix: str = "") -> Check:
    """Return a check, which has failed if `fix` is given."""
    return Check(name=name, found=found, wanted=wanted, ok=not fix, fix=fix)


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


def judge_dev_shm(size: int | None) -> Check:
    """Report the size of /dev/shm; there is no requirement, because blocks use anonymous memory."""
    finding = "none" if size is None else format_bytes(size)
    tiny = size is None or size < 256 * 2**20
    advice = "too small for a DataLoader with workers, e.g. in a container; Argosy does not use it" if tiny else ""
    return Check(name="/dev/shm", found=finding, wanted="not needed", ok=True, fix=advice)


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


def judge_processes(limit: int | None, there: int, *, workers: int) -> Check:
    """Check that this user may start enough processes and threads, given the limit (None if there is none) and their present number."""
    wanted = SERVICE_TASKS + WORKER_TASKS * workers
    ok = limit is None or limit - there >= wanted
    fix = "" if ok else f"ulimit -u {there + max(wanted, 256)}, or raise the container's pids limit"
    return make_check("processes", f"{there} of {'any number' if limit is None else limit}", f"{wanted} more", fix)


def judge_disk(folder: Path, free: int, writable: bool) -> Check:
    """Check free space and write access in the folder of the runs."""
    finding = f"{format_bytes(free)} free in {folder}" if writable else f"{folder} is not writable"
    fix = "" if writable and free >= DISK_BYTES else "--dir DIR on a disk with space that you may write to"
    return make_check("disk", finding, f"{format_bytes(DISK_BYTES)} free, writable", fix)


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


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version; empty for a missing package."""
    numbers = []
    for part in (version or "").split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _number(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else str(limit)
