"""Another side of `hyperband.py` that people use today, if Ray is installed: Ray Tune with its HyperBandScheduler.

Its actors are reused for further trials; every trial has its own loader.
"""

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hyperband_pool import Pooled
from hyperband_study import Alone

__all__ = ["is_there", "ray_tune"]


def is_there() -> bool:
    """Return whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


def ray_tune(
    model: str, trials: Sequence[dict[str, Any]], folder: Path, *, most: int, workers: int, device: str
) -> Pooled:
    """Train these configurations; needs Ray."""
    import ray
    from ray import tune

    class Training(tune.Trainable):  # type: ignore[misc]
        """One trial, with a step per epoch."""

        def setup(self, config: dict[str, Any]) -> None:
            torch.set_num_threads(1)
            self.begin(config)

        def begin(self, config: dict[str, Any]) -> None:
            self.best, self.began = 0.0, time.time()
            self.alone = Alone(model, trials[config["trial"]], seed=config["trial"], device=device)

        def reset_config(self, config: dict[str, Any]) -> bool:
            self.begin(config)
            return True

        def step(self) -> dict[str, float]:
            self.best = max(self.best, self.alone.epoch())
            return {"accuracy": self.best, "began": self.began, "ended": time.time()}

        def save_checkpoint(self, folder: str) -> None:
            states = {"network": self.alone.network.state_dict(), "optimizer": self.alone.optimizer.state_dict()}
            torch.save({**states, "best": self.best, "began": self.began}, Path(folder) / "trial.pt")

        def load_checkpoint(self, folder: str) -> None:
            found = torch.load(Path(folder) / "trial.pt", weights_only=True)
            self.alone.network.load_state_dict(found["network"])
            self.alone.optimizer.load_state_dict(found["optimizer"])
            self.best, self.began = found["best"], found["began"]

    ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        scheduler = tune.schedulers.HyperBandScheduler(
            time_attr="training_iteration", metric="accuracy", mode="max", max_t=most, reduction_factor=3
        )
        gpus = 1 / workers if device == "cuda" else 0
        tuner = tune.Tuner(
            tune.with_resources(Training, {"cpu": 1, "gpu": gpus}),
            param_space={"trial": tune.grid_search(list(range(len(trials))))},
            tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=True),
            run_config=tune.RunConfig(storage_path=str(folder), verbose=0, stop={"training_iteration": most}),
        )
        rows = [result.metrics for result in tuner.fit()]
    finally:
        ray.shutdown()
    return Pooled(
        seconds=max(row["ended"] for row in rows) - min(row["began"] for row in rows),
        epochs=sum(row["training_iteration"] for row in rows),
        accuracy=max(row["accuracy"] for row in rows),
    )
