"""64 small MLPs on arrays, end to end through the stream: ``packing="auto"`` against ``"interleaved"``, in interleaved rounds.

A round is a whole run of each side, from the call to the report: processes start, members are measured, programs are
tried.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from measuring import arguments, finish, hardware, quartiles, target
from torch import Tensor, nn
from torch.optim import Adam

import argosy

MEMBERS, FEATURES, HIDDEN, CLASSES = 64, 16, 16, 4
SAMPLES, VAL, BATCH, EPOCHS = 4096, 512, 16, 8


def network() -> nn.Module:
    """Return an MLP with two hidden layers."""
    layers = nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    return nn.Sequential(*layers)


def table(length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return samples and their classes."""
    x = torch.randn(length, FEATURES, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :CLASSES].argmax(dim=1)


def study() -> argosy.Study:
    """Return a study that sweeps learning rates."""
    rates = [1e-4 * 1.08**n for n in range(MEMBERS)]
    members = [
        argosy.Member(f"m{n:02d}", model=network, optimizer=partial(Adam, lr=rate), batch_size=BATCH)
        for n, rate in enumerate(rates)
    ]
    data = argosy.Data(arrays=table(SAMPLES, 1), val_arrays=table(VAL, 2))
    return argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(EPOCHS))


def run(packing: Literal["auto", "interleaved"]) -> dict[str, Any]:
    """Return the seconds and CPU seconds of a run, the best loss of each member, and the programs chosen."""
    with tempfile.TemporaryDirectory(prefix="argosy-packing-") as folder:
        began = time.perf_counter()
        report = argosy.train(study(), quiet=True, directory=Path(folder) / "run", devices="cpu:1", packing=packing)
        seconds = time.perf_counter() - began
        assert {row.status for row in report.rows} == {"done"}
        return {
            "seconds": seconds,
            "cpu_seconds": report.cpu_seconds,
            "losses": {row.name: row.metrics["val_loss"] for row in report.rows},
            "packs": [{"sizes": list(map(len, p.programs)), "costs": p.seconds_per_sample} for p in report.packs],
        }


def end_to_end(rounds: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return figures and targets."""
    sides = [(run("interleaved"), run("auto")) for _ in range(rounds)]
    ratios = [plain["seconds"] / packed["seconds"] for plain, packed in sides]
    gap = max(abs(p["losses"][name] - q["losses"][name]) for p, q in sides for name in p["losses"])
    for plain, packed in sides:
        print(f"one after another {plain['seconds']:.1f} s, packed {packed['seconds']:.1f} s, {packed['packs'][-1]}")
    figures = {
        "seconds": {
            side: quartiles([pair[n]["seconds"] for pair in sides])[1] for n, side in enumerate(("interleaved", "auto"))
        },
        "cpu_ratio": quartiles([plain["cpu_seconds"] / packed["cpu_seconds"] for plain, packed in sides])[1],
        "largest difference of best losses": gap,
        "packs": sides[-1][1]["packs"],
    }
    print(figures)
    return figures, [target(f"{MEMBERS} small MLPs end to end, against one after another", ratios, at_least=4.0)]


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    print(hardware())
    figures, targets = end_to_end(options.rounds)
    finish("packing, end to end", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
