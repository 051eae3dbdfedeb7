"""What a worker process does between its fork and its end: dial the driver, then feed or train until told to exit."""

import contextlib
import importlib
import os
import sys
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch

from argosy.commands import Attach, Exit, Failed, Measure, Train
from argosy.errors import ArgosyError, WorkerError
from argosy.running.journal import refusals_of_the_disk
from argosy.settings import Settings
from argosy.stream.death import name_process
from argosy.stream.feed import feed
from argosy.stream.ring import RingReader
from argosy.stream.wire import Peer, dial
from argosy.study import Study
from argosy.training.devices import Backend, backend_of
from argosy.training.heap import keep_freed_memory
from argosy.training.trainer import Trainer

__all__ = ["pack", "work"]

SIGN_OF_LIFE_SECONDS = 1.0
COPY_SECONDS = 0.001
"""Between two looks whether a copy has passed, of which nobody tells."""


def pack(value: Any) -> int:
    """Pickle a value into an anonymous memory file; returns its descriptor. Functions of scripts travel by value."""
    descriptor = os.memfd_create("argosy-blob")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        _Pickler(file).dump(value)
    return descriptor


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Cloudpickle takes along submodules that a function seems to name, and fails on torch's two that are no modules.

    (A network with an attribute ``classes`` seems to name ``torch.classes``.)
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ModuleType) and type(value) is not ModuleType and value.__name__ in sys.modules:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def unpack(descriptor: int) -> Any:
    """The value in a memory file of `pack`."""
    with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
        return cloudpickle.load(file)


def work(arguments: dict[str, Any], descriptors: list[int]) -> int:
    """Run as the worker that the arguments name; returns the exit code."""
    name, key = arguments["name"], bytes.fromhex(arguments["key"])
    name_process(arguments["role"])
    driver = dial(arguments["address"], key, arguments["ticket"])
    try:
        if arguments["role"] == "feeder":
            torch.set_num_threads(1)
            data, settings, seed = unpack(descriptors[0])
            feed(driver, data, settings, name=name, seed=seed, key=key)
        else:
            study, settings, directory = unpack(descriptors[0])
            torch.set_num_threads(settings.threads)
            keep_freed_memory()
            with refusals_of_the_disk(directory):
                _train(driver, study, settings, directory, name=name, key=key)
    except EOFError:
        return 0  # the driver is gone
    except Exception as error:  # process boundary: the driver learns what happened
        trace = traceback.format_exc()
        known = error if isinstance(error, ArgosyError) else WorkerError(f"{name}: {error!r}")
        with contextlib.suppress(OSError):
            driver.send(Failed(error=known, traceback=trace))
        return 1
    return 0


def _train(driver: Peer, study: Study, settings: Settings, directory: Path, *, name: str, key: bytes) -> None:
    backend = backend_of(name)
    trainer = Trainer(study, settings, directory, name=name, backend=backend, emit=driver.send)
    reader: RingReader | None = None
    while True:
        sources = [driver, reader.peer] if reader is not None and trainer.ready else [driver]
        started = time.perf_counter()
        pending = trainer.copies.release_done()
        ready = wait(sources, timeout=COPY_SECONDS if pending else SIGN_OF_LIFE_SECONDS)
        if len(sources) == 2:
            trainer.waited(time.perf_counter() - started)
        if driver in ready:
            command = driver.recv()
            if isinstance(command, Attach):
                if reader is not None:
                    _detach(trainer, reader)
                reader = _attach(command.address, key, name, backend)
                if reader is not None:
                    trainer.know(reader.lengths)
            elif isinstance(command, Exit):
                times = os.times()
                driver.send(trainer.used(times.user + times.system))
                return
            elif reader is not None or not isinstance(command, Measure | Train):
                if isinstance(command, Measure):
                    backend.empty_cache()  # a leg begins: other members may need less
                trainer.obey(command)
        elif ready and reader is not None and not _take(trainer, reader):
            _detach(trainer, reader)
            reader = None


def _attach(address: str, key: bytes, name: str, backend: Backend) -> RingReader | None:
    """A reader of a feeder's ring; None where the feeder is gone, of which the driver will hear and start again."""
    try:
        return RingReader(dial(address, key, name), pin=backend.pin)
    except (WorkerError, EOFError, OSError):
        return None


def _detach(trainer: Trainer, reader: RingReader) -> None:
    trainer.copies.finish()
    reader.close()


def _take(trainer: Trainer, reader: RingReader) -> bool:
    """Let the trainer take a block, of which nothing may be left here; False where the feeder is gone."""
    try:
        block = reader.receive()
    except (EOFError, OSError):
        return False
    trainer.take(block)
    return True
