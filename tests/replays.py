"""A recorder for CPUs that is as strict as a CUDA graph: it records torch's operators with the memory that they read and write.

* Recording changes nothing: what the work writes meanwhile is restored, and so is the state of the random generator.
* A replay runs the operators again on the same memory, and nothing that Python did between them.
* Reading a value on the host raises while work is recorded, and inside `strict`.
* Inside `Races`, streams are as unordered as on a GPU.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from argosy.training.device import recorders

__all__ = ["Races", "TapeRecorder", "closed", "recorded", "replayable"]

Made = TypeVar("Made")
READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


@dataclass(eq=False)
class Tape(TorchDispatchMode):
    """See `argosy.training.device.recorders.Recording`."""

    calls: list[tuple[Any, Any, Any, list[Tensor]]] = field(default_factory=list)
    moved: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Storages that operators were given, with their contents before, by address."""
    born: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in given:
            self._keep(tensor)
        made = function(*args, **kwargs)
        found = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.born.update({storage(t) for t in found} - {storage(t) for t in given})
        self.calls.append((function, args, kwargs, found))
        return made

    def _keep(self, tensor: Tensor) -> None:
        address = storage(tensor)
        if address not in self.born and address not in self.moved and tensor.numel():
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            self.moved[address] = whole, whole.clone()

    @property
    def memory_bytes(self) -> int:
        """See `Recording.memory_bytes`: the storages that the work allocated."""
        made = {storage(t): t.untyped_storage().nbytes() for *_, found in self.calls for t in found}
        return sum(size for address, size in made.items() if address in self.born)

    def put_back(self) -> None:
        """Restore the contents that storages had before the recording."""
        for whole, before in self.moved.values():
            whole.copy_(before)
        self.moved.clear()

    def replay(self) -> None:
        """See `Recording.replay`."""
        assert self.calls, "closed"
        with torch.no_grad():
            for function, args, kwargs, found in self.calls:
                again = [leaf for leaf in tree_leaves(function(*args, **kwargs)) if isinstance(leaf, Tensor)]
                for tensor, value in zip(found, again, strict=True):
                    if storage(tensor) != storage(value):
                        tensor.copy_(value)

    def close(self) -> None:
        """See `Recording.close`."""
        self.calls.clear()
        closed.append(self)


class Strict(TorchDispatchMode):
    """A mode that raises if a value is read on the host."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in READS:
            raise RuntimeError("called a synchronizing operation")
        return function(*args, **(kwargs or {}))


Stream = Any
"""The recorder whose stream it is; None for the common one."""


class Races(TorchDispatchMode):
    """A mode that raises if memory is used on two streams, of which one writes, and nothing makes the later one wait for the other."""

    current: Stream = None
    known: ClassVar[dict[Stream, dict[Stream, int]]] = {}
    """By stream: how many operators of each stream have surely ended before its next one."""

    def __init__(self) -> None:
        super().__init__()
        self.known.clear()
        self._uses: dict[int, list[tuple[Stream, int, bool]]] = {}
        """By address of a storage: on which stream it was used, by which of its operators, and whether that may have written."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        now, given = Races.current, set[int]()
        known = self.known.setdefault(now, {})
        known[now] = known.get(now, 0) + 1
        wanted = [
            (one.name, one.alias_info is not None and one.alias_info.is_write) for one in function._schema.arguments
        ]
        values = dict(zip((name for name, _ in wanted), args, strict=False)) | (kwargs or {})
        for name, writes in wanted:
            for tensor in (leaf for leaf in tree_leaves(values.get(name)) if isinstance(leaf, Tensor)):
                given.add(storage(tensor))
                uses = self._uses.setdefault(storage(tensor), [])
                for stream, number, wrote in uses:
                    raced = (writes or wrote) and known.get(stream, 0) < number
                    assert not raced, f"{function} uses memory that another stream uses at this moment"
                uses[:] = [use for use in uses if use[0] is not now or use[2]] + [(now, known[now], writes)]
        made = function(*args, **(kwargs or {}))
        for tensor in (leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)):
            if storage(tensor) not in given:
                self._uses[storage(tensor)] = [(now, known[now], True)]
        return made

    @classmethod
    def wait(cls, stream: Stream, other: Stream) -> None:
        """Let a stream wait for what was issued on another one."""
        mine = cls.known.setdefault(stream, {})
        mine |= {one: max(number, mine.get(one, 0)) for one, number in cls.known.get(other, {}).items()}


def storage(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, which identifies it while it lives."""
    return tensor.untyped_storage().data_ptr()


@dataclass(eq=False)
class TapeRecorder:
    """See `argosy.training.device.recorders.Recorder`."""

    device: torch.device
    asked: list[str] = field(default_factory=list)
    """Calls of its methods, in order."""
    draws_apart: bool = False

    def __post_init__(self) -> None:
        recorded.append(self)

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """See `Recorder.own`."""
        self.asked.append("own")
        before, Races.current = Races.current, self
        try:
            yield
        finally:
            Races.current = before
        self.asked.append("over")

    def in_branches(self, works: Sequence[Callable[[], object]]) -> None:
        """See `Recorder.in_branches`: runs the parts in reverse order, because they must be independent."""
        for work in reversed(works):
            work()

    def fork(self) -> None:
        """See `Recorder.fork`."""
        self.asked.append("fork")
        Races.wait(self, Races.current)

    def join(self) -> None:
        """See `Recorder.join`."""
        self.asked.append("join")
        Races.wait(Races.current, self)

    def strict(self) -> Strict:
        """See `Recorder.strict`."""
        self.asked.append("strict")
        return Strict()

    def record(self, work: Callable[[], Made]) -> tuple[Tape, Made]:
        """See `Recorder.record`."""
        self.asked.append("record")
        tape, generator = Tape(), torch.default_generator.get_state()
        try:
            with tape:
                made = work()
        finally:
            tape.put_back()
            torch.default_generator.set_state(generator)
        return tape, made

    def close(self) -> None:
        """See `Recorder.close`."""
        self.asked.append("close")


recorded: list[TapeRecorder] = []
"""All recorders of the test."""
closed: list[Tape] = []
"""The recordings of these that were closed."""


@pytest.fixture
def replayable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give CPUs recorders."""
    recorded.clear()
    closed.clear()
    monkeypatch.setitem(recorders.RECORDERS, "cpu", TapeRecorder)
