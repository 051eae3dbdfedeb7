"""Tests that a trainer keeps freed memory between steps, returns it when members change, and does not fragment it."""

import os
import subprocess
import sys
from pathlib import Path

import pieces
import pytest
import studies

import argosy
from argosy.training.device.heap import allow_tcache, without_tcache

SCRIPT = """
import resource
import torch
from argosy.training.device.heap import give_back_memory, keep_freed_memory

FLOATS = 2**20  # 4 MiB

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        x = torch.zeros(FLOATS)
        y, z = x + 1, x + 2
        del x, y, z
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
keep_freed_memory()
first, again = step(), sorted(step() for _ in range(100))[89]
give_back_memory()
print(first, again, step())
"""

FIRST_STEP = """
from pathlib import Path

import torch

import argosy
from argosy.training.device.devices import open_backend
from argosy.training.device.heap import keep_freed_memory
from argosy.training.member.building import build_member
from argosy.training.programs.solo import Solo

def heap_mib():
    addresses = next(line for line in Path("/proc/self/maps").read_text().splitlines() if "[heap]" in line).split()[0]
    low, high = (int(address, 16) for address in addresses.split("-"))
    return (high - low) // 2**20

def network():
    pool = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 4)]
    return torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), *pool)

torch.set_num_threads(1)
member = argosy.Member("one", model=network, optimizer=torch.optim.Adam, batch_size=32)
solo = Solo(build_member(member, open_backend("cpu:0"), study_seed=0, objective="train_loss", mode="min"))
batch = (torch.zeros(32, 3, 64, 64), torch.zeros(32, dtype=torch.int64))
keep_freed_memory()
sizes = [heap_mib()]
for _ in range(2):
    solo.try_step(batch, 32)
    sizes.append(heap_mib())
print(*sizes)
"""


def test_a_step_takes_its_pages_once_and_again_after_they_were_given_back() -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    first, again, given_back = map(int, told.split())
    # Whole pages only: the page in which an array begins may already be mapped for the memory before it.
    pages = 3 * (4 * 2**20 // 4096 - 1)
    assert first >= pages
    # The 90th percentile, because the first steps, and sometimes a later one, may place an array in new memory.
    assert again < pages / 100
    assert given_back >= pages


def test_activations_of_a_first_step_lie_outside_of_the_heap() -> None:
    told = subprocess.run([sys.executable, "-c", FIRST_STEP], check=True, capture_output=True, text=True).stdout
    before, first, second = map(int, told.split())
    # Two activations of 15 MiB: without `large_outside` the first step would take them from the heap, as the second does.
    assert first - before < 8
    assert second - first > 24


@pytest.mark.parametrize(("environment", "left"), [(dict(os.environ), "True"), (without_tcache(os.environ), "False")])
def test_a_small_freed_piece_is_joined_where_the_environment_says_so(environment: dict[str, str], left: str) -> None:
    program = "import pieces; print(pieces.left_in_use())"
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    assert told.stdout.strip() == left


@pytest.mark.fresh
def test_trainers_join_small_freed_pieces(tmp_path: Path) -> None:
    study = studies.study(40, fleet=[studies.member(model=pieces.network_where_none_is_left)], epochs=1, val=0)
    report = argosy.train(study, directory=tmp_path, launcher="processes")
    assert [row.status for row in report.rows] == ["done"]


@pytest.mark.parametrize("own", ["", "glibc.malloc.tcache_count=3:glibc.malloc.check=1"])
def test_what_a_person_has_set_for_the_c_library_counts_and_comes_back(own: str) -> None:
    environment = without_tcache({"GLIBC_TUNABLES": own, "HOME": "/home/me"})
    assert environment["GLIBC_TUNABLES"].endswith(own)
    allow_tcache(environment)
    assert environment == {"GLIBC_TUNABLES": own, "HOME": "/home/me"}
