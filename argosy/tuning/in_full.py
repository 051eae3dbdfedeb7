"""Every trial trains to the end: random search, and grids."""

__all__ = ["InFull"]


class InFull:
    """So many trials, all of one budget."""

    def __init__(self, *, most: int, trials: int) -> None:
        self.most = most
        self.trials = trials

    def wanted(self, begun: int) -> int:
        """Return the number of trials that have not begun."""
        return max(self.trials - begun, 0)

    def tell(self, trial: int, sections: int, *costs: float, excess: float = 0.0) -> None:
        """Ignore what a trial reached."""

    def close(self, trial: int) -> None:
        """Ignore that a trial ended."""

    def fail(self, trial: int) -> None:
        """Ignore that a trial failed."""

    def budget(self, trial: int) -> int:
        """Return the one budget of all trials."""
        return self.most

    def out(self, trial: int) -> str | None:
        """Return None: no trial is ever out."""
        return None

    def foreseen(self, *, again: bool) -> int:
        """Return the sections of all trials at the full budget."""
        return self.trials * self.most
