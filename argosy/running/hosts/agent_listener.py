"""The driver's listener for the agents of other nodes, the agents that have called, and the log of refused callers."""

import socket
import time
from pathlib import Path

from argosy.disk.files import make_folder, open_append
from argosy.errors import PlanError, WorkerError
from argosy.running.directory.versions import versions
from argosy.running.hosts.agent import Joined
from argosy.running.hosts.notices import listener_and_notice
from argosy.stream.tls import Certificate
from argosy.stream.wire import Peer

__all__ = ["AgentListener", "check_versions"]

FIRST_WORD_SECONDS = 2.0
"""Seconds that an agent that was let in may take for its first message."""
MOST_REFUSALS = 1000
"""Most lines in ``listener.log``, so that a caller that keeps trying cannot fill the disk."""


class AgentListener:
    """The listener of one run. Its `fileno` is readable when `enter` has something to do."""

    def __init__(self, job: str, key: bytes | None, certificate: Certificate | None) -> None:
        self.joined: dict[int, tuple[Joined, Peer]] = {}
        """Agents that `accept_agents` has let in and that are no part of the run yet, by rank."""
        self._directory: Path | None = None
        self._kept: list[str] = []
        """Lines for ``listener.log`` while there is no run directory."""
        self._refusals = 0
        self._listener, self.notice = listener_and_notice(job, key, certificate, self.log_refusal)

    def write_log_to(self, directory: Path) -> None:
        """Write ``workers/listener.log`` in this run directory, beginning with the lines noted before."""
        make_folder(directory / "workers")
        self._directory, kept, self._kept = directory, self._kept, []
        for line in kept:
            self._write(line)

    def log_refusal(self, refusal: str) -> None:
        """Log a refused caller."""
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            self._write(f"{time.strftime('%F %T')} {refusal}\n")

    def fileno(self) -> int:
        """Descriptor for selectors."""
        return self._listener.fileno()

    def accept_agents(self, seconds: float) -> None:
        """Let in the agents that call within so many seconds; raises PlanError for one with other versions than the driver."""
        self._listener.wait(seconds)
        for joined, peer in self.enter():
            check_versions(joined)
            self.joined[joined.rank] = joined, peer

    def hand_over(self) -> list[tuple[Joined, Peer]]:
        """Return the agents that were let in, by rank; the caller closes their connections."""
        joined, self.joined = self.joined, {}
        return [joined[rank] for rank in sorted(joined)]

    def enter(self) -> list[tuple[Joined, Peer]]:
        """Return the agents that have called, each with its first message, waiting a moment for those that delay it."""
        return [(joined, peer) for name, peer in self._listener.accept() for joined in self._first_message(name, peer)]

    def close(self) -> None:
        """Accept no more callers, and hang up on the agents that were not handed over."""
        for _, peer in self.hand_over():
            peer.close()
        self._listener.close()

    def _first_message(self, name: str, peer: Peer) -> list[Joined]:
        """Return the caller's first message; empty if the caller is gone or sends none in time."""
        try:
            return peer.wait(FIRST_WORD_SECONDS)
        except EOFError:
            return []
        except WorkerError as error:
            self.log_refusal(f"{name}: {error}")
            peer.close()
            return []

    def _write(self, line: str) -> None:
        if self._directory is None:
            self._kept.append(line)
            return
        with open_append(self._directory / "workers" / "listener.log") as log:
            log.write(line.encode())


def check_versions(joined: Joined) -> None:
    """Raise PlanError if a node has other versions of software than the driver."""
    own = versions()
    unlike = [name for name in own if own[name] != joined.versions.get(name)]
    if unlike:
        agent_versions, own_versions = (", ".join(f"{n} {v.get(n)}" for n in unlike) for v in (joined.versions, own))
        raise PlanError(
            f"the agent on {joined.host} has {agent_versions}, but the driver on {socket.gethostname()} has {own_versions}, so "
            "results would depend on which node trains which member. Use the same environment on all nodes."
        )
