"""The sections of `gpu_all.py` on packs and captured steps: that they train the same, what they cost, and where memory ends."""

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_site import Outcome, Site, differences, digits, events
from packing_networks import PIXELS, WORKLOADS, Workload, cnn, mlp, resnet
from packing_sides import (
    Apart,
    Chosen,
    Graphed,
    Loop,
    Side,
    Task,
    captured,
    captured_one_after_another,
    fused,
    one_after_another,
)
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import argosy
from argosy.cli import demo
from argosy.training.device.devices import open_backend
from argosy.training.device.recorders import has_recorder
from argosy.training.programs.shard.ends import sum_device
from argosy.training.programs.shard.parallel import Group

NEAR = 1e-9
"""How far float64 weights may be from those of members alone, relative to the largest."""
NEAR_AFTER_A_RUN = 1e-6
"""How far such weights may be apart after hundreds of steps, which amplify rounding."""
GIB = 2**30
ROUNDS = 5
WARM = 3
"""Unmeasured blocks at the beginning of a rung."""
WIDE, MANY = 2048, 8
"""Hidden units and number of members: weights, moments and a step of one member take 1.3 GiB, a step of all 2.8 GiB."""
SCARCE = 2.0
"""GiB in which the members fit one by one, but not as one program."""


# ---- runs with packs


def double(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Normalise digits to float64, in which one program and several differ by next to nothing."""
    inputs, target = demo.normalize(batch)
    return inputs.double(), target


def network(kind: str, hidden: int = 64) -> nn.Module:
    """Return a float64 network."""
    flat = [nn.Flatten(), nn.Linear(demo.CROP**2, hidden), nn.ReLU()]
    rest = {"plain": nn.ReLU(), "norms": nn.BatchNorm1d(hidden), "drops": nn.Dropout(0.2)}[kind]
    return nn.Sequential(*flat, nn.Linear(hidden, hidden), rest, nn.Linear(hidden, 10)).double()


def limited(gib: float, hidden: int) -> nn.Module:
    """Return a network after limiting the CUDA memory of this process."""
    if torch.cuda.is_available():
        share = gib * GIB / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0))
    return network("plain", hidden)


def packs() -> list[argosy.Member]:
    """Return four members of each of three architectures, with different optimizers, rates and schedules, and own random numbers."""
    made = []
    for kind, number in itertools.product(("plain", "norms", "drops"), range(4)):
        optimizer = (partial(SGD, lr=0.02 * (number + 1), momentum=0.9), partial(AdamW, lr=1e-3 * (number + 1)))
        made.append(
            argosy.Member(
                f"{kind}{number}", model=partial(network, kind), optimizer=optimizer[number % 2], batch_size=32
            )
        )
    return made


def study(site: Site, members: Sequence[argosy.Member], epochs: int = 3) -> argosy.Study:
    """Return a study on synthetic digits."""
    count = 6400 if site.real else 640
    data = argosy.Data(arrays=digits(count, 1), val_arrays=digits(count // 5, 2), on_device=double)
    return argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(epochs))


def packed_together(site: Site) -> Path:
    """Return the run with which others are compared; it is made once."""
    run = site.folder / "packs"
    return run if run.exists() else site.train(study(site, packs()), "packs", devices=site.one)


def near(found: Mapping[str, float], run: Path, **more: Any) -> Outcome:
    """Require that float64 weights differ by next to nothing, and report the run's programs."""
    programs = events(run, "Packed")
    tried = sorted({f"{max(map(len, told['programs']))} {told.get('kind', 'plain')}" for told in programs})
    chosen = [f"{max(map(len, told['programs']))} {told.get('kind', 'plain')}" for told in programs if told["settled"]]
    figures = {"largest difference of a weight": max(found.values()), "tried": tried, "chosen": chosen, **more}
    return Outcome(holds=max(found.values()) <= NEAR_AFTER_A_RUN, figures=figures)


def packs_are_their_members_one_after_another(site: Site) -> Outcome:
    """Compare a run that may step members of one architecture as one program with a run that may not."""
    run, names = packed_together(site), [member.name for member in packs()]
    by_turns = site.train(study(site, packs()), "no-packs", devices=site.one, packing="interleaved")
    return near(differences(run, by_turns, names, metrics=False), run)


def resumed_packs_are_uninterrupted(site: Site) -> Outcome:
    """Train one epoch, then run the same command with more epochs."""
    for epochs in (1, 3):
        resumed = site.train(study(site, packs(), epochs), "resumed-packs", devices=site.one)
    names = [member.name for member in packs()]
    return near(differences(packed_together(site), resumed, names, metrics=False), resumed)


def a_pack_beyond_memory_trains_all(site: Site) -> Outcome:
    """Train eight members that fit one by one but not as one program, and compare them with the same on the whole device."""
    hidden, batch, rest = (WIDE, 2048, 80.0) if site.real else (32, 64, 0.0)
    epochs = 10 if site.real else 3  # of four steps each; a pack is tried after a dozen
    runs = []
    for words, gib in (("ample", rest), ("scarce", SCARCE)):
        members = [
            argosy.Member(
                f"m{n}", model=partial(limited, gib, hidden), optimizer=partial(Adam, lr=1e-4 * n), batch_size=batch
            )
            for n in range(1, MANY + 1)
        ]
        runs.append(site.train(study(site, members, epochs), f"memory-{words}", devices=site.one))
    names = [f"m{n}" for n in range(1, MANY + 1)]
    reasons = sorted({event["reason"] for event in events(runs[1], "Packed")} - {""})
    ended = [event["reason"] for event in events(runs[1], "MemberEnded") if event["status"] != "done"]
    outcome = near(differences(runs[0], runs[1], names, metrics=False), runs[1], reasons=reasons, failed=ended)
    return Outcome(holds=outcome.holds and not ended and (bool(reasons) or not site.real), figures=outcome.figures)


# ---- programs by hand


def steps_of(side: Side, task: Task, epochs: Sequence[int]) -> float:
    """Return the wall seconds of all steps on these epochs; the device is idle before and after."""
    backend, seconds = open_backend(task.device), 0.0
    for epoch in epochs:
        block = task.block(epoch)
        assert block.sums  # computed once for all members of a device
        side.prepare(epoch)
        backend.synchronize()
        began = time.perf_counter()
        side.run(block)
        backend.synchronize()
        seconds += time.perf_counter() - began
    return seconds


def gap(workload: Workload, size: int, device: str, make: Callable[[Task], Side]) -> float:
    """Return how far a side's float64 weights are from those of the members one after another, relative to the largest."""
    task = Task(workload, size, device, torch.float64)
    sides = one_after_another(task), make(task)
    for side in sides:
        steps_of(side, task, range(-(-24 // workload.steps)))
    pairs = [
        (one.detach(), other.detach())
        for models in zip(*(side.models for side in sides), strict=True)
        for one, other in zip(*(model.parameters() for model in models), strict=True)
    ]
    return max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)


def captured_steps_are_plain_ones(site: Site) -> Outcome:
    """Compare fused programs, and captured ones of a pack and of each member, with plain steps of each member."""
    ways: dict[str, Callable[[Task], Side]] = {"fused": fused}
    if has_recorder(open_backend(site.device)):
        ways |= {"fused, captured": captured, "captured": captured_one_after_another, "beside each other": Apart}
    names = ("MLP h64", "small CNN", "BN-ResNet", "transformer") if site.real else ("MLP h64", "BN-ResNet")
    gaps = {
        f"{name}, {words}": gap(WORKLOADS[name], 4, site.device, make)
        for name, (words, make) in itertools.product(names, ways.items())
    }
    return Outcome(holds=max(gaps.values()) <= NEAR, figures={"distance from plain steps": gaps})


def rung(site: Site, workload: Workload, size: int) -> dict[str, list[float]]:
    """Return the member-steps a second of each side in each interleaved round."""
    task = Task(workload, size, site.device, torch.float32)
    sides: dict[str, Side] = {
        "S0 loop": Loop(task),
        "S1 loop, fused Adam": Loop(task, fused=True),
        "one after another": one_after_another(task),
        "P1 fused": fused(task),
        "A chosen": Chosen(task),
    }
    if has_recorder(open_backend(site.device)):
        sides |= {
            "captured one after another": captured_one_after_another(task),
            "P2 fused, captured": captured(task),
        }
    if site.device.startswith("cuda"):
        sides["S2 loop, graphed"] = Graphed(task)
    chosen = sides["A chosen"]
    assert isinstance(chosen, Chosen)
    for side in sides.values():
        steps_of(side, task, range(WARM))
    epoch = WARM
    while not chosen.settled and epoch < 60:
        steps_of(chosen, task, [epoch])
        epoch += 1
    blocks = 2 if site.real else 1
    found: dict[str, list[float]] = {words: [] for words in sides}
    for number in range(ROUNDS if site.real else 2):
        epochs = range(epoch + number * blocks, epoch + (number + 1) * blocks)
        for words, side in sides.items():
            found[words].append(size * workload.steps * blocks / steps_of(side, task, epochs))
    return found


def the_ladder(site: Site) -> Outcome:
    """Compare ways of stepping the same members with plain loops and with captured ones."""
    rungs = [("MLP h64", 32), ("small CNN", 32), ("MLP h64", 8), ("MLP h64", 1), ("compute-bound", 4), ("small CNN", 8)]
    figures, missed = dict[str, Any](), list[str]()
    for name, size in rungs if site.real else [("MLP h64", 4)]:
        rates = {words: statistics.median(found) for words, found in rung(site, WORKLOADS[name], size).items()}
        best, chosen = max(rates.values()), rates["A chosen"]
        told: dict[str, float] = {f"{words}, member-steps/s": round(rate) for words, rate in rates.items()}
        pack = rates.get("P2 fused, captured", rates["P1 fused"])
        told |= {"pack / S0": round(pack / rates["S0 loop"], 2), "best / chosen": round(best / chosen, 3)}
        if "S2 loop, graphed" in rates:
            told["pack / S2"] = round(pack / rates["S2 loop, graphed"], 2)
        figures[f"{name}, {size} members"] = told
        print(f"{name}, {size} members: {told}", flush=True)
        wanted = {("MLP h64", 32): {"pack / S0": 30, "pack / S2": 8}, ("small CNN", 32): {"pack / S0": 10}}
        for ratio, least in wanted.get((name, size), {}).items() if site.real else ():
            if told.get(ratio, 0) < least:
                missed.append(f"{name}, {size} members: {ratio} is {told.get(ratio)}, wanted {least}")
    figures |= {"host, us a small operator": host_microseconds(site), "missed": missed}
    return Outcome(holds=not missed, figures=figures)


def host_microseconds(site: Site) -> float:
    """Return the host's time for a tiny operator, with which ratios scale."""
    one = torch.ones(1, device=open_backend(site.device).device)
    seconds = list[float]()
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(1000):
            one.add_(1.0)
        seconds.append(time.perf_counter() - began)
        open_backend(site.device).synchronize()
    return round(min(seconds) * 1e3, 2)


def unlike_members_step_side_by_side(site: Site) -> Outcome:
    """Run captured steps of four unlike networks one after another and each on its own stream; the section may hold without a gain."""
    models: list[Any] = [cnn, partial(mlp, PIXELS, 64), resnet, partial(cnn, 16)]
    unlike = Workload(models=models, inputs=PIXELS, batch=32, steps=8, wanted={})
    if not has_recorder(open_backend(site.device)):
        return Outcome(holds=True, figures={"streams": f"none on {site.device}"})
    distance = gap(unlike, 4, site.device, Apart)
    task = Task(unlike, 4, site.device, torch.float32)
    sides = {"plain": one_after_another(task), "captured": captured_one_after_another(task), "beside": Apart(task)}
    seconds: dict[str, list[float]] = {words: [] for words in sides}
    warm, rounds, blocks = (3, ROUNDS, 4) if site.real else (3, 1, 1)
    for number in range(warm + rounds):
        for words, side in sides.items():
            seconds[words].append(steps_of(side, task, range(blocks * number, blocks * (number + 1))))
    middle = {words: statistics.median(found[warm:]) for words, found in seconds.items()}
    figures = {"distance from plain steps": distance, "ms": {w: round(1e3 * s, 3) for w, s in middle.items()}}
    figures["captured / beside"] = round(middle["captured"] / middle["beside"], 3)
    return Outcome(holds=distance <= NEAR, figures=figures)


def sums_are_made_on_the_device(site: Site) -> Outcome:
    """Let a group of one rank compute a sum, by NCCL if it is available, while steps run beside it."""
    device = open_backend(site.device).device
    on = sum_device(device)
    before = set(threading.enumerate())
    group = Group.form(str(site.folder / "rendezvous"), 0, 1, on=on)
    deadline = time.monotonic() + 60.0
    while not group.formed and time.monotonic() < deadline:
        time.sleep(0.01)
    values = torch.arange(1 << 20, dtype=torch.float64, device=on)
    expected, busy = values.clone(), torch.randn(512, 512, device=device)
    began = time.perf_counter()
    made = group.add_up(values)
    for _ in range(20):
        busy = torch.tanh(busy @ busy)
    while not made.done and time.monotonic() < deadline:
        time.sleep(1e-4)
    seconds = time.perf_counter() - began
    holds = made.done and torch.equal(values, expected)
    group.leave()
    for thread in set(threading.enumerate()) - before:
        thread.join(10.0)  # a process aborts that ends while such a thread closes its connection
    return Outcome(
        holds=holds, figures={"on": str(on), "seconds": round(seconds, 4), "broken": str(group.broken or "")}
    )
