"""The sections of `gpu_all.py` on how a card is given to a process: exclusively, by a variable, in parts, without NVML, or shared.

Each section trains a member in a command of its own, which runs this file, and compares it with the one in the run
`together`.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu_site import Outcome, Site, differences, exactly, members, study, together

from argosy.errors import PlanError
from argosy.running.watch.energy import NVML
from argosy.training.device.devices import Accelerator, backend_class

VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK", "late": "LATE_VISIBLE_DEVICES"}
"""The variable that says which cards a process sees, by kind."""


def the_command_leaves_the_card_to_its_trainers(site: Site) -> Outcome:
    """In exclusive mode only one process can use a card: it must be the trainer, not the command that starts it."""
    told, mode = _of_one_card(site), _asked_of_nvidia("--query-gpu=compute_mode", "--format=csv,noheader")
    used = told["used by the command"]
    return _verdict(told, not used, {"used by the command": used, "mode": mode})


def variables_say_which_cards_are_seen(site: Site) -> Outcome:
    """A card shown by the variable is used under its number there, 0; if none is shown, one sentence refuses the run."""
    if (variable := VARIABLES.get(_kind(site))) is None:
        return Outcome(holds=True, figures={"variable": f"none for {_kind(site)}"})
    one, none = _of_one_card(site), _trained(site, "none seen", {variable: ""})
    figures = {"seen": one["seen"], "with none": none["refused"]}
    return _verdict(one, one["seen"] == 1 and "is not available" in none["refused"], figures)


def a_card_in_parts_is_counted_as_what_one_sees(site: Site) -> Outcome:
    """A card divided by MIG is counted as what this process sees.

    Before its CUDA starts, torch counts cards; afterwards, the one instance of this process. Without MIG a stand-in
    counts one card less afterwards.
    """
    parts = "MIG" in _asked_of_nvidia("-L")
    there = len(Accelerator.hardware("cuda")) if site.devices.startswith("cuda") else 1
    started = [parts]

    def properties(number: int) -> SimpleNamespace:
        if number >= there or not started[0]:
            raise AssertionError("Invalid device id")
        return SimpleNamespace(name="instance", total_memory=2**30)

    module = SimpleNamespace(
        device_count=lambda: there + (not started[0]),
        init=lambda: started.__setitem__(0, True),
        get_device_properties=properties,
    )
    with mock.patch.object(torch, "get_device_module", lambda kind: module):
        counted = len(Accelerator.hardware("cuda"))
    return Outcome(holds=counted == there, figures={"in parts": parts, "seen": there, "counted": counted})


def nothing_needs_nvml(site: Site) -> Outcome:
    """NVML is hidden by a library that cannot be opened, as if a container lacked it."""
    folder = site.folder / "no NVML"
    folder.mkdir(exist_ok=True)
    (folder / NVML).write_bytes(b"")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    told = _trained(site, "without NVML", {"LD_LIBRARY_PATH": path})
    return _verdict(told, told["without NVML"], {"without NVML": told["without NVML"]})


def two_trainers_share_a_card(site: Site) -> Outcome:
    """Train two runs at the same time on one card."""
    if "Exclusive" in _asked_of_nvidia("--query-gpu=compute_mode", "--format=csv,noheader"):
        return Outcome(holds=True, figures={"beside": "the card is in exclusive mode"})
    commands = [_command(site, f"beside {number}", {}) for number in range(2)]
    verdicts = [_verdict(_told(site, *command), True, {}) for command in commands]
    return Outcome(holds=all(one.holds for one in verdicts), figures={"runs": [dict(one.figures) for one in verdicts]})


# ---- a command of its own


def _kind(site: Site) -> str:
    return site.device.partition(":")[0]


def _of_one_card(site: Site) -> dict[str, Any]:
    """Return what a command reports that sees only the last card; it runs once."""
    run, kind = "one seen", _kind(site)
    note, environment = site.folder / f"{run}.json", {}
    if kind in VARIABLES and not note.exists():
        cards = os.environ.get(VARIABLES[kind], str(len(backend_class(kind).hardware(kind)) - 1))
        environment = {VARIABLES[kind]: cards.split(",")[-1]}
    if not note.exists():
        note.write_text(json.dumps(_trained(site, run, environment)))
    told: dict[str, Any] = json.loads(note.read_text())
    return told


def _trained(site: Site, run: str, environment: Mapping[str, str]) -> dict[str, Any]:
    return _told(site, *_command(site, run, environment))


def _command(site: Site, run: str, environment: Mapping[str, str]) -> tuple[str, subprocess.Popen[str]]:
    """Start to train the first member on the first visible device."""
    devices = site.one if _kind(site) == "cpu" else f"{_kind(site)}:0"
    command = [sys.executable, __file__, devices, str(site.folder), run]
    return run, subprocess.Popen(command, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE)


def _told(site: Site, run: str, command: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for the command; return what it reports, and how far its member is from the one trained together."""
    output, _ = command.communicate()
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    if not told["refused"]:
        name = members()[0].name
        told["difference"] = differences(together(site), site.folder / run, [name])[name]
    return told


def _verdict(told: Mapping[str, Any], holds: bool, figures: Mapping[str, Any]) -> Outcome:
    difference = told.get("difference")
    figures = {"largest difference of a weight": difference, **figures}
    return Outcome(holds=holds and difference == 0.0, figures=figures)


def _asked_of_nvidia(*question: str) -> str:
    try:
        return subprocess.run(["nvidia-smi", *question], capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def main() -> None:
    """Train, and report what this process has seen."""
    devices, folder, run = sys.argv[1:]
    site = Site(devices=devices, folder=Path(folder))
    kind = _kind(site)
    refused = ""
    try:
        exactly(site, study(site, members()[:1]), run)
    except PlanError as error:
        refused = str(error)
    told = {
        "refused": refused,
        "seen": 0 if refused else len(backend_class(kind).hardware(kind)),
        "used by the command": _used(kind),
        "without NVML": _cannot_be_opened(NVML),
    }
    print(json.dumps(told))


def _used(kind: str) -> bool:
    """Return whether this process has a context on the first card."""
    if kind == "cuda":
        return torch.cuda.device_count() > 0 and bool(torch._C._cuda_hasPrimaryContext(0))  # type: ignore[attr-defined]
    stand_in = sys.modules.get(kind)
    return stand_in is not None and bool(stand_in.state.opened)


def _cannot_be_opened(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return True
    return False


if __name__ == "__main__":
    main()
