"""Reads added study files in a disposable process first, because they may execute anything.

Contract. One process reads files one after another and reports what it found in each; the kernel ties it to the driver's lifetime. The
driver polls without waiting, and kills the process if a file takes longer than `LIMIT_SECONDS`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import cloudpickle

from argosy.errors import ArgosyError
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.directory.studyfile import load_copy
from argosy.running.launch.blobs import pickle_members
from argosy.running.launch.forkserver import PYTHON
from argosy.stream.death import die_with_parent, name_process
from argosy.stream.imported import ImportDigests, digest_imports
from argosy.stream.opening import identities_of_arrays

__all__ = ["Rehearsal", "RehearsalResult", "main"]

LIMIT_SECONDS = 120.0
"""Time limit for one file."""
PROGRAM = (
    "import sys, json; given = json.load(sys.stdin); sys.path[:] = given['path']; "
    "from argosy.running.control.rehearsal import main; main(given)"
)
"""Program of the process, which gets its input on standard input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalResult:
    """Result of reading a file."""

    problem: str = ""
    """Why its members cannot be added; empty if they can."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Files of modules that it imports from its own folder, by module name."""
    imported: ImportDigests = field(default_factory=dict)
    """What its members use from the user's modules."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Identities of splits that are given as arrays."""


class Rehearsal:
    """The driver's handle of the process."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes], files: tuple[str, ...]) -> None:
        self._process = process
        self._output = output
        self._files = files
        self._seen = 0
        self._since = time.monotonic()

    @classmethod
    def start(cls, copies: Mapping[str, StudyCopy]) -> "Rehearsal":
        """Start a process that reads these files, given by the name of their command."""
        files = [asdict(copy) for copy in copies.values()]
        with tempfile.TemporaryFile("w+") as input_file:
            json.dump({"path": sys.path, "driver": os.getpid(), "files": files}, input_file, default=str)
            input_file.seek(0)
            output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
            process = subprocess.Popen(
                [*PYTHON, PROGRAM], stdin=input_file, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
            )
        return cls(process, output, tuple(copies))

    def results(self) -> dict[str, RehearsalResult] | None:
        """Return the results once the process has ended, of all files or of those up to the one that ended it; None before."""
        over = self._process.poll() is not None
        # The process shares the file position.
        content = os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0)
        *lines, _ = content.split(b"\n")  # without one that is being written
        over = over or len(lines) == len(self._files)  # What it does after its last result does not matter.
        if len(lines) > self._seen:
            self._seen, self._since = len(lines), time.monotonic()
        late = time.monotonic() - self._since > LIMIT_SECONDS
        if not over and not late:
            return None
        self.close()
        parsed = [RehearsalResult(**json.loads(line)) for line in lines]
        if len(parsed) < len(self._files):
            how = f"exit status {self._process.returncode}" if over else f"no result within {LIMIT_SECONDS:g} s"
            problem = (
                f"the study file did not run to its end ({how}). Let it run to its end and define a variable `study`."
            )
            parsed.append(RehearsalResult(problem=problem))
        return dict(zip(self._files, parsed, strict=False))

    def close(self) -> None:
        """Kill the process and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()


def main(parameters: Mapping[str, Any]) -> None:
    """Entry point of the process."""
    die_with_parent(parameters["driver"])
    name_process("rehearse")
    # Output of the files is discarded.
    results = os.dup(1)
    os.dup2(2, 1)
    for file in parameters["files"]:
        result = _read(StudyCopy(path=Path(file["path"]), folder=Path(file["folder"]), sha256=file["sha256"]))
        os.write(results, json.dumps(asdict(result)).encode() + b"\n")


def _read(copy: StudyCopy) -> RehearsalResult:
    sys.path.insert(0, str(copy.folder))
    try:
        study = load_copy(copy)
        cloudpickle.loads(pickle_members(replace(member, stop=study.stop_of(member)) for member in study.members))
    except ArgosyError as error:
        return RehearsalResult(problem=str(error))
    except Exception as error:  # whatever user objects raise while they are unpickled
        return RehearsalResult(problem=f"its members cannot be sent to another process: {error!r}.")
    finally:
        sys.path.remove(str(copy.folder))
    return RehearsalResult(
        modules=_imported_from(copy.folder),
        # Arrays may have changed in the driver's process, where an inline run trains.
        imported=digest_imports(study.members, arrays=False),
        fingerprints=identities_of_arrays(study.data),
    )


def _imported_from(folder: Path) -> dict[str, str]:
    """Return the files of modules and packages that lie in a folder."""
    files = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
    return {name: file for name, file in files.items() if file and _place_of(Path(file)) == folder}


def _place_of(file: Path) -> Path:
    return file.parent.parent if file.name == "__init__.py" else file.parent
