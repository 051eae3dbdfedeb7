"""``argosy doctor --cluster``: the nodes of a job test each other before a study is trained on them.

Contract. The nodes find each other like those of a run (`argosy.running.hosts.notices`), but in a separate folder, so
a job that starts in the run directory meanwhile is not disturbed. Each node has a listener with the same key. One
thread (`_Desk`) answers its callers, and only this thread uses those connections. A node calls all others at the same time, each
call in its own thread, and in one of these measures the bandwidth to the next node by rank. Rank 0 sends the list of nodes,
receives their findings, and judges them (`argosy.running.doctor.cluster_checks`); the others end when it closes the connection.
Every wait has a timeout.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from pathlib import Path

from argosy.errors import ArgosyError, PlanError, WorkerError
from argosy.running.directory.lock import make_own_directory
from argosy.running.directory.studyfile import load_study
from argosy.running.directory.versions import versions
from argosy.running.doctor.checks import Check
from argosy.running.doctor.cluster_checks import Findings, MeasuredLink, NodeInfo, Samples, judge_cluster
from argosy.running.hosts.notices import connect_to_driver, listener_and_notice, make_board, read_certificate, read_key
from argosy.running.hosts.place import JobPlace, find_job_place
from argosy.stream.listener import Listener, dial
from argosy.stream.tls import Certificate
from argosy.stream.wire import Peer

__all__ = ["examine_other_node", "examine_cluster", "require_job_place"]

JOIN_SECONDS = 6.0
"""Longest time between the starts of the nodes."""
CALL_SECONDS = 1.5
"""Timeout for a node to accept a call."""
ANSWER_SECONDS = 3.0
"""Timeout for what a node answers on a connection."""
END_SECONDS = 60.0
"""Silence after which rank 0, or a node that opens the study's data, counts as gone."""
FLOOD_SECONDS = 0.3
"""Time in which a link is filled with data, to measure its bandwidth."""
PIECE = bytes(2**16)
"""A message of the measurement of bandwidth."""
ASKS = 5
"""Number of clock queries per call; the quickest answer gives the best estimate."""
MOST_CALLS = 32
"""Largest number of simultaneous calls of one node."""
TICK_SECONDS = 0.1
"""Longest time that a listener waits for calls before it checks whether it has to end."""
CLOCK = "clock?"
"""Message that asks for the time of the other clock."""


def require_job_place(environment: Mapping[str, str]) -> JobPlace:
    """Return the place of this process in its job; raises PlanError if no launcher started it together with others."""
    place = find_job_place(environment)
    if place is None:
        raise PlanError(
            "doctor --cluster checks the nodes of a job of several processes, but no variable of srun, mpirun or "
            "torchrun shows that this is one. Start it with a launcher, for example srun argosy doctor --cluster."
        )
    return place


def examine_cluster(place: JobPlace, directory: Path, study_file: Path | None) -> list[Check]:
    """Run rank 0 of the job and return all checks of its nodes; leaves nothing in the directory."""
    refusals: list[str] = []
    certificate = read_certificate(os.environ)
    with _folder(directory) as folder, contextlib.ExitStack() as last_first:
        board = make_board(place, folder, os.environ)
        last_first.callback(board.clear)
        listener, notice = listener_and_notice(place.job, read_key(os.environ), certificate, refusals.append)
        last_first.callback(listener.close)
        board.leave(notice)
        desk = last_first.enter_context(_Desk(listener.key, certificate))
        joined = _gather(listener, place.nodes)
        peers = {here.rank: peer for here, peer in joined}
        for peer in peers.values():
            last_first.callback(peer.close)
        address = next((peer.host for peer in peers.values()), "127.0.0.1")
        nodes = [desk.here(place.rank, address), *(here for here, _ in joined)]
        for peer in peers.values():
            peer.send(nodes)
        began = time.monotonic()
        findings = {place.rank: desk.examine(nodes[0], nodes, study_file)}
        # They open the study's data as well, and may import its packages for the first time.
        seconds = max(time.monotonic() - began, END_SECONDS)
        findings |= _collect(peers, time.monotonic() + seconds + ANSWER_SECONDS)
    return judge_cluster(nodes, place.nodes, findings, refusals)


def examine_other_node(place: JobPlace, directory: Path, study_file: Path | None) -> int:
    """Run a process of another rank, and return its exit code."""
    if place.local_rank:
        return 0
    certificate = read_certificate(os.environ)
    board = make_board(place, _folder_of(directory), os.environ)
    peer, key = connect_to_driver(place, board, read_key(os.environ), certificate=certificate, seconds=JOIN_SECONDS)
    with contextlib.closing(peer), _Desk(key, certificate) as desk:
        here = desk.here(place.rank, peer.host)
        peer.send(here)
        try:
            (nodes,) = peer.wait(END_SECONDS)
        except (EOFError, ValueError):
            print(f"rank {place.rank}: rank 0 is gone.", file=sys.stderr)
            return 1
        peer.send(desk.examine(here, nodes, study_file))
        with contextlib.suppress(EOFError):  # answer other nodes until rank 0 closes the connection
            peer.wait(END_SECONDS)
        return 0


class _Desk:
    """A node's listener, with a thread that answers callers until exit, and its calls to other nodes."""

    def __init__(self, key: bytes, certificate: Certificate | None) -> None:
        self._key = key
        self._calling = None if certificate is None else certificate.calling
        called = None if certificate is None else certificate.called
        self._listener = Listener(key, lambda refusal: None, seal=called)
        self._over = threading.Event()
        serve = partial(self._listener.serve, self._over, _answer_caller)
        self._thread = threading.Thread(target=serve, name="argosy-desk", daemon=True)

    def __enter__(self) -> "_Desk":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def here(self, rank: int, address: str) -> NodeInfo:
        """Return the description of this node."""
        port, host = self._listener.port, socket.gethostname()
        return NodeInfo(rank=rank, host=host, address=address, port=port, versions=versions())

    def examine(self, here: NodeInfo, nodes: Sequence[NodeInfo], study_file: Path | None) -> Findings:
        """Call the other nodes, open the study's data, and return the findings."""
        others = [node for node in nodes if node.rank != here.rank]
        later = [node for node in nodes if node.rank > here.rank]
        flooded = next(iter(later or others), None)
        with ThreadPoolExecutor(MOST_CALLS) as threads:
            links = list(threads.map(partial(self._call, here), others, [node is flooded for node in others]))
        return Findings(links=links, samples=None if study_file is None else _samples(study_file))

    def _call(self, here: NodeInfo, there: NodeInfo, floods: bool) -> MeasuredLink:
        name = f"rank {here.rank}"
        try:
            address = there.address, there.port
            with contextlib.closing(dial(address, self._key, name, seconds=CALL_SECONDS, seal=self._calling)) as peer:
                within, ahead = min((_compare_clocks(peer) for _ in range(ASKS)), key=itemgetter(0))
                rate = _measure_bandwidth(peer) if floods else None
        except (WorkerError, OSError, EOFError) as error:
            return MeasuredLink(to=there.rank, problem=str(error.__cause__ or error) or "the connection was closed")
        return MeasuredLink(to=there.rank, ahead_seconds=ahead, within_seconds=within, bytes_per_second=rate)


def _answer_caller(peer: Peer) -> bool:
    """Answer a caller that asks for the time; return False once it has closed the connection."""
    try:
        for message in peer.receive():
            if message == CLOCK:
                peer.send(_now())
    except (EOFError, WorkerError):
        peer.close()
        return False
    return True


def _compare_clocks(peer: Peer) -> tuple[float, float]:
    """Return the error bound, and how far the other clock is ahead, both in seconds."""
    sent = _now()
    remote_time = _ask(peer)
    answered = _now()
    return (answered - sent) / 2, remote_time - (sent + answered) / 2


def _ask(peer: Peer) -> float:
    peer.send(CLOCK)
    for time_there in peer.wait(ANSWER_SECONDS):
        return float(time_there)
    raise TimeoutError(f"it accepted the call, but did not answer within {ANSWER_SECONDS:g} s")


def _measure_bandwidth(peer: Peer) -> float:
    """Return the bandwidth to another node in bytes per second."""
    sent, began = 0, time.perf_counter()
    while time.perf_counter() - began < FLOOD_SECONDS:
        peer.send(PIECE)
        peer.drain(ANSWER_SECONDS)
        sent += len(PIECE)
    _ask(peer)  # the answer arrives after the other node has received everything
    return sent / (time.perf_counter() - began)


def _gather(listener: Listener, size: int) -> list[tuple[NodeInfo, Peer]]:
    """Return the other nodes that call in time, sorted by rank."""
    joined: dict[int, tuple[NodeInfo, Peer]] = {}
    deadline = time.monotonic() + JOIN_SECONDS
    while len(joined) < size - 1 and (left := deadline - time.monotonic()) > 0:
        listener.wait(min(left, TICK_SECONDS))
        for _, peer in listener.accept():
            with contextlib.suppress(EOFError, WorkerError):
                for here in peer.wait(ANSWER_SECONDS):
                    joined[here.rank] = here, peer
    return [joined[rank] for rank in sorted(joined)]


def _collect(peers: Mapping[int, Peer], deadline: float) -> dict[int, Findings]:
    """Return the findings that other nodes report in time, by rank."""
    by_rank: dict[int, Findings] = {}
    for rank, peer in peers.items():
        with contextlib.suppress(EOFError):
            for findings in peer.wait(max(deadline - time.monotonic(), 0.0)):
                by_rank[rank] = findings
    return by_rank


def _samples(study_file: Path) -> Samples:
    """Open the study's data on this node, and return facts about it."""
    from argosy.stream.opening import open_sources  # imports torch

    try:
        study = load_study(study_file)
        sources = open_sources(study.data, seed=study.seed)
    except ArgosyError as error:
        return Samples(lengths={}, fingerprints={}, problem=str(error))
    return Samples(
        lengths={split: source.length for split, source in sources.items()},
        fingerprints={split: source.identity for split, source in sources.items()},
    )


def _now() -> float:
    return time.time()


def _folder_of(directory: Path) -> Path:
    """Return the folder through which the nodes find rank 0."""
    return directory / "doctor"


@contextlib.contextmanager
def _folder(directory: Path) -> Iterator[Path]:
    """Create that folder, accessible to this user only, and finally remove all folders that were created."""
    folder = _folder_of(directory)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    make_own_directory(directory)
    make_own_directory(folder)
    try:
        yield folder
    finally:
        for path in missing:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()
