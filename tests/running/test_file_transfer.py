"""Tests that files reach other nodes whole, in pieces and in order with messages, and that a lost node is reported once."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from argosy.errors import CheckpointError
from argosy.protocol.events import Checkpoint, Saved
from argosy.protocol.trainer import Assign, Journaled, Lost, SectionReport, StartMember
from argosy.running.hosts import file_transfer, remote_node
from argosy.running.hosts.agent import (
    BLOBS,
    Agent,
    BlobsSent,
    EndWorkers,
    LogText,
    Ready,
    StartWorker,
    WorkerCommand,
    WorkerMessage,
)
from argosy.running.hosts.file_transfer import FilePiece, IncomingFiles, Outbox, read_pieces
from argosy.running.hosts.remote_node import RemoteNode
from argosy.running.launch.processes import Processes
from argosy.stream.wire import Peer


def drained(outbox: Outbox, there: Peer) -> list[Any]:
    """Send all that an outbox holds, and return what arrives."""
    heard = []
    while outbox.unsent:
        outbox.flush()
        heard += there.receive()
    return heard + there.receive()


@pytest.mark.parametrize("size", [0, 1, 2**20, 3 * 2**20 + 5])
def test_a_file_arrives_whole_between_the_words_around_it(tmp_path: Path, size: int) -> None:
    here, there = Peer.pair()
    content, outbox = os.urandom(size), Outbox(here)
    (tmp_path / "there").write_bytes(content)
    outbox.put("before")
    outbox.put_file("members/a/e0001.pt", tmp_path / "there")
    outbox.put("behind")
    heard = drained(outbox, there)
    assert (heard[0], heard[-1]) == ("before", "behind")
    arrivals = IncomingFiles(tmp_path / "run", tmp_path / "run" / "arriving")
    path = tmp_path / "run" / "members" / "a" / "e0001.pt"
    for piece in heard[1:-1]:
        assert not path.exists()
        arrivals.take(piece)
    arrivals.settle()
    assert path.read_bytes() == content
    arrivals.close()
    assert [found.name for found in (tmp_path / "run").iterdir()] == ["members"]


def test_of_a_large_file_hardly_more_than_a_piece_waits_in_memory(tmp_path: Path) -> None:
    here, there = Peer.pair()
    outbox = Outbox(here)
    (tmp_path / "large").write_bytes(bytes(20 * file_transfer.PIECE_BYTES))
    outbox.put_file("large", tmp_path / "large")
    outbox.flush()
    assert sum(len(words) for words, _ in here._unsent) < 2 * file_transfer.PIECE_BYTES
    assert sum(len(piece.data) for piece in drained(outbox, there)) == 20 * file_transfer.PIECE_BYTES


def test_what_never_became_whole_is_forgotten(tmp_path: Path) -> None:
    arrivals = IncomingFiles(tmp_path, tmp_path / "arriving")
    arrivals.take(FilePiece("members/a/e0001.pt", b"half", last=False))
    arrivals.settle()
    arrivals.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"e0001\.pt, which another node needs, is in the journal but does not exist"
    ):
        next(read_pieces("e0001.pt", tmp_path / "e0001.pt"))


def saved(epoch: int) -> Checkpoint:
    """Return the checkpoint that ends an epoch."""
    return Checkpoint(file=f"e{epoch:04d}-s0000000.pt", sha256="", epoch=epoch, section=0, position=0)


def node(tmp_path: Path) -> tuple[RemoteNode, Peer]:
    """Return a node that does not see the run directory, and the connection on which the test plays its agent."""
    here, there = Peer.pair()
    place = RemoteNode("node1", "host-1", here, tmp_path)
    place.send_blobs({}, "mark")
    place.flush_commands()
    there.send(Ready(sees_directory=False))
    assert place.receive() == []
    assert there.receive() == [BlobsSent((), "mark", str(tmp_path), tuple(sys.path))]
    return place, there


def test_reports_come_behind_their_files_and_the_newest_two_stay(tmp_path: Path) -> None:
    place, there = node(tmp_path)
    place.start("node1/cpu:0", "trainer")
    start = StartMember(member="a", epoch=0, stream_epoch=0, checkpoint=None, accumulate=1, notes=())
    place.send("node1/cpu:0", Assign(assignment=1, start=(start,)))
    assert there.receive() == []  # held back until the next round
    place.flush_commands()
    assert [type(word) for word in there.receive()] == [StartWorker, WorkerCommand]
    folder = tmp_path / "members" / "a"
    for epoch in (1, 2, 3):
        file = saved(epoch).file
        there.send(FilePiece(f"members/a/{file}", bytes([epoch]), last=True))
        there.send(WorkerMessage("node1/cpu:0", SectionReport(events=(Saved(member="a", checkpoint=saved(epoch)),))))
        ((worker, _),) = place.receive()
        assert (worker, (folder / file).read_bytes()) == ("node1/cpu:0", bytes([epoch]))
        place.send("node1/cpu:0", Journaled(files={"a": file}))
        place.flush_commands()
        assert (folder / "last.pt").resolve().name == file
    assert {path.name for path in folder.glob("e*.pt")} == {saved(2).file, saved(3).file}


def test_a_member_goes_on_there_from_a_file_that_is_there_before(tmp_path: Path) -> None:
    place, there = node(tmp_path)
    place.start("node1/cpu:0", "trainer")
    (tmp_path / "members" / "a").mkdir(parents=True)
    (tmp_path / "members" / "a" / saved(2).file).write_bytes(b"weights")
    start = StartMember(member="a", epoch=2, stream_epoch=2, checkpoint=saved(2), accumulate=1, notes=())
    place.send("node1/cpu:0", Assign(assignment=1, start=(start,)))
    place.flush_commands()
    heard = there.receive()
    assert heard[1] == FilePiece(f"members/a/{saved(2).file}", b"weights", last=True)
    assert isinstance(heard[2], WorkerCommand)


def test_workers_of_a_node_that_is_gone_are_lost_once_also_those_that_start(tmp_path: Path) -> None:
    place, there = node(tmp_path)
    place.start("node1/feeder-0", "feeder")
    there.close()
    gone = Lost(detail="its node, node1 on host-1, is gone: its connection broke", node_gone=True)
    assert place.receive() == [("node1/feeder-0", gone)]
    assert place.receive() == []
    place.send("node1/feeder-0", "a word")
    place.flush_commands()
    place.start("node1/feeder-1", "feeder")
    assert place.receive() == [("node1/feeder-1", gone)]
    place.close()


def test_a_node_that_says_nothing_for_long_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, there = node(tmp_path)
    place.start("node1/feeder-0", "feeder")
    times = iter(range(1000))
    monkeypatch.setattr(remote_node.time, "monotonic", lambda: 1e6 + next(times))
    polls = 0
    while not (said := place.receive()):
        polls += 1
    assert abs(polls - remote_node.SILENCE_SECONDS) <= 2
    assert "nothing was heard from it for 30 s" in said[0][1].detail
    there.close()


def test_words_for_people_come_home(tmp_path: Path) -> None:
    place, there = node(tmp_path)
    for text in (b"one\n", b"two\n"):
        there.send(LogText("members/a/log.txt", text))
    place.receive()
    assert (tmp_path / "members" / "a" / "log.txt").read_text() == "one\ntwo\n"
    there.close()


def test_blobs_come_before_the_word_that_they_are_there(tmp_path: Path) -> None:
    here, there = Peer.pair()
    descriptor = os.memfd_create("blob")
    os.write(descriptor, b"study")
    place = RemoteNode("node1", "host-1", here, tmp_path)
    place.send_blobs({"trainer": descriptor}, "mark")
    place.flush_commands()
    given = BlobsSent(("trainer",), "mark", str(tmp_path), tuple(sys.path))
    assert there.receive() == [FilePiece(f"{BLOBS}trainer", b"study", last=True), given]
    os.close(descriptor)
    there.close()
    place.close()


def test_an_agent_goes_home_where_the_run_is_over_before_it_was_given_anything(tmp_path: Path) -> None:
    """This happens if the run in the directory has already ended or belongs to another study."""
    here, there = Peer.pair()
    here.send(FilePiece(f"{BLOBS}/trainer", b"half", last=False))
    here.send(EndWorkers())
    assert Agent(there, None, tmp_path).run(Processes()) == 0
