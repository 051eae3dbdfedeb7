"""What messages between processes and events of a run are: frozen values with fields that are given by name."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

__all__ = ["Message"]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Message:
    """Base of all of them: a class that is derived from it is a dataclass, frozen, and with keywords only."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    """Set by `dataclass`."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
