"""Optuna, from the extra `tune`, and what the modules that use it share. Only this file imports the extra's packages."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Literal

from argosy.errors import StudyError

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from sqlalchemy.exc import SQLAlchemyError
    from threadpoolctl import threadpool_limits
except ModuleNotFoundError as _error:
    raise StudyError(
        f"argosy.tune needs {_error.name}, which is not installed. Install it: pip install 'argosy[tune]'."
    ) from _error

__all__ = [
    "CONSTRAINTS",
    "DIRECTIONS",
    "JournalFileBackend",
    "SQLAlchemyError",
    "optuna",
    "silence_optuna",
    "threadpool_limits",
]

DIRECTIONS: Mapping[str, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}
CONSTRAINTS = "constraints"
"""Attribute under which samplers look for a trial's constraint values."""


@contextlib.contextmanager
def silence_optuna() -> Iterator[None]:
    """Silence Optuna's log lines about new studies and trials."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
