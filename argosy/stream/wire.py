"""Messages between connected processes of one run (`argosy.stream.listener`).

Contract. Both ends are a `Peer`. Its framing (`argosy.stream.framing`) determines which bytes are genuine. Messages are
queued until the socket accepts them, and partial messages are buffered until they are complete. So no process waits for another
to read, and a peer that stops in the middle of a message does not delay any other. On one node descriptors can accompany
messages. Messages arrive in order. A peer that disconnects is seen as an end-of-file after its last complete message.
"""

import errno
import os
import pickle
import select
import socket
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from argosy.errors import WorkerError
from argosy.stream.framing import MAX_VALUE_BYTES, Framing, Plain

__all__ = ["Peer", "poll"]

READ_BYTES = 2**17
"""Most bytes in one read; the socket's buffer is hardly larger."""
READS = 8
"""Most reads at a time, so that one busy peer does not keep others waiting."""
LONGEST_POLL = 2**31 - 1
"""Most milliseconds that the kernel can be asked to wait."""
DESCRIPTORS = 64
"""Most descriptors with one message."""


class Peer:
    """An authenticated two-way connection for pickled values. Neither `send` nor `receive` waits.

    `send` may be called during another `send` (by a finalizer that the garbage collector runs) and from other threads
    (such as autograd's, in which the last view of a block may be freed). Only one thread may receive.
    """

    def __init__(self, connection: socket.socket, framing: Framing | None = None) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._framing: Framing = framing or Plain()
        self._unsent: deque[tuple[bytes | memoryview, tuple[int, ...]]] = deque()
        """Pickled values, and the remaining part of the frame that is being written."""
        self._writing = threading.Lock()
        self._deaf = False
        """Whether the other end accepts nothing any more."""
        self._buffer = bytearray(READ_BYTES)
        self._arrived = bytearray()
        self._over = False
        self.descriptors: deque[int] = deque()
        """Received descriptors, in the order of messages. Code that takes one must close it."""

    @classmethod
    def pair(cls) -> "tuple[Peer, Peer]":
        """Return both ends of a connection inside one process, or between it and a child."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """Return the descriptor for selectors; -1 after `close`."""
        return self._socket.fileno()

    @property
    def host(self) -> str:
        """Address by which another node reaches this one."""
        return str(self._socket.getsockname()[0])

    @property
    def unsent(self) -> bool:
        """Whether anything is left to write. If so, watch until the socket is writable and call `flush`."""
        return bool(self._unsent)

    def send(self, value: Any, descriptors: Sequence[int] = ()) -> None:
        """Queue a value, and write what the socket accepts.

        The caller keeps ownership of the descriptors, and may close them immediately. Nothing is sent to a peer that has disconnected; its
        end-of-file will arrive.
        """
        pickled = pickle.dumps(value, protocol=5)
        if len(pickled) > MAX_VALUE_BYTES or len(descriptors) > DESCRIPTORS:
            raise WorkerError(
                f"a {type(value).__name__} of {len(pickled):,} bytes with {len(descriptors)} descriptors is too large "
                f"to send to another process; at most {MAX_VALUE_BYTES:,} bytes and {DESCRIPTORS} descriptors are "
                "possible. Open large data in factories instead of storing it in the objects."
            )
        if not self._deaf:
            self._unsent.append((pickled, tuple(map(os.dup, descriptors))))
            self.flush()

    def flush(self) -> None:
        """Write what the socket accepts."""
        # A thread that does not get the lock leaves its messages to the holder, which checks again after releasing it.
        while self._unsent and self._writing.acquire(blocking=False):
            try:
                full = not self._write()
            finally:
                self._writing.release()
            if full:
                return

    def _write(self) -> bool:
        """Write unsent messages. Returns False if the socket accepts no more."""
        while self._unsent:
            data, descriptors = self._unsent[0]
            # Framed here, under the lock, because frames are numbered in the order in which they are sent.
            frame = data if isinstance(data, memoryview) else self._framing.pack(data)
            try:
                sent = self._put(frame, descriptors)
            except (BlockingIOError, InterruptedError):
                self._unsent[0] = memoryview(frame), descriptors
                return False
            except OSError:
                self._stop_sending()
                return True
            for descriptor in descriptors:
                os.close(descriptor)
            if sent == len(frame):
                self._unsent.popleft()
            else:
                # The kernel takes all descriptors with the first byte.
                self._unsent[0] = memoryview(frame)[sent:], ()
        return True

    def _put(self, data: bytes | memoryview, descriptors: tuple[int, ...]) -> int:
        if descriptors:
            return socket.send_fds(self._socket, [data], list(descriptors))
        return self._socket.send(data)

    def _stop_sending(self) -> None:
        """Discard what is unsent and what will be."""
        self._deaf = True
        while self._unsent:
            for descriptor in self._unsent.popleft()[1]:
                os.close(descriptor)

    def receive(self) -> list[Any]:
        """Return the values that have arrived completely, possibly none. Raises EOFError once the peer has disconnected and all were returned.

        Raises WorkerError for bytes that the other end did not send, or that cannot be unpickled.
        """
        for _ in range(READS):
            if self._over or not self._read():
                break
        values = self._values()
        if self._over and not values:
            raise EOFError
        return values

    def _read(self) -> bool:
        """Read what is in the socket. Returns whether there may be more."""
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into(
                [self._buffer], ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            size, ancillary, flags = 0, [], 0
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "too many files are open to receive those that another process sent")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.descriptors.extend(array("i", data[: len(data) - len(data) % 4]))
        with memoryview(self._buffer) as read:
            self._arrived += read[:size]
        self._over = size == 0
        return size == READ_BYTES or bool(ancillary)

    def _values(self) -> list[Any]:
        values, at = [], 0
        with memoryview(self._arrived) as arrived:
            while (taken := self._framing.take(arrived, at)) is not None:
                pickled, at = taken
                with pickled:
                    values.append(_unpickle(pickled))
        # After the views above are released: a bytearray with views cannot shrink.
        del self._arrived[:at]
        return values

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Block until a value has arrived or the time is over, and return as `receive` does. Writes meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (values := self.receive()) and self._poll(deadline, select.POLLIN):
            self.flush()
        return values

    def drain(self, seconds: float) -> None:
        """Write what is left at the end of a conversation, for at most so many seconds."""
        deadline = time.monotonic() + seconds
        while self._unsent and self._poll(deadline, 0):
            self.flush()

    def _poll(self, deadline: float | None, events: int) -> bool:
        """Wait for these events, and until the socket is writable if there is something to write. Returns False when the time is over."""
        remaining = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        poll = select.poll()
        poll.register(self._socket, events | (select.POLLOUT if self._unsent else 0))
        return bool(poll.poll(None if remaining is None else min(remaining * 1000, LONGEST_POLL)))

    def close(self) -> None:
        """Close the connection and discard unsent messages."""
        self._deaf = self._over = True
        # Otherwise a thread in the middle of `send` could write to a descriptor that meanwhile belongs to another file.
        mine = self._writing.acquire(timeout=1.0)
        self._stop_sending()
        while self.descriptors:
            os.close(self.descriptors.popleft())
        self._socket.close()
        if mine:
            self._writing.release()

    def __del__(self) -> None:
        self._socket.close()


def _unpickle(pickled: memoryview) -> Any:
    try:
        return pickle.loads(pickled)
    except Exception as error:  # unpickling may raise anything; an EOFError would be taken for a disconnected peer
        raise WorkerError(
            f"{len(pickled):,} bytes from another process cannot be read: {error!r}. Make all classes and functions "
            "in them importable in every process."
        ) from error


ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS * array("i").itemsize)


def poll(seconds: float | None, ends: Iterable[tuple[Any, bool]]) -> set[int]:
    """Wait until an end is readable, or writable if its flag says that it has unsent data, or the time is over. Returns the ready descriptors.

    ``select`` is not used, because it cannot handle descriptors from 1024 up.
    """
    waits = select.poll()
    for end, unsent in ends:
        waits.register(end, select.POLLIN | (select.POLLOUT if unsent else 0))
    return {descriptor for descriptor, _ in waits.poll(None if seconds is None else seconds * 1000)}
