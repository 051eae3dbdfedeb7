"""Measures what an EMA of the weights adds to a member's step: alone and in a pack stepped as one program; on CUDA also with captured steps.

The sides with and without the average take turns epoch by epoch, in one process and on the same samples; a round has
several epochs. Afterwards the raw weights of both sides must be equal, and each member's average alone must be equal to
that of torch's `AveragedModel` after the same steps, bit for bit.
"""

import itertools
import time
from dataclasses import replace
from typing import Any

import torch
from measuring import arguments, finish, quartiles, target
from packing_networks import WORKLOADS
from packing_sides import Side, Task, captured, captured_one_after_another, fused, one_after_another
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import argosy
from argosy.training.device.devices import open_backend
from argosy.training.programs.solo import Solo

DECAY = 0.999
MOST = 1.05
CASES = (
    ("MLP h64", 1),
    ("MLP h256", 1),
    ("small CNN", 1),
    ("BN-ResNet", 1),
    ("transformer", 1),
    ("MLP h64", 32),
    ("MLP h256", 8),
    ("small CNN", 8),
)


def task(workload: str, size: int, *, averaged: bool, device: str) -> Task:
    """Return a task whose members have an EMA, or none."""
    made = Task(WORKLOADS[workload], size, device, torch.float32)
    average = argosy.EMA(DECAY) if averaged else None
    made.members = [replace(member, average=average) for member in made.members]
    return made


def seconds(side: Side, made: Task, epoch: int) -> float:
    """Return the seconds of all steps of an epoch; on a CPU its processor time, since other work shares the machine."""
    clock = time.process_time if made.device.startswith("cpu") else time.perf_counter
    side.prepare(epoch)
    block = made.block(epoch)
    open_backend(made.device).synchronize()
    began = clock()
    side.run(block)
    open_backend(made.device).synchronize()
    return clock() - began


def as_torch(workload: str, device: str) -> bool:
    """Return whether a member's average has the same bits as torch's after some epochs."""
    made = task(workload, 1, averaged=True, device=device)
    (live,) = made.lives()
    program, torchs = Solo(live), AveragedModel(live.model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    for epoch in range(3):
        live.begin_epoch(made.orders, epoch)
        with program.active():
            for batch in program.cut(made.block(epoch)):
                program.begin(batch)
                program.finish()
                torchs.update_parameters(live.model)
    assert live.average is not None
    return all(map(torch.equal, live.average.values, torchs.module.parameters()))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--epochs", type=int, default=20, help="epochs in a round")
    parser.add_argument("--device", default="cpu:0")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, dict[str, Any]] = {}
    targets = []
    ways = {"plain": (one_after_another, fused)}
    if asked.device.startswith("cuda"):
        ways["captured"] = (captured_one_after_another, captured)
    for kind, (workload, size) in itertools.product(ways, CASES):
        tasks = {averaged: task(workload, size, averaged=averaged, device=asked.device) for averaged in (False, True)}
        sides = {key: ways[kind][size > 1](made) for key, made in tasks.items()}
        spent: dict[bool, list[float]] = {False: [], True: []}
        for number in range(asked.rounds + 1):
            of_round = {False: 0.0, True: 0.0}
            for epoch in range(number * asked.epochs, (number + 1) * asked.epochs):
                for key in (True, False) if epoch % 2 else (False, True):
                    of_round[key] += seconds(sides[key], tasks[key], epoch)
            for key, found in of_round.items():
                spent[key].append(found)
        plain, averaged = (found[1:] for found in spent.values())  # the first round warms up
        what = f"{workload}, {'alone' if size == 1 else f'{size} in a program'}, {kind}"
        steps = asked.epochs * WORKLOADS[workload].steps
        ratios = [one / other for one, other in zip(averaged, plain, strict=True)]
        states = [[model.state_dict() for model in side.models] for side in sides.values()]
        same = all(torch.equal(one[name], other[name]) for one, other in zip(*states, strict=True) for name in one)
        figures[what] = {"microseconds": quartiles(plain)[1] / steps * 1e6, "ratios": ratios, "raw weights equal": same}
        if size == 1:
            figures[what]["average is torch's"] = as_torch(workload, asked.device)
        print(what, {key: value for key, value in figures[what].items() if key != "ratios"})
        targets.append(target(f"seconds of a step with an EMA, without = 1: {what}", ratios, at_most=MOST))
    equal = [value for found in figures.values() for value in found.values() if isinstance(value, bool)]
    targets.append(target("share of the comparisons with equal bits", [sum(equal) / len(equal)], at_least=1.0))
    finish("averages", figures, targets, as_json=asked.json)


if __name__ == "__main__":
    main()
