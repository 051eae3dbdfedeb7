"""Study files: Python files with a variable `study`."""

import importlib.util
import sys
from pathlib import Path

import cloudpickle

from argosy.errors import StudyError
from argosy.study import Study

__all__ = ["load_study"]


def load_study(path: Path) -> Study:
    """The variable `study` of a Python file; the file's folder is on sys.path, as if it were run."""
    if not path.is_file():
        raise StudyError(f"{path} is not a file; give a Python file with a variable `study`.")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise StudyError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    # Workers get what the file defines by value, so that no process runs the file again.
    cloudpickle.register_pickle_by_value(module)
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        found = "none" if study is None else type(study).__name__
        raise StudyError(f"{path} needs a variable `study` that is an argosy.Study; found {found}.")
    return study
