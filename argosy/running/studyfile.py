"""Study files: Python files with a variable `study`, or `search`."""

import contextlib
import hashlib
import importlib.util
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from argosy.errors import ArgosyError, RunError, StudyError
from argosy.running.code_digest import is_installed
from argosy.study import Study
from argosy.tuning.search import Search

__all__ = ["StudyCopy", "load_search", "load_study"]


def load_study(path: Path, *, folder: Path | None = None) -> Study:
    """The variable `study` of a Python file; the file's folder is on sys.path, as if it were run.

    With `folder` the file is a copy of one that was there: that folder is the last on sys.path, so that nobody else's
    modules are found there. Raises StudyError whatever the file does, with its own traceback.
    """
    found: Study = _variable(path, "study", Study, folder)
    return found


def load_search(path: Path) -> Search:
    """The variable `search` of one; raises what `load_study` raises."""
    found: Search = _variable(path, "search", Search, None)
    return found


def _variable(path: Path, name: str, kind: type, folder: Path | None) -> Any:
    if not path.is_file():
        raise StudyError(f"{path} is not a file; give a Python file with a variable `{name}`.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise StudyError(f"{path} is not a Python file; give one with a variable `{name}`.")
    if _is_taken(path.stem):
        raise StudyError(
            f"{path} has the name of the module {path.stem!r}, and whoever imports that would get this file. Rename it, for "
            f"example {path.stem}_study.py."
        )
    if folder is None:
        sys.path.insert(0, str(path.resolve().parent))
    elif str(folder) not in sys.path:
        sys.path.append(str(folder))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with _as_a_script(path):
        spec.loader.exec_module(module)
    # Workers get what the file defines by value, so that no process runs the file again.
    cloudpickle.register_pickle_by_value(module)
    value = getattr(module, name, None)
    if not isinstance(value, kind):
        found = "none" if value is None else type(value).__name__
        raise StudyError(
            f"{path} needs a variable `{name}` that is an argosy.{kind.__name__}; found {found}. Set it: "
            f"{name} = argosy.{kind.__name__}(...)."
        )
    return value


def _is_taken(name: str) -> bool:
    """Whether one of Python's modules has this name, or an installed one that is imported already."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return name in sys.stdlib_module_names or (file is not None and is_installed(Path(file)))


@contextlib.contextmanager
def _as_a_script(path: Path) -> Iterator[None]:
    """Inside, the program's arguments are those of ``python study.py``; what the file raises becomes a StudyError."""
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        yield
    except ArgosyError:
        raise
    except SystemExit as error:
        raise StudyError(
            f"{path} ended with sys.exit({error.code!r}) while it was read; a study file has no arguments: let it run to "
            "its end and leave a variable `study`."
        ) from error
    except Exception as error:  # whatever a person's file does
        raise StudyError(f"{path} cannot be read:\n{_own_traceback(error, path)}\nMend it there.") from error
    finally:
        sys.argv = arguments


def _own_traceback(error: Exception, path: Path) -> str:
    """From the file's first line on; how it came to be read is of no interest."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(path.absolute()):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyCopy:
    """A study file as a person handed it in: the file itself, which may change and go, is never read again."""

    path: Path
    """Of the copy."""
    folder: Path
    """Where the file was: what is beside it is imported from there."""
    sha256: str

    @classmethod
    def take(cls, file: Path, path: Path) -> "StudyCopy":
        """Copy a file; raises StudyError where there is none."""
        if not file.is_file():
            raise StudyError(f"{file} is not a file; give a Python file with a variable `study`.")
        shutil.copyfile(file, path)
        return cls(path=path, folder=file.resolve().parent, sha256=_sum_of(path))

    @classmethod
    def of(cls, command: Mapping[str, Any], folder: Path) -> "StudyCopy":
        """What a command to add names, in the folder of commands; raises RunError for one that names nothing."""
        match command:
            case {"study": str(file), "copy": str(copy), "sha256": str(sha256)} if Path(copy).name == copy:
                return cls(path=folder / copy, folder=Path(file).parent, sha256=sha256)
        raise RunError(
            f"the command to add {command.get('study', 'members')} names no copy of a study file: use argosy add."
        )

    def to_command(self, file: Path) -> dict[str, Any]:
        """The command to add the members of a file."""
        return {"command": "add", "study": str(file.resolve()), "copy": self.path.name, "sha256": self.sha256}

    def load(self) -> Study:
        """The study; raises RunError for a copy that is not what was handed in, and StudyError as `load_study`."""
        if not self.path.is_file():
            raise RunError(f"{self.path}, from which members were added, is missing; put it back.")
        if _sum_of(self.path) != self.sha256:
            raise RunError(f"{self.path}, from which members were added, was changed since; put it back as it was.")
        return load_study(self.path, folder=self.folder)


def _sum_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
