"""Tests that a run of many blocks leaks no descriptors, memory or segments; `benchmarks/endurance.py` runs the full check."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "endurance.py"
BLOCKS = 6000


def endure(*words: str) -> dict:
    """Run the benchmark and return its last line; fail unless it exits with 0, so that every target holds."""
    command = [sys.executable, "-W", "error", str(SCRIPT), "--blocks", str(BLOCKS), "--json", *words]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return json.loads(found.stdout.splitlines()[-1])


def test_descriptors_memory_and_segments_stay_constant() -> None:
    """Descriptors, memory and segments stay constant, in a /dev/shm of 1 MiB if this user may mount one."""
    mount = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
    tiny = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    found = endure(*(["--dev-shm-mib=1"] if tiny else []))
    # The driver, the fork server, the feeder, two loader workers and two trainers.
    assert found["figures"]["processes"] == 7
    assert all(target["holds"] for target in found["targets"])
    assert not tiny or found["figures"]["dev_shm_bytes"] == 2**20


def test_a_leak_would_be_seen() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    import endurance

    def snapshot(number: int) -> endurance.Snapshot:
        usage = endurance.Usage(descriptors=10 + number // 4, segments=1, bytes=2**20 * number)
        return endurance.Snapshot(epochs=5, processes={7: usage})

    found = endurance.growth([snapshot(number) for number in range(16)])
    assert (found["descriptors"], found["segments"], found["bytes"]) == (3, 0, 12 * 2**20)
