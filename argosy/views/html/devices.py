"""Which devices trained how many members when, how long they were idle, and where something happened."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from argosy.views.html.chronicle import Mark, Span

__all__ = ["devices_of", "idle_share"]

MOST_SPANS = 20_000
"""Most stretches of members on devices that a page names."""


def devices_of(
    spans: Sequence[Span], marks: Sequence[Mark], seconds: float, places: Mapping[str, int]
) -> dict[str, Any]:
    """Return a lane for each device, folded to the number of its members, and the stretches of single members in it.

    `places` are the numbers of the rows of members, by which stretches name them.
    """
    order = sorted(spans, key=lambda span: (span.device, span.begin_seconds, span.member))
    lanes = {device: [*of_device] for device, of_device in itertools.groupby(order, key=lambda span: span.device)}
    number = {device: place for place, device in enumerate(lanes)}
    return {
        "seconds": seconds,
        "flotillas": sorted({span.flotilla for span in order}),
        "lanes": [
            {"device": device, "idle": idle_share(of_device, seconds), "segments": _segments(of_device)}
            for device, of_device in lanes.items()
        ],
        "spans": [
            [number[span.device], places.get(span.member, -1), span.begin_seconds, span.end_seconds, span.came_from]
            for span in order[:MOST_SPANS]
        ],
        "marks": [
            {"seconds": mark.seconds, "kind": mark.kind, "lane": number.get(mark.device, -1), "text": mark.text}
            for mark in marks
        ],
    }


def idle_share(spans: Collection[Span], seconds: float) -> float:
    """Return the share of a run's time in which no member was on the device of these spans."""
    busy = sum(end - begin for begin, end, _, _ in _segments(spans))
    return max(1 - busy / seconds, 0.0) if seconds else 0.0


def _segments(spans: Collection[Span]) -> list[tuple[float, float, int, int]]:
    """Return (begin, end, number of members, number of the flotilla) of each stretch of a device without a change."""
    changes: dict[float, int] = {}
    for span in spans:
        changes[span.begin_seconds] = changes.get(span.begin_seconds, 0) + 1
        changes[span.end_seconds] = changes.get(span.end_seconds, 0) - 1
    begun = sorted((span.begin_seconds, span.flotilla) for span in spans)
    times = sorted(changes)
    counts = itertools.accumulate(changes[time] for time in times)
    segments: list[tuple[float, float, int, int]] = []
    at, flotilla = 0, 0
    for begin, end, count in zip(times, times[1:], counts, strict=False):
        while at < len(begun) and begun[at][0] <= begin:
            flotilla, at = begun[at][1], at + 1
        if segments and segments[-1][1:] == (begin, count, flotilla):
            segments[-1] = (segments[-1][0], end, count, flotilla)
        else:
            segments.append((begin, end, count, flotilla))
    return [segment for segment in segments if segment[2]]
