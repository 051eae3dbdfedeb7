"""A scheduler that trains every trial to the end, for random search and grids."""

from argosy.tuning.scheduler import Scheduler

__all__ = ["FullBudget"]


class FullBudget(Scheduler):
    """Trials that all have the full budget."""

    def __init__(self, *, most: int, trials: int) -> None:
        self.most = most
        super().__init__(trials)

    def budget(self, trial: int) -> int:
        """Return the full budget."""
        return self.most

    def out(self, trial: int) -> str | None:
        """Return None: no trial is ever out."""
        return None

    def expected_sections(self, *, again: bool) -> int:
        """Return the sections of all trials at the full budget."""
        return self.trials * self.most

    def _reconsider(self, trial: int) -> None:
        """Decide nothing."""
