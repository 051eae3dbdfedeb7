"""The fork server: a process that imported torch once, has no threads, never computes, and forks workers on request.

Contract. The kernel ties the server to the driver before the server's first import, and ties each worker to the server.
One request is one message with its descriptors: the blob of the study, the worker's heartbeat, the run's lock, and for
a feeder the data. The server answers each fork with the worker's pid and reports each end. When the driver closes the
socket, the server kills its remaining children and exits.
"""

import contextlib
import functools
import gc
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from argosy.disk.files import open_append_descriptor
from argosy.errors import PlanError, RunError
from argosy.errors.system import resources_refused
from argosy.running.launch.limits import check_proc
from argosy.stream.death import die_with_parent
from argosy.stream.memory import memory_file
from argosy.stream.wire import Peer, poll
from argosy.training.device.heap import allow_tcache, without_tcache

__all__ = ["PYTHON", "STOPPED_SECONDS", "ForkServer", "check_linux", "main", "error_line"]

FAREWELL_SECONDS = 5
"""Seconds that workers have to exit by themselves when the run is over."""
POLL_SECONDS = 0.005
"""Seconds between two checks whether the server has ended."""
STOPPED_SECONDS = 5.0
"""Seconds that a process of a run may stay stopped before it is killed."""
PYTHON = [sys.executable, "-P", *["-O"] * sys.flags.optimize, "-c"]
"""An interpreter that compiles modules as this one does, and does not import from its current folder."""
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that only the driver acts on; workers follow its commands."""


def check_linux() -> None:
    """Raise PlanError on a system other than Linux, or without /proc: no worker can be a process there."""
    if sys.platform != "linux":
        raise PlanError(
            f"processes that train together need Linux; this system is {sys.platform}. Use launcher inline, which trains "
            "everything in the process that calls it, or run this in Linux: in a container, or on Windows in WSL 2."
        )
    check_proc()


class ForkServer:
    """The driver's handle of the fork server."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Peer, words: IO[bytes]) -> None:
        self.process = process
        self._words = words
        """The server's standard error; an interpreter that cannot start reports the reason there."""
        self.channel = channel
        """Connection to the server: readable when `read_reports` has some; `unsent` while the server imports."""
        self.used: bool = False

    @classmethod
    def start(cls) -> "ForkServer":
        """Start the server; it imports while the caller continues.

        Raises WorkerError if the system refuses it, and PlanError on another system than Linux.
        """
        check_linux()
        try:
            return cls._start()
        except (OSError, MemoryError, RuntimeError) as error:
            raise resources_refused(error, "the fork server cannot be started") or error from error

    @classmethod
    def _start(cls) -> "ForkServer":
        ours, theirs = Peer.pair()
        program = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from argosy.running.launch.forkserver import main; main()"
        with contextlib.ExitStack() as undone, _kill_stopped_child():
            words = undone.enter_context(os.fdopen(memory_file("argosy-fork-server"), "rb"))
            process = subprocess.Popen(
                [*PYTHON, program, json.dumps(_path()), str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                # A check for a GPU must not start the CUDA driver, which would not survive the fork.
                env={**without_tcache(os.environ), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if sys.__stdout__ is None else None,  # its descriptor may be another file's
                stderr=words,
                # Ctrl-C reaches the driver alone, and `close` can kill what is left of the process group.
                start_new_session=True,
                # The tie is set before exec: only a moment inside the kernel lies between the server's birth and the
                # tie.
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
            undone.pop_all()
        theirs.close()
        return cls(process, ours, words)

    def fork(self, arguments: dict[str, Any], descriptors: list[int], log: Path) -> None:
        """Request a worker; its terminal output goes to `log`. The caller may close the descriptors afterwards."""
        request: dict[str, Any] = {"arguments": arguments, "log": str(log), "path": _path(), "folder": str(Path.cwd())}
        # Variables may have been set since the server's start; `ProcessState`, made for all nodes, has none of one
        # node.
        request |= {"environment": dict(os.environ), "descriptors": len(descriptors)}
        self.channel.send(request, descriptors)
        self.used = True

    def read_reports(self) -> list[tuple[str, int, int | str | None]]:
        """Return (worker_id, pid, wait status) of workers that started (status None) or ended.

        For a worker that could not be forked the status is a sentence. Raises EOFError if the server has ended.
        """
        return self.channel.receive()

    def _wait_for_end(self, seconds: float) -> bool:
        """Wait for the server's end without reaping it, so its pid stays reserved; raises ChildProcessError if it was reaped already."""
        until = time.monotonic() + seconds
        while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def close(self) -> str:
        """Let the server kill its remaining workers and wait until it has exited; returns its standard error.

        The rest of its process group is killed: a child of a worker may have been stopped before it was tied to its parent.
        """
        self.channel.close()
        if not self.used:
            self.process.kill()  # it may still be importing
        # If it was reaped, which the kernel does for a program that ignores SIGCHLD, its pid may be another's; and it may
        # have ended before it had a group.
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if not self._wait_for_end(FAREWELL_SECONDS + 5):
                self.process.kill()
                self._wait_for_end(math.inf)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._words.closed:
            return ""
        with self._words as words:
            words.seek(0)
            return words.read().decode(errors="replace")


def error_line(words: str) -> str:
    """Return the line of a fork server's standard error that says why it ended; empty if there is none."""
    return next((line for line in words.splitlines() if "rror" in line and not line[0].isspace()), "")


def _path() -> list[str]:
    """Return the entries of ``sys.path`` that Python itself uses."""
    return [folder for folder in sys.path if isinstance(folder, str)]


@contextlib.contextmanager
def _kill_stopped_child() -> Iterator[None]:
    """Kill a child that this process starts inside the block if that child is stopped.

    ``subprocess`` waits until the child's program begins, and would wait forever for a child that was stopped before. A
    killed child is a server that ended at once, which its channel reports.
    """
    us, over = psutil.Process(), threading.Event()
    before = set(us.children())

    def watch() -> None:
        while not over.wait(STOPPED_SECONDS):
            for child in set(us.children()) - before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.status() == psutil.STATUS_STOPPED:
                        child.kill()

    watcher = threading.Thread(target=watch, name="argosy-fork-server", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def main() -> None:
    """Run the server: ``argv = [-c, sys.path, descriptor of the socket, pid of the driver]``."""
    die_with_parent(int(sys.argv[3]))
    allow_tcache(os.environ)  # datasets may start programs
    from argosy.running.launch.worker import run_worker  # the heavy import, after the tie
    from argosy.training.device.devices import choose_kernels

    # For all workers: one that could not read the CPU's file would choose other kernels.
    choose_kernels("the fork server")

    # A worker's full garbage collection would write into every object that was imported, and so copy its pages.
    gc.freeze()
    channel = Peer(socket.socket(fileno=int(sys.argv[2])))
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    # Without a handler, even one that does nothing, Python would not write to the wakeup descriptor.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    children: dict[int, str] = {}
    try:
        while True:
            if wake in poll(None, [(channel, channel.unsent), (wake, False)]):
                os.read(wake, 4096)
                _report_ended(channel, children)
            channel.flush()
            for request in channel.receive():
                descriptors = [channel.descriptors.popleft() for _ in range(request["descriptors"])]
                if request["arguments"]["role"] == "trainer":
                    _import_for_optimizers()
                worker_id = request["arguments"]["worker_id"]
                try:
                    pid = _fork(request, descriptors, run_worker, channel, (wake, wakes))
                except OSError as error:
                    channel.send((worker_id, 0, str(resources_refused(error, "it could not be forked") or error)))
                else:
                    children[pid] = worker_id
                    channel.send((worker_id, pid, None))
                for descriptor in descriptors:
                    os.close(descriptor)
    except EOFError:
        pass  # the run is over
    except OSError as error:
        print(f"OSError: {error}", file=sys.stderr)
    _bid_farewell(children)


@functools.cache
def _import_for_optimizers() -> None:
    """Build one optimizer, for which torch imports as much again. It is done once here, while the feeder opens the data."""
    import torch

    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    gc.freeze()


def _fork(request: dict[str, Any], descriptors: list[int], work: Any, channel: Peer, wakes: Iterable[int]) -> int:
    """Start a worker, which closes the descriptors that it must not hold; returns its pid."""
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel.close()
        for descriptor in wakes:
            os.close(descriptor)
        code = _run_worker(request, descriptors, work)
    except (OSError, RunError) as error:
        print(f"argosy: {request['arguments']['name']} cannot start: {error}", file=sys.stderr)
    except BaseException:  # process boundary: a worker must never return into the server's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def _run_worker(request: dict[str, Any], descriptors: list[int], work: Any) -> int:
    sys.path[:] = request["path"]
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    log = open_append_descriptor(Path(request["log"]))
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    code: int = work(request["arguments"], descriptors)
    sys.stdout.flush()
    return code


def _report_ended(channel: Peer, children: dict[int, str]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            channel.send((children.pop(pid), pid, status))


def _bid_farewell(children: dict[int, str]) -> None:
    """Wait for the workers, which exit at the end-of-file of their connection, and kill those that do not."""

    def kill(*_: Any) -> None:
        for pid in children:
            os.kill(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    signal.alarm(FAREWELL_SECONDS)
    while children:
        pid, _ = os.wait()
        children.pop(pid, None)
