"""A device that simulates a GPU's delays and failures: torch sees CPU tensors, but copies arrive late, and memory and time run out.

* A copy lies in other memory. It holds garbage until the steps follow its event. If the source dies before the event has passed, like a
  slot that is released too early, the copy holds garbage for good. Events pass after several queries.
* The device has its own default generator, from which `noise` draws.
* Memory is limited to ``LATE_BYTES``, which every torch operation counts while the device is active. If processes share a ``LATE_LEDGER``,
  the memory of a killed process comes back ``LATE_RETURN_SECONDS`` after its end. The first matrix product takes work space for good, and
  so does the first one in a backward pass.
* Steps take the time that `takes` asks for, one after another, while the host runs ahead; copies take none. Results are visible at once,
  but later events pass, and the memory of the copies that steps used comes back, only when this time is over.
* `poison` makes every later call raise, like a failed assertion in a CUDA kernel. After `poison_later` the host learns of the error only
  when it next queries an event or waits for the device.

``LATE_VISIBLE_DEVICES`` says which devices a process sees. ``ARGOSY_DEVICES=late`` registers the device in all processes of a run; the
fixture `devices` does this for a test.
"""

import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from argosy.errors import WorkerError
from argosy.training.device import devices as kinds
from argosy.training.device.devices import Backend, Hardware

__all__ = ["Late", "LateEvent", "Taking", "devices", "forget", "noise", "poison", "poison_later", "takes"]

COUNT = 4
QUERIES = 3
GIB = 2**30
WORK_SPACE = 4096
"""Bytes that a matrix product takes for good, like a library's work space on a GPU."""
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}


def _limit() -> int:
    return int(os.environ.get("LATE_BYTES", GIB))


def garbage(tensor: Tensor) -> None:
    """Fill a tensor with NaN, or a number that is no valid class, as memory may hold before a copy arrives."""
    with torch.no_grad():
        tensor.fill_(float("nan") if tensor.is_floating_point() else (True if tensor.dtype == torch.bool else 113))


@dataclass(eq=False)
class LateEvent:
    """An event that passes after several queries or a wait, when all earlier work has taken its time."""

    arrive: Callable[[], None] = lambda: None
    """Puts the values into the copies."""
    lose: Callable[[], None] = lambda: None
    """Puts garbage into the copies, because the source has died."""
    at: float = 0.0
    """Time at which the device has done all earlier work."""
    queries: int = 0
    passed: bool = False

    def query(self) -> bool:
        """See `Event.query`."""
        _notice_poison()
        self.queries += 1
        if self.queries >= QUERIES and time.monotonic() >= self.at:
            self.synchronize()
        return self.passed

    def synchronize(self) -> None:
        """See `Event.synchronize`."""
        _notice_poison()
        time.sleep(max(self.at - time.monotonic(), 0.0))
        self.arrive()
        self.passed = True

    def elapsed_time(self, end: "LateEvent") -> float:
        """See `TimedEvent.elapsed_time`."""
        assert self.at <= end.at <= time.monotonic(), "read before the device has passed it"
        return (end.at - self.at) * 1000

    def source_died(self) -> None:
        """Destroy the copy, because the last reference to its source has gone too early."""
        if not self.passed:
            self.lose()
            state.lost += 1


@dataclass
class State:
    """What a GPU's driver would keep for this process."""

    poison: str = ""
    coming_poison: str = ""
    """An error of the device that the host has not noticed yet."""
    lost: int = 0
    """Copies whose source died before they arrived."""
    pinned: set[int] = field(default_factory=set)
    """Addresses of pinned memory."""
    waits: int = 0
    """How often the host waited for all work of a device."""
    blocks: list[list[float]] = field(default_factory=list)
    """The time at which the memory of each copy comes back; infinite while the host refers to it."""
    most_blocks: int = 0
    idle_at: dict[str, float] = field(default_factory=dict)
    """The time at which each device has done all its work."""
    opened: int = 0
    """The process that initialized a device."""
    memory: "Counted | None" = None


state = State()


@dataclass
class Drawing:
    """The state that `noise` refers to. `state` would change the digest of its code, because every garbage collection changes it."""

    active: str = ""
    generators: dict[str, torch.Generator] = field(default_factory=dict)


drawing = Drawing()


def _alive() -> None:
    if state.poison:
        raise RuntimeError(state.poison)


def _notice_poison() -> None:
    """Let the host notice an error that the device has had meanwhile."""
    state.poison = state.poison or state.coming_poison
    _alive()


def poison(*_: Any) -> Any:
    """Break the device for this process, like a kernel whose assertion fails: this call and every later one raise."""
    state.poison = "late error: device-side assert triggered"
    _alive()


def poison_later() -> None:
    """Break the device while it works, so that the host notices it only later."""
    state.coming_poison = "late error: device-side assert triggered"


def takes(seconds: float) -> None:
    """Give the active device work that takes this many seconds."""
    state.idle_at[drawing.active] = _idle_at(drawing.active) + seconds


class Taking(nn.CrossEntropyLoss):
    """A loss that takes time of the device for each batch, and none of the host."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """See `nn.CrossEntropyLoss`."""
        takes(self.seconds)
        return super().forward(output, target)


def _idle_at(name: str) -> float:
    return max(state.idle_at.get(name, 0.0), time.monotonic())


def noise(batch: Any) -> Any:
    """An augmentation that draws from the active device's generator."""
    inputs, target = batch
    return inputs + 0.1 * torch.randn(inputs.shape, generator=_generator(drawing.active)), target


def _generator(name: str) -> torch.Generator:
    return drawing.generators.setdefault(name, torch.Generator().manual_seed(hash(name) & 0xFFFF ^ os.getpid()))


class Counted(TorchDispatchMode):
    """A mode that counts the memory of operators' results and raises beyond the limit."""

    def __init__(self, ledger: "Ledger | None") -> None:
        super().__init__()
        self.ledger = ledger
        self.in_use = self.peak = 0
        self._known: set[int] = set()
        self._work_space: set[bool] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _alive()
        backward = torch._C._current_autograd_node() is not None
        if function in PRODUCTS and backward not in self._work_space:
            self._work_space.add(backward)
            self._count(WORK_SPACE)
        result = function(*args, **(kwargs or {}))
        given = {storage_of(t) for t in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            if storage_of(tensor) not in given | self._known:
                self._take(tensor)
        return result

    def _take(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not size:
            return
        others = self.ledger.others() if self.ledger else 0
        if self.in_use + others + size > _limit():
            words = f"late out of memory: {size} bytes more than {self.in_use} in use here and {others} elsewhere"
            print(words, flush=True)  # a worker's log shows it
            raise torch.OutOfMemoryError(words)
        self._known.add(address)
        weakref.finalize(storage, self._free, address, size).atexit = False
        self._count(size)

    def _free(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._count(-size)

    def _count(self, size: int) -> None:
        self.in_use += size
        self.peak = max(self.peak, self.in_use)
        if self.ledger:
            self.ledger.note(self.in_use)


def storage_of(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, which identifies it while it lives."""
    return tensor.untyped_storage().data_ptr()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


class Ledger:
    """The memory that processes hold on a device, in a file for each; a dead process counts for a while."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.pid = os.getpid()
        self.file = (folder / str(self.pid)).open("wb", buffering=0)

    def note(self, size: int) -> None:
        """Record what this process holds."""
        if os.getpid() == self.pid:
            os.pwrite(self.file.fileno(), size.to_bytes(8, "little"), 0)

    def close(self) -> None:
        """Record that this process holds nothing any more."""
        self.note(0)
        self.pid = 0
        self.file.close()

    def others(self) -> int:
        """Return what all other processes hold, including killed ones whose memory has not come back yet."""
        return sum(self._held(path) for path in self.folder.iterdir() if path.name.isdecimal())

    def _held(self, path: Path) -> int:
        pid = int(path.name)
        if pid == self.pid:
            return 0
        with contextlib.suppress(FileNotFoundError):
            if not _runs(pid) and time.time() - self._death(path) > float(os.environ.get("LATE_RETURN_SECONDS", "0.5")):
                return 0
            return int.from_bytes(path.read_bytes(), "little")
        return 0

    def _death(self, path: Path) -> float:
        """Return the time at which a process first saw that this one is gone."""
        seen = path.with_suffix(".dead")
        seen.touch(exist_ok=True) if not seen.exists() else None
        return seen.stat().st_mtime


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Late(Backend):
    """The device."""

    apart: ClassVar[bool] = True
    name: str
    device: torch.device

    @classmethod
    def hardware(cls, kind: str) -> tuple[Hardware, ...]:
        """See `Backend.hardware`."""
        seen = os.environ.get("LATE_VISIBLE_DEVICES", ",".join(map(str, range(COUNT))))
        return tuple(Hardware(name="late", memory_bytes=_limit()) for _ in filter(None, seen.split(",")))

    @classmethod
    def open(cls, name: str) -> "Late":
        """See `Backend.open`."""
        if state.opened not in (0, os.getpid()):
            raise WorkerError(f"{name} was initialised before this process was forked.")
        state.opened = os.getpid()
        return cls(name, torch.device("cpu"))

    def activate(self) -> None:
        """See `Backend.activate`."""
        drawing.active = self.name
        if state.memory is None and "LATE_BYTES" in os.environ:
            folder = os.environ.get("LATE_LEDGER")
            # One for the process, because trainers that run inline share it.
            state.memory = Counted(Ledger(Path(folder, self.name)) if folder else None)
            state.memory.__enter__()

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], LateEvent]:
        """See `Backend.copy`."""
        _alive()
        values, copied = [t.clone() for t in tensors], [torch.empty_like(t) for t in tensors]
        for tensor in copied:
            garbage(tensor)

        comes_back = [math.inf]
        state.blocks = [other for other in state.blocks if other[0] > time.monotonic()] + [comes_back]
        state.most_blocks = max(state.most_blocks, len(state.blocks))
        back = lambda: comes_back.__setitem__(0, _idle_at(self.name))  # noqa: E731
        weakref.finalize(copied[0].untyped_storage(), back).atexit = False

        def arrive() -> None:
            for tensor, value in zip(copied, values, strict=True):
                tensor.copy_(value)
            values.clear()
            copied.clear()

        def lose() -> None:
            for tensor in kept:
                if (found := tensor()) is not None:
                    garbage(found)

        kept = [weakref.ref(tensor) for tensor in copied]
        event = LateEvent(arrive, lose)
        for tensor in tensors:
            weakref.finalize(tensor, event.source_died).atexit = False
        return list(copied), event

    def follow(self, event: LateEvent, tensors: Sequence[Tensor]) -> None:
        """See `Backend.follow`; later work finds the values, but the event has not passed for the host."""
        event.arrive()
        event.arrive = lambda: None

    def fetch(self, tensor: Tensor) -> tuple[Tensor, LateEvent]:
        """See `Backend.fetch`."""
        _alive()
        value, host = tensor.clone(), torch.empty_like(tensor)
        garbage(host)
        return host, LateEvent(lambda: host.copy_(value), at=_idle_at(self.name))

    def stamp(self) -> LateEvent:
        """See `Backend.stamp`."""
        _alive()
        return LateEvent(at=_idle_at(self.name))

    def synchronize(self) -> None:
        """See `Backend.synchronize`."""
        _notice_poison()
        state.waits += 1
        time.sleep(max(state.idle_at.get(self.name, 0.0) - time.monotonic(), 0.0))

    def pin(self, memory: npt.NDArray[np.uint8]) -> Callable[[], None]:
        """See `Backend.pin`."""
        address = memory.ctypes.data
        assert address not in state.pinned
        state.pinned.add(address)
        return lambda: state.pinned.remove(address)

    def random_state(self) -> Tensor:
        """See `Backend.random_state`."""
        return _generator(self.name).get_state()

    def set_random_state(self, state: Tensor | None) -> None:
        """See `Backend.set_random_state`."""
        if state is not None:
            _generator(self.name).set_state(state)

    def seeded_state(self, seed: int) -> Tensor:
        """See `Backend.seeded_state`; differs from the state of a CPU generator with this seed."""
        return torch.Generator().manual_seed(seed ^ 0x1A7E).get_state()

    def memory_in_use(self) -> int | None:
        """See `Backend.memory_in_use`."""
        return state.memory.in_use if state.memory else None

    def peak_memory(self) -> int | None:
        """See `Backend.peak_memory`."""
        return state.memory.peak if state.memory else None

    def reset_peak(self) -> None:
        """See `Backend.reset_peak`."""
        if state.memory:
            state.memory.peak = state.memory.in_use

    def foreign_memory(self) -> int:
        """See `Backend.foreign_memory`."""
        return state.memory.ledger.others() if state.memory and state.memory.ledger else 0

    def empty_cache(self) -> None:
        """See `Backend.empty_cache`."""


kinds.KINDS["late"] = Late


def forget() -> None:
    """Reset all state, as in a new process."""
    if state.memory is not None:
        state.memory.__exit__(None, None, None)
        if state.memory.ledger:
            state.memory.ledger.close()
    state.__init__()


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test's runs the devices ``late:0`` to ``late:3``, in all their processes."""
    monkeypatch.setenv("ARGOSY_DEVICES", "late")
    forget()
    yield
    forget()
