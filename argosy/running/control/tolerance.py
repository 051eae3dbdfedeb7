"""Limits for failures and losses, beyond which a run or a node is given up."""

import re
from collections import Counter
from pathlib import Path

from argosy.disk.scratch import is_scratch
from argosy.errors import MemberError, WorkerError

__all__ = ["Tolerance"]

EQUAL_FAILURES = 3
"""The study stops if this many first members fail for the same reason."""
LOSSES = 10
"""The run ends after this many losses without a finished section."""
NODE_LOSSES = 3
"""The run continues without a node after this many losses of its feeders without a finished section."""

FIXED = "Fix the study. Then `argosy run --retry-failed` or argosy.train(retry_failed=True) retries them from where they stopped."
FIXED_SEARCH = "Fix it. Then fresh=True (--fresh) starts the search over, and the same command continues with the remaining trials."

FIXED_FIT = "Fix the members, and fit again."
FIXED_PLAN = "Fix the study, and repeat this command or call."


class Tolerance:
    """Counts failures and losses. A finished section resets the losses, and so does the end of the member that caused them."""

    def __init__(self, logs: Path, *, of_search: bool) -> None:
        self.logs = logs
        directory, self.advice = logs.parent, FIXED_SEARCH if of_search else FIXED
        if is_scratch(directory, "fit"):
            self.advice = FIXED_FIT
        elif is_scratch(directory, "profile"):
            self.advice = FIXED_PLAN
        self._reasons: dict[str, str] = {}
        """Reasons of failures by member, in a search by trial."""
        self._losses = 0
        self._of_nodes: Counter[str] = Counter()

    def reset_losses(self) -> None:
        """Reset the losses: a member finished a section, or ended as their cause."""
        self._losses = 0
        self._of_nodes.clear()

    def count_member_failure(self, member: str, reason: str, *, trial: str, any_section: bool) -> None:
        """Raise MemberError if the first members have all failed for the same reason; the members of a `trial` count as one."""
        self._reasons[trial] = _cause(member, reason)
        alike = len({*self._reasons.values()}) == 1
        if not any_section and len(self._reasons) >= EQUAL_FAILURES and alike:
            raise MemberError(
                f"the first {EQUAL_FAILURES} members failed in the same way, so the study "
                f"stops:\n{reason.rstrip()}\n{self.advice}"
            )

    def count_worker_loss(self, worker: str, detail: str) -> None:
        """Raise WorkerError if the run makes no more progress."""
        self._losses += 1
        if self._losses > LOSSES:
            raise WorkerError(
                f"worker {worker!r} was lost ({detail}), the {self._losses}th loss without a finished section. "
                f"See {self.logs}. The same command resumes from the checkpoints."
            )

    def count_node_loss(self, node: str) -> bool:
        """Return whether this loss of a node's feeder was one too many."""
        self._of_nodes[node] += 1
        return self._of_nodes[node] == NODE_LOSSES


def _cause(member: str, trace: str) -> str:
    """Return the last line of a traceback and where it was raised, without member names and numbers."""
    last = "\n".join(trace.strip().splitlines()[-3:])
    return re.sub(r"\d+", "", last.replace(repr(member), ""))
