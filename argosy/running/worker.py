"""What a worker process does between its fork and its end: dial the driver, then feed or train until told to exit."""

import contextlib
import importlib
import os
import select
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch

from argosy.commands import Attach, Exit, Failed, Measure, Train
from argosy.errors import ArgosyError, WorkerError
from argosy.running.journal import refusals_of_the_disk
from argosy.running.launcher import torch_device
from argosy.settings import Settings
from argosy.stream.blocks import Block
from argosy.stream.death import name_process
from argosy.stream.feed import feed
from argosy.stream.pulse import Pulse
from argosy.stream.ring import RingReader
from argosy.stream.wire import Peer, dial
from argosy.study import Study
from argosy.training.heap import give_back_memory, keep_freed_memory
from argosy.training.trainer import Trainer

__all__ = ["to_descriptor", "work"]

SIGN_OF_LIFE_SECONDS = 1.0
LAST_WORD_SECONDS = 5.0
"""How long a worker waits at its end for the driver to take what it still has to say."""


def to_descriptor(value: Any) -> int:
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
    """The value in a memory file of `to_descriptor`."""
    with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
        return cloudpickle.load(file)


def work(arguments: dict[str, Any], descriptors: list[int]) -> int:
    """Run as the worker that the arguments name, on its blob and with its pulse; returns the exit code."""
    name, key = arguments["name"], bytes.fromhex(arguments["key"])
    name_process(arguments["role"])
    blob, pulse = descriptors[0], Pulse.open(descriptors[1])
    driver = dial(arguments["address"], key, arguments["ticket"])
    try:
        pulse.start("unpacking what it was given", opaque=True)
        if arguments["role"] == "feeder":
            torch.set_num_threads(1)
            data, settings, seed = unpack(blob)
            pulse.rest()
            feed(driver, data, settings, name=name, seed=seed, key=key, pulse=pulse)
        else:
            study, settings, directory = unpack(blob)
            pulse.rest()
            torch.set_num_threads(settings.threads)
            keep_freed_memory()
            with refusals_of_the_disk(directory):
                _train(driver, study, settings, directory, name=name, key=key, pulse=pulse)
    except EOFError:
        return 0  # the driver is gone
    except Exception as error:  # process boundary: the driver learns what happened
        trace = traceback.format_exc()
        known = error if isinstance(error, ArgosyError) else WorkerError(f"{name}: {error!r}")
        driver.send(Failed(error=known, traceback=trace))
        return 1
    finally:
        driver.drain(LAST_WORD_SECONDS)
    return 0


def _train(
    driver: Peer, study: Study, settings: Settings, directory: Path, *, name: str, key: bytes, pulse: Pulse
) -> None:
    device = torch_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    trainer = Trainer(study, settings, directory, name=name, device=device, emit=driver.send)
    ring = _Blocks(name, key, pulse)
    while True:
        took = trainer.ready and ring.give(trainer)
        started = time.perf_counter()
        _wait([driver, *ring.peers], 0.0 if took else SIGN_OF_LIFE_SECONDS)
        if not took and ring.peers and trainer.ready:
            trainer.waited(time.perf_counter() - started)
        ring.receive()
        for command in driver.receive():
            if isinstance(command, Attach):
                ring.attach(command.address)
                trainer.know(ring.lengths)
            elif isinstance(command, Exit):
                times = os.times()
                driver.send(trainer.used(times.user + times.system))
                return
            elif ring.peers or not isinstance(command, Measure | Train):
                if isinstance(command, Measure):
                    give_back_memory()  # a leg begins: other members may need less
                with pulse.busy(f"obeying {type(command).__name__}", opaque=True):
                    trainer.obey(command)


class _Blocks:
    """Blocks that have arrived from the feeder and that the trainer has not taken yet."""

    def __init__(self, name: str, key: bytes, pulse: Pulse) -> None:
        self.name = name
        self.key = key
        self.pulse = pulse
        self.reader: RingReader | None = None
        self.arrived: deque[Block] = deque()
        self.lengths: dict[str, int] = {}

    @property
    def peers(self) -> list[Peer]:
        """Of the feeder; none while there is no feeder."""
        return [self.reader.peer] if self.reader is not None else []

    def attach(self, address: str) -> None:
        """Read another feeder's ring; nothing where it is gone, of which the driver will hear and start again."""
        self._close()
        self.arrived.clear()
        with self.pulse.busy("calling its feeder", opaque=True), contextlib.suppress(WorkerError, EOFError, OSError):
            self.reader = RingReader(dial(address, self.key, self.name))
            self.lengths = self.reader.lengths
            self.receive()

    def receive(self) -> None:
        """Take what has come; a feeder that is gone is let go, and what came before its end stays."""
        if self.reader is None:
            return
        self.reader.peer.flush()
        try:
            self.arrived.extend(block for block, _ in self.reader.blocks())
        except EOFError:
            self._close()

    def give(self, trainer: Trainer) -> bool:
        """Let the trainer take a block, of which nothing may be left here; False where there is none."""
        if self.arrived:
            with self.pulse.busy("training on a block", opaque=True):
                trainer.take(self.arrived.popleft())
            return True
        return False

    def _close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


def _wait(peers: list[Peer], seconds: float) -> None:
    """Until one of them says something, takes what was unsent, or the time is over."""
    poll = select.poll()
    for peer in peers:
        poll.register(peer, select.POLLIN | (select.POLLOUT if peer.unsent else 0))
    poll.poll(seconds * 1000)
    for peer in peers:
        peer.flush()
