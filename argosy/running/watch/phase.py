"""What a run is at: the one word that says which of the driver's answers a message gets."""

from enum import Enum

__all__ = ["Phase"]


class Phase(Enum):
    """From the first to the last; after a loss it goes back to measuring or training."""

    OPENING = "opening the data"
    MEASURING = "measuring members"
    TRAINING = "training"
    REGROUPING = "saving members after a loss"
    """As it is shown; other legs train meanwhile."""
    ENDING = "saving members, to end"
    OVER = "ending"
