"""What sharing the stream and packing members saved, and how that was measured."""

from collections.abc import Iterator, Sequence
from typing import Any

from argosy.errors.wording import format_duration
from argosy.protocol.packs import Packed
from argosy.results.report import Report
from argosy.views.html.page import Bars, Block, Sheet

__all__ = ["savings"]

COLUMNS = (
    "device",
    "members",
    "in a program",
    "made as",
    "µs per sample and member",
    "alone",
    "times as fast",
    "chosen",
    "why",
)


def savings(report: Report) -> Iterator[Block]:
    """Compare CPU time of preparation with one script a member, and time of a sample in a program with alone."""
    times = (
        f"{report.preparations:.2f} times per epoch of the stream, and would have been "
        f"{report.preparations_alone:.2f} times with one script per member"
    )
    yield f"Each training sample was prepared {times}.", None
    for split, words in report.keeping.items():
        yield f"Samples ({split}): {words}.", None
    gauges = report.gauges.values()
    prepared = sum(gauge.get("prepared", 0) for gauge in gauges)
    measured = sum(gauge.get("preparation_cpu_seconds", 0.0) for gauge in gauges)
    if prepared and measured and report.preparations:
        each = measured / prepared * 1e6
        alone = measured * report.preparations_alone / report.preparations
        caption = (
            f"Measured: {measured:,.2f} CPU seconds for {prepared:,} prepared samples, "
            f"{each:,.{0 if each >= 10 else 2}f} µs per sample; one script per member would have taken {alone:,.2f} "
            f"at that cost: {format_duration(max(alone - measured, 0.0))} saved."
        )
        rows = [("one script per member (computed)", [alone]), ("this run (measured)", [measured])]
        yield caption, Bars(unit="CPU seconds", parts=["CPU seconds"], rows=rows)
    packs = [row for pack in report.last_packs if sum(map(len, pack.programs)) > 1 for row in _pack(pack)]
    if packs:
        caption = "Similar members, alone and as one program, measured while they trained:"
        yield caption, Sheet(columns=COLUMNS, rows=packs)


def _pack(pack: Packed) -> Sequence[list[Any]]:
    alone, count, chosen = pack.seconds.get(("plain", 1)), sum(map(len, pack.programs)), (pack.kind, pack.size)
    measured = [
        [
            *(pack.device, count, size, kind, each * 1e6),
            *("" if alone is None else alone * 1e6, "" if alone is None else alone / each),
            *("yes" if (kind, size) == chosen else "", pack.reason if (kind, size) == chosen else ""),
        ]
        for (kind, size), each in sorted(pack.seconds.items(), key=lambda found: (found[0][1], found[0][0]))
    ]
    return measured + [[pack.device, count, "", kind, *[""] * 4, why] for kind, why in pack.refused.items()]
