"""How a run is left: files as they are to stay, and the last word in the journal, whatever went wrong before."""

import contextlib
import time
from typing import TYPE_CHECKING

from argosy.protocol.events import RunEnded
from argosy.running.control.resume import settle_files
from argosy.running.directory.records import tree_cpu_seconds

if TYPE_CHECKING:
    from argosy.running.control.driver import Driver

__all__ = ["end_run"]


def end_run(driver: "Driver", *, status: str, reason: str) -> None:
    """Tidy up and journal the end. Whatever one of these meets, the others are done."""
    ended, state = _ended(driver, status, reason), driver.state
    # Where an earlier driver was killed when all was done, this one says so.
    untold = state.started is not None and status == "done" != (state.ended.status if state.ended else "")
    with contextlib.ExitStack() as last_first:
        last_first.callback(driver.view.end)
        last_first.callback(driver.journal.commit)
        if driver.begun or driver.requests.pausing or untold:
            last_first.callback(driver.record, ended)
        last_first.callback(driver.additions.close)
        last_first.callback(driver.metrics.write)
        # These two are done again at the end of the next run.
        with contextlib.suppress(OSError):
            driver.measuring.remember(state, driver.study)
        with contextlib.suppress(OSError):
            settle_files(state.members.values(), driver.directory)


def _ended(driver: "Driver", status: str, reason: str) -> RunEnded:
    driver.meter.look()
    return RunEnded(
        status=status,
        reason=reason,
        seconds=time.monotonic() - driver.began,
        cpu_seconds=tree_cpu_seconds() - driver.cpu_before,
        joules=driver.meter.told,
    )
