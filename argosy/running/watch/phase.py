"""The phase of a run, which decides how the driver responds to a message."""

from enum import Enum

__all__ = ["Phase"]


class Phase(Enum):
    """Phases from first to last; after a loss the phase goes back to measuring or training."""

    OPENING = "opening the data"
    MEASURING = "measuring members"
    TRAINING = "training"
    REGROUPING = "saving members after a loss"
    """The text for users; other legs continue to train in this phase."""
    ENDING = "saving members before ending"
    OVER = "ending"
