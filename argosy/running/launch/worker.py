"""The main function of a worker process: feed or train until the driver tells it to exit."""

import contextlib
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from argosy.errors import ArgosyError, StudyError, WorkerError
from argosy.errors.system import explain_refusals, files_refused, resources_refused
from argosy.errors.traces import USER_ERRORS, trace_of
from argosy.protocol.trainer import Assign, Attach, DevicePoisoned, Exit, Failed, Measure, Unassign
from argosy.running.launch.blobs import load_blob
from argosy.running.launch.limits import feeder_cache_bytes
from argosy.stream.blocks import Block
from argosy.stream.death import name_process
from argosy.stream.feed import feed
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.imported import ImportDigests, check_imports
from argosy.stream.ring import RingReader
from argosy.stream.wire import Peer, poll
from argosy.study import Data
from argosy.training.device.devices import Backend, open_backend
from argosy.training.device.heap import keep_freed_memory
from argosy.training.trainer.guard import Poisoned
from argosy.training.trainer.trainer import Trainer

__all__ = ["refuse_breakpoint", "without_feeder", "run_worker"]

SIGN_OF_LIFE_SECONDS = 1.0
"""Longest time that an idle trainer waits for blocks and commands."""
LISTEN_SECONDS = 0.01
"""Seconds between two checks for waiting commands while stepping."""
COPY_SECONDS = 0.001
"""Seconds between two checks whether a copy or the steps on a block have finished, which no event signals."""
LAST_WORD_SECONDS = 5.0
"""Seconds that a worker waits at its end for the driver to take its last messages."""


def run_worker(arguments: dict[str, Any], descriptors: list[int]) -> int:
    """Run as the worker that the arguments name; returns the exit code.

    The descriptors are those of its connection to the driver, its blob, its heartbeat, the run's lock and the process
    state; for a feeder also of the data.
    """
    name = arguments["name"]
    name_process(arguments["role"])
    # Otherwise it is a debugger that needs no terminal, as those of editors, or none at all.
    if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = refuse_breakpoint
    if arguments.get("interface"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", arguments["interface"])
    driver, heartbeat = Peer(socket.socket(fileno=descriptors[0])), Heartbeat.open(descriptors[2])
    try:
        heartbeat.start("unpacking its input", opaque=True)
        _unpack(descriptors[4]).apply()  # before any of the user's code runs
        job = _unpack(descriptors[1])
        heartbeat.rest()
        if arguments["role"] == "feeder":
            _feed(driver, heartbeat, arguments, job, data=descriptors[5])
        else:
            with explain_refusals(Path(arguments["directory"])):
                _train(driver, heartbeat, arguments, job)
    except EOFError:
        return 0  # the driver is gone
    except Poisoned as error:
        # Not `Failed`, which would end the run: members continue from their files, in another process.
        print(error, file=sys.stderr)
        driver.send(DevicePoisoned(detail=str(error), members=error.members))
        return 1
    except USER_ERRORS as error:  # process boundary: the driver learns what happened
        known_error = error if isinstance(error, ArgosyError) else resources_refused(error, name)
        known = known_error or WorkerError(
            f"worker {name!r} cannot continue:\n{trace_of(error).strip()}\nFix the error; the same command "
            "resumes the run."
        )
        driver.send(Failed(error=known))
        return 1
    finally:
        driver.drain(LAST_WORD_SECONDS)
    return 0


def refuse_breakpoint(*_: Any, **__: Any) -> NoReturn:
    """Replace ``breakpoint()``, whose debugger would end with ``bdb.BdbQuit`` at the end of its empty input."""
    line = sys._getframe(1)
    raise StudyError(
        f"breakpoint() in {line.f_code.co_filename}:{line.f_lineno} needs a terminal, and this process has none. To debug, "
        'use launcher="inline" (--launcher inline); to ignore breakpoints, set PYTHONBREAKPOINT=0.'
    )


def _unpack(descriptor: int) -> Any:
    """Unpack a value. The user's code may read files meanwhile; their EOFError must not look like the driver's end."""
    try:
        return load_blob(descriptor)
    except EOFError as error:
        raise RuntimeError(f"EOFError: {error}") from error


def _unpack_data(descriptor: int, imported: ImportDigests) -> Data:
    data: Data = _unpack(descriptor)
    check_imports([data], imported)
    return data


def _feed(driver: Peer, heartbeat: Heartbeat, arguments: dict[str, Any], job: Any, *, data: int) -> None:
    """Run as a feeder, with this node's share of the machine's cores and memory; `data` is the descriptor of its blob."""
    settings, seed, per_epoch, files, imported = job
    nodes_here = arguments["nodes_here"]
    torch.set_num_threads(1)
    feed(
        driver,
        partial(_unpack_data, data, imported),
        settings,
        name=arguments["name"],
        seed=seed,
        per_epoch=per_epoch,
        files=files,
        cores=max(len(os.sched_getaffinity(0)) // nodes_here, 1),
        heartbeat=heartbeat,
        keep_bytes=feeder_cache_bytes(nodes_here),
    )


def _train(driver: Peer, heartbeat: Heartbeat, arguments: dict[str, Any], job: Any) -> None:
    """Run as a trainer."""
    terms, settings, imported = job
    name = arguments["name"]
    check_imports([terms.on_device], imported)
    torch.set_num_threads(settings.threads)
    keep_freed_memory()
    with heartbeat.busy("opening its device", opaque=True):
        backend = open_backend(name)
    commands = _Commands(driver)
    trainer = Trainer(
        terms,
        settings,
        Path(arguments["directory"]),
        name=name,
        backend=backend,
        emit=driver.send,
        listen=commands.waiting,
        heartbeat=heartbeat,
    )
    try:
        _serve(driver, commands, _Blocks(heartbeat, trainer, backend), trainer)
    except (EOFError, Poisoned):
        raise
    except USER_ERRORS as error:  # a fault of the device can surface in any later call, so the guard checks every error
        trainer.guard.check_process((), error)
        if (refused := files_refused(error)) is not None:
            raise resources_refused(refused, name) or error from error
        raise


def _serve(driver: Peer, commands: "_Commands", blocks: "_Blocks", trainer: Trainer) -> None:
    """Pass blocks and commands to the trainer, until it is told to exit."""
    heartbeat, before = trainer.heartbeat, 0
    while True:
        took = blocks.give()
        turns_left = trainer.turns_left
        if turns_left != before:  # one beat per iteration and no others, so that a device that hangs is noticed
            before = turns_left
            heartbeat.start("waiting for its device") if turns_left else heartbeat.rest()
        started = time.perf_counter()
        at_once = took or trainer.copies.release_done() or trainer.copies.ahead
        _wait([driver, *blocks.peers], (0.0 if took else COPY_SECONDS) if at_once else SIGN_OF_LIFE_SECONDS)
        if not took and blocks.peers and (trainer.ready or trainer.copies.ahead):
            trainer.waited(time.perf_counter() - started)
        blocks.receive()
        for command in commands.take():
            if isinstance(command, Attach):
                blocks.attach(commands.connection())
            elif isinstance(command, Exit):
                times = os.times()
                driver.send(trainer.used(times.user + times.system))
                return
            elif (to_do := command if blocks.peers else without_feeder(command)) is not None:
                if isinstance(to_do, Measure) and to_do.assignment is not None:
                    trainer.backend.empty_cache()  # a leg begins: other members may need less
                with heartbeat.busy(f"obeying {type(to_do).__name__}", opaque=True):
                    trainer.obey(to_do)


def without_feeder(command: Any) -> Any:
    """Return the part of a command that a trainer without a feeder carries out; None for nothing. The driver restarts the leg.

    Leaving members are unassigned: if they were the last of their leg, the driver waits for them and does not restart
    the leg.
    """
    match command:
        case Assign(leave=names):
            return Unassign(members=names)
        case Measure():
            return None
    return command


class _Commands:
    """Commands of the driver that the trainer has not carried out yet."""

    def __init__(self, driver: Peer) -> None:
        self.driver = driver
        self.arrived: deque[Any] = deque()
        self._polled = 0.0

    def waiting(self) -> bool:
        """Return whether there are any; polls at most a hundred times a second, and then also sends unsent messages."""
        now = time.monotonic()
        if now - self._polled > LISTEN_SECONDS:
            self._polled = now
            self.driver.flush()
            try:
                self.arrived.extend(self.driver.receive())
            except EOFError:
                return True  # the driver is gone, which is no member's fault; `take` reports it too
        return bool(self.arrived)

    def take(self) -> Iterator[Any]:
        """Yield the commands received so far; the later ones still wait while one is carried out.

        A rank that waits for another device in the steps of an `Assign` is thus interrupted by a `Pause` that came together with it.
        """
        self.arrived.extend(self.driver.receive())
        while self.arrived:
            yield self.arrived.popleft()

    def connection(self) -> Peer:
        """Return the connection that came with the next `Attach`."""
        return Peer(socket.socket(fileno=self.driver.descriptors.popleft()))


class _Blocks:
    """Blocks that have arrived from the feeder and that the trainer has not taken yet."""

    def __init__(self, heartbeat: Heartbeat, trainer: Trainer, backend: Backend) -> None:
        self.heartbeat = heartbeat
        self.trainer = trainer
        self.backend = backend
        self.reader: RingReader | None = None
        self.arrived: deque[tuple[Block, int]] = deque()

    @property
    def peers(self) -> list[Peer]:
        """The connection to the feeder; empty while there is no feeder."""
        return [self.reader.peer] if self.reader is not None else []

    def attach(self, feeder: Peer) -> None:
        """Read another feeder's ring.

        Does nothing if that feeder is gone: the driver learns of it and starts another.
        """
        self._close()
        self.arrived.clear()
        with self.heartbeat.busy("waiting for its feeder", opaque=True), contextlib.suppress(EOFError):
            self.reader = RingReader(feeder, pin=self.backend.pin)
            self.trainer.set_splits(self.reader.lengths, self.reader.layouts, self.reader.shards)
            self.receive()

    def receive(self) -> None:
        """Receive blocks; if the feeder is gone, close its ring and keep the blocks from before its end."""
        if self.reader is None:
            return
        self.reader.peer.flush()
        try:
            self.arrived.extend(self.reader.blocks())
        except EOFError:
            self._close()

    def give(self) -> bool:
        """Let the trainer continue, or give it one block; returns False if there is nothing to do."""
        if self.trainer.go_on():
            return True
        if self.arrived and self.trainer.ready:
            self.trainer.take(*self.arrived.popleft())
            return True
        return False

    def _close(self) -> None:
        if self.reader is not None:
            self.trainer.copies.finish()
            self.reader.close()
            self.reader = None


def _wait(peers: list[Peer], seconds: float) -> None:
    """Wait until a peer sends something or takes unsent data, or the time is over; then send what is unsent."""
    poll(seconds, [(peer, peer.unsent) for peer in peers])
    for peer in peers:
        peer.flush()
