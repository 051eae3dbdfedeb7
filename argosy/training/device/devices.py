"""Device backends, one object per device: copies, events, pinned memory, random states, memory in use, errors.

They use ``torch.accelerator`` and the device's own module, so one class covers CUDA, ROCm and XPU. The CPU is a device too, but
blocks are not copied to it. Features of CUDA alone are in `argosy.training.device.cuda`. A module can add another kind by putting
its class into `KINDS`; ``ARGOSY_DEVICES`` names this module to all processes of a run.
"""

import gc
import importlib
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from argosy.errors import PlanError, WorkerError
from argosy.errors.system import files_refused, resources_refused
from argosy.errors.traces import first_line
from argosy.training.device.cuda import Unpin, pin
from argosy.training.device.forks import check_not_forked
from argosy.training.device.heap import give_back_memory

__all__ = [
    "KINDS",
    "Backend",
    "DeviceEvent",
    "Hardware",
    "PassedEvent",
    "TimedEvent",
    "open_backend",
    "choose_kernels",
    "default_kind",
    "backend_class",
    "memory_left",
    "collect_cycles",
    "wait_for_memory",
    "is_out_of_memory",
    "no_room",
    "is_poisoned",
]

MODULES = "ARGOSY_DEVICES"
"""Environment variable that names a module which adds kinds of devices."""
POLL_SECONDS = 0.05
"""Seconds between two checks for freed memory."""
NO_MEMORY = (
    "DefaultCPUAllocator",
    "error: out of memory",
    "_ALLOC_FAILED",
    "_STATUS_NOT_INITIALIZED",
    "OUT_OF_DEVICE_MEMORY",
)
"""Texts of out-of-memory errors that have no type of their own: from host memory, from the runtimes and drivers of CUDA and ROCm, from
their libraries, which also fail to create a handle on a full device, and from XPU."""


class DeviceEvent(Protocol):
    """A point in a device's queue of work."""

    def query(self) -> bool:
        """Return whether the device has passed it; never waits."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


class TimedEvent(DeviceEvent, Protocol):
    """An event that knows when the device passed it."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this event to another; both have passed."""


class PassedEvent:
    """The event of work that is complete when its call returns."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def elapsed_time(self, end: "PassedEvent") -> float:
        """Return the milliseconds between the two calls."""
        return (end._at - self._at) * 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """One device of a machine."""

    name: str
    """Name of the GPU model, by which profiles are compared."""
    memory_bytes: int


class Backend(ABC):
    """One device, as a trainer uses it. Random states are CPU tensors, as checkpoints hold them."""

    apart: ClassVar[bool]
    """Whether its memory is apart from the host's, so that blocks are copied there."""
    name: str
    """Name within its node, as in a cluster: ``cuda:1``."""
    device: torch.device
    """The torch device."""

    @classmethod
    @abstractmethod
    def hardware(cls, kind: str) -> tuple[Hardware, ...]:
        """Return every device of this kind that this process may use, by number."""

    @classmethod
    @abstractmethod
    def open(cls, name: str) -> "Backend":
        """Initialize and return the device of that name. Raises WorkerError if this process can never use it."""

    @abstractmethod
    def activate(self) -> None:
        """Make it the default device of members' code."""

    @abstractmethod
    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], DeviceEvent]:
        """Copy tensors to the device beside other work. Call `follow` before using them; keep the sources until the event has passed."""

    @abstractmethod
    def follow(self, event: DeviceEvent, tensors: Sequence[Tensor]) -> None:
        """Let work issued after this call begin after the event, which belongs to these copies."""

    @abstractmethod
    def fetch(self, tensor: Tensor) -> tuple[Tensor, DeviceEvent]:
        """Copy a tensor to the host; the copy is valid when the event has passed. Does not wait."""

    @abstractmethod
    def stamp(self) -> TimedEvent:
        """Return an event behind all work issued on the current stream. Does not wait."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all issued steps; raises their errors."""

    @abstractmethod
    def pin(self, memory: npt.NDArray[np.uint8]) -> Unpin:
        """Pin host memory, so that copies read it asynchronously, until the returned function is called."""

    @abstractmethod
    def random_state(self) -> Tensor | None:
        """Return the state of the device's default generator; None if it uses the host's."""

    @abstractmethod
    def set_random_state(self, state: Tensor | None) -> None:
        """Set a state that `random_state` or `seeded_state` returned."""

    @abstractmethod
    def seeded_state(self, seed: int) -> Tensor | None:
        """Return the state of a generator with this seed; changes no generator."""

    @abstractmethod
    def memory_in_use(self) -> int | None:
        """Return the bytes of this process's tensors; None if they are not counted."""

    @abstractmethod
    def peak_memory(self) -> int | None:
        """Return the most bytes of this process's tensors since `reset_peak`."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Reset `peak_memory`."""

    @abstractmethod
    def foreign_memory(self) -> int:
        """Return the bytes that other processes hold, including processes that were just killed; 0 if unknown."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Free cached memory that holds no tensor."""


def choose_kernels(what: str) -> None:
    """Let torch choose its kernels for this CPU, which it does once per process by reading system files.

    Raises WorkerError if no file can be opened: torch would silently choose other kernels, which round differently.
    """
    torch.backends.cpu.get_cpu_capability()
    if (refused := files_refused()) is not None:
        raise resources_refused(refused, what) or refused


@dataclass(frozen=True, slots=True)
class Cpu(Backend):
    """A slot of the host's CPUs; blocks are not copied, and the generator is torch's default one."""

    apart: ClassVar[bool] = False
    name: str
    device: torch.device

    @classmethod
    def hardware(cls, kind: str) -> tuple[Hardware, ...]:
        """Return nothing: the number of slots depends on cores and threads."""
        return ()

    @classmethod
    def open(cls, name: str) -> "Cpu":
        """Implement `Backend.open`."""
        choose_kernels(name)
        return cls(name, torch.device("cpu"))

    def activate(self) -> None:
        """Do nothing: the CPU is the default."""

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], DeviceEvent]:
        """Return the tensors themselves."""
        return list(tensors), PassedEvent()

    def follow(self, event: DeviceEvent, tensors: Sequence[Tensor]) -> None:
        """Do nothing: nothing was copied."""

    def fetch(self, tensor: Tensor) -> tuple[Tensor, DeviceEvent]:
        """Return a clone."""
        return tensor.clone(), PassedEvent()  # its memory may be overwritten before the copy is read

    def stamp(self) -> TimedEvent:
        """Return an event with the host's time."""
        return PassedEvent()

    def synchronize(self) -> None:
        """Return at once: calls are synchronous."""

    def pin(self, memory: npt.NDArray[np.uint8]) -> Unpin:
        """Do nothing: blocks are not copied."""
        return _do_nothing

    def random_state(self) -> None:
        """Return None: the generator is the host's."""

    def set_random_state(self, state: Tensor | None) -> None:
        """Ignore the state, which members bring along when they move from an accelerator."""

    def seeded_state(self, seed: int) -> None:
        """Return None: the generator is the host's."""

    def memory_in_use(self) -> None:
        """Return None: not counted."""

    def peak_memory(self) -> None:
        """Return None: not counted."""

    def reset_peak(self) -> None:
        """Do nothing."""

    def foreign_memory(self) -> int:
        """Return 0: unknown."""
        return 0

    def empty_cache(self) -> None:
        """Return free heap memory to the system."""
        give_back_memory()


@dataclass(frozen=True, slots=True)
class Accelerator(Backend):
    """A device with its own streams: CUDA, ROCm (which torch names cuda), XPU."""

    apart: ClassVar[bool] = True
    name: str
    device: torch.device
    module: Any
    """``torch.cuda`` or ``torch.xpu``."""
    copying: Any
    """Stream for copies from the host; steps use another one."""

    @classmethod
    def hardware(cls, kind: str) -> tuple[Hardware, ...]:
        """Return the devices that torch finds."""
        module = torch.get_device_module(kind)
        if module.device_count():
            module.init()  # before it, torch counts physical GPUs; of a partitioned GPU (MIG) a process may see only one part
        all_properties = (module.get_device_properties(number) for number in range(module.device_count()))
        return tuple(
            Hardware(name=properties.name, memory_bytes=properties.total_memory) for properties in all_properties
        )

    @classmethod
    def open(cls, name: str) -> "Accelerator":
        """Implement `Backend.open`."""
        check_not_forked(name)
        # CUDA reads this when it starts. With more streams than connections (8 by default), streams would wait for each other.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        device = torch.device(name)
        module = torch.get_device_module(device)
        module.set_device(device)
        # Let the libraries allocate their work space, in both of torch's threads, before any member does, so that no member is charged.
        one = torch.ones(1, 1, device=device, requires_grad=True)
        # The backward thread has no context before its first kernel. cuBLAS would warn, so the first kernel is an elementwise one.
        torch.autograd.backward((one @ one) * one)
        return cls(name, device, module, module.Stream(device))

    def activate(self) -> None:
        """Make the device torch's current one."""
        self.module.set_device(self.device)

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], DeviceEvent]:
        """Copy on the stream for copies."""
        with self.module.stream(self.copying):
            copied = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
        return copied, self.copying.record_event()

    def follow(self, event: DeviceEvent, tensors: Sequence[Tensor]) -> None:
        """Implement `Backend.follow`."""
        steps = self.module.current_stream(self.device)
        steps.wait_event(event)
        for tensor in tensors:
            # The copy stream allocated the tensor, and would otherwise reuse its memory before these steps are complete.
            tensor.record_stream(steps)

    def fetch(self, tensor: Tensor) -> tuple[Tensor, DeviceEvent]:
        """Copy into pinned host memory."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        # Torch would conjugate and negate a lazy view on the host, before its copy has arrived there.
        host.copy_(tensor.resolve_conj().resolve_neg(), non_blocking=True)
        return host, self.module.current_stream(self.device).record_event()

    def stamp(self) -> TimedEvent:
        """Record a timing event."""
        event: TimedEvent = self.module.current_stream(self.device).record_event(self.module.Event(enable_timing=True))
        return event

    def synchronize(self) -> None:
        """Wait for the current stream, which other streams of steps have joined.

        The whole device is not waited for: if a rank is lost, its group's sum hangs on the device until the driver sends a message, which a
        trainer that waited for the sum would not receive (`argosy.training.programs.shard.ends`).
        """
        self.module.current_stream(self.device).synchronize()

    def pin(self, memory: npt.NDArray[np.uint8]) -> Unpin:
        """Pin for CUDA and ROCm; other devices copy through their driver's own memory."""
        return pin(memory, self.device) if self.device.type == "cuda" else _do_nothing

    def random_state(self) -> Tensor:
        """Return the generator's state."""
        state: Tensor = self.module.get_rng_state(self.device)
        return state

    def set_random_state(self, state: Tensor | None) -> None:
        """Set the state of the device's generator; a member that moves from the CPU brings None."""
        if state is not None:
            self.module.set_rng_state(state, self.device)

    def seeded_state(self, seed: int) -> Tensor:
        """Return a seeded generator's state."""
        return torch.Generator(self.device).manual_seed(seed).get_state()

    def memory_in_use(self) -> int:
        """Return torch's count."""
        return int(self.module.memory_allocated(self.device))

    def peak_memory(self) -> int:
        """Return torch's peak."""
        return int(self.module.max_memory_allocated(self.device))

    def reset_peak(self) -> None:
        """Reset the peak of torch's allocator."""
        self.module.reset_peak_memory_stats(self.device)

    def foreign_memory(self) -> int:
        """Implement `Backend.foreign_memory`; this process's own context counts as foreign."""
        free, total = self.module.mem_get_info(self.device)
        return int(total - free - self.module.memory_reserved(self.device))

    def empty_cache(self) -> None:
        """Empty the cache of torch's allocator."""
        self.module.empty_cache()


KINDS: dict[str, type[Backend]] = {"cpu": Cpu, "cuda": Accelerator, "xpu": Accelerator}
"""Kinds of devices, by the part of a device's name before the colon."""


def default_kind() -> str:
    """Return the kind of device that this machine trains on by default; warns if torch has an accelerator of an unknown kind."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or _is_known(accelerator.type):
        return "cpu" if accelerator is None else accelerator.type
    warnings.warn(
        f"torch has an accelerator of kind {accelerator.type}, which Argosy does not know, so members train on CPU "
        f"devices. Set {MODULES} to a module that adds the kind, or use --devices cpu.",
        stacklevel=2,
    )
    return "cpu"


def backend_class(kind: str) -> type[Backend]:
    """Return the class of a kind; raises PlanError for an unknown kind."""
    if not _is_known(kind):
        raise PlanError(f"--devices {kind} is of an unknown kind; write cpu, cpu:2, cuda or cuda:0,1.")
    return KINDS[kind]


def _is_known(kind: str) -> bool:
    if kind not in KINDS and MODULES in os.environ:
        importlib.import_module(os.environ[MODULES])
    return kind in KINDS


def open_backend(name: str) -> Backend:
    """Open the device of a trainer's name; ``node1/cuda:0`` is ``cuda:0`` inside its node. Raises WorkerError."""
    inside = name.rpartition("/")[2]
    try:
        return backend_class(inside.partition(":")[0]).open(inside)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise no_room(name, "a trainer", "", error) from error


def memory_left(backend: Backend, used: int) -> int:
    """Return an accelerator's total bytes minus `used` and minus the bytes that other processes hold."""
    kind, _, number = backend.name.partition(":")
    return backend.hardware(kind)[int(number)].memory_bytes - backend.foreign_memory() - used


# ---- errors


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the host or a device is out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in NO_MEMORY)


def no_room(name: str, what: str, remedy: str, error: BaseException) -> WorkerError:
    """Return the error of a device without memory for a part of a run that no member can do without."""
    return WorkerError(
        f"{name} has no memory left for {what} ({first_line(error).rstrip('.')}). End other processes that use it, {remedy}or choose other "
        "--devices; the same command resumes the run."
    )


def is_poisoned(backend: Backend) -> bool:
    """Return whether this process can no longer use the device; called after any error of a member's code.

    For example, after a failed assertion in a CUDA kernel every later call raises. The process must then end; otherwise all its members
    would fail one after another because of one member's error.
    """
    try:
        backend.synchronize()
    except RuntimeError:  # torch has no narrower type for an error that a device cannot recover from
        return True
    return False


def collect_cycles(backend: Backend) -> None:
    """Free memory of an accelerator that only reference cycles hold, as those of networks that refer to themselves and are no longer used."""
    if backend.memory_in_use() is not None:
        gc.collect()  # takes some milliseconds: all that a trainer's process begins with is frozen


def wait_for_memory(backend: Backend, *, patience: float) -> bool:
    """Return whether other processes free memory on the device within `patience` seconds; returns as soon as they have.

    The memory of a killed process is freed late. A member that ran out of memory meanwhile can then be tried again.
    """
    before, until = backend.foreign_memory(), time.monotonic() + patience
    while before and time.monotonic() < until:
        if backend.foreign_memory() < before:
            return True
        time.sleep(POLL_SECONDS)
    return False


def _do_nothing() -> None:
    """Do nothing; the `Unpin` of memory that was not pinned."""
