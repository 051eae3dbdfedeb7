"""Every trial trains to the end: random search, and grids."""

__all__ = ["InFull"]


class InFull:
    """So many trials, all of one budget."""

    def __init__(self, *, most: int, trials: int) -> None:
        self.most, self.trials = most, trials

    def wanted(self, begun: int) -> int:
        """See `Scheduler.wanted`: all that there are to be."""
        return max(self.trials - begun, 0)

    def tell(self, trial: int, sections: int, cost: float) -> None:
        """See `Scheduler.tell`."""

    def close(self, trial: int) -> None:
        """See `Scheduler.close`."""

    def fail(self, trial: int) -> None:
        """See `Scheduler.fail`."""

    def budget(self, trial: int) -> int:
        """See `Scheduler.budget`."""
        return self.most

    def out(self, trial: int) -> str | None:
        """See `Scheduler.out`."""
        return None

    def foreseen(self, *, again: bool) -> int:
        """See `Scheduler.foreseen`."""
        return self.trials * self.most
