"""What a device can do, one value per device: copies, events, pinned memory, random states, memory in use, its errors.

Everything is over ``torch.accelerator`` and the device's own module, so CUDA, ROCm and XPU are one class; the CPU is a
device of this module too, whose copies are no copies. What is CUDA's alone is named so. Other kinds are modules that put
a class of theirs into `KINDS`; ``ARGOSY_DEVICES`` names such a module to all processes of a run.
"""

import importlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from argosy.errors import PlanError
from argosy.errors.system import files_refused, means_refused
from argosy.training.device.cuda import Unpin, pin
from argosy.training.device.forks import refuse_after_fork
from argosy.training.device.heap import give_back_memory

__all__ = [
    "KINDS",
    "Backend",
    "DeviceEvent",
    "Hardware",
    "PassedEvent",
    "backend_of",
    "choose_kernels",
    "default_kind",
    "kind_of",
    "memory_returned",
    "out_of_memory",
    "poisoned",
]

MODULES = "ARGOSY_DEVICES"
"""Environment variable: a module that adds kinds of devices."""
LOOK_SECONDS = 0.05
"""Between two looks at memory that is to come back."""
NO_MEMORY = ("DefaultCPUAllocator", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
"""What stands in errors about memory that have no type of their own: ordinary memory, CUDA's own arrays, its libraries."""


class DeviceEvent(Protocol):
    """A point in the work of a device."""

    def query(self) -> bool:
        """Whether the device has passed it; never waits."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


class PassedEvent:
    """The event of work that is done when its call returns."""

    def query(self) -> bool:
        """See `DeviceEvent.query`."""
        return True

    def synchronize(self) -> None:
        """See `DeviceEvent.synchronize`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """What a machine has of a kind."""

    name: str
    """What makes profiles comparable: the name of the GPU."""
    memory_bytes: int


class Backend(ABC):
    """One device, as a trainer uses it. Random states are tensors on the CPU, as checkpoints hold them."""

    apart: ClassVar[bool]
    """Whether its memory is not the host's, so that blocks are copied there."""
    name: str
    """As in a cluster, inside its node: ``cuda:1``."""
    device: torch.device
    """As torch knows it."""

    @classmethod
    @abstractmethod
    def hardware(cls, kind: str) -> tuple[Hardware, ...]:
        """Every device of this kind that this process may use, by number."""

    @classmethod
    @abstractmethod
    def open(cls, name: str) -> "Backend":
        """The device of that name, made ready. Raises WorkerError where this process can never use it."""

    @abstractmethod
    def activate(self) -> None:
        """Let it be the device that a member's code means when it names none."""

    @abstractmethod
    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], DeviceEvent]:
        """Copies there, made beside other work: `follow` the event before use, keep the sources until it has passed."""

    @abstractmethod
    def follow(self, event: DeviceEvent, tensors: Sequence[Tensor]) -> None:
        """Let the work that is asked for from here on begin after the event, which is that of these copies."""

    @abstractmethod
    def fetch(self, tensor: Tensor) -> tuple[Tensor, DeviceEvent]:
        """A copy on the host, which holds when the event has passed; the work before it does not stop for that."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all that was asked for; raises what it raised."""

    @abstractmethod
    def pin(self, memory: npt.NDArray[np.uint8]) -> Unpin:
        """Let copies read this memory without the host's help, until the function that is returned is called."""

    @abstractmethod
    def random_state(self) -> Tensor | None:
        """The state of its default generator; None where that is the host's."""

    @abstractmethod
    def set_random_state(self, state: Tensor | None) -> None:
        """Go on from a state of `random_state` or `seeded_state`."""

    @abstractmethod
    def seeded_state(self, seed: int) -> Tensor | None:
        """The state that follows from a seed; no generator changes."""

    @abstractmethod
    def memory_in_use(self) -> int | None:
        """Bytes of this process's tensors; None where nobody counts them."""

    @abstractmethod
    def peak_memory(self) -> int | None:
        """The most bytes of this process's tensors since `reset_peak`."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Count `peak_memory` from here on."""

    @abstractmethod
    def foreign_memory(self) -> int:
        """Bytes that others hold there, processes that were just killed among them; 0 where nobody knows."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Give back memory that holds no tensor."""


def choose_kernels(who: str) -> None:
    """Let torch choose its kernels for this CPU, which it does once, by what it reads of the system then.

    Raises WorkerError where no file can be opened: it would silently take others, which round otherwise.
    """
    torch.backends.cpu.get_cpu_capability()
    if (refused := files_refused()) is not None:
        raise means_refused(refused, who) or refused


@dataclass(frozen=True, slots=True)
class Cpu(Backend):
    """A slot of the host itself: blocks stay where they are, and random states are torch's own."""

    apart: ClassVar[bool] = False
    name: str
    device: torch.device

    @classmethod
    def hardware(cls, kind: str) -> tuple[Hardware, ...]:
        """See `Backend.hardware`; how many slots there are is a question of cores and threads."""
        return ()

    @classmethod
    def open(cls, name: str) -> "Cpu":
        """See `Backend.open`."""
        choose_kernels(name)
        return cls(name, torch.device("cpu"))

    def activate(self) -> None:
        """See `Backend.activate`."""

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], DeviceEvent]:
        """See `Backend.copy`."""
        return list(tensors), PassedEvent()

    def follow(self, event: DeviceEvent, tensors: Sequence[Tensor]) -> None:
        """See `Backend.follow`."""

    def fetch(self, tensor: Tensor) -> tuple[Tensor, DeviceEvent]:
        """See `Backend.fetch`."""
        return tensor.clone(), PassedEvent()

    def synchronize(self) -> None:
        """See `Backend.synchronize`."""

    def pin(self, memory: npt.NDArray[np.uint8]) -> Unpin:
        """See `Backend.pin`."""
        return _nothing

    def random_state(self) -> None:
        """See `Backend.random_state`."""

    def set_random_state(self, state: Tensor | None) -> None:
        """See `Backend.set_random_state`; a member that comes from an accelerator brings one that nobody needs."""

    def seeded_state(self, seed: int) -> None:
        """See `Backend.seeded_state`."""

    def memory_in_use(self) -> None:
        """See `Backend.memory_in_use`."""

    def peak_memory(self) -> None:
        """See `Backend.peak_memory`."""

    def reset_peak(self) -> None:
        """See `Backend.reset_peak`."""

    def foreign_memory(self) -> int:
        """See `Backend.foreign_memory`."""
        return 0

    def empty_cache(self) -> None:
        """See `Backend.empty_cache`."""
        give_back_memory()


@dataclass(frozen=True, slots=True)
class Accelerator(Backend):
    """A device with streams of its own: CUDA, ROCm (which torch names cuda), XPU."""

    apart: ClassVar[bool] = True
    name: str
    device: torch.device
    module: Any
    """``torch.cuda``, ``torch.xpu``."""
    copying: Any
    """The stream of copies from the host, beside that of the steps."""

    @classmethod
    def hardware(cls, kind: str) -> tuple[Hardware, ...]:
        """See `Backend.hardware`."""
        module = torch.get_device_module(kind)
        found = (module.get_device_properties(number) for number in range(module.device_count()))
        return tuple(Hardware(name=properties.name, memory_bytes=properties.total_memory) for properties in found)

    @classmethod
    def open(cls, name: str) -> "Accelerator":
        """See `Backend.open`."""
        refuse_after_fork(name)
        # Read when CUDA starts: with the eight that it has by default, of more streams than that some wait for each other.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        device = torch.device(name)
        module = torch.get_device_module(device)
        module.set_device(device)
        return cls(name, device, module, module.Stream(device))

    def activate(self) -> None:
        """See `Backend.activate`."""
        self.module.set_device(self.device)

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], DeviceEvent]:
        """See `Backend.copy`."""
        with self.module.stream(self.copying):
            copied = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
        return copied, self.copying.record_event()

    def follow(self, event: DeviceEvent, tensors: Sequence[Tensor]) -> None:
        """See `Backend.follow`."""
        steps = self.module.current_stream(self.device)
        steps.wait_event(event)
        for tensor in tensors:
            # It was born on the other stream, which would hand its memory out again before these steps are through.
            tensor.record_stream(steps)

    def fetch(self, tensor: Tensor) -> tuple[Tensor, DeviceEvent]:
        """See `Backend.fetch`."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        return host, self.module.current_stream(self.device).record_event()

    def synchronize(self) -> None:
        """See `Backend.synchronize`."""
        self.module.synchronize(self.device)

    def pin(self, memory: npt.NDArray[np.uint8]) -> Unpin:
        """See `Backend.pin`; elsewhere than with CUDA and ROCm copies go through the driver's own memory."""
        return pin(memory, self.device) if self.device.type == "cuda" else _nothing

    def random_state(self) -> Tensor:
        """See `Backend.random_state`."""
        state: Tensor = self.module.get_rng_state(self.device)
        return state

    def set_random_state(self, state: Tensor | None) -> None:
        """See `Backend.set_random_state`; a member that comes from the CPU brings none."""
        if state is not None:
            self.module.set_rng_state(state, self.device)

    def seeded_state(self, seed: int) -> Tensor:
        """See `Backend.seeded_state`."""
        return torch.Generator(self.device).manual_seed(seed).get_state()

    def memory_in_use(self) -> int:
        """See `Backend.memory_in_use`."""
        return int(self.module.memory_allocated(self.device))

    def peak_memory(self) -> int:
        """See `Backend.peak_memory`."""
        return int(self.module.max_memory_allocated(self.device))

    def reset_peak(self) -> None:
        """See `Backend.reset_peak`."""
        self.module.reset_peak_memory_stats(self.device)

    def foreign_memory(self) -> int:
        """See `Backend.foreign_memory`; this process's own context counts as foreign."""
        free, total = self.module.mem_get_info(self.device)
        return int(total - free - self.module.memory_reserved(self.device))

    def empty_cache(self) -> None:
        """See `Backend.empty_cache`."""
        self.module.empty_cache()


KINDS: dict[str, type[Backend]] = {"cpu": Cpu, "cuda": Accelerator, "xpu": Accelerator}
"""Kinds of devices by the word before the colon of a device's name."""


def default_kind() -> str:
    """The kind that this machine trains on when nobody says another."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None and found.type in KINDS else "cpu"


def kind_of(kind: str) -> type[Backend]:
    """The class of a kind; raises PlanError for a word that nobody knows."""
    if kind not in KINDS and MODULES in os.environ:
        importlib.import_module(os.environ[MODULES])
    if kind not in KINDS:
        raise PlanError(f"--devices {kind} is of an unknown kind; write cpu, cpu:2, cuda or cuda:0,1.")
    return KINDS[kind]


def backend_of(name: str) -> Backend:
    """The device of a trainer's name, made ready; ``node1/cuda:0`` is ``cuda:0`` inside its node."""
    inside = name.rpartition("/")[2]
    return kind_of(inside.partition(":")[0]).open(inside)


# ---- errors


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out, the host's or a device's."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in NO_MEMORY)


def poisoned(backend: Backend) -> bool:
    """Whether the device is of no more use to this process; ask after any error of a member's.

    A failed assertion of a CUDA kernel, for one, makes every later call raise, whoever makes it: the process must end,
    else its members fail one after another for what one of them has done.
    """
    try:
        backend.synchronize()
    except RuntimeError:  # torch has no other type for what a device cannot go on from
        return True
    return False


def memory_returned(backend: Backend, *, patience: float) -> bool:
    """Whether others give memory back on the device within so many seconds; returns as soon as they have.

    The memory of a killed process returns late. Who runs out of memory meanwhile is not to blame, and may try again.
    """
    before, until = backend.foreign_memory(), time.monotonic() + patience
    while before and time.monotonic() < until:
        if backend.foreign_memory() < before:
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _nothing() -> None:
    """What is done where nothing was pinned."""
