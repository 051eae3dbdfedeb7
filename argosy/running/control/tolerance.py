"""How much may go wrong before a run, or a node of it, is given up."""

import re
from collections import Counter
from pathlib import Path

from argosy.errors import MemberError, WorkerError

__all__ = ["Tolerance"]

EQUAL_FAILURES = 3
"""So many first members that fail alike stop the study."""
LOSSES = 10
"""So many losses without one finished section end the run."""
NODE_LOSSES = 3
"""So many losses of one node's feeders, without one finished section, and the run goes on without the node."""

MENDED = "Mend the study; then `argosy run --retry-failed`, or argosy.train(retry_failed=True), tries them again where they were."
MENDED_SEARCH = "Mend it; then fresh=True (--fresh) begins the search anew, and the same command goes on with the trials that are to come."


class Tolerance:
    """Counts failures and losses; a finished section forgives losses, and so does the end of a member that caused them."""

    def __init__(self, logs: Path, *, of_search: bool) -> None:
        self.logs = logs
        self.mended: str = MENDED_SEARCH if of_search else MENDED
        self._reasons: dict[str, str] = {}
        """By member; of a search by trial, whose members fail for one reason."""
        self._losses = 0
        self._of_nodes: Counter[str] = Counter()

    def gained(self) -> None:
        """Some member finished a section, or ended as the cause of losses."""
        self._losses = 0
        self._of_nodes.clear()

    def member_failed(self, member: str, reason: str, *, trial: str, any_section: bool) -> None:
        """Raise MemberError where the first members have all failed alike; those of one `trial` of a search are one."""
        self._reasons[trial] = _cause(member, reason)
        alike = len({*self._reasons.values()}) == 1
        if not any_section and len(self._reasons) >= EQUAL_FAILURES and alike:
            raise MemberError(
                f"the first {EQUAL_FAILURES} members failed alike, so the study stops:\n{reason.rstrip()}\n{self.mended}"
            )

    def worker_lost(self, worker: str, detail: str) -> None:
        """Raise WorkerError where nothing is gained any more."""
        self._losses += 1
        if self._losses > LOSSES:
            raise WorkerError(
                f"worker {worker!r} is lost ({detail}), the {self._losses}th loss without one finished section; see "
                f"{self.logs}. The same command goes on from the checkpoints."
            )

    def gives_up(self, node: str) -> bool:
        """Whether this loss of a node's feeder was one too many."""
        self._of_nodes[node] += 1
        return self._of_nodes[node] == NODE_LOSSES


def _cause(member: str, trace: str) -> str:
    """The last line of a traceback and where it was raised, whichever member raised it and whatever the numbers."""
    last = "\n".join(trace.strip().splitlines()[-3:])
    return re.sub(r"\d+", "", last.replace(repr(member), ""))
