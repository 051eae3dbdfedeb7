"""TLS for connections between nodes: one private key and its certificate, which only the nodes of a job have.

Both ends present the certificate and accept no other, compared byte for byte: not even another of the same authority, though the file
may contain the authority's too. So a relay between two nodes has nothing to present to either. The listener's own
authentication (`argosy.stream.listener`) follows inside TLS.
"""

import contextlib
import hashlib
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.errors import PlanError

__all__ = ["Certificate"]

RECORD_BYTES = 2**14
"""Most bytes of one TLS record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """The certificate of a job's nodes."""

    digest: str
    """SHA-256 of the file, which identifies it."""
    _calling: ssl.SSLContext
    _called: ssl.SSLContext

    @classmethod
    def load(cls, path: Path) -> "Certificate":
        """Load a PEM file with the private key and the certificate. Raises PlanError if it is none, or is not valid at present."""
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            sides = [_context(path, side) for side in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)]
            _shake_hands(*sides)
        except (OSError, ValueError) as error:
            problem = "it is not one, or it has a password"
            if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
                problem = str(error.strerror)
            if isinstance(error, ssl.SSLCertVerificationError):
                problem = f"{error.verify_message}, by the clock of {socket.gethostname()}"
            raise PlanError(
                f"{path} cannot be used as a private key with its certificate: {problem}. Make one with openssl req -x509 -nodes "
                f"-newkey rsa:3072 -days 365 -subj /CN=argosy -keyout {path} -out {path}, and copy it to all nodes."
            ) from error
        return cls(digest=digest, _calling=sides[0], _called=sides[1])

    def calling(self, connection: socket.socket) -> socket.socket:
        """Return the caller's end of a connection, inside TLS. The handshake happens at the first send or receive."""
        return self._calling.wrap_socket(connection, do_handshake_on_connect=False)

    def called(self, connection: socket.socket) -> socket.socket:
        """Return the called end of a connection, inside TLS."""
        return self._called.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)


class _Context(ssl.SSLContext):
    """TLS context of one side of the calls."""

    leaf: bytes
    """The certificate that both sides present, as DER."""


def _context(path: Path, side: int) -> ssl.SSLContext:
    context = _Context(side)
    context.sslsocket_class = _Sealed
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a node has many names; only the certificate counts
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # trust the certificate itself, not its issuer
    context.load_cert_chain(path, password="")
    context.leaf = _leaf(path)
    context.load_verify_locations(cadata=context.leaf)  # not the rest of a chain, to trust no other certificate
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # callers never resume sessions
    return context


def _shake_hands(calling: ssl.SSLContext, called: ssl.SSLContext) -> None:
    """Connect the two sides in memory; raises SSLError if they do not accept each other, as with an expired certificate."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller, answering = calling.wrap_bio(back, there), called.wrap_bio(there, back, server_side=True)
    for end in (caller, answering, caller, answering):  # the called side verifies last
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()


def _leaf(path: Path) -> bytes:
    """Return the first certificate in a file, which is the one presented."""
    _, begin, rest = path.read_text().partition(ssl.PEM_HEADER)
    inside, end, _ = rest.partition(ssl.PEM_FOOTER)
    return ssl.PEM_cert_to_DER_cert(begin + inside + end)


class _Sealed(ssl.SSLSocket):
    """TLS socket that raises BlockingIOError instead of waiting, and buffers nothing that a poll cannot see."""

    _known = False
    """Whether the other end has presented the certificate."""

    def _meet(self) -> None:
        """Perform the handshake, and compare the other end's certificate with the job's."""
        if self._known:
            return
        self.do_handshake()
        assert isinstance(self.context, _Context)
        if self.getpeercert(binary_form=True) != self.context.leaf:
            raise ConnectionAbortedError("it shows a different one")
        self._known = True

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as `socket.socket.send` does, after the handshake."""
        try:
            self._meet()
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Receive as `socket.socket.recv` does, after the handshake."""
        try:
            self._meet()
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def recvmsg_into(self, buffers: Iterable[Any], *_: int) -> tuple[int, list[Any], int, Any]:  # type: ignore[override]
        """Receive as many whole records as are available. Receives no descriptors."""
        (buffer,), size = buffers, 0
        with memoryview(buffer) as room:
            while len(room) - size >= RECORD_BYTES:
                try:
                    read = self.recv_into(room[size:])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                    if not size:
                        raise BlockingIOError from error
                    break
                if not read:
                    break
                size += read
        return size, [], 0, None
