"""Freed memory stays with a trainer from step to step, and goes when members change."""

import subprocess
import sys

SCRIPT = """
import resource
import torch
from argosy.training.heap import give_back_memory, keep_freed_memory

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
first, again = step(), sum(step() for _ in range(100)) // 100
give_back_memory()
print(first, again, step())
"""


def test_a_step_takes_its_pages_once_and_again_after_they_were_given_back() -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    first, again, given_back = map(int, told.split())
    pages = 3 * 4 * 2**20 // 4096
    assert first >= pages
    # The mean of a hundred steps: the second or the third may still place an array where none was.
    assert again < pages / 100
    assert given_back >= pages
