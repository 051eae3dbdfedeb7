"""Tests that the meter adds up energy counters correctly when they wrap or cannot be read for a while."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from argosy.running.watch.energy import NVML, Counter, Meter


def test_counters_wrap_and_may_fall_silent() -> None:
    values = iter([90.0, 95.0, 10.0, None, 30.0])

    def read() -> float:
        value = next(values)
        if value is None:
            raise OSError("gone for a moment")
        return value

    meter = Meter({"package-0": Counter(read=read, wraps_at=100.0)})
    joules = []
    for _ in range(5):
        meter.poll()
        joules.append(meter.joules.get("package-0"))
    assert joules == [0.0, 5.0, 20.0, 20.0, 40.0]


def zone(powercap: Path, number: str, name: str, energy: str = "0\n") -> Path:
    """Create a folder like the kernel's for an energy counter (Documentation/ABI/testing/sysfs-class-powercap); return its counter file."""
    made = powercap / f"intel-rapl:{number}"
    made.mkdir()
    (made / "name").write_text(f"{name}\n")
    (made / "max_energy_range_uj").write_text("10000000\n")
    (made / "energy_uj").write_text(energy)
    return made / "energy_uj"


def test_every_package_is_found_that_may_be_read(tmp_path: Path) -> None:
    first = zone(tmp_path, "0", "package-0", "5000000\n")
    eleventh = zone(tmp_path, "10", "package-1-die-4", "9000000\n")
    zone(tmp_path, "1", "package-1", "")
    # A folder stands for a counter that only root may read: not even root can read it as a file.
    forbidden = zone(tmp_path, "2", "package-2")
    forbidden.unlink()
    forbidden.mkdir()
    # These would count twice: a part of a package, the platform with all packages, and a package by another interface.
    others = [zone(tmp_path, "0:0", "core"), zone(tmp_path, "11", "psys")]
    (tmp_path / "intel-rapl-mmio:0").mkdir()
    meter = Meter.here(gpus=False, powercap=tmp_path)
    first.write_text("7500000\n")
    eleventh.write_text("1000000\n")
    for other in others:
        other.write_text("3000000\n")
    meter.poll()
    assert meter.joules == {"package-0": 2.5, "package-1-die-4": 2.0}


def test_a_machine_that_tells_nothing_has_no_joules(tmp_path: Path) -> None:
    assert Meter.here(gpus=False, powercap=tmp_path / "none").joules == {}


class Library:
    """A stand-in for NVML (nvml.h) with three GPUs, of which the second is too old to count energy; 0 means success."""

    def __init__(self) -> None:
        self.millijoules = {1: 1_000, 3: 5_500}

    def nvmlInit_v2(self) -> int:  # noqa: N802  # NVML's name
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802  # NVML's name
        count._obj.value = 3
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, device: Any) -> int:  # noqa: N802  # NVML's name
        device._obj.value = number + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, energy: Any) -> int:  # noqa: N802  # NVML's name
        if device.value not in self.millijoules:
            return 3
        energy._obj.value = self.millijoules[device.value]
        return 0


def test_gpus_count_millijoules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", {NVML: library}.__getitem__)
    meter = Meter.here(gpus=True, powercap=tmp_path / "none")
    library.millijoules = {1: 2_250}
    meter.poll()
    assert meter.joules == {"gpu 0": 1.2, "gpu 2": 0.0}
