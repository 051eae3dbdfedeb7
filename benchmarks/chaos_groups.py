"""Seeded fault campaign against members that span devices: every run must end with the weights of members trained alone.

Five members train on three CPU devices. At every barrier each of them is placed anew, on one device or several, in
shares drawn by the seed, and up to three trainers or feeders are killed or stopped at random moments. Weights in
float64 may differ from those of the member alone by rounding, 1e-9 relative. The audit must pass, and no run may take
longer than two minutes.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from measuring import hardware

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import evidence
import living
import pytest
import torch
from splits import all_alone, check, train

from argosy.running.control.driver import Driver
from argosy.running.directory.audit import audit
from argosy.running.launch import processes

DEVICES = 3
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)
PARTS = (0.02, 0.3, 0.5, 1.0)
LIMIT_SECONDS = 120


def shares_of(seed: int, name: str, asked: int) -> Mapping[int, float]:
    """Return the devices and shares of a member for each time the policy is asked."""
    dice = random.Random(f"{seed} {name} {asked}")
    devices = dice.sample(range(DEVICES), dice.choice([1, 1, 2, 2, 3]))
    parts = [dice.choice(PARTS) for _ in devices]
    return {device: part / sum(parts) for device, part in zip(devices, parts, strict=True)}


class Hurts:
    """Kills and stops workers of a run at random."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.left = dice.randint(0, 3)
        self.moment = time.monotonic() + dice.uniform(0.2, 1.5)
        self.happened: list[str] = []

    def __call__(self, driver: Driver) -> None:
        """Act between two rounds of the driver."""
        workers = driver.pool.workers
        assert isinstance(workers, processes.ProcessWorkers)
        victims = [worker for worker in workers.workers.values() if worker.pid]
        if not self.left or not victims or time.monotonic() < self.moment:
            return
        self.left, self.moment = self.left - 1, time.monotonic() + self.dice.uniform(0.1, 1.5)
        victim, number = self.dice.choice(victims), self.dice.choice(SIGNALS)
        self.happened.append(f"{victim.name}:{number.name}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid or 0, number)


def one_run(directory: Path, seed: int, alone: Mapping[str, Mapping[str, torch.Tensor]]) -> tuple[list[str], int]:
    """Return the faults that happened and how often a member's devices changed; raise if anything is wrong."""
    hurts = Hurts(random.Random(seed))
    signal.alarm(LIMIT_SECONDS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processes, "STOPPED_SECONDS", 0.5)
        living.at_every_round(patched, hurts)
        train(directory, patched, partial(shares_of, seed))
    signal.alarm(0)
    check(directory, alone)
    assert audit(directory) == []
    return hurts.happened, len(evidence.event_lines(directory, "Split"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print(hardware(), flush=True)
    torch.set_num_threads(1)
    faults = splits = 0
    with tempfile.TemporaryDirectory(prefix="argosy-chaos-") as name:
        alone = all_alone(Path(name) / "alone")
        for seed in range(options.first_seed, options.first_seed + options.runs):
            happened, changed = one_run(Path(name) / str(seed), seed, alone)
            faults, splits = faults + len(happened), splits + changed
            print(f"seed {seed}: {', '.join(happened) or 'no fault'}: {changed} changes of devices: ok", flush=True)
    print(f"{options.runs} runs, {faults} faults, {splits} changes of devices, none wrong")
    if options.json:
        figures = {"runs": options.runs, "faults": faults, "splits": splits}
        target = {"what": "runs that differ from members alone", "value": 0, "target": "== 0", "holds": True}
        print(
            json.dumps({"benchmark": "chaos_groups", "hardware": hardware(), "figures": figures, "targets": [target]})
        )


if __name__ == "__main__":
    main()
