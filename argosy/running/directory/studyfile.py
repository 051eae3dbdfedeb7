"""Load study files: Python files with a variable `study`, or `search`."""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from argosy.errors import ArgosyError, StudyError
from argosy.readings import is_installed
from argosy.running.directory.study_copy import StudyCopy
from argosy.study import Study
from argosy.tuning.search import Search

__all__ = ["load_copy", "load_search", "load_study"]


def load_study(path: Path, *, folder: Path | None = None) -> Study:
    """Return the variable `study` of a Python file; the file's folder is put first on sys.path, as if it were run.

    With `folder` the file is a copy of a file in that folder. The folder is put last on sys.path, so that its modules hide
    no others. Raises StudyError for any error in the file, with the file's own traceback.
    """
    study: Study = _load_variable(path, "study", Study, folder)
    return study


def load_copy(copy: StudyCopy) -> Study:
    """Return the study of a copy; raises RunError if the copy has changed, and what `load_study` raises."""
    copy.check()
    return load_study(copy.path, folder=copy.folder)


def load_search(path: Path) -> Search:
    """Return the variable `search` of a Python file; raises what `load_study` raises."""
    search: Search = _load_variable(path, "search", Search, None)
    return search


def _load_variable(path: Path, name: str, kind: type, folder: Path | None) -> Any:
    if not path.is_file():
        raise StudyError(f"{path} is not a file. Pass a Python file with a variable `{name}`.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise StudyError(f"{path} is not a Python file. Pass one with a variable `{name}`.")
    if _is_taken(path.stem):
        raise StudyError(
            f"{path} has the same name as the module {path.stem!r}, so an import of that module would load this "
            f"file. Rename it, for example to {path.stem}_study.py."
        )
    if folder is None:
        sys.path.insert(0, str(path.resolve().parent))
    elif str(folder) not in sys.path:
        sys.path.append(str(folder))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    # Workers get the file's definitions pickled by value, so that no process runs the file again. Before it is run, because it may train.
    cloudpickle.register_pickle_by_value(module)
    with _running_as_script(path):
        spec.loader.exec_module(module)
    value = getattr(module, name, None)
    if not isinstance(value, kind):
        if value is None and kind is Study and isinstance(getattr(module, "search", None), Search):
            raise StudyError(
                f"{path} defines a `search`, but this command needs a `study`. Use `argosy tune {path}` to train the search."
            )
        kind_found = "none" if value is None else type(value).__name__
        raise StudyError(
            f"{path} must define a variable `{name}` that is an argosy.{kind.__name__}; found {kind_found}. Set it: "
            f"{name} = argosy.{kind.__name__}(...)."
        )
    return value


def _is_taken(name: str) -> bool:
    """Return whether a module of Python has this name, or an installed module that is already imported."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return name in sys.stdlib_module_names or (file is not None and is_installed(Path(file)))


@contextlib.contextmanager
def _running_as_script(path: Path) -> Iterator[None]:
    """Set the program's arguments to those of ``python study.py``; turns what the file raises into a StudyError."""
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        yield
    except ArgosyError:
        raise
    except SystemExit as error:
        raise StudyError(
            f"{path} called sys.exit({error.code!r}) while it was read. A study file gets no arguments; let it "
            "run to its end and define a variable `study`."
        ) from error
    except Exception as error:  # any error of the user's file
        fix = "Fix the error there."
        if isinstance(error, ImportError) and "relative import" in str(error):
            module = f"{path.resolve().parent.name}.{path.stem}"
            fix = f"The file is run as a script. Instead, pass a file beside its package that contains: from {module} import study."
        raise StudyError(f"{path} cannot be read:\n{_own_traceback(error, path)}\n{fix}") from error
    finally:
        sys.argv = arguments


def _own_traceback(error: Exception, path: Path) -> str:
    """Return the traceback from the file's first line on, without the frames that load it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(path.absolute()):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
