"""What the sections of `gpu_all.py` share: where they run, made-up samples, and what runs leave."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import argosy
from argosy.cli import demo

__all__ = ["MIB", "Outcome", "Site", "differences", "digits", "equal", "events"]

MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where and how much."""

    devices: str
    folder: Path

    @property
    def real(self) -> bool:
        """Whether it is an accelerator, and so everything in full size."""
        return self.devices.partition(":")[0] in ("cuda", "xpu")

    @property
    def device(self) -> str:
        """The first device's name."""
        kind, _, which = self.devices.partition(":")
        return f"{kind}:0" if kind == "cpu" else f"{kind}:{which.split(',')[0] or 0}"

    @property
    def one(self) -> str:
        """That device, or one slot of the host, as runs are told it."""
        return "cpu:1" if self.devices.startswith("cpu") else self.device

    def train(self, study: argosy.Study, run: str, *, devices: str | None = None, **settings: Any) -> Path:
        """Train, or go on; returns the run's folder."""
        argosy.train(study, quiet=True, directory=self.folder / run, devices=devices or self.devices, **settings)
        return self.folder / run


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a section found."""

    holds: bool
    figures: Mapping[str, Any] = field(default_factory=dict)


def digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Made up: ten patterns, shifted and noisy, as bytes ``[N, 1, 28, 28]``, and their numbers."""
    patterns = torch.nn.functional.interpolate(
        torch.rand(10, 1, 7, 7, generator=torch.Generator().manual_seed(0)), size=demo.CROP, mode="bilinear"
    )
    draw = torch.Generator().manual_seed(seed)
    target_B = torch.randint(10, (count,), generator=draw)
    shift_B = torch.randint(-2, 3, (count,), generator=draw)
    clean = torch.stack([patterns[t].roll(int(s), -1) for t, s in zip(target_B, shift_B, strict=True)])
    noisy = clean + 0.15 * torch.randn(clean.shape, generator=draw)
    return (noisy.clamp(0, 1) * 255).to(torch.uint8), target_B


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """The journal's lines of a kind."""
    path = run / "journal.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    # The last line may be half written.
    return [json.loads(line) for line in lines if f'"event": "{kind}"' in line and line.endswith("}")]


def differences(one: Path, other: Path, names: Sequence[str], *, metrics: bool = True) -> dict[str, float]:
    """The largest difference of any weight of each member; 0 means bit for bit, `metrics` of all epochs included."""
    found = {}
    for name in names:
        ours, theirs = (
            torch.load(run / "members" / name / "last.pt", weights_only=True)["model"] for run in (one, other)
        )
        found[name] = max(float((ours[key].double() - theirs[key].double()).abs().max()) for key in ours)
        rows = [
            [line["metrics"] for line in events(run, "SectionEnded") if line["member"] == name] for run in (one, other)
        ]
        if metrics and not found[name] and rows[0] != rows[1]:
            found[name] = float("nan")
    return found


def equal(found: Mapping[str, float]) -> Outcome:
    """Holds where nothing differs."""
    return Outcome(holds=not any(found.values()), figures={"largest difference of a weight": dict(found)})
