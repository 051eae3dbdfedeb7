"""Check that what members and data use from the user's modules is the same in all processes, because each process imports it itself."""

import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from argosy.errors import StudyError
from argosy.stream.code_digest import CodeReader
from argosy.study import FACTORIES, Data, Member

__all__ = ["ImportDigests", "check_imports", "digest_imports"]

ImportDigests = Mapping[str, Sequence[str]]
"""Digests of functions, classes and constants, by name."""
MOST_NAMED = 3


def digest_imports(values: Iterable[Any]) -> ImportDigests:
    """Return the digests of what these members, data and functions use from modules of the user."""
    code = CodeReader()
    for value in values:
        for read in _read_of(value):
            code.read(read)
    return code.imported()


def _read_of(value: Any) -> Iterable[Any]:
    if isinstance(value, Member):
        return *(getattr(value, name) for name in FACTORIES), *value.metrics.values()
    if isinstance(value, Data):
        # For a Dataset only its class: its content may be large, and is sent with it.
        given, code = (value.train, value.val, value.then), (types.FunctionType, functools.partial)
        return [one if isinstance(one, code) else type(one) for one in given]
    return [value]


def check_imports(values: Iterable[Any], wanted: ImportDigests) -> None:
    """Raise StudyError if this process has imported something that differs from `wanted`, the digests of another process."""
    found = digest_imports(values)
    others = [name for name in wanted if not {*found.get(name, ())} <= {*wanted[name]}]
    if others:
        named = ", ".join(others[:MOST_NAMED]) + (" and others" if len(others) > MOST_NAMED else "")
        raise StudyError(
            f"{named}: not the same in all processes of the run, because each process imports modules itself. If a "
            "file was changed since the run began, restore it, or end the run and run its command again. If the "
            "script sets it, set it in the module, or bind it to the function that reads it: "
            "functools.partial(loss, scale=2.0)."
        )
