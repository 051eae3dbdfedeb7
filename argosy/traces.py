"""What a person reads of an error in code of their own: one sentence, or the traceback through their own lines."""

import importlib.util
import traceback
from pathlib import Path

from argosy.errors import ArgosyError

__all__ = ["trace_of"]


def trace_of(error: BaseException) -> str:
    """The sentence of an error of ours; else the traceback, without frames of Argosy and torch where there are others."""
    if isinstance(error, ArgosyError):
        return f"{type(error).__name__}: {error}"
    folders, trace = _folders("argosy", "torch"), traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = trace
    while link is not None:
        own = [frame for frame in link.stack if not frame.filename.startswith(folders)]
        if own:
            link.stack = traceback.StackSummary.from_list(own)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "".join(trace.format())


def _folders(*packages: str) -> tuple[str, ...]:
    """Where they lie."""
    specs = map(importlib.util.find_spec, packages)
    return tuple(f"{Path(spec.origin).parent}/" for spec in specs if spec is not None and spec.origin is not None)
