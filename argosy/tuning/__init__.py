"""The decisions of a search: its trials, how far each one trains, and which ones continue. All are pure, except `sampling` and `mirror`, which use Optuna.

To add a scheduler, write one file with a subclass of ``scheduler.Scheduler``, and a line in `make_scheduler`.
"""

from argosy.tuning.asha import Asha
from argosy.tuning.hyperband import Brackets, Hyperband
from argosy.tuning.in_full import FullBudget
from argosy.tuning.median import Median
from argosy.tuning.pbt import Pbt
from argosy.tuning.scheduler import Scheduler

__all__ = ["SCHEDULERS", "make_scheduler"]

SCHEDULERS = ("hyperband", "asha", "median", "pbt", "random", "grid")


def make_scheduler(
    name: str, *, most: int, eta: int, trials: int, brackets: Brackets, generation: int, seed: int
) -> Scheduler:
    """Return the scheduler called `name` for `trials` trials of at most `most` sections; a generation has `generation` sections."""
    if name == "hyperband":
        return Hyperband(most=most, eta=eta, trials=trials, order=brackets)
    if name == "asha":
        return Asha(most=most, eta=eta, trials=trials)
    if name == "median":
        return Median(most=most, trials=trials)
    if name == "pbt":
        return Pbt(most=most, every=generation, eta=eta, trials=trials, seed=seed)
    return FullBudget(most=most, trials=trials)
