"""Tests that benchmarks/gpu_all.py also runs without a GPU: on CPUs, and on simulated devices that behave like GPUs."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import late
import pytest
import torch

from argosy.training.device.devices import open_backend

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_all.py"
devices = late.devices


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the command as a module."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module(SCRIPT.stem)


@pytest.mark.parametrize(
    ("devices", "sections"),
    [
        ("cpu:2", ["memory_is", "copies", "split", "demo"]),
        ("cpu:2", ["captured_steps", "ladder", "unlike_members", "sums_are"]),
        ("late:0", ["memory_is", "copies", "killed", "asserts"]),
        ("late:0", ["variables", "leaves_the_card", "in_parts"]),
    ],
)
def test_sections_hold(devices: str, sections: list[str], tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "ARGOSY_DEVICES": "late",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, str(SCRIPT), "--json", "--devices", devices, "--results", str(tmp_path / "results")]
    command += [word for section in sections for word in ("--only", section)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [section["holds"] for section in told["sections"]] == [True] * len(sections)
    (table,) = (tmp_path / "results").iterdir()
    assert table.read_text().count("| yes |") == len(sections)


def test_a_part_leaves_out_what_todays_results_say_holds(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "hardware", lambda: "two cores")
    site, other = (script.Site(devices=devices, folder=tmp_path) for devices in ("cuda:0", "cuda:1"))
    path = script.results_of_today(site, tmp_path)
    assert script.held_today(path, site) == set()
    script.begin(path, site)
    for number, (what, holds) in enumerate({"it runs": True, "it is fast": False}.items()):
        script.write({"what": what, "holds": holds, "seconds": number, "figures": {"a | b": number}}, path)
    assert script.held_today(path, site) == {"it runs"}
    assert script.held_today(path, other) == set()


def test_every_section_is_in_one_part(script: ModuleType) -> None:
    sections = [section for part in script.PARTS for section in part]
    there = [
        value
        for module in (script, script.gpu_given, script.gpu_packs, script.gpu_unlike)
        for name, value in vars(module).items()
        if getattr(value, "__annotations__", {}) == {"site": script.Site, "return": script.Outcome}
    ]
    assert {section.__name__ for section in sections} == {section.__name__ for section in there}
    assert len(sections) == len(set(sections))


@pytest.mark.parametrize(
    "section", ["together_is_alone", "resumed_is_uninterrupted", "a_killed_trainer_is_replaced"], ids=lambda name: name
)
def test_what_is_to_be_equal_to_the_bit_is_trained_exactly(
    section: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = list[Any]()
    monkeypatch.setattr(script.argosy, "train", lambda study, **settings: asked.append(settings["numerics"]))
    monkeypatch.setattr(script, "differences", lambda *runs: {})
    getattr(script, section)(script.Site(devices="cpu:2", folder=tmp_path))
    assert len(asked) > 1
    assert set(asked) == {"exact"}


@pytest.mark.usefixtures("devices")
def test_work_space_of_libraries_counts_for_no_member(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATE_BYTES", "1000000")
    backend = open_backend("late:0")
    backend.activate()
    before = script._memory_in_use(backend)
    weights = torch.ones(8, 8, requires_grad=True)
    (weights @ weights).sum().backward()
    del weights
    assert backend.memory_in_use() == before


def test_members_of_scarce_memory_fit_in_it_one_by_one_alone(script: ModuleType) -> None:
    packs = script.gpu_packs
    with torch.device("meta"):
        network = packs.network("plain", packs.WIDE)
    weights = sum(weight.numel() * weight.itemsize for weight in network.parameters())
    weights_and_states, step = packs.MANY * 3 * weights, 2 * weights
    assert weights_and_states + step < packs.SCARCE * packs.GIB < weights_and_states + packs.MANY * step + packs.GIB / 2
