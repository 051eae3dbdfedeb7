"""Tests that `argosy doctor` judges a machine correctly, and reports real faults together with what fixes them."""

import errno
import json
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import forked
import pytest

from argosy.running.doctor import machine as doctor
from argosy.running.doctor.checks import Check
from argosy.running.doctor.machine import Gpus
from argosy.running.launch import limits

GIB = 2**30


def command(folder: Path, *words: str, limit: tuple[int, int] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``argosy doctor`` with `limit` as the soft and hard RLIMIT_NOFILE."""
    first = partial(resource.setrlimit, resource.RLIMIT_NOFILE, limit or resource.getrlimit(resource.RLIMIT_NOFILE))
    return forked.command(folder, ["doctor", *words], first=first)


def fresh_command(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``argosy doctor --json`` in a new interpreter."""
    words = [sys.executable, "-W", "error", "-m", "argosy", "doctor", "--json"]
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def checks_of(found: subprocess.CompletedProcess[str]) -> dict[str, dict]:
    assert found.stdout, found.stderr
    return {check["name"]: check for check in json.loads(found.stdout)["checks"]}


def test_a_machine_that_runs_the_tests_is_well(tmp_path: Path) -> None:
    found = fresh_command(tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert json.loads(found.stdout)["ok"] is True
    assert checks_of(found)["fork server"]["found"].startswith("works")
    assert not list(tmp_path.iterdir())


def test_too_few_open_files_are_told_and_the_command_that_mends_them_does(tmp_path: Path) -> None:
    found = command(tmp_path, "--json", limit=(16, 4096))
    assert found.returncode == 1
    check = checks_of(found)["open files"]
    assert not check["ok"]
    assert check["found"] == "16 per process (up to 4096 on request)"
    assert check["fix"] == "ulimit -n 1024"
    script = f"ulimit -S -n 16 && {check['fix']} && ulimit -S -n && ulimit -H -n"
    told = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    soft, hard = map(int, told.split())
    assert checks_of(command(tmp_path, "--json", limit=(soft, hard)))["open files"]["ok"]


def test_a_folder_without_room(tmp_path: Path) -> None:
    # Not even root can create a folder in /proc.
    check = checks_of(command(tmp_path, "--json", "--dir", "/proc/runs"))["disk"]
    assert not check["ok"]
    assert "--dir" in check["fix"]


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    assert doctor._check_locks(tmp_path / "runs" / "x").ok
    monkeypatch.setattr(doctor.fcntl, "flock", refuse)
    check = doctor._check_locks(tmp_path / "runs" / "x")
    assert not check.ok
    assert "No locks available" in check.found
    assert "mount this one with locks" in check.fix


def test_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open shared object file')\n")
    found = fresh_command(tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    check = checks_of(found)["fork server"]
    assert found.returncode == 1
    assert "no worker answered" in check["found"]
    assert "python -c" in check["fix"]


def test_hidden_gpus_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check = checks_of(command(tmp_path, "--json"))["gpus"]
    there = len(list(Path("/dev").glob("nvidia[0-9]*")))
    assert check["ok"] is (there == 0)
    assert check["fix"] == ("unset CUDA_VISIBLE_DEVICES" if there else "")


def test_the_table_names_what_fails(tmp_path: Path) -> None:
    found = command(tmp_path, limit=(16, 4096))
    assert "FAILS  open files" in found.stdout
    assert found.returncode == 1


GPUS = {
    "none": (Gpus(in_machine=0, visible=None), True, ""),
    "usable": (Gpus(in_machine=2, visible=None, names=("H200 (140 GiB)",) * 2, torch_cuda="12.8"), True, ""),
    "some hidden": (Gpus(in_machine=2, visible="1", names=("H200 (140 GiB)",), torch_cuda="12.8"), True, ""),
    "all hidden": (Gpus(in_machine=1, visible="", torch_cuda="12.8"), False, "unset CUDA_VISIBLE_DEVICES"),
    "cpu build": (Gpus(in_machine=1, visible=None), False, "pip install"),
    "old driver": (Gpus(in_machine=1, visible=None, torch_cuda="13.0"), False, "update the NVIDIA driver"),
}


@pytest.mark.parametrize("name", GPUS)
def test_gpus(name: str) -> None:
    gpus, ok, fix = GPUS[name]
    check = doctor.judge_gpus(gpus)
    assert check.ok is ok
    assert fix in check.fix
    assert bool(check.fix) is not ok


def test_accelerators_that_are_not_nvidias_are_not_denied() -> None:
    assert "AMD or Intel GPUs" in doctor.judge_gpus(GPUS["none"][0]).found


FAILING = {
    "old torch": doctor.judge_versions({"python": "3.12.1", "torch": "2.9.1+cu124", "numpy": "2.0.0"}),
    "no numpy": doctor.judge_versions({"python": "3.12.1", "torch": "2.10.0", "numpy": None}),
    "half a core": doctor.judge_cores(64, 64, 0.5),
    "little memory": doctor.judge_memory(64 * GIB, GIB, devices=2),
    "low hard limit": doctor.judge_files((16, 16), workers=4),
    "few processes": doctor.judge_processes(100, 98, workers=4),
    "full disk": doctor.judge_disk(Path("/runs"), 1000, True),
    "read-only disk": doctor.judge_disk(Path("/runs"), 100 * GIB, False),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_fails_has_a_mend(name: str) -> None:
    assert not FAILING[name].ok
    assert FAILING[name].fix


FINE = {
    "pre-release": doctor.judge_versions({"python": "3.11.0", "torch": "2.10.0a0", "numpy": "2.0.0"}),
    "quota": doctor.judge_cores(64, 8, 3.5),
    "no limit on files": doctor.judge_files((resource.RLIM_INFINITY, resource.RLIM_INFINITY), workers=4),
    "no limit on processes": doctor.judge_processes(None, 5000, workers=4),
    "no extras": doctor.judge_extras(dict.fromkeys(doctor.EXTRAS)),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_fine(name: str) -> None:
    assert FINE[name].ok


def test_a_check_that_raises_has_failed() -> None:
    def failing() -> Check:
        raise OSError(24, "Too many open files")

    check = doctor._run_check("memfd", failing)
    assert not check.ok
    assert "Too many open files" in check.found

    def without_a_temporary_folder() -> Check:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    assert "TMPDIR" in doctor._run_check("fork server", without_a_temporary_folder).fix


def test_limits_of_both_versions_of_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS", tmp_path)
    here = [Path(line.split(":", 2)[2].lstrip("/")) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    assert here
    assert (limits.quota_cores(), limits.memory_limit()) == (None, None)
    unified = any(line.split(":")[1] == "" for line in Path("/proc/self/cgroup").read_text().splitlines())
    if not unified:
        pytest.skip("this kernel has no unified control groups")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert (limits.quota_cores(), limits.memory_limit()) == (1.5, None)
    assert limits.usable_cores() == 1
