"""Measures the time until the first training step of ``argosy run``, and what one more small member adds."""

import functools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import arguments, finish, hardware, target

STUDY = """
from functools import partial
import torch
from torch import nn
import argosy

def mlp(hidden):
    return nn.Sequential(nn.Linear(20, hidden), nn.ReLU(), nn.Linear(hidden, 4))

members = [
    argosy.Member(f"m{{i}}", model=partial(mlp, hidden=32 + i), optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=32)
    for i in range({count})
]
study = argosy.Study(data=argosy.Data(arrays=(torch.randn(640, 20), torch.arange(640) % 4)), members=members,
                     stop=argosy.MaxEpochs(1))
"""
FEW, MANY = 4, 68


def seconds_to_start(count: int) -> tuple[float, float]:
    """Return the seconds from the command to the first and to the last member's first step."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.py").write_text(STUDY.format(count=count))
        command = [sys.executable, "-m", "argosy", "run", "study.py", "--dir", "run", "--json"]
        began = time.time()
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (Path(folder) / "run" / "journal.jsonl").read_text().splitlines()]
    started = [line["at"] - began for line in lines if line["event"] == "MemberStarted"]
    return min(started), max(started)


@functools.cache
def construction() -> float:
    """Return the seconds to build one such member's network and optimizer, in a process that has built them once."""
    program = STUDY.format(count=64) + "import time\nfor m in members: m.optimizer(m.model().parameters())\n"
    program += "t = time.perf_counter()\nfor m in members: m.optimizer(m.model().parameters())\n"
    program += "print((time.perf_counter() - t) / 64)"
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


def main() -> None:
    options = arguments(__doc__).parse_args()
    print(hardware())
    first, further = [], []
    for _ in range(options.rounds):
        few, many = seconds_to_start(FEW), seconds_to_start(MANY)
        first.append(few[0])
        further.append(1000 * ((many[1] - few[1]) / (MANY - FEW) - construction()))
    targets = [
        target("seconds from the command to the first training step", first, at_most=8.0),
        target("ms of start-up per further small member, beyond its construction", further, at_most=50.0),
    ]
    finish("start", {"construction_ms": 1000 * construction()}, targets, as_json=options.json)


if __name__ == "__main__":
    main()
