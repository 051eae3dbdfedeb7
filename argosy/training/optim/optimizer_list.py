"""Several optimizers as one, each with its own weights, for example Muon for a network's matrices and AdamW for the rest."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

__all__ = ["OptimizerList"]


class OptimizerList(Optimizer):
    """Steps its parts one after another.

    Contract. Its parameter groups are the same objects as those of the parts, so schedules see one optimizer. The state remains in the parts.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts: tuple[Optimizer, ...] = tuple(parts)
        """The optimizers, in the order of the parameter groups."""
        # A schedule looks here for what every group has: OneCycleLR cycles `momentum` or `betas`.
        first, *others = (part.defaults for part in self.parts)
        common = {name: value for name, value in first.items() if all(name in other for other in others)}
        super().__init__([group for part in self.parts for group in part.param_groups], common)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step each part."""
        for part in self.parts:
            part.step()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}
