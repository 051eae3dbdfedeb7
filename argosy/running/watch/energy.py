"""Energy used by the machine during a run, from the counters of RAPL (CPU packages) and NVML (NVIDIA GPUs)."""

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

__all__ = ["Counter", "Meter"]

POWERCAP = Path("/sys/class/powercap")
"""Folder of the RAPL counters."""
NVML = "libnvidia-ml.so.1"
"""NVIDIA's library that reads the energy counters of GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    """A counter of joules."""

    read: Callable[[], float]
    """Return joules; raises OSError or ValueError while the counter cannot be read."""
    wraps_at: float | None
    """Joules at which the counter wraps to 0; None if it never does."""


@dataclass(slots=True)
class Meter:
    """Adds up counters from its creation on. It must be polled often, because RAPL's counters wrap within an hour."""

    counters: Mapping[str, Counter]
    _joules: dict[str, float] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=dict)

    @classmethod
    def here(cls, *, gpus: bool, powercap: Path = POWERCAP) -> "Meter":
        """Return a meter of this machine's counters."""
        meter = cls({**_rapl(powercap), **(_nvml() if gpus else {})})
        meter.poll()
        return meter

    @property
    def joules(self) -> dict[str, float]:
        """Joules so far, by counter that could be read."""
        return {name: round(joules, 1) for name, joules in self._joules.items()}

    def poll(self) -> None:
        """Add what has been used since the last call."""
        for name, counter in self.counters.items():
            try:
                now = counter.read()
            except (OSError, ValueError):
                continue  # on most systems, only root may read RAPL; GPUs older than Volta have no counter
            gone = now - self._before.get(name, now)
            if gone < 0:
                gone += counter.wraps_at or -gone  # one that never wraps was reset, and what it lost is unknown
            self._joules[name] = self._joules.get(name, 0.0) + gone
            self._before[name] = now


def _rapl(powercap: Path) -> dict[str, Counter]:
    """Return the counters of CPU packages.

    Subzones (``intel-rapl:0:1``) are included in their package's counter; the platform zone (psys) is not a package.
    """
    counters = {}
    for zone in sorted(powercap.glob("intel-rapl:*")):
        with contextlib.suppress(OSError, ValueError):
            name = (zone / "name").read_text().strip()
            if name.startswith("package-"):
                wraps_at = _micro(zone / "max_energy_range_uj")
                counters[name] = Counter(read=partial(_micro, zone / "energy_uj"), wraps_at=wraps_at)
    return counters


def _micro(path: Path) -> float:
    return int(path.read_text()) / 1e6


def _nvml() -> dict[str, Counter]:
    try:
        library = ctypes.CDLL(NVML)
    except OSError:
        return {}
    count = ctypes.c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return {}
    counters = {}
    for number in range(count.value):
        device = ctypes.c_void_p()
        if not library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)):
            counters[f"gpu {number}"] = Counter(read=partial(_gpu_joules, library, device), wraps_at=None)
    return counters


def _gpu_joules(library: ctypes.CDLL, device: ctypes.c_void_p) -> float:
    millijoules = ctypes.c_ulonglong()
    code = library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules))
    if code:
        raise OSError(code, "NVML does not report the energy of this device")
    return millijoules.value / 1e3
