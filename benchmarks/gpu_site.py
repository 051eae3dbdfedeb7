"""What the sections of `gpu_all.py` share: devices, members on synthetic samples, and access to what runs leave."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

import argosy
from argosy.cli import demo

__all__ = [
    "MIB",
    "Outcome",
    "Site",
    "data",
    "differences",
    "digits",
    "dropping",
    "equal",
    "events",
    "exactly",
    "members",
    "study",
    "together",
]

MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """The devices and the folder of a run of the sections."""

    devices: str
    folder: Path

    @property
    def real(self) -> bool:
        """Whether this is an accelerator, on which everything has full size."""
        return self.devices.partition(":")[0] in ("cuda", "xpu")

    @property
    def device(self) -> str:
        """The first device's name."""
        kind, _, which = self.devices.partition(":")
        return f"{kind}:0" if kind == "cpu" else f"{kind}:{which.split(',')[0] or 0}"

    @property
    def one(self) -> str:
        """The first device, or one slot of the host, as a setting of runs."""
        return "cpu:1" if self.devices.startswith("cpu") else self.device

    def train(self, study: argosy.Study, run: str, *, devices: str | None = None, **settings: Any) -> Path:
        """Train or continue a study, and return the run's folder."""
        argosy.train(study, quiet=True, directory=self.folder / run, devices=devices or self.devices, **settings)
        return self.folder / run


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a section."""

    holds: bool
    figures: Mapping[str, Any] = field(default_factory=dict)


def digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return synthetic digits: ten patterns, shifted and noisy, as bytes ``[N, 1, 28, 28]``, and their numbers."""
    patterns = torch.nn.functional.interpolate(
        torch.rand(10, 1, 7, 7, generator=torch.Generator().manual_seed(0)), size=demo.CROP, mode="bilinear"
    )
    draw = torch.Generator().manual_seed(seed)
    target_B = torch.randint(10, (count,), generator=draw)
    shift_B = torch.randint(-2, 3, (count,), generator=draw)
    clean = torch.stack([patterns[t].roll(int(s), -1) for t, s in zip(target_B, shift_B, strict=True)])
    noisy = clean + 0.15 * torch.randn(clean.shape, generator=draw)
    return (noisy.clamp(0, 1) * 255).to(torch.uint8), target_B


def data(site: Site) -> argosy.Data:
    """Return synthetic digits, normalised on the device."""
    count = 6400 if site.real else 640
    return argosy.Data(arrays=digits(count, 1), val_arrays=digits(count // 5, 2), on_device=demo.normalize)


def dropping(hidden: int) -> nn.Module:
    """Return a network that draws random numbers on the device in every step."""
    layers = [nn.Linear(demo.CROP**2, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def members(**rest: Any) -> list[argosy.Member]:
    """Return unlike members: random numbers on the device, convolutions, Adam, batches that cut blocks, a bootstrap."""

    def member(name: str, build: Any, optimizer: Any, batch_size: int, **more: Any) -> argosy.Member:
        return argosy.Member(name, model=build, optimizer=optimizer, batch_size=batch_size, **more, **rest)

    sgd, adam = partial(SGD, lr=0.02, momentum=0.9), partial(Adam, lr=2e-3)
    return [
        member("dropping", partial(dropping, hidden=64), sgd, 32),
        member("resnet", partial(demo.resnet, width=8), adam, 50),
        member("bootstrap", partial(dropping, hidden=32), adam, 16, subset=[3, 3, *range(40, 400)]),
    ]


def study(site: Site, fleet: Sequence[argosy.Member], epochs: int = 3) -> argosy.Study:
    """Return a study of these members on synthetic digits."""
    return argosy.Study(data=data(site), members=fleet, stop=argosy.MaxEpochs(epochs))


def exactly(site: Site, asked: argosy.Study, run: str) -> Path:
    """Train with exact numerics, so that equal members are equal to the bit; by default lone members may be stepped by captured kernels."""
    # Convolutions then add up in one order only; workers inherit the setting.
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        return site.train(asked, run, numerics="exact")


def together(site: Site) -> Path:
    """Return the run with which others are compared; it is made once."""
    run = site.folder / "together"
    return run if run.exists() else exactly(site, study(site, members()), "together")


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the journal's lines of a kind."""
    path = run / "journal.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    # The last line may be incomplete.
    return [json.loads(line) for line in lines if f'"event": "{kind}"' in line and line.endswith("}")]


def differences(one: Path, other: Path, names: Sequence[str], *, metrics: bool = True) -> dict[str, float]:
    """Return the largest difference of any weight of each member; 0 means equal bits, `metrics` of all epochs included."""
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
    """Require that nothing differs."""
    return Outcome(holds=not any(found.values()), figures={"largest difference of a weight": dict(found)})
