"""Conversion of events to lines of a journal and back."""

from collections.abc import Mapping
from typing import Any

from argosy.disk.json_values import convert
from argosy.protocol.events import Checkpoint, Event
from argosy.protocol.packs import FellBack, Packed, StepsAlone

__all__ = ["from_line", "to_line"]

LONGEST_KIND = 60
"""Most characters that are reported of an unknown event's name."""
# ``__subclasses__`` has only the classes of imported files, so those of packs are named. Checkpoints are only parts of events.
KINDS = {
    kind.__name__: kind for kind in (*Event.__subclasses__(), Packed, StepsAlone, FellBack) if kind is not Checkpoint
}


def to_line(event: Event) -> dict[str, Any]:
    """Return the event as a plain value, with its kind under ``event``."""
    # The kind comes first: readers that look for a few events recognise lines by their first bytes.
    return {"event": type(event).__name__, **_plain(event)}


def from_line(line: Mapping[str, Any], strange: set[str]) -> Event | None:
    """Return the event of a journal's line; None for a kind that this version does not know.

    What a later version wrote and this one does not know is added to `strange`, as ``Kind`` or ``Kind.field``. Lines
    also carry ``at``, the time they were written, which no decision depends on. Raises ValueError for lines that no
    version writes.
    """
    name = line["event"]
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        strange.add(str(name)[:LONGEST_KIND])
        return None
    values = {**line}
    del values["event"]
    values.pop("at", None)
    event: Event = convert(values, kind, name, strange)
    return event


def _plain(event: Event) -> dict[str, Any]:
    """Return the fields by name. `dataclasses.asdict` copies every value below them and takes twenty times as long."""
    return {
        name: _plain(value) if isinstance(value := getattr(event, name), Event) else value
        for name in event.__dataclass_fields__
    }
