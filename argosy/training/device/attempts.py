"""Attempts at faster or more careful ways of running members' code, which may refuse them; slower code then takes over."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from argosy.errors.traces import USER_ERRORS, reason_of
from argosy.training.device.devices import is_out_of_memory

__all__ = ["Attempt", "attempt"]


@dataclass(slots=True)
class Attempt:
    """What became of an attempt. Holds no exception, whose traceback would keep the tensors of the attempt alive."""

    error: str = ""
    """First line of the error that ended it; empty if it has reached its end."""
    memory: bool = False
    """Whether memory ran out."""


@contextmanager
def attempt(check: Callable[[BaseException], None] = lambda error: None) -> Iterator[Attempt]:
    """Run the block until its end or an error, after which `check` may raise another one. Raises the error itself if it is a bug in Argosy."""
    tried = Attempt()
    try:
        yield tried
    except USER_ERRORS as error:  # boundary to members' code, and to torch's compiler and devices
        check(error)
        tried.error, tried.memory = reason_of(error), is_out_of_memory(error)
        # Since Python 3.12, an error that a generator has caught holds itself, by the frame that threw it there.
        error.__traceback__ = None
