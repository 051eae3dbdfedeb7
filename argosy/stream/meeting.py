"""Where processes of a run that are to exchange tensors find each other: a file of one machine, or the driver's store.

Torch's own store asks for no proof. It is told under a key that nobody can guess who listens at which port, and nothing else.
"""

import datetime
import os
from typing import Any

import psutil
from torch.distributed import FileStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

__all__ = ["FORMING", "NetworkMeetings", "interface_of", "store_at"]

FORMING = datetime.timedelta(seconds=60)
"""Of connecting, which begins when all are there."""
SCHEME = "tcp://"


class NetworkMeetings:
    """The store in the driver's process, which has a meeting for everybody who needs one."""

    def __init__(self, host: str) -> None:
        self.host = host
        """By which other nodes reach this one."""
        # libuv closes descriptors by their numbers in every process that is forked later, whoever has them there.
        self._store: Any = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=FORMING, use_libuv=False)

    def meeting(self) -> str:
        """One that nobody has used yet."""
        return f"{SCHEME}{self.host}:{self._store.port}/{os.urandom(16).hex()}"

    def close(self) -> None:
        """Nobody meets any more."""
        self._store = None


def store_at(meeting: str, size: int) -> Any:
    """The store of a meeting of so many processes; raises RuntimeError where it cannot be reached."""
    if not meeting.startswith(SCHEME):
        return FileStore(meeting, size)
    place, _, key = meeting.removeprefix(SCHEME).partition("/")
    host, _, port = place.rpartition(":")
    return PrefixStore(key, TCPStore(host, int(port), is_master=False, timeout=FORMING))


def interface_of(address: str) -> str:
    """The network interface that has an address; raises LookupError where none has."""
    for name, found in psutil.net_if_addrs().items():
        if any(one.address == address for one in found):
            return str(name)
    raise LookupError(f"no network interface has the address {address}")
