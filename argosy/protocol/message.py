"""The base class of messages between processes and of a run's events: frozen values with keyword-only fields."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

__all__ = ["Message"]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Message:
    """Base class of messages and events; it makes every subclass a frozen dataclass with keyword-only fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    """Set by `dataclass`."""

    def __init_subclass__(cls) -> None:
        # Without slots, for which `dataclass` would have to make another class.
        dataclass(frozen=True, kw_only=True)(cls)
