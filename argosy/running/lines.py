"""Events as lines of a journal, and lines as events."""

from collections.abc import Mapping
from typing import Any

from argosy.events import Checkpoint, Event
from argosy.packs import FellBack, Packed, StepsAlone

__all__ = ["from_line", "to_line"]

# Python knows the subclasses of imported files alone: those of packs are named.
KINDS = {
    kind.__name__: kind for kind in (*Event.__subclasses__(), Packed, StepsAlone, FellBack) if kind is not Checkpoint
}


def to_line(event: Event) -> dict[str, Any]:
    """The event as a plain value, its kind under ``event``."""
    return {"event": type(event).__name__, **_plain(event)}


def from_line(line: Mapping[str, Any], strange: set[str]) -> Event | None:
    """The event of a journal's line; None for a kind that this version does not know.

    What a later version wrote and this one does not know is added to `strange`, as ``Kind`` or ``Kind.field``. Lines also
    carry ``at``, the time they were written, which no decision depends on. Raises TypeError where a field is missing.
    """
    kind = KINDS.get(line["event"])
    if kind is None:
        strange.add(str(line["event"]))
        return None
    values = {key: _tuples(value) for key, value in line.items() if key not in ("event", "at")}
    if values.get("checkpoint") is not None:
        values["checkpoint"] = _made(Checkpoint, values["checkpoint"], strange)
    return _made(kind, values, strange)


def _made(kind: type[Event], values: Mapping[str, Any], strange: set[str]) -> Event:
    if values.keys() <= kind.__dataclass_fields__.keys():
        return kind(**values)
    strange.update(f"{kind.__name__}.{name}" for name in values if name not in kind.__dataclass_fields__)
    return kind(**{name: value for name, value in values.items() if name in kind.__dataclass_fields__})


def _plain(event: Event) -> dict[str, Any]:
    """The fields by name; not `dataclasses.asdict`, which copies every value below them and takes twenty times as long."""
    return {
        name: _plain(value) if isinstance(value := getattr(event, name), Event) else value
        for name in event.__dataclass_fields__
    }


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
