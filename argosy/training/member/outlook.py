"""How long a member is to train, for code that is called without arguments for it while a member is built.

Lightning's `configure_optimizers` asks its trainer for numbers that the study decides. They are in a context variable while
`argosy.training.member.live.build` runs, because the factory of a member's optimizers is given its network alone.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from argosy.stopping import Stop
from argosy.study import Member

__all__ = ["TrainingOutlook", "foreseen", "outlook"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOutlook:
    """What is known of a member's training before it begins."""

    max_epochs: float | None
    """None where its stopping rule sets no bound."""
    train_batches: int
    """Batches of an epoch."""
    val_batches: int
    """Batches of a validation; 0 without validation samples."""

    @classmethod
    def of(cls, member: Member, stop: Stop, lengths: Mapping[str, int]) -> "TrainingOutlook":
        """Of a member with this rule, on splits with so many samples."""
        train = lengths["train"] if member.subset is None else len(member.subset)
        val = lengths.get("val", 0) if member.val_subset is None else len(member.val_subset)
        return cls(
            max_epochs=stop.max_epochs,
            train_batches=train // member.batch_size if member.drop_last else -(-train // member.batch_size),
            val_batches=-(-val // (member.eval_batch_size or member.batch_size)),
        )


_OUTLOOK: ContextVar[TrainingOutlook | None] = ContextVar("outlook", default=None)


@contextlib.contextmanager
def foreseen(found: TrainingOutlook | None) -> Iterator[None]:
    """Inside, this is the `outlook`."""
    token = _OUTLOOK.set(found)
    try:
        yield
    finally:
        _OUTLOOK.reset(token)


def outlook() -> TrainingOutlook | None:
    """That of the member that is being built; None outside of a run."""
    return _OUTLOOK.get()
