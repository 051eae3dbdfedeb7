"""Report failed members to the caller of a run, as warnings or as one error, and report interrupts."""

from collections.abc import Sequence

from argosy.disk.scratch import is_scratch
from argosy.errors import MemberError, MemberFailed
from argosy.errors.warned import warn_caller
from argosy.protocol.events import OUT_OF_TIME
from argosy.results.member import MemberResult
from argosy.results.report import Report

__all__ = ["raise_failures", "raise_interrupts", "warn_of_failures", "warn_of_interrupts", "warn_of_trials"]

MOST_NAMED = 10
"""Largest number of failed members that an error names."""


def warn_of_failures(rows: Sequence[MemberResult]) -> None:
    """Warn of each member that failed or diverged."""
    for row in rows:
        if row.status == "failed":
            fix = f"See {row.folder / 'log.txt'}, fix the cause, and train with retry_failed=True"
            if is_scratch(row.folder.parents[1], "fit"):
                fix = "Fix the cause, and fit again"
            warn_caller(f"member {row.failure}. {fix}.", MemberFailed)
        elif row.failed:
            advice = "Lower its learning rate, clip its gradients, or look for NaN among its samples, or for a loss that is a mean over nothing."
            warn_caller(f"member {row.failure}. {advice}", MemberFailed)


def warn_of_trials(rows: Sequence[MemberResult]) -> None:
    """Warn once of the failed or diverged members of a search, in which some failures are expected."""
    failed = [row for row in rows if row.failed]
    if failed:
        warn_caller(
            f"{len(failed)} of {len(rows)} members of the search failed or diverged: {failed[0].failure}. Read them "
            "all in report.table().",
            MemberFailed,
        )


def raise_failures(rows: Sequence[MemberResult]) -> None:
    """Raise MemberError if members failed or diverged."""
    failed = [row for row in rows if row.failed]
    if failed:
        lines = [f"  {row.failure}\n" for row in failed[:MOST_NAMED]]
        more = f"  and {len(failed) - MOST_NAMED} more\n" if len(failed) > MOST_NAMED else ""
        raise MemberError(
            f"{len(failed)} of {len(rows)} members failed or diverged; the others were "
            f"trained:\n{''.join(lines)}{more}Fix them, or remove raise_on_failure to get the report anyway."
        )


def warn_of_interrupts(report: Report) -> None:
    """Warn if a signal or a command paused the run, whose report nothing else shows: the caller's code goes on with members as they are."""
    if _is_interrupted(report) and not is_scratch(report.directory, "fit"):
        warn_caller(f"the run in {report.directory} is paused: {report.reason}.")


def raise_interrupts(report: Report) -> None:
    """Raise KeyboardInterrupt if a signal or a command paused the run."""
    if _is_interrupted(report):
        raise KeyboardInterrupt(
            report.reason.partition(";")[0] if is_scratch(report.directory, "fit") else report.reason
        )


def _is_interrupted(report: Report) -> bool:
    """Return whether a signal or a command paused the run; one that reached its time limit ended as requested."""
    return report.status == "paused" and not report.reason.startswith(OUT_OF_TIME)
