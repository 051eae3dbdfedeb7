"""Where the agents of other nodes come in: the driver's listener to the network, and the log of who is refused there."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

from argosy.disk.files import appending, make_folder
from argosy.errors import PlanError, WorkerError
from argosy.running.directory.records import versions
from argosy.running.hosts.agent import Joined
from argosy.stream.listener import Listener
from argosy.stream.wire import Peer

__all__ = ["AgentListener", "check_versions"]

FIRST_WORD_SECONDS = 2.0
MOST_REFUSALS = 1000
"""Lines of ``listener.log``: whoever knocks all day long is not to fill the disk."""


class AgentListener:
    """Of one run. Its `fileno` is readable when `enter` has something to do."""

    def __init__(self, opens: Callable[[Callable[[str], None]], Listener]) -> None:
        self._directory: Path | None = None
        self._kept: list[str] = []
        """Lines of ``listener.log`` before there is one."""
        self._refusals = 0
        self._listener = opens(self.note)
        """Which is given whom to tell of those that it refuses."""

    def log_in(self, directory: Path) -> None:
        """Write ``workers/listener.log`` of this run directory, with all that was noted before."""
        make_folder(directory / "workers")
        self._directory, kept, self._kept = directory, self._kept, []
        for line in kept:
            self._write(line)

    def note(self, refusal: str) -> None:
        """Somebody was refused."""
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            self._write(f"{time.strftime('%F %T')} {refusal}\n")

    def fileno(self) -> int:
        """For selectors."""
        return self._listener.fileno()

    def wait(self, seconds: float) -> None:
        """Until `enter` has something to do, or the time is over."""
        self._listener.wait(seconds)

    def enter(self) -> list[tuple[Joined, Peer]]:
        """Agents that have called, with their first word: they say it at once, and one that does not is waited for a moment."""
        return [(joined, peer) for name, peer in self._listener.enter() for joined in self._first_word(name, peer)]

    def close(self) -> None:
        """No more callers."""
        self._listener.close()

    def _first_word(self, name: str, peer: Peer) -> list[Joined]:
        """Empty where it has gone, or does not say it in time."""
        try:
            return peer.wait(FIRST_WORD_SECONDS)
        except EOFError:
            return []
        except WorkerError as error:
            self.note(f"{name}: {error}")
            peer.close()
            return []

    def _write(self, line: str) -> None:
        if self._directory is None:
            self._kept.append(line)
            return
        with appending(self._directory / "workers" / "listener.log") as log:
            log.write(line.encode())


def check_versions(joined: Joined) -> None:
    """Raise PlanError where a node has another environment than the driver."""
    own = versions()
    unlike = [name for name in own if own[name] != joined.versions.get(name)]
    if unlike:
        there, here = (", ".join(f"{n} {v.get(n)}" for n in unlike) for v in (joined.versions, own))
        raise PlanError(
            f"the agent on {joined.host} has {there}, and the driver on {socket.gethostname()} has {here}; results would "
            "depend on who trains what. Let all nodes use the same environment."
        )
