"""How the agents of a job find its driver: rank 0 leaves a notice of its listener that every node of the job can read.

The notice is a file of the run directory that only its user can read, with a key that was drawn for this driver. If the
nodes have no common directory, a key of the user's own (``ARGOSY_KEY``) is used instead, and under ``torchrun`` the
notice, without any key, is in the store that torch keeps for the job. Any client of that store may write into it: a
notice without a key carries a MAC under the user's key, and before that is verified, nothing of the notice is parsed
and none of its addresses is called. The key is never on a command line. If the nodes have a common certificate
(``ARGOSY_CERTIFICATE``), they talk inside TLS.
"""

import contextlib
import datetime
import functools
import hashlib
import hmac
import ipaddress
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil

from argosy.disk.files import check_directory, read_own_text, replacing
from argosy.disk.json_values import convert, parse_json
from argosy.errors import PlanError, RunError, WorkerError
from argosy.running.hosts.place import JobPlace
from argosy.stream.listener import Listener, dial
from argosy.stream.tls import Certificate
from argosy.stream.wire import Peer

__all__ = [
    "Board",
    "Notice",
    "make_board",
    "dial_any_address",
    "connect_to_driver",
    "read_certificate",
    "interface_of",
    "read_key",
    "listener_and_notice",
]

KEY = "ARGOSY_KEY"
"""Environment variable of the user's own key."""
CERTIFICATE = "ARGOSY_CERTIFICATE"
"""Environment variable of the path of the certificate."""
SHORTEST_KEY = 16
"""Fewest characters of a user's own key."""
FEWEST_LETTERS = 8
"""Fewest different characters of a user's own key."""
SCRYPT_COST = 2**15
"""Cost of scrypt; with it, each guess at a user's own key takes 32 MiB and about 0.1 s."""
LONGEST_NOTICE = 2**16
"""Most characters of a notice that are parsed."""
STORE_SECONDS = datetime.timedelta(seconds=5)
"""Time that torch's store may take to answer."""
JOIN_SECONDS = 300.0
"""Most seconds between the starts of a job's processes."""
CALL_SECONDS = 5.0
"""Seconds that an address may take to answer; it need not be the driver's at all."""
QUIET_SECONDS = 10.0
"""Seconds after which an agent says why it has not found the driver yet."""
POLL_SECONDS = 0.2
"""Seconds between two looks for the notice, or two calls."""


def _port(number: int) -> None:
    if not 0 < number < 2**16:
        raise ValueError(f"{number} is not a port")


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """Where the driver of a job can be reached."""

    job: str
    hosts: tuple[Annotated[str, ipaddress.IPv4Address], ...]
    """The driver's addresses, in the order in which to try them."""
    port: Annotated[int, _port]
    key: Annotated[str, bytes.fromhex] = ""
    """The run's key as hexadecimal digits; empty if every node has it in its environment."""
    certificate: str = ""
    """Digest of the certificate that callers must have; empty if nodes talk in plain text."""


def format_notice(notice: Notice, key: bytes | None) -> str:
    """Return the notice as it is stored: JSON, followed by a MAC under the user's own key, if there is one.

    >>> parse_notice(format_notice(Notice(job="1", hosts=("10.0.0.1",), port=4000), b"key"), b"key").hosts
    ('10.0.0.1',)
    """
    text = json.dumps(asdict(notice))
    return text if key is None else f"{text}\n{_mac(text, key)}"


def parse_notice(text: str, key: bytes | None, where: str = "") -> Notice:
    """Parse the text found at `where`.

    Raises WorkerError, and uses nothing, unless the driver wrote it with this key.
    """
    if key is not None:
        text, _, mac = text.rpartition("\n")
        if not hmac.compare_digest(mac.encode(), _mac(text, key).encode()):
            raise WorkerError(
                f"the notice of the job's driver{where} was not written with this process's {KEY}: another "
                f"process wrote or changed it. Set the same {KEY} on all nodes."
            )
    try:
        notice: Notice = convert(parse_json(text[:LONGEST_NOTICE]), Notice, "it")
        return notice
    except ValueError as error:
        raise WorkerError(
            f"the notice of the job's driver{where} cannot be read: {str(error)[:200]}. Start the job again, with "
            "the same version of argosy on all nodes."
        ) from error


def _mac(text: str, key: bytes) -> str:
    return hmac.digest(key, b"notice\0" + text.encode(errors="surrogatepass"), "sha256").hex()


class FileBoard:
    """A notice in a file of the run directory."""

    def __init__(self, directory: Path, key: bytes | None = None) -> None:
        self.path: Path = directory / "driver.json"
        self._key = key
        self._left = ""
        """The text that this process has written."""

    def leave(self, notice: Notice) -> None:
        """Write the file atomically, so that no process reads half of it, with access for this user alone."""
        self._left = format_notice(notice, self._key)
        with replacing(self.path, mode=0o600) as file:
            file.write(self._left.encode())

    def read(self) -> Notice | None:
        """Read the file; returns None if there is none.

        Raises RunError if another user may have written it: the notice decides what code this node executes.
        """
        try:
            check_directory(self.path.parent)
            text = read_own_text(self.path)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunError(
                f"{self.path} is not the notice of a job's driver: {error}. Delete it, and start the job again."
            ) from error
        return parse_notice(text, self._key, f" in {self.path}")

    def clear(self) -> None:
        """Delete the file, unless it is of another job, whose driver uses the directory or waits for its nodes."""
        with contextlib.suppress(OSError, ValueError, RunError):
            if read_own_text(self.path) == self._left:
                self.path.unlink()


class StoreBoard:
    """A notice in torch's store of the job, which any client can read and write."""

    def __init__(self, place: JobPlace, key: bytes, *, keeps: bool) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # a file needs no torch

        assert place.store is not None
        host, port = place.store
        self._name, self._key = f"argosy/{place.job}", key
        # libuv closes descriptors by their numbers in every process that is forked later, whatever those are used for
        # there.
        settings = {"is_master": keeps, "wait_for_workers": False, "use_libuv": False}
        try:
            # torch tries twice.
            self._store: Any = TCPStore(host, port, timeout=datetime.timedelta(seconds=JOIN_SECONDS / 2), **settings)
        except RuntimeError as error:
            raise WorkerError(
                f"rank {place.rank} on {socket.gethostname()} does not {'open' if keeps else 'reach'} torchrun's store at {host} port {port}: "
                f"{error} If this node does not know that name, start torchrun with --local-addr ADDRESS on each node; if there is a "
                "firewall, open it; if the port is in use, pass another --master-port."
            ) from error
        self._store.set_timeout(STORE_SECONDS)

    def leave(self, notice: Notice) -> None:
        """Store the notice, without a key."""
        assert not notice.key
        self._store.set(self._name, format_notice(notice, self._key))

    def read(self) -> Notice | None:
        """Read the notice; None if it or the store is gone."""
        try:
            if not self._store.check([self._name]):
                return None
            content = self._store.get(self._name)
        except RuntimeError:
            return None  # it was deleted between the two calls, or the store is gone
        return parse_notice(content.decode(errors="replace"), self._key)

    def clear(self) -> None:
        """Do nothing: the driver of a restarted job replaces it."""


Board = FileBoard | StoreBoard
"""A place for a notice. `parse_notice` raises WorkerError for a notice that the driver has not written."""


def read_key(environment: Mapping[str, str]) -> bytes | None:
    """Return the user's own key; None if there is none. Raises PlanError for a key that can be guessed."""
    text = environment.get(KEY)
    if text is None:
        return None
    if len(text) < SHORTEST_KEY or len(set(text)) < FEWEST_LETTERS:
        raise PlanError(
            f"{KEY} has {len(text)} characters, {len(set(text))} of them distinct. Anyone who guesses it can run "
            f"code on every node. Use at least {SHORTEST_KEY} characters, {FEWEST_LETTERS} of them distinct, for "
            "example ARGOSY_KEY=$(openssl rand -hex 32)."
        )
    return _derive_key(text.encode(errors="surrogateescape"))


@functools.cache
def _derive_key(text: bytes) -> bytes:
    """Derive the key by scrypt, to make guesses expensive.

    A listener shows each caller a proof of the key, against which guesses can be tested offline.
    """
    return hashlib.scrypt(text, salt=KEY.encode(), n=SCRYPT_COST, r=8, p=1, maxmem=2**26, dklen=32)


def read_certificate(environment: Mapping[str, str]) -> Certificate | None:
    """Return the certificate that the user has given to all nodes; None if there is none.

    Raises PlanError if it is not valid.
    """
    path = environment.get(CERTIFICATE)
    return None if path is None else Certificate.load(Path(path))


def make_board(place: JobPlace, directory: Path, environment: Mapping[str, str]) -> Board:
    """Return the place of the notice of this job's driver."""
    key = read_key(environment)
    if place.store is None or key is None:
        return FileBoard(directory, key)
    # Under some versions of torchrun the first rank has to keep the store.
    keeps = place.rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return StoreBoard(place, key, keeps=keeps)


def _addresses() -> tuple[str, ...]:
    """Return this host's addresses: that of its name first, and the loopback last, for processes of the job on this host."""
    addresses = [one.address for many in psutil.net_if_addrs().values() for one in many if one.family == socket.AF_INET]
    named = ""
    with contextlib.suppress(OSError):
        named = socket.gethostbyname(socket.gethostname())
    return tuple(sorted(addresses, key=lambda address: (address.startswith("127."), address != named)))


def listener_and_notice(
    job: str, key: bytes | None, certificate: Certificate | None, refused: Callable[[str], None]
) -> tuple[Listener, Notice]:
    """Open a driver's listener; returns it and its notice for callers.

    Without a key, one is drawn and put into the notice.
    """
    proof = key or os.urandom(32)
    listener = Listener(proof, refused, seal=None if certificate is None else certificate.called)
    shown_key, digest = "" if key else proof.hex(), "" if certificate is None else certificate.digest
    return listener, Notice(job=job, hosts=_addresses(), port=listener.port, key=shown_key, certificate=digest)


def connect_to_driver(
    place: JobPlace,
    board: Board,
    key: bytes | None,
    *,
    certificate: Certificate | None = None,
    seconds: float = JOIN_SECONDS,
) -> tuple[Peer, bytes]:
    """Return the connection to the driver of this job, and the run's key.

    Raises WorkerError if the driver is not found in time, PlanError if it has another certificate.
    """
    began, told, last = time.monotonic(), False, "it has left no notice."
    advice = f"pass a --dir that all nodes see, or export the same {KEY} on all of them and start with torchrun."
    rank = f"rank {place.rank} on {socket.gethostname()}"
    while True:
        try:
            notice = board.read()
            if notice is not None and notice.job == place.job:
                advice = "open its host's firewall to this node: argosy doctor --cluster. Nodes need IPv4 addresses."
                proof = key or bytes.fromhex(notice.key)
                return dial_any_address(notice, proof, f"rank {place.rank}", certificate), proof
        except WorkerError as error:
            last = str(error)
        waited = time.monotonic() - began
        if waited > QUIET_SECONDS and not told:
            told = True
            print(f"{rank} looks for the job's driver for at most {seconds:g} s: {last}", file=sys.stderr)
        if waited > seconds:
            raise WorkerError(
                f"{rank} did not find the job's driver within {seconds:g} s: "
                f"{last} If rank 0 has ended, fix its error. If not, {advice}"
            )
        time.sleep(POLL_SECONDS)


def dial_any_address(notice: Notice, key: bytes, name: str, certificate: Certificate | None) -> Peer:
    """Dial a driver at its addresses, and return the first connection; raises WorkerError if all fail.

    Raises PlanError if the driver has another certificate.
    """
    seal = None if certificate is None else certificate.calling
    errors: list[WorkerError] = []
    for host in notice.hosts:
        try:
            return dial((host, notice.port), key, name, seconds=CALL_SECONDS, seal=seal)
        except WorkerError as error:
            errors.append(error)
    # An address refuses the call if the driver is gone, or if it is not the driver's, as the loopback on other nodes.
    telling = [error for error in errors if not isinstance(error.__cause__, ConnectionRefusedError)]
    if telling:
        _check_certificate(name, notice, certificate)
    raise (telling or errors)[0]


def _check_certificate(name: str, notice: Notice, certificate: Certificate | None) -> None:
    own = "" if certificate is None else certificate.digest
    if own != notice.certificate:
        mine, its = "another certificate" if own else "no certificate", "one" if notice.certificate else "none"
        raise PlanError(
            f"{name} on {socket.gethostname()} has {mine}, and the job's driver has {its}. For TLS between nodes, "
            f"all need the same one. Set the same {CERTIFICATE} on all of them, or on none."
        )


def interface_of(address: str) -> str:
    """Return the network interface that has an address; raises LookupError if none has."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return str(name)
    raise LookupError(f"no network interface has the address {address}")
