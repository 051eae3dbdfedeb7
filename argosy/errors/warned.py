"""Warnings that point at the line that called Argosy."""

import sys
import warnings
from pathlib import Path

from argosy.errors.wording import escape_unprintable

__all__ = ["warn_caller"]

PACKAGE = f"{Path(__file__).parents[1]}/"


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called Argosy, each time: a notebook cell that is run again warns again."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    warnings.warn_explicit(escape_unprintable(text), category, frame.f_code.co_filename, frame.f_lineno, registry={})
