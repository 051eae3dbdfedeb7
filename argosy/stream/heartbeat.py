"""Signs of life without messages: what a process is doing and a count of its beats, in memory that another process reads.

Contract. One heartbeat per worker: a small memory file that the launcher creates and the worker inherits or receives, with a
slot for the worker itself and one for each of its loader workers. Each slot has one writer, which never waits and never
locks. A reader may occasionally see a text that is being replaced. So the driver can check a worker
that is blocked, or has not sent its first message.
"""

import mmap
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

from argosy.stream.memory import memory_file

__all__ = ["MAX_LOADERS", "Heartbeat", "Sign"]

MAX_LOADERS = 1023
"""Most loaders of one worker that can have a heartbeat."""
SLOTS = 1 + MAX_LOADERS
SLOT_BYTES = 256
BEAT, STATE, NUMBER, LENGTH, IN_USE = range(5)
"""Words of a slot, of 8 bytes each. IN_USE is only in the first slot: the highest slot number ever used."""
TEXT = 8 * 5
IDLE, BUSY, OPAQUE, WAITING = range(4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """One slot, as seen by a reader."""

    busy: bool
    beat: int
    doing: str
    opaque: bool
    """Whether it runs code that cannot beat, so only its CPU time shows progress."""
    waits: bool
    """Whether it waits for another worker to do its part. It is not busy then, and its beats are not progress."""


class Heartbeat:
    """One writer's slot. A worker's heartbeat also gives access to the slots of its loaders."""

    def __init__(self, memory: memoryview, number: int = 0) -> None:
        self._memory = memory
        start = number * SLOT_BYTES
        self._words = memory[start : start + TEXT].cast("q")
        self._text = memory[start + TEXT : start + SLOT_BYTES]
        self.doing: tuple[int, int, bytes] = (IDLE, 0, b"")
        """Content of the slot: state, number and text."""

    @classmethod
    def private(cls) -> "Heartbeat":
        """Create a heartbeat in ordinary memory, which no other process reads."""
        return cls(memoryview(bytearray(SLOTS * SLOT_BYTES)))

    @classmethod
    def create(cls) -> tuple["Heartbeat", int]:
        """Create one in a memory file. Returns it with its descriptor, which another process can `open` and the caller must close."""
        descriptor = memory_file("argosy-heartbeat", SLOTS * SLOT_BYTES)
        heartbeat = cls(memoryview(mmap.mmap(descriptor, 0)))
        # So that a worker that replaces another of the same name shows another beat.
        heartbeat._words[BEAT] = time.monotonic_ns()
        return heartbeat, descriptor

    @classmethod
    def open(cls, descriptor: int) -> "Heartbeat":
        """Open the heartbeat that another process created. The descriptor may be closed afterwards."""
        return cls(memoryview(mmap.mmap(descriptor, 0)))

    @classmethod
    def of(cls, snapshot: bytes) -> "Heartbeat":
        """Return a heartbeat to read a copy made by `snapshot`."""
        return cls(memoryview(snapshot))

    def slot(self, number: int) -> "Heartbeat":
        """Return the slot of loader 1, 2, … of this worker, set to idle."""
        if not 0 < number <= MAX_LOADERS:
            raise ValueError(f"loader {number} has no heartbeat: a worker has at most {MAX_LOADERS} loaders")
        first = memoryview(self._memory)[:TEXT].cast("q")
        first[IN_USE] = max(first[IN_USE], number)
        heartbeat = Heartbeat(self._memory, number)
        heartbeat.rest()
        return heartbeat

    def become(self, slot: "Heartbeat") -> None:
        """Write to this slot from now on: in a fork, everything that holds this heartbeat then shows what the fork does."""
        self._words, self._text, self.doing = slot._words, slot._text, slot.doing

    # ---- for the writer

    def beat(self, number: int = 0) -> None:
        """Count a beat. The number replaces ``{number}`` in the text of what is being done."""
        words = self._words
        # Before the beat, so that a reader that sees the beat sees its number.
        words[NUMBER] = number
        words[BEAT] += 1

    def busy(self, doing: str, *, opaque: bool = False) -> AbstractContextManager[None]:
        """Show this activity as busy inside this context, and the earlier state after it."""
        return _StateContext(self, OPAQUE if opaque else BUSY, doing)

    def waiting(self, doing: str) -> AbstractContextManager[None]:
        """Show inside this context that this process waits for another worker; `doing` names the worker and the wait."""
        return _StateContext(self, WAITING, doing)

    def start(self, doing: str, *, opaque: bool = False) -> None:
        """Show this activity as busy until `rest`."""
        self.show(OPAQUE if opaque else BUSY, 0, doing.encode())

    def rest(self) -> None:
        """Show that this process is idle, whatever it was doing."""
        self.show(IDLE, 0, b"")

    def show(self, state: int, number: int, doing: bytes) -> None:
        """Write the content of the slot."""
        words, doing = self._words, doing[: len(self._text)]
        self.doing = (state, number, doing)
        # Idle while the text is replaced, so that a reader in between does not report half of it.
        words[STATE] = IDLE
        words[LENGTH] = len(doing)
        self._text[: len(doing)] = doing
        words[STATE] = state
        self.beat(number)

    # ---- for the reader

    def snapshot(self) -> bytes:
        """Return a copy of all slots that were ever used."""
        return bytes(self._memory[: (self._words[IN_USE] + 1) * SLOT_BYTES])

    def read(self) -> tuple[Sign, ...]:
        """Return the signs of this worker and of its loaders, in the order of their slots."""
        loaders = range(1, self._words[IN_USE] + 1)
        return (self._sign(), *(Heartbeat(self._memory, number)._sign() for number in loaders))

    def _sign(self) -> Sign:
        words = self._words
        state = words[STATE]
        text = bytes(self._text[: words[LENGTH]]).decode(errors="replace")
        return Sign(
            busy=state in (BUSY, OPAQUE),
            beat=words[BEAT],
            doing=text.replace("{number}", str(words[NUMBER])),
            opaque=state == OPAQUE,
            waits=state == WAITING,
        )


class _StateContext:
    """Shows a state inside the context and the earlier one after it. A generator-based context manager would cost more than the writes."""

    __slots__ = ("_before", "_heartbeat", "_inside")

    def __init__(self, heartbeat: Heartbeat, state: int, doing: str) -> None:
        self._heartbeat, self._inside = heartbeat, (state, 0, doing.encode())

    def __enter__(self) -> None:
        self._before = self._heartbeat.doing
        self._heartbeat.show(*self._inside)

    def __exit__(self, *error: object) -> None:
        self._heartbeat.show(*self._before)
