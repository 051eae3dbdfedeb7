"""Tests that journal events are on disk before anything acts on them, and that other events cause no flush of their own."""

import os
import time
from pathlib import Path

import pytest
import studies

import argosy
from argosy.errors import DiskError
from argosy.protocol.events import Fed, MemberEnded, RunStarted, WorkerLost
from argosy.running.directory import journal
from argosy.running.directory.journal import Journal, read_journal, timeline

FED = Fed(leg=1, split="train", epoch=0, section=0, samples=64)
STARTED = RunStarted(host="", pid=1, versions={}, settings={}, lengths={"train": 64})
ENDED = MemberEnded(member="a", status="done", reason="")


def test_notes_are_flushed_with_the_next_event_that_is_acted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fdatasync", flushed.append)
    monkeypatch.setattr(journal, "NOTE_SECONDS", 1000.0)
    with Journal(tmp_path / "journal.jsonl") as record:
        record.append(FED)
        record.commit_due()
        assert not flushed
        assert read_journal(tmp_path) == []
        record.append(ENDED)
        record.commit_due()
        assert len(flushed) == 1
        assert read_journal(tmp_path) == [FED, ENDED]


def test_notes_do_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "NOTE_SECONDS", 0.0)
    with Journal(tmp_path / "journal.jsonl") as record:
        record.append(FED)
        record.commit_due()
    assert read_journal(tmp_path) == [FED]


@pytest.mark.parametrize("change", [3600.0, -3600.0])
def test_a_clock_that_is_set_changes_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float
) -> None:
    with Journal(tmp_path / "journal.jsonl") as record:
        record.append(STARTED)
        monkeypatch.setattr(time, "time", lambda there=time.time: there() + change)
        time.sleep(0.01)
        record.append(ENDED)
        record.commit()
    seconds = [seconds for seconds, _ in timeline(tmp_path)]
    assert 0 < seconds[1] < 10


def test_a_run_that_has_nothing_to_do_is_not_changed(tmp_path: Path) -> None:
    study = studies.study(60, fleet=[studies.member()], epochs=1)
    argosy.train(study, directory=tmp_path, launcher="inline")
    os.utime(tmp_path / "journal.jsonl", (0, 0))
    argosy.train(study, directory=tmp_path, launcher="inline")
    assert (tmp_path / "journal.jsonl").stat().st_mtime == 0  # `argosy runs` lists runs by it


def test_events_that_are_read_share_their_repeated_names(tmp_path: Path) -> None:
    """A journal of many sections repeats the names of members and devices in each line, and each copy would be kept."""
    with Journal(tmp_path / "journal.jsonl") as record:
        for _ in range(2):
            record.append(WorkerLost(worker="node-1 cpu:0", detail=""))
        record.commit()
    first, second = read_journal(tmp_path)
    assert isinstance(first, WorkerLost) and isinstance(second, WorkerLost)
    assert first.worker is second.worker


def test_a_journal_that_is_removed_or_replaced_takes_no_more_events(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as record:
        record.append(STARTED)
        record.commit()
        lines = path.read_bytes()
        path.unlink()
        record.append(ENDED)
        with pytest.raises(DiskError, match=r"journal.jsonl'\. It was removed: restore it"):
            record.commit()
        path.write_bytes(2 * lines)
        with pytest.raises(DiskError, match="Another file has taken its name"):
            record.commit()
    assert path.read_bytes() == 2 * lines
