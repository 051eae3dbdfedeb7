"""Tests that journal events are on disk before anything acts on them, and that other events cause no flush of their own."""

import os
from pathlib import Path

import pytest

from argosy.protocol.events import Fed, MemberEnded
from argosy.running.directory import journal
from argosy.running.directory.journal import Journal, read_journal

FED = Fed(leg=1, split="train", epoch=0, section=0, samples=64)
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
