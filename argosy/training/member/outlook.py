"""The planned length of a member's training, for code that runs while the member is built.

Lightning's `configure_optimizers` asks its trainer for numbers that the study determines. A context variable holds them while
`argosy.training.member.building.build_member` runs, because a member's optimizer factory receives only the network.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from argosy.stopping import Stop
from argosy.study import Member

__all__ = ["TrainingOutlook", "set_outlook", "current_outlook"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOutlook:
    """The planned length of a member's training."""

    max_epochs: float | None
    """None if the stopping rule sets no limit."""
    train_batches: int
    """Batches per epoch."""
    val_batches: int
    """Batches per validation; 0 without validation samples."""

    @classmethod
    def of(cls, member: Member, stop: Stop, lengths: Mapping[str, int]) -> "TrainingOutlook":
        """Return a member's outlook, for splits of these lengths in samples."""
        train = lengths["train"] if member.subset is None else len(member.subset)
        val = lengths.get("val", 0) if member.val_subset is None else len(member.val_subset)
        return cls(
            max_epochs=stop.max_epochs,
            train_batches=train // member.batch_size if member.drop_last else -(-train // member.batch_size),
            val_batches=-(-val // (member.eval_batch_size or member.batch_size)),
        )


_OUTLOOK: ContextVar[TrainingOutlook | None] = ContextVar("outlook", default=None)


@contextlib.contextmanager
def set_outlook(outlook: TrainingOutlook | None) -> Iterator[None]:
    """Let `current_outlook` return this value inside."""
    token = _OUTLOOK.set(outlook)
    try:
        yield
    finally:
        _OUTLOOK.reset(token)


def current_outlook() -> TrainingOutlook | None:
    """Return the outlook of the member being built; None outside a run."""
    return _OUTLOOK.get()
