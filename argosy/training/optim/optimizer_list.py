"""Several optimizers as one, each with its own weights, for example Muon for a network's matrices and AdamW for the rest."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

__all__ = ["OptimizerList"]


class OptimizerList(Optimizer):
    """Steps its parts one after another.

    Contract. Its parameter groups and state are the same objects as those of the parts, so schedules, checkpoints and kernels see one optimizer.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts: tuple[Optimizer, ...] = tuple(parts)
        """The optimizers, in the order of the parameter groups."""
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step each part."""
        for part in self.parts:
            part.step()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Give the parts this state and these groups, which torch replaces when it loads or copies an optimizer."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.state = self.state
            part.param_groups = [next(groups) for _ in part.param_groups]
