"""What users read where an optional package is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from argosy.errors import ArgosyError

__all__ = ["optional"]


@contextmanager
def optional(kind: type[ArgosyError], what: str, install: str) -> Iterator[None]:
    """Raise an error of this kind, which says what to install, if a package is missing that the block imports."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise kind(f"{what}, which is not installed. Install it: pip install {install}.") from error
