"""The command that checks everything on a GPU runs without one, in small: on CPUs, and on devices that behave like GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_all.py"


@pytest.mark.parametrize(
    ("devices", "sections"),
    [
        ("cpu:2", ["memory_is", "copies", "split", "demo"]),
        ("cpu:2", ["captured", "ladder", "unlike", "sums_are"]),
        ("late:0", ["memory_is", "copies", "killed"]),
    ],
)
def test_sections_hold(devices: str, sections: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "ARGOSY_DEVICES": "late", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(SCRIPT), "--json", "--devices", devices, "--results", str(tmp_path / "results")]
    command += [word for section in sections for word in ("--only", section)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [section["holds"] for section in told["sections"]] == [True] * len(sections)
    (table,) = (tmp_path / "results").iterdir()
    assert table.read_text().count("| yes |") == len(sections)
