"""The last lines of a command: where everything is, and what to type next."""

import shlex

from argosy.errors.wording import lasting
from argosy.results.report import Report
from argosy.tuning.report import SearchReport

__all__ = ["what_next", "what_next_of_search"]


def what_next(report: Report, command: str) -> str:
    """Return the lines after `command` on a run, which continues if it is typed again."""
    folder = shlex.quote(str(report.directory))
    lines = [f"Everything is in {folder}; of each member in members/NAME: best.pt (weights), metrics.csv, log.txt"]
    failed = _see_why(report)
    if report.status == "running":
        lines.append(f"Watch it:        argosy report {folder} --open --live")
        lines.append(f"Stop a member:   argosy stop {folder} NAME; Ctrl-C where it runs saves all")
        return "\n".join(lines)
    if report.status in ("paused", "interrupted", "failed"):
        lines.append(f"Go on:           {command}")
    if failed:
        lines += [*failed, f"Mended:          {command} --retry-failed"]
    if any(row.metrics for row in report.rows):
        lines.append(f"Curves, devices: argosy report {folder} --open")
    loaded = f"argosy.load({str(report.directory)!r}, study=study)"
    if report.leader is not None and report.leader.repetitions is not None:
        lines.append(f"Best networks:   {loaded}.ensemble(members=[{report.leader.name!r}])")
    elif report.leader is not None:
        lines.append(f"Best network:    {loaded}.member({report.leader.name!r}).load()")
    return "\n".join(lines)


def what_next_of_search(report: SearchReport, command: str) -> str:
    """Return the lines after `command` on a search, which continues if it is typed again."""
    folder = shlex.quote(str(report.run.directory))
    lines = [
        f"Everything is in {folder}, after {lasting(report.seconds)}; of each trial in members/NAME: best.pt (weights)"
    ]
    if report.run.status == "running":
        lines.append(f"Watch it:        argosy report {folder} --open --live")
        lines.append(f"Stop a trial:    argosy stop {folder} NAME; Ctrl-C where it runs saves all")
        return "\n".join(lines)
    if report.run.status == "done":
        more = "max_epochs" if report.scheduler == "pbt" else "n_trials or max_epochs"
        lines.append(f"Search further:  with more {more} than before, {command}")
    else:
        lines.append(f"Go on:           {command}")
    lines += _see_why(report.run)
    lines.append(f"Curves, devices: argosy report {folder} --open")
    return "\n".join(lines)


def _see_why(report: Report) -> list[str]:
    """Return where the first failed member's log is; nothing if none has failed."""
    failed = [row for row in report.rows if row.status == "failed"][:1]
    return [f"See why:         less {shlex.quote(str(row.folder / 'log.txt'))}" for row in failed]
