"""The end of a run: final files, and the last event in the journal, whatever went wrong before."""

import contextlib
import time
from collections.abc import Callable

from argosy.protocol.events import RunEnded
from argosy.running.control.carry_out import CarryOut
from argosy.running.control.resume import settle_files
from argosy.running.control.run import Run
from argosy.running.directory.records import tree_cpu_seconds
from argosy.running.watch.energy import Meter

__all__ = ["end_run"]


def end_run(
    run: Run, carry_out: CarryOut, meter: Meter, *, status: str, reason: str, close: Callable[[], None]
) -> None:
    """Clean up and journal the end. Every step is tried even if others fail; `close` is one of them."""
    ended, state = _ended(run, meter, status, reason), run.state
    # An earlier driver may have been killed after everything was done; then this one journals the end.
    untold = state.started is not None and status == "done" != (state.ended.status if state.ended else "")
    # Callbacks run last to first: the end is journaled once everything is closed, then flushed, and only then shown.
    with contextlib.ExitStack() as last_first:
        last_first.callback(run.view.end)
        last_first.callback(run.journal.commit)
        if run.begun or run.pause_reason or untold:
            last_first.callback(carry_out.record, ended)
        last_first.callback(close)
        last_first.callback(run.metrics.write)
        # The next run repeats these at its end.
        with contextlib.suppress(OSError):
            run.cost_table.remember(state, run.study)
        for member in state.members.values():
            with contextlib.suppress(OSError):
                settle_files([member], run.directory)


def _ended(run: Run, meter: Meter, status: str, reason: str) -> RunEnded:
    meter.poll()
    return RunEnded(
        status=status,
        reason=reason,
        seconds=time.monotonic() - run.began,
        cpu_seconds=tree_cpu_seconds() - run.cpu_before,
        joules=meter.joules,
    )
