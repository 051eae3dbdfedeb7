"""Measures how soon the page of a large run opens: a hundred members and five faults, in a headless Chromium with a new tab each time.

Times count from the call that opens the tab; those of the load event and the first curves are also given from the
navigation, by the page's own clock. A tab with an empty page is opened for comparison: its time is not the page's.
Writing the page is timed too. Needs Chromium.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import arguments, finish, hardware, target

import argosy
from argosy.running.directory.journal import timeline
from argosy.views.html.report import write_report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import browser
import voyages

MEMBERS, EPOCHS, FAULTS = 100, 20, 5
EMPTY = "<!DOCTYPE html><title>Nothing</title><p>Nothing."
DRAWN = "document.querySelector('#curves .curve')"
LOADED = "(performance.timing.loadEventEnd - performance.timing.navigationStart) / 1000"


def opened(chromium: browser.Browser, path: Path, *, until: str) -> dict[str, float]:
    """Return the seconds of one opening in a new tab."""
    began = time.perf_counter()
    chromium.open(path)
    loaded = time.perf_counter() - began
    chromium.wait(until)
    there = time.perf_counter() - began
    figures = {
        "load event, from the call": loaded,
        "load event": float(chromium.ask(LOADED)),
        "first curves, from the call": there,
        "first curves": float(chromium.ask("performance.now() / 1000")),
    }
    chromium.leave()
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=7)
    options = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory(prefix="argosy-opening-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        study = voyages.asked(MEMBERS, epochs=EPOCHS)
        voyages.leave(folder / "run", study, voyages.scheduler(study, epochs=EPOCHS, faults=FAULTS))
        began = time.perf_counter()
        page = write_report(argosy.load(folder / "run"), timeline(folder / "run"))
        print(f"{page.stat().st_size / 1e6:.2f} MB, written in {time.perf_counter() - began:.2f} s")
        empty = folder / "empty.html"
        empty.write_text(EMPTY)
        with browser.opened(folder / "profile") as chromium:
            first = opened(chromium, page, until=DRAWN)  # this also starts the browser
            pages, nothing = list[dict[str, float]](), list[float]()
            for _ in range(options.rounds):
                pages.append(opened(chromium, page, until=DRAWN))
                nothing.append(opened(chromium, empty, until="true")["first curves, from the call"])
            errors = list(chromium.errors)
        megabytes = page.stat().st_size / 1e6
    figures: dict[str, Any] = {what: [one[what] for one in pages] for what in pages[0]}
    figures["an empty page, from the call"] = nothing
    figures["first curves of the browser's first page, from the call"] = [first["first curves, from the call"]]
    for what, seconds in figures.items():
        print(f"{what}: {min(seconds):.2f} to {max(seconds):.2f} s, median {statistics.median(seconds):.2f} s")
    print(f"{len(errors)} console errors")
    targets = [
        target("seconds to the first curves, from the call", figures["first curves, from the call"], at_most=1.0),
        target("megabytes of the page", [megabytes], at_most=3.0),
        target("console errors", [float(len(errors))], at_most=0.0),
    ]
    finish("opening", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
