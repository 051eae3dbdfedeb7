"""What people wrote, pickled for another process: functions and classes of scripts travel by value."""

import importlib
import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from argosy.errors import StudyError
from argosy.stream.memory import memory_file
from argosy.study import Member

__all__ = ["ADVICE", "dump", "from_descriptor", "to_descriptor"]

ADVICE = (
    "Give a factory that opens files, locks and connections itself (a module-level function, a class, a partial), "
    "instead of an object that holds them."
)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Cloudpickle takes along submodules that a function seems to name, and fails on torch's two that are no modules.

    (A network with an attribute ``classes`` seems to name ``torch.classes``.)
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ModuleType) and type(value) is not ModuleType and value.__name__ in sys.modules:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def dump(members: Iterable[Member]) -> bytes:
    """Members as bytes; raises StudyError naming the first that cannot be sent to another process."""
    members = tuple(members)
    try:
        return _dumps(members)
    except Exception as error:  # whatever the user's objects raise when they are pickled
        raise StudyError(f"{_culprit(members)} cannot be sent to another process: {error!r}. {ADVICE}") from error


def to_descriptor(value: Any, what: str) -> int:
    """A value in an anonymous memory file; raises StudyError where it cannot be sent to another process."""
    descriptor = memory_file("argosy-blob")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            _Pickler(file).dump(value)
    except Exception as error:  # as above
        os.close(descriptor)
        raise StudyError(f"{what} cannot be sent to another process: {error!r}. {ADVICE}") from error
    return descriptor


def from_descriptor(descriptor: int) -> Any:
    """The value in a memory file."""
    with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
        return cloudpickle.load(file)


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _culprit(members: Iterable[Member]) -> str:
    """The first member that cannot be pickled."""
    for member in members:
        try:
            _dumps(member)
        except Exception:  # as above; the cause is reported by the caller
            return f"member {member.name!r}"
    return "the members"
