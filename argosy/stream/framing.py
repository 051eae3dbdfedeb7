"""Framing of values on a connection: length and bytes, and between nodes a MAC over each of these.

Contract. A receiver unpickles only what its framing has extracted from the bytes that arrived. `Plain` trusts the transport:
the kernel of one machine, or TLS. `Authenticated` trusts only its two keys, one for each direction, which belong
to one connection. It refuses frames that were injected, changed, dropped, repeated, reordered or sent back before anything
is read from them, and checks a length before it buffers anything for it.
"""

import hashlib
import hmac
import struct

from argosy.errors import WorkerError

__all__ = ["Authenticated", "Framing", "Plain"]

MAX_VALUE_BYTES = 2**30
"""Most bytes of one value."""
LENGTH = struct.Struct("<Q")
MAC_BYTES = 16
HEADER_BYTES = LENGTH.size + MAC_BYTES
"""Bytes before an authenticated value."""
OF_LENGTH, OF_VALUE = b"length", b"value"
"""Labels included in the MACs of length and value, so that one is never accepted for the other."""


class Plain:
    """Framing for connections that no other user can reach: no MACs."""

    def pack(self, value: bytes) -> bytes:
        """Return the frame of the next value to send: the length and the value."""
        return LENGTH.pack(len(value)) + value

    def take(self, arrived: memoryview, at: int) -> tuple[memoryview, int] | None:
        """Return the value of the frame that begins at `at`, and the start of the next frame; None while it is incomplete.

        Raises WorkerError for bytes that the other end did not send.
        """
        start = at + LENGTH.size
        if len(arrived) < start:
            return None
        end = start + _length(arrived, at)
        return (arrived[start:end], end) if end <= len(arrived) else None


class Authenticated:
    """Framing for connections that other processes may read, cut and write to.

    The MAC is keyed BLAKE2b (RFC 7693). Its salt is the number of the frame in its direction.
    """

    def __init__(self, *, sends: bytes, receives: bytes) -> None:
        self._sends = sends
        self._receives = receives
        self._sent = self._received = 0

    def pack(self, value: bytes) -> bytes:
        """Return the length and the value, each followed by its MAC."""
        length, number = LENGTH.pack(len(value)), self._sent
        self._sent += 1
        macs = _mac(self._sends, number, OF_LENGTH, length), _mac(self._sends, number, OF_VALUE, value)
        return b"".join((length, macs[0], value, macs[1]))

    def take(self, arrived: memoryview, at: int) -> tuple[memoryview, int] | None:
        """Return what `Plain.take` returns. The MAC of the length is checked before waiting for the value."""
        proved, start = at + LENGTH.size, at + HEADER_BYTES
        if len(arrived) < start:
            return None
        # Before the length is used: an injected one could let this process wait for a gigabyte.
        self._compare(OF_LENGTH, arrived[at:proved], arrived[proved:start])
        end = start + _length(arrived, at)
        if len(arrived) < end + MAC_BYTES:
            return None
        value = arrived[start:end]
        self._compare(OF_VALUE, value, arrived[end : end + MAC_BYTES])
        self._received += 1
        return value, end + MAC_BYTES

    def _compare(self, part: bytes, data: memoryview, mac: memoryview) -> None:
        if not hmac.compare_digest(_mac(self._receives, self._received, part, data), mac):
            raise WorkerError(
                f"frame {self._received} of a connection between nodes does not come from the other node: it was "
                "injected, changed, repeated or lost on the way. Check what is between the nodes, or use TLS "
                "(ARGOSY_CERTIFICATE), and run the same command again."
            )


Framing = Plain | Authenticated
"""Framing of both directions of one connection."""


def _length(arrived: memoryview, at: int) -> int:
    size: int = LENGTH.unpack_from(arrived, at)[0]
    if size > MAX_VALUE_BYTES:
        raise WorkerError(
            f"another process announced a message of {size:,} bytes; at most {MAX_VALUE_BYTES:,} are possible. Run the "
            "same command again."
        )
    return size


def _mac(key: bytes, number: int, part: bytes, data: bytes | memoryview) -> bytes:
    salt = number.to_bytes(hashlib.blake2b.SALT_SIZE, "little")
    return hashlib.blake2b(data, key=key, salt=salt, person=part, digest_size=MAC_BYTES).digest()
