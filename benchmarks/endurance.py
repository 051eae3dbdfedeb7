"""A run of thousands of blocks: compares each process's descriptors, memory and shared segments at the end with those before.

The run is ``argosy run`` with a Dataset, loader workers, two trainers, a member whose batches are views of blocks and
one whose batches are gathered across blocks. With ``--dev-shm-mib 1`` it runs in its own mount namespace, with a
/dev/shm of that size, which the ring alone exceeds.

Batches are much smaller than the 2 MiB by which a process may grow. When small allocations fill the gap that a batch
left, the heap grows by one batch at some time, which must not be taken for a leak.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from measuring import finish, hardware, target
from process_tree import allocated_bytes

ROWS, EPOCHS = 16, 10
STUDY = """
from functools import partial
import torch
from torch import nn
import argosy

class Planes(torch.utils.data.Dataset):
    def __init__(self, length):
        self.length = length
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return torch.rand(1, 64, 64).add_(index % 4), index % 4

member = partial(argosy.Member, model=lambda: nn.Sequential(nn.Flatten(), nn.AvgPool1d(16), nn.Linear(256, 4)),
                 optimizer=partial(torch.optim.SGD, lr=1e-4))
study = argosy.Study(data=argosy.Data(train=partial(Planes, {train}), val=partial(Planes, {val})),
                     members=[member("views", batch_size={rows}), member("gathered", batch_size={rows} + 8)],
                     stop=argosy.MaxEpochs({epochs}))
"""
SAMPLE_SECONDS = 0.1
WARM_UP = 0.5
"""The share of blocks after which every process has touched all memory that it will use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """One process at one moment."""

    descriptors: int
    segments: int
    """Mappings of shared memory, of memory files and of files in /dev/shm."""
    bytes: int
    """Anonymous and shared memory; how much of mapped files counts depends on other processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Every process of the run at one moment."""

    epochs: int
    """Stream epochs that were fed."""
    processes: dict[int, Usage]


def watch(folder: Path, blocks: int) -> list[Snapshot]:
    """Run for this number of blocks, and sample the processes meanwhile."""
    per_epoch = blocks // EPOCHS
    train, val = ROWS * (per_epoch - per_epoch // 10), ROWS * (per_epoch // 10)
    (folder / "study.py").write_text(STUDY.format(train=train, val=val, rows=ROWS, epochs=EPOCHS))
    command = [sys.executable, "-m", "argosy", "run", "study.py", "--dir", "run", "--json", "--devices", "cpu:2"]
    command += ["--block-size", str(ROWS), "--loader-workers", "2"]
    snapshots = []
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            snapshots.append(snapshot(process.pid, folder / "run" / "journal.jsonl"))
            time.sleep(SAMPLE_SECONDS)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return snapshots


def snapshot(pid: int, journal: Path) -> Snapshot:
    """Return the present usage of the run's processes."""
    processes = {}
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        # A process may end at any moment.
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            processes[process.pid] = usage_of(process)
    # Read after the processes: if epochs are missing now, no process had ended when they were sampled.
    lines = [json.loads(line) for line in journal.read_bytes().split(b"\n")[:-1]] if journal.exists() else []
    fed = sum(line["event"] == "Fed" and line["split"] == "train" for line in lines)
    return Snapshot(epochs=fed, processes=processes)


def usage_of(process: psutil.Process) -> Usage:
    """Return what one process holds."""
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    shared = sum("/memfd:" in line or "/dev/shm/" in line for line in maps)
    return Usage(descriptors=process.num_fds(), segments=shared, bytes=allocated_bytes(process.pid))


def growth(snapshots: list[Snapshot]) -> dict[str, float]:
    """Return the largest growth of any process from the first quarter after the warm-up to the last quarter."""
    warm = [s for s in snapshots if s.epochs >= WARM_UP * EPOCHS and s.epochs < EPOCHS]
    quarter = len(warm) // 4
    if quarter == 0:
        raise ValueError(f"{len(warm)} moments after the warm-up are too few to compare: ask for more --blocks.")
    early, late = warm[:quarter], warm[-quarter:]
    pids = set(early[0].processes)
    changed = [s for s in (*early, *late) if set(s.processes) != pids]
    if changed:
        raise AssertionError(f"processes {sorted(pids)} became {sorted(changed[0].processes)} within the run.")

    def least(part: list[Snapshot], pid: int, name: str) -> int:
        # A checkpoint being written holds a descriptor for a moment; a leak stays.
        return min(getattr(snapshot.processes[pid], name) for snapshot in part)

    names = ("descriptors", "segments", "bytes")
    found = {name: max(least(late, pid, name) - least(early, pid, name) for pid in pids) for name in names}
    return {**found, "processes": len(pids), "moments": len(warm)}


def in_small_dev_shm(mebibytes: int) -> int:
    """Run this script again with a small /dev/shm, and return its exit code."""
    again = " ".join(word for word in sys.argv if not word.startswith("--dev-shm-mib="))
    script = f"mount -t tmpfs -o size={mebibytes}m tmpfs /dev/shm && exec {sys.executable} {again}"
    return subprocess.run(["unshare", "-m", "sh", "-c", script], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--dev-shm-mib", type=int, help="size of /dev/shm; write it with '='")
    options = parser.parse_args()
    if options.dev_shm_mib is not None:
        return in_small_dev_shm(options.dev_shm_mib)
    size = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    print(f"{hardware()}; {options.blocks} blocks, /dev/shm of {size / 2**20:.0f} MiB")
    with tempfile.TemporaryDirectory(prefix="argosy-endurance-") as folder:
        found = growth(watch(Path(folder), options.blocks))
    figures: dict[str, Any] = {**found, "blocks": options.blocks, "dev_shm_bytes": size}
    print(
        f"{found['processes']:.0f} processes, looked at {found['moments']:.0f} times after the warm-up; largest growth"
    )
    targets = [
        target("descriptors of a process", [found["descriptors"]], at_most=0),
        target("shared segments of a process", [found["segments"]], at_most=0),
        target("MiB of a process", [found["bytes"] / 2**20], at_most=2.0),
    ]
    finish("endurance", figures, targets, as_json=options.json)
    return 0 if all(one["holds"] for one in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
