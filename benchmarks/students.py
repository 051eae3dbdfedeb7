"""Compares a student with the ensemble that taught it: loss on test samples that neither has seen, and seconds to predict these.

There are five data sets, as in `steered.py`, with several seeds each: the ensemble of the best of unlike members, and
one network that `argosy.distill` taught. (A greedily chosen ensemble may consist of one small member; no network
predicts in a quarter of its time.) Both are timed on all test samples at once, in turn on one thread, by the CPU time
of that thread: the wall time of a call longer than the system's time slice would include other processes.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import arguments, finish, hardware, target
from steered import SETS, Arrays, members, mlp, parts
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import argosy

MEMBERS, EPOCHS, SEEDS, STEPS, WIDTH = 16, 30, 5, 8000, 256
BATCH = 64
TIMES = 50
MOST_LOSS, MOST_SECONDS = 1.02, 0.25


def student(samples: Arrays, classes: int, steps: int, width: int) -> argosy.Member:
    """Return a network with one hidden layer, averaged weights, and a learning rate that falls to zero at the last step."""
    return argosy.Member(
        "student",
        model=partial(mlp, samples[0].shape[1], classes or 1, width=width, depth=1, dropout=0.0),
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        schedule=partial(CosineAnnealingLR, T_max=steps),
        schedule_per="step",
        batch_size=BATCH,
        loss=None if classes else nn.MSELoss(),
        average=argosy.EMA(0.999),
    )


def loss(predicted: Tensor, y: Tensor) -> float:
    """Return the squared error of numbers, or the negative log-likelihood of probabilities."""
    if y.is_floating_point():
        return float((predicted - y).pow(2).mean())
    return float(-predicted.gather(1, y[:, None]).clamp(min=1e-12).log().mean())


def seconds(networks: Sequence[nn.Module], x: Tensor) -> list[float]:
    """Return the median of several predictions' seconds for each network, in turn."""
    found: list[list[float]] = [[] for _ in networks]
    with torch.no_grad():
        for _ in range(TIMES):
            for network, times in zip(networks, found, strict=True):
                before = time.thread_time()
                network(x)
                times.append(time.thread_time() - before)
    return [statistics.median(times) for times in found]


def compared(name: str, seed: int, options: Any) -> dict[str, Any]:
    """Return the losses on test samples, and the seconds, of the student and of its ensemble on one data set with one seed."""
    classes = SETS[name][1]
    samples, val, test = parts(name, seed)
    study = argosy.Study(
        data=argosy.Data(arrays=samples, val_arrays=val),
        members=members(samples[0].shape[1], classes, options.members, seed),
        stop=argosy.MaxEpochs(EPOCHS),
        seed=seed,
    )
    steps_per_epoch = math.ceil(len(samples[0]) / BATCH)
    epochs = math.ceil(options.steps / steps_per_epoch)
    how: dict[str, Any] = {"launcher": "inline", "devices": "cpu:1", "quiet": True}
    with tempfile.TemporaryDirectory() as folder:
        teachers = argosy.train(study, directory=Path(folder, "teachers"), **how)
        chosen: Any = {"top": options.top} if options.top else {"select": "greedy"}
        ensemble = teachers.ensemble(**chosen).eval()
        taught = argosy.distill(
            teachers,
            student(samples, classes, epochs * steps_per_epoch, options.width),
            teacher=ensemble,
            temperature=options.temperature,
            weight=options.weight,
            mix=options.mix,
            stop=argosy.MaxEpochs(epochs),
        )
        network = argosy.train(taught, directory=Path(folder, "student"), **how).best().load().eval()
    with torch.no_grad():
        said = network(test[0])
        losses = [loss(said.softmax(dim=1) if classes else said, test[1]), loss(ensemble(test[0]), test[1])]
    rounds = [seconds([network, ensemble], test[0]) for _ in range(options.rounds)]
    ratio = statistics.median(one / other for one, other in rounds)
    print(
        f"{name} seed {seed}: loss {losses[0]:.4f} and {losses[1]:.4f} ({losses[0] / losses[1]:.3f}), {len(ensemble.names)} members, "
        f"seconds {ratio:.3f}",
        flush=True,
    )
    return {"losses": losses, "seconds": rounds, "ratio": ratio, "members": len(ensemble.names)}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument(
        "--top", type=int, default=8, help="number of best members that teach; with 0 they are chosen greedily"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="least steps of a student")
    parser.add_argument("--width", type=int, default=WIDTH, help="hidden units of the student")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--weight", type=float, default=1.0, help="weight of the teacher in the student's loss")
    parser.add_argument(
        "--no-mix", dest="mix", action="store_false", help="learn from the samples only, without mixing them"
    )
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(hardware(), flush=True)
    targets, figures = [], {}
    for name in options.sets:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        found = figures[name] = [compared(name, seed, options) for seed in seeds]
        ratios = [one["losses"][0] / one["losses"][1] for one in found]
        targets += [
            target(f"{name}: loss on test samples, its ensemble's = 1", ratios, at_most=MOST_LOSS),
            target(
                f"{name}: seconds to predict them, its ensemble's = 1",
                [one["ratio"] for one in found],
                at_most=MOST_SECONDS,
            ),
        ]
    finish("students", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
