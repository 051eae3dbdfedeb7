"""The page of ``argosy report --html``."""

import time
from pathlib import Path

from argosy.running.directory.loading import load_timed
from argosy.views.html.page import LIVE_SECONDS
from argosy.views.html.report import write_news, write_report

__all__ = ["update_page", "write_page"]

SHARE = 0.05
"""Share of the time that may be spent on the page of a running run; large pages are written less often."""


def write_page(directory: Path, *, live: bool) -> tuple[Path, bool]:
    """Write the page; return it, and whether it is a live page."""
    loaded, events = load_timed(directory)
    goes_on = live and loaded.status == "running"
    return write_report(loaded, events, live=goes_on), goes_on


def update_page(directory: Path) -> None:
    """Update the live page while the run goes on, then write the final page."""
    took = 0.0
    try:
        while True:
            time.sleep(max(LIVE_SECONDS, took / SHARE))
            began = time.monotonic()
            loaded, events = load_timed(directory)
            if loaded.status != "running":
                return
            write_news(loaded, events)
            took = time.monotonic() - began
    finally:
        write_page(directory, live=False)
