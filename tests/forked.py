"""Fork servers and commands that are forked from the test's process, which saves the two seconds that their imports take.

They run the same code as real ones, and differ only in how their process starts. Tests about that (a start that is stopped, the heap's
environment, the imports of a fresh interpreter) use real ones, by the mark ``fresh``.
"""

import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import schemas

from argosy.cli import app as cli
from argosy.running.launch import forkserver, worker  # noqa: F401  # what servers and workers import
from argosy.running.launch.forkserver import ForkServer
from argosy.stream.death import die_with_parent
from argosy.stream.memory import memory_file
from argosy.stream.wire import Peer
from argosy.training.device.heap import without_tcache

forkserver._import_for_optimizers()


class Forked:
    """A child process with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked child", timeout or 0.0)
            time.sleep(0.002)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_server() -> ForkServer:
    """Fork a fork server; replaces `ForkServer.start`."""
    ours, theirs = Peer.pair()
    driver, number = os.getpid(), theirs.fileno()

    def live() -> None:
        os.setsid()
        os.environ |= without_tcache(os.environ) | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        sys.argv[:] = ["-c", json.dumps(sys.path), str(number), str(driver)]
        forkserver.main()

    words = os.fdopen(memory_file("argosy-fork-server"), "rb")
    process = fork(live, err=words.fileno(), keep=[number])
    theirs.close()
    return ForkServer(process, ours, words)  # type: ignore[arg-type]


def command(
    folder: Path, words: Iterable[str], *, first: Callable[[], object] = lambda: None
) -> subprocess.CompletedProcess[str]:
    """Run ``python -W error -m argosy`` with these words in a folder, after `first`, and check printed JSON by its schema."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        words = list(words)
        code = started(folder, words, out=out.fileno(), err=err.fileno(), first=first).wait()
        printed = _text(out)
        schemas.check(words, printed)
        return subprocess.CompletedProcess(words, code, printed, _text(err))


def started(
    folder: Path, words: Iterable[str], *, out: int = 1, err: int = 2, first: Callable[[], object] = lambda: None
) -> Forked:
    """Start the command as `command` does, and return its process without waiting for it."""

    def live() -> None:
        first()
        _forget_modules_of_tests(folder)
        os.chdir(folder)
        sys.argv[:] = [str(Path(cli.__file__).with_name("__main__.py")), *words]
        warnings.simplefilter("error")
        cli.main()

    return fork(live, out=out, err=err)


def _forget_modules_of_tests(folder: Path) -> None:
    """Forget modules and paths that earlier tests of this process imported from their own temporary folders."""
    shared = next((str(above) for above in folder.parents if above.name.startswith(("popen-", "pytest-"))), None)
    if shared is None:
        return
    sys.path[:] = [path for path in sys.path if not path.startswith(shared)]
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(shared):
            del sys.modules[name]


def script(text: str, *arguments: str, err: int) -> Forked:
    """Start ``python -c text arguments`` with its standard error in a descriptor."""

    def live() -> None:
        sys.argv[:] = ["-c", *arguments]
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})

    return fork(live, err=err)


def fork(live: Callable[[], None], *, out: int = 1, err: int = 2, keep: Iterable[int] = ()) -> Forked:
    """Fork a child that calls `live`; of the open descriptors it keeps only the standard ones and `keep`."""
    parent = os.getpid()
    with warnings.catch_warnings(
        action="ignore"
    ):  # Python 3.12 deprecates forks beside threads, of which pytest-xdist has one
        pid = os.fork()
    if pid == 0:
        _live(live, parent, out, err, sorted({0, 1, 2, *keep}))
    return Forked(pid)


def _live(live: Callable[[], None], parent: int, out: int, err: int, keep: list[int]) -> NoReturn:
    code = 1
    try:
        die_with_parent(parent)
        faulthandler.disable()
        gc.freeze()  # objects of the test's process must not be finalized here too
        os.dup2(out, 1)
        os.dup2(err, 2)
        for low, high in zip(keep, [*keep[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(low + 1, high)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        # Those of pytest write to files that were closed above.
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww")
        )
        warnings.resetwarnings()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        live()
        code = 0
    except SystemExit as exiting:
        code = exiting.code if isinstance(exiting.code, int) else int(exiting.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _text(file: tempfile._TemporaryFileWrapper) -> str:  # type: ignore[type-arg]
    file.seek(0)
    text: bytes = file.read()
    return text.decode()
