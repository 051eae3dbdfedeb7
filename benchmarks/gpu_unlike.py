"""The sections of `gpu_all.py` on 64 unlike MLPs, of the widths, batches and optimizers that TabPack takes (its figures: `anchors`)."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_packs import ROUNDS, steps_of
from gpu_site import Outcome, Site
from packing_sides import Programs, Side, Task, captured, captured_one_after_another, one_after_another
from torch.optim import AdamW
from unlike import STEPS, Shape, alike, grouped, task_of, unlike
from unlike_sides import Padded

from argosy.training.device.devices import backend_of
from argosy.training.device.own_kernels import kernels_of
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.graphed.graphed import Graphed

WIDTHS, BATCH = (128, 192, 256, 320, 384), 256
WANTED = {"grouped, captured / padded": 3.0, "grouped, captured / alike, fused, captured": 0.7}
STEPS_A_SECOND = 600
"""Of all 64 members, wanted of an H100."""


def sixty_four_unlike_mlps_are_one_captured_program(site: Site) -> Outcome:
    """Steps a second of all members in each way, and float64 weights against those of members alone, dropout included."""
    if kernels_of(backend_of(site.device).device) is None:
        return Outcome(holds=True, figures={"kernels": f"none on {site.device}"})
    shapes = unlike(WIDTHS)
    apart = _difference(site, shapes)
    print(f"difference from alone: {apart}", flush=True)
    different, same = (_with_adamw(task_of(own, BATCH, device=site.device)) for own in (shapes, alike(shapes, WIDTHS)))
    sides: dict[str, tuple[Task, Callable[[Task], Side], int]] = {
        "one after another": (different, one_after_another, 1),
        "captured one after another": (different, captured_one_after_another, ROUNDS),
        "padded": (different, Padded, ROUNDS),
        "grouped": (different, grouped, ROUNDS),
        "grouped, captured": (different, captured_unlike, ROUNDS),
        "alike, fused, captured": (same, captured, ROUNDS),
    }
    rates: dict[str, float] = {}
    for name, (task, make, rounds) in sides.items():
        side = make(task)
        steps_of(side, task, range(2))
        seconds = [steps_of(side, task, range(2 + 4 * n, 6 + 4 * n)) for n in range(rounds)]
        rates[name] = 4 * STEPS / statistics.median(seconds)
        print(f"{name}: {rates[name]:.1f} steps of all a second", flush=True)
    ratios = {
        f"grouped, captured / {other}": round(rates["grouped, captured"] / rate, 2) for other, rate in rates.items()
    }
    missed = [f"{name} is {ratios[name]}, wanted {least}" for name, least in WANTED.items() if ratios[name] < least]
    if rates["grouped, captured"] < STEPS_A_SECOND:
        missed.append(f"{rates['grouped, captured']:.0f} steps of all a second, wanted {STEPS_A_SECOND}")
    figures = {"steps of all a second": {name: round(rate, 1) for name, rate in rates.items()}, **ratios}
    return Outcome(holds=apart <= 1e-10 and not missed, figures={"difference": apart, **figures, "missed": missed})


def captured_unlike(task: Task) -> Programs:
    """All members as one program, its steps captured."""
    return Programs(task, [Graphed.of(Grouped.of(task.lives()))])


def _with_adamw(task: Task) -> Task:
    task.members = [
        replace(member, optimizer=partial(AdamW, lr=1e-3 * (number % 16 + 1), weight_decay=0.01 * (number % 5)))
        for number, member in enumerate(task.members)
    ]
    return task


def _difference(site: Site, shapes: Sequence[Shape]) -> float:
    """Return the largest between float64 weights of the members captured as one and those alone, after 40 steps."""
    task = task_of(shapes, BATCH, torch.float64, device=site.device)
    sides: tuple[Any, Any] = one_after_another(task), captured_unlike(task)
    for side in sides:
        steps_of(side, task, range(5))
    models = zip(*(side.models for side in sides), strict=True)
    pairs = (pair for a, b in models for pair in zip(a.parameters(), b.parameters(), strict=True))
    return max(float((p - q).detach().abs().max()) for p, q in pairs)
