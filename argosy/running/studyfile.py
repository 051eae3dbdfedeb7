"""Study files: Python files with a variable `study`, or `search`."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import cloudpickle

from argosy.errors import StudyError
from argosy.study import Study
from argosy.tuning.search import Search

__all__ = ["load_search", "load_study"]


def load_study(path: Path) -> Study:
    """The variable `study` of a Python file; the file's folder is on sys.path, as if it were run."""
    found: Study = _variable(path, "study", Study)
    return found


def load_search(path: Path) -> Search:
    """The variable `search` of one."""
    found: Search = _variable(path, "search", Search)
    return found


def _variable(path: Path, name: str, kind: type) -> Any:
    if not path.is_file():
        raise StudyError(f"{path} is not a file; give a Python file with a variable `{name}`.")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise StudyError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    # Workers get what the file defines by value, so that no process runs the file again.
    cloudpickle.register_pickle_by_value(module)
    value = getattr(module, name, None)
    if not isinstance(value, kind):
        found = "none" if value is None else type(value).__name__
        raise StudyError(f"{path} needs a variable `{name}` that is an argosy.{kind.__name__}; found {found}.")
    return value
