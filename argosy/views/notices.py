"""Notices that are shown at once and stay visible, such as a failed member or a lost worker.

Only the first few of each kind are shown.
"""

from pathlib import Path
from typing import Any

from argosy.errors.wording import cause_of
from argosy.protocol.events import Divided, MemberEnded, MemberStarted, NodeCame, SharingChosen, Skipped, WorkerLost
from argosy.protocol.packs import FellBack
from argosy.results.fold import FAILED_STATUSES

__all__ = ["Notices", "format_lost_worker"]

MOST_NOTICES = 3
"""Largest number of notices of a kind; the screen, the lines and the report count the rest."""
LAST_LINES = 4
"""Number of lines shown of a failed member's traceback."""


class Notices:
    """The notices of one run."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._noted: set[str] = set()
        """Notes shown already: members start again after every regrouping."""

    def of(self, message: Any, directory: Path) -> list[tuple[str, str]]:
        """Return (text, style) of the notices for a message."""
        if isinstance(message, MemberEnded) and message.status in FAILED_STATUSES:
            return self._first(message.status, _failure(message, directory), "red")
        if isinstance(message, WorkerLost):
            return self._first("lost", format_lost_worker(message.worker, message.detail), "yellow")
        if isinstance(message, Divided):
            divided = f"{message.member} needs more memory than its device has: each of its batches is divided into {message.accumulate} micro-batches"
            advice = "What depends on several samples, such as BatchNorm, knows only those of one. To avoid this, lower its batch_size."
            return self._first("divided", f"{divided}. {advice}", "yellow")
        if isinstance(message, Skipped):
            where = f"sample {message.index} ({message.split}) is left out"
            return self._first("skipped", f"{where}: {cause_of(message.error)}", "yellow")
        if isinstance(message, FellBack):
            return self._first("fallback", message.words, "yellow")
        if isinstance(message, NodeCame):
            return [(f"{message.node} has joined: {len(message.devices)} more devices", "")]
        if isinstance(message, MemberStarted):
            new = {f"{message.member}: {note}" for note in message.notes} - self._noted
            self._noted |= new
            return [notice for note in sorted(new) for notice in self._first("note", note, "yellow")]
        if isinstance(message, SharingChosen) and message.reason != "one node":
            return [(f"Nodes share the stream: {message.sharing} ({message.reason})", "")]
        return []

    def _first(self, kind: str, text: str, style: str) -> list[tuple[str, str]]:
        self._told[kind] = self._told.get(kind, 0) + 1
        return [(text, style)] if self._told[kind] <= MOST_NOTICES else []


def format_lost_worker(worker: str, detail: str) -> str:
    """Return the consequence of a lost worker: a trainer has members, a feeder has none."""
    feeds = worker.rpartition("/")[2].startswith("feeder")
    return f"{worker} is lost: {detail}" + ("" if feeds else "; its members continue from their checkpoints")


def _failure(ended: MemberEnded, directory: Path) -> str:
    *lines, last = ended.reason.strip().split("\n")
    log = directory / "members" / ended.member / "log.txt"
    return "\n".join([f"{ended.member} {ended.status}: {last}", *lines[-LAST_LINES:], f"log: {log}"])
