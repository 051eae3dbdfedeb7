"""The sections of `gpu_all.py` on 64 unlike MLPs, with the widths, batches and optimizers of TabPack (its figures: `anchors`)."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_packs import ROUNDS, steps_of
from gpu_site import Outcome, Site
from packing_sides import Programs, Side, Task, captured, captured_one_after_another, one_after_another
from torch.optim import AdamW, Muon, Optimizer
from unlike import STEPS, Shape, alike, grouped, task_of, unlike
from unlike_sides import Padded

from argosy.training.device.devices import open_backend
from argosy.training.device.own_kernels import find_kernels
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.graphed.graphed import Graphed

WIDTHS, BATCH = (128, 192, 256, 320, 384), 256
WANTED = {"grouped, captured / padded": 3.0, "grouped, captured / alike, fused, captured": 0.7}
STEPS_A_SECOND = {"AdamW": 600, "Muon": 250}
"""Steps of all 64 members a second that an H100 must reach."""
LONG, SHORT = ROUNDS, 1
"""Numbers of rounds: each has four epochs, but sides that take seconds for one epoch run a single epoch once."""


def sixty_four_unlike_mlps_are_one_captured_program(site: Site) -> Outcome:
    """Measure steps a second of all members with AdamW on each side, and compare float64 weights with members alone, dropout included."""
    if find_kernels(open_backend(site.device).device) is None:
        return Outcome(holds=True, figures={"kernels": f"none on {site.device}"})
    apart = _difference(site)
    print(f"difference from alone: {apart}", flush=True)
    outcome = _rates(site, "AdamW", {"one after another": (one_after_another, SHORT), "grouped": (grouped, SHORT)})
    return Outcome(holds=outcome.holds and apart <= 1e-10, figures={"difference": apart, **outcome.figures})


def sixty_four_unlike_mlps_are_stepped_by_muon(site: Site) -> Outcome:
    """Measure the same with Muon for matrices and AdamW for biases."""
    if find_kernels(open_backend(site.device).device) is None:
        return Outcome(holds=True, figures={"kernels": f"none on {site.device}"})
    return _rates(site, "Muon", {"captured one after another": (captured_one_after_another, SHORT)})


def _rates(site: Site, optimizer: str, more: Mapping[str, tuple[Callable[[Task], Side], int]]) -> Outcome:
    """Time the sides one after another, since each needs its own memory."""
    shapes = unlike(WIDTHS)
    different, same = (_task(site, own, optimizer) for own in (shapes, alike(shapes, WIDTHS)))
    sides: dict[str, tuple[Task, Callable[[Task], Side], int]] = {
        "padded": (different, Padded, LONG),
        "grouped, captured": (different, captured_unlike, LONG),
        "alike, fused, captured": (same, captured, LONG),
        **{name: (different, *how) for name, how in more.items()},
    }
    rates: dict[str, float] = {}
    for name, (task, make, rounds) in sides.items():
        side = make(task)
        steps_of(side, task, range(1 if rounds == SHORT else 3))
        epochs = 1 if rounds == SHORT else 4
        seconds = [steps_of(side, task, range(3 + epochs * n, 3 + epochs * (n + 1))) for n in range(rounds)]
        rates[name] = epochs * STEPS / statistics.median(seconds)
        print(f"{optimizer}, {name}: {rates[name]:.1f} steps of all a second", flush=True)
    ratios = {
        f"grouped, captured / {other}": round(rates["grouped, captured"] / rate, 2) for other, rate in rates.items()
    }
    missed = [f"{name} is {ratios[name]}, wanted {least}" for name, least in WANTED.items() if ratios[name] < least]
    if rates["grouped, captured"] < STEPS_A_SECOND[optimizer]:
        missed.append(f"{rates['grouped, captured']:.0f} steps of all a second, wanted {STEPS_A_SECOND[optimizer]}")
    figures = {"steps of all a second": {name: round(rate, 1) for name, rate in rates.items()}, **ratios}
    return Outcome(holds=not missed, figures={**figures, "missed": missed})


def captured_unlike(task: Task) -> Programs:
    """Return all members as one program with captured steps."""
    return Programs(task, [Graphed.of(Grouped.of(task.lives()))])


def _task(site: Site, shapes: Sequence[Shape], optimizer: str) -> Task:
    task = task_of(shapes, BATCH, device=site.device)
    make = adamw if optimizer == "AdamW" else muon
    task.members = [replace(member, optimizer=partial(make, number)) for number, member in enumerate(task.members)]
    return task


def adamw(number: int, parameters: Any) -> Optimizer:
    """Return a member's optimizer, with its own hyper-parameters."""
    return AdamW(parameters, lr=1e-3 * (number % 16 + 1), weight_decay=0.01 * (number % 5))


def muon(number: int, parameters: Any) -> list[Optimizer]:
    """Return Muon for a member's matrices, and AdamW for the rest."""
    weights = list(parameters)
    matrices = Muon([w for w in weights if w.dim() == 2], lr=2e-3 * (number % 16 + 1), weight_decay=0.01 * (number % 5))
    return [matrices, adamw(number, [w for w in weights if w.dim() != 2])]


def _difference(site: Site) -> float:
    """Return the largest difference of float64 weights between members captured as one program and members alone, after 24 steps."""
    task = task_of(unlike(WIDTHS), BATCH, torch.float64, device=site.device)
    sides: tuple[Any, Any] = one_after_another(task), captured_unlike(task)
    for side in sides:
        steps_of(side, task, range(3))
    models = zip(*(side.models for side in sides), strict=True)
    pairs = (pair for a, b in models for pair in zip(a.parameters(), b.parameters(), strict=True))
    return max(float((p - q).detach().abs().max()) for p, q in pairs)
