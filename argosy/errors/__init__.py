"""All errors that Argosy raises, sorted by who must act.

```
ArgosyError
├── StudyError        the study is wrong: change the study file (exit code 2)
├── PlanError         the study cannot run on this cluster: change one of them (exit code 2)
├── RunError          the run directory cannot be used as asked (exit code 2)
│   └── RefusedError  a run refused what it was asked to change (exit code 2)
├── MemberError       a member's own code raised: its traceback is attached (exit code 1)
├── WorkerError       a process or a node was lost for good (exit code 1)
├── DiskError         the run directory cannot be written: free space, run the same command again (exit code 1)
└── CheckpointError   a saved file is missing, damaged or refused (exit code 1)
UserWarning
└── MemberFailed      a member failed or diverged, and the others were trained
```

A message says what, what was found, what was wanted, and what to do.
"""

from collections.abc import Sequence
from pathlib import Path
from traceback import StackSummary, TracebackException

from argosy.errors.wording import escape_unprintable

__all__ = [
    "ArgosyError",
    "CheckpointError",
    "RefusedError",
    "DiskError",
    "MemberError",
    "MemberFailed",
    "PlanError",
    "RunError",
    "StudyError",
    "WorkerError",
]


class ArgosyError(Exception):
    """Base class of all errors that Argosy raises on purpose; messages are printed through `argosy.errors.wording.escape_unprintable`."""

    exit_code = 1

    def __str__(self) -> str:
        return escape_unprintable(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in a notebook: the traceback without frames of this package.

        Those say nothing about what the caller is to change. The first frame is IPython's own.
        """
        package, shown = Path(__file__).parents[1], TracebackException.from_exception(self)
        outside = [frame for frame in shown.stack[1:] if not Path(frame.filename).is_relative_to(package)]
        shown.stack = StackSummary.from_list(outside)
        return "".join(shown.format()).splitlines()


class StudyError(ArgosyError):
    """The study asks for something impossible or contradictory."""

    exit_code = 2


class PlanError(ArgosyError):
    """No plan for this study exists on this cluster."""

    exit_code = 2


class RunError(ArgosyError):
    """The run directory cannot be used as asked."""

    exit_code = 2


class RefusedError(RunError):
    """A live run refused a request; its driver says why."""

    answers: Sequence[str] = ()
    """All answers, in the order of the requests."""


class MemberError(ArgosyError):
    """A member's own code raised an error; the other members continue."""


class MemberFailed(UserWarning):
    """A member failed or diverged, and the others were trained."""


class WorkerError(ArgosyError):
    """A worker process was lost."""


class DiskError(ArgosyError):
    """The run directory cannot be written to; its contents are untouched."""


class CheckpointError(ArgosyError):
    """A checkpoint is missing, damaged or refused."""
