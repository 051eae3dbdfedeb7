"""What users read about an error in their own code: one sentence, or the traceback through their own lines.

The lines themselves are read where the error is shown, in another process, maybe on another host, when the script may have
changed already, and a notebook's cell was never a file. So they are sent with the code.
"""

import dis
import importlib.util
import linecache
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import cloudpickle

from argosy.errors import ArgosyError, StudyError

__all__ = ["USER_ERRORS", "first_line", "register_sources", "user_errors_in", "reason_of", "known_sources", "trace_of"]

USER_ERRORS = (Exception, SystemExit)
"""What a user's code may raise without ending the process. SystemExit comes from code that parses a command line."""


def trace_of(error: BaseException) -> str:
    """Return the message of an Argosy error; for other errors the traceback, without frames of Argosy and torch if there are others.

    Where there are no others, and torch has raised or a note says what raised, its message alone: the code that is wrong is in no frame.
    """
    if isinstance(error, ArgosyError):
        return f"{type(error).__name__}: {error}"
    folders, trace = _folders("argosy", "torch"), traceback.TracebackException.from_exception(error)
    if trace.__cause__ is None and not any(_is_own(frame, folders) for frame in trace.stack):
        innermost = trace.stack[-1].filename if trace.stack else ""
        if trace.__notes__ or not innermost.startswith(_folders("argosy")):
            return _in_one_line(trace.format_exception_only(), trace)
    link: traceback.TracebackException | None = trace
    while link is not None:
        own = [frame for frame in link.stack if _is_own(frame, folders)]
        link.stack = traceback.StackSummary.from_list([tuple(frame) for frame in own or link.stack])
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return _in_one_line(trace.format(), trace)


def _in_one_line(lines: Iterable[str], trace: traceback.TracebackException) -> str:
    """Join an error's text and its notes; tables show one line."""
    notes, trace.__notes__ = trace.__notes__ or [], None
    return "; ".join(["".join(lines).rstrip("\n"), *notes]) + "\n"


def _is_own(frame: traceback.FrameSummary, folders: tuple[str, ...]) -> bool:
    return not frame.filename.startswith(folders)


def first_line(error: BaseException) -> str:
    """Return an error's type and the first line of its message."""
    words = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {words[0]}"


def reason_of(error: BaseException) -> str:
    """Return the first line of an error after which slower code takes over. Raises the error itself if it is a bug in Argosy.

    A bug is what a line of Argosy raised. Excluded are errors of classes of Argosy's, which it raises on purpose, and torch's
    errors for what it cannot do, which reach Python at the line that asked for it: no statement has raised these.
    """
    raised = _innermost(error)
    if raised is not None and raised.tb_frame.f_code.co_filename.startswith(_folders("argosy")):
        refused = isinstance(error, RuntimeError | MemoryError) and not _raised_by_statement(raised)
        if not refused and not type(error).__module__.startswith("argosy."):
            raise error
    return first_line(error)


@contextmanager
def user_errors_in(what: str, fix: str) -> Iterator[None]:
    """Turn an error of a user's function in the block into a StudyError with the user's own lines and the advice `fix`."""
    try:
        yield
    except ArgosyError:
        raise
    except USER_ERRORS as error:  # boundary to the user's code
        reason_of(error)  # which raises a bug of Argosy's
        raise StudyError(f"{what} raised:\n{trace_of(error)}{fix}") from error


def known_sources() -> dict[str, str]:
    """Return sources by their name in tracebacks: the script and study files, which are sent by value, and sources without a file."""
    by_value = ("__main__", *cloudpickle.list_registry_pickle_by_value())
    scripts = [getattr(sys.modules.get(name), "__file__", None) for name in by_value]
    known = linecache.cache.copy()  # at once: threads of trackers read files as well
    typed = [name for name, entry in known.items() if len(entry) > 1 and not Path(name).exists()]
    return {name: "".join(linecache.getlines(name)) for name in (*scripts, *typed) if name}


def register_sources(texts: Mapping[str, str]) -> None:
    """Make this process's tracebacks show source lines of another process."""
    for name, text in texts.items():
        # Without a time of change it stays, whatever becomes of a file of that name.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _innermost(error: BaseException) -> TracebackType | None:
    """Return the traceback of the line that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _raised_by_statement(raised: TracebackType) -> bool:
    """Return whether a ``raise`` statement on the line raised; otherwise compiled code that the line called did."""
    return dis.opname[raised.tb_frame.f_code.co_code[raised.tb_lasti]] == "RAISE_VARARGS"


def _folders(*packages: str) -> tuple[str, ...]:
    """Return the folders of these packages."""
    specs = map(importlib.util.find_spec, packages)
    return tuple(f"{Path(spec.origin).parent}/" for spec in specs if spec is not None and spec.origin is not None)
