"""Shows a message: runs the case that leads to it, and reads it as a person would."""

import contextlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.errors import ArgosyError, MemberFailed
from messages import (
    of_clones,
    of_data,
    of_ensembles,
    of_estimators,
    of_exports,
    of_jobs,
    of_members,
    of_plans,
    of_processes,
    of_runs,
    of_searches,
    of_steps,
    of_streams,
    of_studies,
    of_training,
)
from messages.sites import Site, site_of, watched

__all__ = ["CASES", "Case", "Shown", "all_shown", "show"]

Case = Callable[..., Any]
"""Without arguments, or with one, pytest's monkeypatch; its working directory is empty, and its own."""

CASES: Mapping[str, Case] = {
    **of_studies.CASES,
    **of_data.CASES,
    **of_clones.CASES,
    **of_members.CASES,
    **of_plans.CASES,
    **of_streams.CASES,
    **of_training.CASES,
    **of_runs.CASES,
    **of_processes.CASES,
    **of_jobs.CASES,
    **of_searches.CASES,
    **of_ensembles.CASES,
    **of_exports.CASES,
    **of_estimators.CASES,
    **of_steps.CASES,
}
"""By what leads there, in the words of the person whom it befalls."""

TRACEBACK = re.compile(r"(?m)^(?:Traceback .*\n)?(?:  File .*\n(?:    .*\n)*)+")
PLACE = re.compile(r" \([^ ()]*/messages/\w+\.py:\d+\)")
"""Of the code of a case; the page would change with each line above it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A message."""

    when: str
    error: ArgosyError
    site: Site | None
    text: str
    """Without the lines of tracebacks, which change with every line of code."""


def show(when: str) -> Shown:
    """The error that the case raises; of one that raises none, the last that was made."""
    case = CASES[when]
    with _own_place() as patch, watched() as made:
        raised = None
        try:
            case(patch) if case.__code__.co_argcount else case()
        except ArgosyError as error:
            raised = error
        assert made, f"{when}: no error was made"
        last = next((each for each in reversed(made) if each.error is raised), made[-1])
        text = PLACE.sub("", TRACEBACK.sub("  (its traceback)\n", str(last.error))).replace(f"{Path.cwd()}/", "")
    return Shown(when=when, error=last.error, site=site_of(last), text=text)


@cache
def all_shown() -> tuple[Shown, ...]:
    """Every case."""
    return tuple(map(show, CASES))


@contextlib.contextmanager
def _own_place() -> Iterator[pytest.MonkeyPatch]:
    """An empty working directory, and what is patched there; nothing of either is left."""
    threads = torch.get_num_threads()
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as folder,
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", MemberFailed)  # of members whose errors are shown
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv("XDG_CACHE_HOME", f"{folder}/cache")
        before = {*sys.modules}
        yield patch
        for name in sys.modules.keys() - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
                del sys.modules[name]
    torch.set_num_threads(threads)
